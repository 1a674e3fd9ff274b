"""Parts that the comparisons of π0, π0.5 and π0-FAST share: `peer` needs LeRobot, `own` needs kata.

Neither side has options for the sizes of PaliGemma and its expert. Both are patched to the same
tiny ones. Weights are those of `pi_weight`, under LeRobot's names on both sides.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import tiny_fast
import tiny_gemma
import torch
from numbers_of import drawn, tensor, weight
from real_time_cases import CHUNK, own_chunks, peer_chunks
from sides import (
    BATCH_SIZE,
    files_folder,
    own_actions,
    own_gradients,
    own_loss,
    peer_actions,
    with_actions,
)
from torch import Tensor

ACT_STEPS = 5
STATE, TOP, WRIST = "observation.state", "observation.images.top", "observation.images.wrist"
TOKENS, MASK = "observation.language.tokens", "observation.language.attention_mask"

VOCABULARY = 320
VOCABULARIES = {"pi0_fast": 440}
"""Sizes of the vocabulary, where it has room for action tokens."""
LAYERS = 3
WIDTHS = {"gemma_2b": (64, 96), "gemma_300m": (32, 48)}
"""Widths of layers and of their perceptrons."""
HEAD_DIM = 16
VISION = {"width": 32, "mlp": 48, "layers": 2, "heads": 2, "image": 28, "patch": 14}

TINY: dict[str, Any] = {
    "chunk_size": 5,
    "n_action_steps": 3,
    "max_state_dim": 7,
    "max_action_dim": 6,
    "image_resolution": (28, 28),
    "num_inference_steps": 4,
    "tokenizer_max_length": 12,
}
BOTH = {STATE: (5,), TOP: (3, 20, 33), WRIST: (3, 28, 28)}
SHARES = (0.15, 0.55, 0.97)
"""Uniform numbers that the times follow from."""


@dataclass(frozen=True)
class Case:
    """Input shapes by key, options, keys that batches lack, and lengths of the sentences."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: BOTH)
    action_dim: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    words: tuple[int, ...] = (12, 6, 3)
    max_length: int = 12
    is_continued: bool = False
    """Chunks that continue others are compared, too."""

    @property
    def config(self) -> dict[str, Any]:
        return {**TINY, "tokenizer_max_length": self.max_length, **self.options}


EXPERT_ONLY = {"train_expert_only": True}
RELATIVE = {
    # LeRobot adds the state of each step, kata that at which a chunk was predicted: they are the
    # same where each step predicts.
    "n_action_steps": 1,
    "use_relative_actions": True,
    "relative_exclude_joints": ["grip"],
    "action_feature_names": ["base", "arm", "Gripper", "wrist"],
}
"""Actions relative to the state, but for one."""

GOLDEN: dict[str, Case] = {
    "default": Case(),
    "expert_only": Case(options=EXPERT_ONLY),
    "frozen_vision": Case(options={"freeze_vision_encoder": True}, words=(12, 12, 12)),
    "missing_camera": Case(absent=(WRIST,), options={"empty_cameras": 1}),
    "short_sentences": Case(words=(1, 2, 1), options={**EXPERT_ONLY, "n_action_steps": 5}),
    "one_camera": Case({STATE: (7,), TOP: (3, 28, 28)}, 6, {"num_inference_steps": 10}),
    "continued": Case(options={**EXPERT_ONLY, "chunk_size": CHUNK}, is_continued=True),
}

LIVE: dict[str, Case] = {
    **GOLDEN,
    "wide_expert": Case(options={"action_expert_variant": "gemma_2b"}),
    "larger_images": Case(options={"image_resolution": (42, 42)}),
    "other_times": Case(
        options={
            "time_sampling_beta_alpha": 2.5,
            "time_sampling_scale": 0.9,
            "min_period": 1e-2,
            "max_period": 2.0,
        }
    ),
    "recomputed": Case(options={"gradient_checkpointing": True}),
    "missing_first_camera": Case(dict(reversed(BOTH.items())), 1, absent=(TOP,)),
    "long_padding": Case(max_length=48, words=(30, 1, 48)),
}


def pi_weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight called `name`. Gemma's norms scale by one more than their weight."""
    is_gemma = "language_model" in name or "gemma_expert" in name
    one_less = is_gemma and len(shape) == 1 and name.endswith("norm.weight")
    return weight(name, shape) - float(one_less)


def observation(case: Case, step: int) -> dict[str, Tensor]:
    """Cameras in [0, 1], and a state."""
    seen: dict[str, Tensor] = {}
    for key, shape in case.inputs.items():
        values = tensor(f"{key} {step}", (BATCH_SIZE, *shape))
        if key not in case.absent:
            seen[key] = values if key == STATE else (values + 1) / 2
    return seen


def sentences(case: Case) -> dict[str, Tensor]:
    """Tokens of sentences of different lengths, padded on the right."""
    lengths = torch.tensor(case.words)[:, None]
    steps = torch.arange(case.config["tokenizer_max_length"])[None]
    tokens = 4 + (11 * steps + 5 * lengths) % 290
    return {TOKENS: torch.where(steps < lengths, tokens, 0), MASK: steps < lengths}


def batch(case: Case) -> dict[str, Tensor]:
    """A training batch; the actions of all but the first sample reach over the episode's end."""
    seen = {**observation(case, 0), **sentences(case)}
    return with_actions(seen, case.config["chunk_size"], case.action_dim)


def noise(case: Case) -> Tensor:
    config = case.config
    return 1.7 * tensor("noise", (BATCH_SIZE, config["chunk_size"], config["max_action_dim"]))


def times(case: Case) -> Tensor:
    """Beta(alpha, 1) numbers, scaled; alpha alone is compared, as its quantiles have a formula."""
    alpha = case.config.get("time_sampling_beta_alpha", 1.5)
    scale = case.config.get("time_sampling_scale", 0.999)
    return scale * torch.tensor(SHARES) ** (1 / alpha) + 0.001


@contextmanager
def steady() -> Iterator[None]:
    """Both sides act alike inside."""
    with (
        drawn("checkpoint"),
        mock.patch("torch.normal", lambda **options: torch.randn(options["size"])),
    ):
        yield


@functools.cache
def folder(size: int = 0) -> str:
    """The folder of PaliGemma's tokenizer with at least `size` tokens."""
    return str(tiny_gemma.write(files_folder() / f"gemma{size or ''}", size))


@functools.cache
def fast_folder() -> str:
    """The folder of the action tokenizer."""
    return str(tiny_fast.write(files_folder() / "fast"))


@contextmanager
def local_fast() -> Iterator[None]:
    """LeRobot reads action tokenizers with the class it has itself, not one from the Hub.

    Its files of the step do not name PaliGemma's tokenizer, so that it falls back to the Hub's.
    """
    from lerobot.policies.molmoact2.molmoact2_hf_model import action_tokenizer
    from lerobot.policies.pi0_fast import modeling_pi0_fast
    from lerobot.processor import tokenizer_processor

    known: Any = action_tokenizer.UniversalActionProcessor

    class Known:
        @staticmethod
        def from_pretrained(name: str, **_: Any) -> Any:
            return known.from_pretrained_local(name)

    text = tokenizer_processor.AutoTokenizer

    class Local:
        @staticmethod
        def from_pretrained(name: str, **options: Any) -> Any:
            own = name if Path(name).exists() else folder(VOCABULARIES["pi0_fast"])
            return text.from_pretrained(own, **options)

    with (
        mock.patch.object(tokenizer_processor, "AutoTokenizer", Local),
        mock.patch.object(modeling_pi0_fast, "AutoProcessor", Known),
        mock.patch.object(tokenizer_processor, "AutoProcessor", Known),
    ):
        yield


@contextmanager
def tiny_peer(name: str) -> Iterator[None]:
    """LeRobot builds tiny models inside, and reads the tokenizer of `folder`."""
    model: Any = importlib.import_module(f"lerobot.policies.{name}.modeling_{name}")
    steps: Any = importlib.import_module(f"lerobot.policies.{name}.processor_{name}")
    paligemma = model.PaliGemmaForConditionalGenerationWithPiGemma
    causal = vars(model).get("PiGemmaForCausalLM")
    tokenizer, vocabulary = steps.TokenizerProcessorStep, VOCABULARIES.get(name, VOCABULARY)

    def sizes(variant: str) -> Any:
        width, mlp = WIDTHS[variant]
        return model.GemmaConfig(width, LAYERS, mlp, 8, 1, HEAD_DIM)

    def small_paligemma(config: Any) -> Any:
        vision, text = config.vision_config, config.text_config
        vision.hidden_size, vision.intermediate_size = VISION["width"], VISION["mlp"]
        vision.num_hidden_layers, vision.num_attention_heads = VISION["layers"], VISION["heads"]
        vision.patch_size, vision.projection_dim = VISION["patch"], text.hidden_size
        config.projection_dim = config.hidden_size = text.hidden_size
        if name == "pi0_fast":  # the others take it from their option
            vision.image_size = VISION["image"]
        text.vocab_size = config.vocab_size = vocabulary
        config.image_token_index = vocabulary - 1
        return paligemma(config)

    def small_causal(config: Any) -> Any:
        config.vocab_size = VOCABULARY
        return causal(config)

    def local_tokenizer(**options: Any) -> Any:
        return tokenizer(**{**options, "tokenizer_name": folder(VOCABULARIES.get(name, 0))})

    with (
        nullcontext()
        if causal is None
        else mock.patch.object(model, "PiGemmaForCausalLM", small_causal),
        local_fast() if name in VOCABULARIES else nullcontext(),
        mock.patch.object(model, "get_gemma_config", sizes),
        mock.patch.object(model, "PaliGemmaForConditionalGenerationWithPiGemma", small_paligemma),
        mock.patch.object(steps, "TokenizerProcessorStep", local_tokenizer),
    ):
        yield


@contextmanager
def tiny_own(name: str = "") -> Iterator[None]:
    """kata builds tiny models inside."""
    from kata.nn.decoder import DecoderSizes
    from kata.nn.siglip import SiglipSizes
    from kata.policies import paligemma

    gemma = {
        variant: DecoderSizes(width, mlp, heads=8, kv_heads=1, head_dim=HEAD_DIM, eps=1e-6)
        for variant, (width, mlp) in WIDTHS.items()
    }
    sizes = paligemma.PiSizes(
        SiglipSizes(**VISION), gemma, LAYERS, VOCABULARIES.get(name, VOCABULARY)
    )
    with mock.patch.object(paligemma, "SIZES", sizes):
        yield


@dataclass(frozen=True)
class Sides:
    """Both sides of a policy: its name, and the beginning of LeRobot's names of classes."""

    name: str
    title: str

    def build_peer(self, case: Case) -> Any:
        """LeRobot's policy of a case, with the weights of the formula."""
        from lerobot.configs.types import FeatureType, PolicyFeature

        package = f"lerobot.policies.{self.name}"
        configs: Any = importlib.import_module(f"{package}.configuration_{self.name}")
        models: Any = importlib.import_module(f"{package}.modeling_{self.name}")
        kinds = {key: "STATE" if key == STATE else "VISUAL" for key in case.inputs}
        config = getattr(configs, f"{self.title}Config")(
            device="cpu",
            input_features={
                key: PolicyFeature(FeatureType(kinds[key]), shape)
                for key, shape in case.inputs.items()
            },
            output_features={"action": PolicyFeature(FeatureType.ACTION, (case.action_dim,))},
            **case.config,
        )
        with tiny_peer(self.name):
            policy = getattr(models, f"{self.title}Policy")(config)
        for name, value in policy.state_dict().items():
            value.copy_(pi_weight(name, tuple(value.shape)))
        return policy

    def peer(self, case: Case) -> dict[str, Tensor]:
        policy = self.build_peer(case)
        policy.train()
        with (
            mock.patch.object(policy.model, "sample_noise", return_value=noise(case)),
            mock.patch.object(policy.model, "sample_time", return_value=times(case)),
        ):
            loss = policy.forward(batch(case))[0]
        loss.backward()
        out = {"loss": loss.detach()}
        # Queries of PaliGemma's last layer have a gradient of zeros, as nothing reads them.
        unread = f"language_model.layers.{LAYERS - 1}.self_attn.q_proj.weight"
        for name, parameter in policy.named_parameters():
            if name.endswith(unread):
                assert parameter.grad is None or not parameter.grad.any(), name
            elif parameter.grad is not None:
                out[f"grad/{name}"] = parameter.grad
        policy.eval()
        told = sentences(case)
        out["chunk"] = policy.predict_action_chunk(
            {**observation(case, 0), **told}, noise=noise(case)
        )
        if case.is_continued:
            out |= peer_chunks(policy, {**observation(case, 0), **told}, noise(case))
        policy.reset()
        with steady():
            actions = peer_actions(
                policy, lambda step: {**observation(case, step), **told}, ACT_STEPS
            )
        return {**out, "actions": actions}

    def build_own(self, case: Case) -> Any:
        """kata's policy of a case, with the weights of the formula."""
        from kata.policies import build_policy, config_class
        from kata.spec import Feature, FeatureType

        kinds = {key: "STATE" if key == STATE else "VISUAL" for key in case.inputs}
        config = config_class(self.name)(
            input_features={
                key: Feature(FeatureType(kinds[key]), shape) for key, shape in case.inputs.items()
            },
            output_features={"action": Feature(FeatureType.ACTION, (case.action_dim,))},
            **case.config,
        )
        local = {"text_tokenizer_name": folder(VOCABULARIES.get(self.name, 0))}
        with tiny_own(self.name):
            policy = build_policy(dataclasses.replace(config, **local))
        key_map = policy.key_map()
        for name, value in policy.state_dict().items():
            value.copy_(pi_weight(key_map.to_lerobot(name), tuple(value.shape)))
        return policy

    def own(self, case: Case) -> dict[str, Tensor]:
        policy = self.build_own(case).train()
        given = batch(case)
        draws = {"noise": noise(case), "time": torch.tensor(SHARES)[:, None]}
        loss = own_loss(policy, given, given["action_is_pad"], **draws)
        loss.backward()
        out = {"loss": loss.detach(), **own_gradients(policy)}
        policy.eval()
        told = sentences(case)
        out["chunk"] = policy.predict_chunk({**observation(case, 0), **told}, noise=noise(case))
        if case.is_continued:
            out |= own_chunks(policy, {**observation(case, 0), **told}, noise(case))
        with steady():
            actions = own_actions(
                policy, lambda step: {**observation(case, step), **told}, ACT_STEPS
            )
        return {**out, "actions": actions}

"""Options of SmolVLA, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from kata.config import option
from kata.policies.config import SHARED_STEPS, TokenizerSteps
from kata.policies.rules import Rule, refuse_broken_rules
from kata.policies.vla import FlowVlaConfig
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, size_within

SMOLVLM = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"


@dataclass(frozen=True, kw_only=True)
class Config(FlowVlaConfig):
    """SmolVLA's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "smolvla"
    tokenizer_steps: ClassVar[TokenizerSteps] = {
        "vlm_model_name": (("tokenizer_processor", "tokenizer_name"),)
    }
    names_model_by_tokenizer: ClassVar[bool] = True
    lora_targets: ClassVar[str] = (
        r"model\.vlm_with_expert\.lm_expert\..*\.(q|v)_proj"
        r"|model\.(state_proj|action_in_proj|action_out_proj|action_time_mlp_in|action_time_mlp_out)"
    )

    resize_imgs_with_padding: tuple[int, int] | None = option(
        (512, 512),
        "Width and height, in this order, that frames are fitted into; null keeps their size.",
        least=1,
    )
    adapt_to_pi_aloha: bool = option(
        False, "LeRobot's conversion of ALOHA's joints. It fails in LeRobot; true is refused."
    )
    use_delta_joint_actions_aloha: bool = option(
        False, "A field that LeRobot names and does not implement; true is refused."
    )
    num_steps: int = option(10, "Integration steps of a chunk in acting.", least=1)
    use_cache: bool = option(
        True, "Encode the observation once per chunk. LeRobot cannot act without; false is refused."
    )
    freeze_vision_encoder: bool = option(True, "Keep the image encoder as it is.")
    train_expert_only: bool = option(True, "Keep the whole vision-language model as it is.")
    train_state_proj: bool = option(True, "Train the linear map of the state.")
    vlm_model_name: str = option(
        SMOLVLM, "SmolVLM model: a Hub name or a folder.", is_pretrained=True
    )
    load_vlm_weights: bool = option(
        False,
        "Start from the weights of vlm_model_name. false leaves them random, which is right only "
        "where policy.path brings all weights.",
    )
    add_image_special_tokens: bool = option(
        False, "Put the model's marks for an image around each camera's tokens."
    )
    attention_mode: str = option(
        "cross_attn",
        "Let layers of the expert read the model's keys and values alone (cross_attn), or all "
        "read the actions as well (self_attn).",
        choices=("cross_attn", "self_attn"),
    )
    prefix_length: int = option(
        -1, "Length that LeRobot pads observations to. Results do not depend on it; no effect."
    )
    pad_language_to: str = option(
        "longest", "Length that sentences are padded to.", choices=("longest", "max_length")
    )
    num_expert_layers: int = option(
        -1, "Layers of the expert; -1 for as many as the model has. LeRobot runs with no other."
    )
    num_vlm_layers: int = option(
        16, "Layers of the language model that are used, from the first; 0 or less for all."
    )
    self_attn_every_n_layers: int = option(
        2, "With cross_attn, each n-th layer reads the actions as well; 0 or less for none."
    )
    expert_width_multiplier: float = option(
        0.75, "Width of the expert as a multiple of the language model's.", above=0
    )
    compile_model: bool = option(
        False, "LeRobot's switch for torch.compile; true is refused, kata has --compile."
    )
    compile_mode: str = option("max-autotune", "Mode of torch.compile with compile_model.")
    frozen_dtype: str = option(
        "float32",
        "Precision in which the frozen model is held, computed and written. bfloat16, in which "
        "SmolVLM is published, halves its memory.",
        choices=("float32", "bfloat16"),
        is_own=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(chain(self.chunk_rules(), self._unsupported_rules()))

    def _unsupported_rules(self) -> Iterator[Rule]:
        """Yield rules on options that LeRobot or kata cannot run."""
        for name, broken in (
            ("adapt_to_pi_aloha", self.adapt_to_pi_aloha),
            ("use_delta_joint_actions_aloha", self.use_delta_joint_actions_aloha),
        ):
            yield (
                broken,
                f"policy.{name}=true",
                "LeRobot 0.6.1 names this option and cannot train with it",
                f"--policy.{name}=false",
            )
        yield (
            not self.use_cache,
            "policy.use_cache=false",
            "LeRobot 0.6.1 cannot act without the cache, and kata always has it",
            "--policy.use_cache=true",
        )
        if self.num_vlm_layers > 0:  # else the model decides their number
            yield self.expert_rule(self.num_vlm_layers)
        yield (
            self.frozen_dtype != "float32" and not self.train_expert_only,
            f"policy.frozen_dtype={self.frozen_dtype} with policy.train_expert_only=false",
            "weights that are trained are held in float32",
            "--policy.train_expert_only=true, or --policy.frozen_dtype=float32",
        )
        yield (
            self.compile_model,
            "policy.compile_model=true",
            "kata compiles the whole step",
            "--policy.compile_model=false, and --compile=true in training",
        )

    def expert_rule(self, vlm_layers: int) -> Rule:
        """Return the rule on the expert's layers beside the layers of the model that are used."""
        layers = self.num_expert_layers
        return (
            layers > 0 and layers != vlm_layers,
            f"policy.num_expert_layers={layers} with {vlm_layers} layers of the model "
            f"(policy.num_vlm_layers={self.num_vlm_layers})",
            "each layer of the expert reads one layer of the model; LeRobot cannot act otherwise",
            "--policy.num_expert_layers=-1",
        )

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Return height and width that frames are fitted into, or None."""
        if self.resize_imgs_with_padding is None:
            return None
        width, height = self.resize_imgs_with_padding
        return height, width

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size that frames are fitted to; see `PolicyConfig.resized`."""
        return size if self.image_size is None else size_within(size, self.image_size)

    def tokenizer(self) -> dict[str, Any]:
        """Return the options of SmolVLM's tokenizer."""
        return {
            "tokenizer_name": self.vlm_model_name,
            "max_length": self.tokenizer_max_length,
            "padding": self.pad_language_to,
            "padding_side": "right",
        }

    def frozen_features(self) -> dict[str, tuple[str, ...]]:
        """Return what a cache may keep: with `train_expert_only` all that the model makes of
        cameras and sentence.
        """
        cameras = tuple(self.cameras)
        if self.train_expert_only:
            return {"prefix": (*cameras, LANGUAGE_TOKENS, LANGUAGE_MASK), "vision": cameras}
        return {"vision": cameras} if self.freeze_vision_encoder else {}

    def processor_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps before the policy; sentences end with a newline."""
        rename, add_axis, move, normalize = ((name, {}) for name in SHARED_STEPS)
        sentence = [("smolvla_new_line_processor", {}), ("tokenizer_processor", self.tokenizer())]
        return [rename, add_axis, *sentence, move, normalize]

    def without_downloads(self) -> Config:
        """Return a copy without the vision-language model's weights."""
        return dataclasses.replace(self, load_vlm_weights=False)

    def validate_features(self) -> None:
        """Raise PolicyError unless there are cameras, a state, and an action, none too wide."""
        refuse_broken_rules(self.feature_rules())

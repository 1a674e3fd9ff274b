"""Options of X-VLA, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from kata.config import option
from kata.nn.florence.sizes import BartSizes, DavitSizes
from kata.policies.config import SHARED_STEPS
from kata.policies.observation_rules import same_size_rules, shape_rules
from kata.policies.rtc import delay_rules
from kata.policies.rules import Rule, refuse_broken_rules
from kata.policies.vla import SentenceConfig
from kata.policies.xvla.action_modes import AUTO, EXACT, FIXED, MODES, ActionMode, auto_mode
from kata.policies.xvla.florence import FLORENCE_2_LARGE, florence_sizes
from kata.spec import (
    ACTION,
    STATE,
    Draw,
    FeatureType,
    NormMode,
    dim_pad_key,
    pad_key,
    size_within,
)

BART = "facebook/bart-large"
DOMAIN = "domain_id"
"""Key of the number of each sample's robot, int64 (B,)."""

DOMAIN_STEP = "xvla_add_domain_id"
CAMERAS = "observation.images"
"""Beginning of the names that LeRobot's steps for images find by themselves."""


def _unchanged() -> dict[str, NormMode]:
    kinds = (FeatureType.VISUAL, FeatureType.STATE, FeatureType.ACTION)
    return {kind.value: NormMode.IDENTITY for kind in kinds}


@dataclass(frozen=True, kw_only=True)
class Config(SentenceConfig):
    """X-VLA's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "xvla"
    masks_action_dims: ClassVar[bool] = True

    chunk_size: int = 32
    n_action_steps: int = 32
    max_action_dim: int = 20
    tokenizer_max_length: int = 64
    normalization_mapping: dict[str, NormMode] = option(
        _unchanged, "Normalization by kind of feature, such as {STATE: MEAN_STD, ACTION: MIN_MAX}."
    )
    optimizer_betas: tuple[float, float] = (0.9, 0.99)
    optimizer_weight_decay: float = 0.0
    dtype: str = option("float32", "Precision of all weights.", choices=("float32", "bfloat16"))
    florence_config: dict[str, Any] = option(
        dict,
        "Sizes of Florence-2, {vision_config: ..., text_config: ...}, as transformers or Microsoft "
        "writes them. Empty takes Florence-2-large's.",
    )
    tokenizer_name: str = option(
        BART, "Tokenizer of sentences: a Hub name or a folder.", is_pretrained=True
    )
    tokenizer_padding_side: str = option(
        "right", "Side on which sentences are padded.", choices=("right", "left")
    )
    pad_language_to: str = option(
        "max_length",
        "Length that sentences are padded to. The network reads padding, too.",
        choices=("longest", "max_length"),
    )
    hidden_size: int = option(1024, "Width of the transformer.", least=1)
    depth: int = option(24, "Its blocks.", least=1)
    num_heads: int = option(16, "Its heads of attention.", least=1)
    mlp_ratio: float = option(
        4.0, "Width of its perceptrons as a multiple of hidden_size.", above=0
    )
    num_domains: int = option(30, "Robots that have weights and prompts.", least=1)
    len_soft_prompts: int = option(
        32, "Learned tokens per robot at the end of the sequence; 0 for none.", least=0
    )
    dim_time: int = option(32, "Width of the embedding of time.", least=2)
    max_len_seq: int = option(512, "Longest sequence, without the learned tokens.", least=1)
    use_hetero_proj: bool = option(
        False, "Give each robot maps of its own from Florence-2's tokens to the transformer's."
    )
    action_mode: str = option(
        "ee6d",
        "What the numbers of an action mean: poses of two arms (ee6d, agibot_ee6d), joints of "
        "known robots (joint, franka_joint7, so101_bimanual), or numbers that are all alike "
        "(auto).",
        choices=MODES,
    )
    num_denoising_steps: int = option(10, "Denoising steps of a chunk in acting.", least=1)
    use_proprio: bool = option(True, "Read the state.")
    domain_feature_key: str | None = option(
        None,
        "Input that holds the number of each sample's robot; null takes domain_id for all of them.",
    )
    domain_id: int = option(
        0,
        "Number of the robot whose weights are trained and used, from 0 to num_domains - 1. "
        "LeRobot keeps it among the steps before the policy.",
        least=0,
        is_own=True,
    )
    resize_imgs_with_padding: tuple[int, int] | None = option(
        None,
        "Height and width that frames are fitted into; null keeps their size, which is then the "
        "same for all cameras.",
        least=1,
    )
    num_image_views: int | None = option(
        None,
        "Views that the network has room for, if more than cameras and empty_cameras.",
        least=1,
    )
    freeze_vision_encoder: bool = option(False, "Keep Florence-2's image encoder as it is.")
    freeze_language_encoder: bool = option(False, "Keep Florence-2's text encoder as it is.")
    train_policy_transformer: bool = option(
        True, "Train the transformer after Florence-2. Its prompts have an option for themselves."
    )
    train_soft_prompts: bool = option(True, "Train the learned tokens of each robot.")
    optimizer_soft_prompt_lr_scale: float = option(
        1.0, "Learning rate of the learned tokens as a multiple of optimizer_lr.", least=0
    )
    optimizer_soft_prompt_warmup_lr_scale: float | None = option(
        None,
        "A multiple that takes the place of optimizer_soft_prompt_lr_scale. As in LeRobot, it "
        "stays for the whole run.",
        least=0,
    )
    do_mask_loss_for_padding: bool = option(
        False,
        "Leave out actions behind the end of an episode. LeRobot trains on the last one, repeated.",
        is_own=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(chain(self.chunk_rules(), self._size_rules()))
        self.florence()

    def _size_rules(self) -> Iterator[Rule]:
        """Yield rules on sizes, before the features are known."""
        yield (
            self.hidden_size % self.num_heads != 0,
            f"policy.num_heads={self.num_heads} with policy.hidden_size={self.hidden_size}",
            "a divisor of the width",
            "--policy.num_heads=16",
        )
        yield (
            self.domain_id >= self.num_domains,
            f"policy.domain_id={self.domain_id} with policy.num_domains={self.num_domains}",
            "a number from 0 to num_domains - 1",
            f"--policy.domain_id={self.num_domains - 1} or less",
        )
        yield from self._proprio_rules()

    def _proprio_rules(self) -> Iterator[Rule]:
        """Yield rules on the state's width, which follow from where an action has grippers."""
        mode = FIXED.get(self.action_mode)
        if mode is None or not mode.hidden:
            return
        yield (
            not self.use_proprio,
            f"policy.use_proprio=false with policy.action_mode={self.action_mode}",
            "this mode hides the grippers of the state, and reads one",
            "--policy.use_proprio=true, or --policy.action_mode=auto",
        )
        width = self.max_state_dim
        yield (
            self.action_mode == "so101_bimanual" and width != mode.width,
            f"policy.max_state_dim={width} with policy.action_mode=so101_bimanual",
            f"this mode reads states as wide as its actions, {mode.width} numbers",
            f"--policy.max_state_dim={mode.width}",
        )
        yield (
            width <= max(mode.hidden),
            f"policy.max_state_dim={width} with policy.action_mode={self.action_mode}",
            f"this mode hides number {max(mode.hidden)} of the state, a gripper",
            f"--policy.max_state_dim={mode.width} or more",
        )

    def florence(self) -> tuple[DavitSizes, BartSizes]:
        """Return the sizes of Florence-2's image encoder and text encoder."""
        return florence_sizes(self.florence_config)

    @property
    def mode(self) -> ActionMode:
        """Return the layout of actions."""
        if self.action_mode == AUTO:
            return auto_mode(self.action.shape[0], self.max_action_dim)
        return FIXED[self.action_mode]

    @property
    def proprio_width(self) -> int:
        """Return how many numbers of the state the network reads."""
        return self.max_state_dim if self.use_proprio else 0

    @property
    def views(self) -> int:
        """Return how many views the network reads, those without a camera included."""
        return max(self.num_image_views or 0, len(self.cameras) + self.empty_cameras)

    def refuse_delay(self, delay: int) -> None:
        """Raise PolicyError unless chunks last while others are predicted for `delay` steps."""
        chunk, every = self.chunk_size, self.n_action_steps
        refuse_broken_rules(delay_rules(delay, chunk=chunk, every=every, rtc=None, trained=0))

    def told_of_delay(self, delay: int) -> dict[str, Any]:
        """Return steps of a prediction and between two."""
        return {"inference_delay": delay, "n_action_steps": self.n_action_steps}

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size that frames are fitted to; see `PolicyConfig.resized`."""
        room = self.resize_imgs_with_padding
        return size if room is None else size_within(size, room)

    def tokenizer(self) -> dict[str, Any]:
        """Return the options of BART's tokenizer."""
        return {
            "tokenizer_name": self.tokenizer_name,
            "max_length": self.tokenizer_max_length,
            "padding": self.pad_language_to,
            "padding_side": self.tokenizer_padding_side,
        }

    def processor_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps before the policy; frames get ImageNet's mean and spread."""
        rename, add_axis, move, normalize = ((name, {}) for name in SHARED_STEPS)
        # LeRobot's steps find cameras by this beginning alone.
        found = all(key.startswith(CAMERAS) for key in self.cameras)
        keys = {"image_keys": None if found else list(self.cameras)}
        own = [
            ("tokenizer_processor", self.tokenizer()),
            ("xvla_image_to_float", {**keys, "validate_range": True}),
            ("xvla_imagenet_normalize", keys),
            (DOMAIN_STEP, {"domain_id": self.domain_id}),
        ]
        return [rename, add_axis, *own, move, normalize]

    def frozen_features(self) -> dict[str, tuple[str, ...]]:
        """Return what a cache may keep: with `freeze_vision_encoder` the cells of cameras."""
        return {"vision": tuple(self.cameras)} if self.freeze_vision_encoder else {}

    def draws(self) -> dict[str, Draw]:
        """Return the noise of a chunk, and times that are spread over the batch."""
        return {**self.act_draws(), "time": Draw("uniform", (1,), shared=True, spread=True)}

    def act_draws(self) -> dict[str, Draw]:
        """Return the noise that a chunk is computed from."""
        return {"noise": Draw("normal", (self.chunk_size, self.mode.width))}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Return the number of values that each term is a mean of, over the global batch."""
        import numpy as np  # here, so that help need not import it

        steps = np.full(size, float(self.chunk_size))
        if self.do_mask_loss_for_padding and pad_key(ACTION) in pads:
            steps = (~pads[pad_key(ACTION)]).sum(1)
        return self.mode.counts(size, steps, pads.get(dim_pad_key(ACTION)))

    def written(self) -> dict[str, Any]:
        """Return the options as plain values; LeRobot wants Florence-2's sizes."""
        plain = super().written()
        return plain if self.florence_config else {**plain, "florence_config": FLORENCE_2_LARGE}

    @classmethod
    def options_beside(cls, folder: Path) -> dict[str, Any]:
        """Return the number of the robot that a checkpoint's steps add to observations."""
        path = folder / "policy_preprocessor.json"
        if not path.is_file():
            return {}
        for step in json.loads(path.read_text(encoding="utf-8")).get("steps", []):
            if step.get("registry_name") == DOMAIN_STEP:
                return {"domain_id": int(step["config"]["domain_id"])}
        return {}

    def validate_features(self) -> None:
        """Raise PolicyError unless cameras, state and action suit the sizes and the mode."""
        refuse_broken_rules(
            chain(
                shape_rules(self, self.type),
                self._input_rules(),
                self._action_rules(),
                self._domain_rules(),
            )
        )
        if self.resize_imgs_with_padding is None:
            refuse_broken_rules(same_size_rules(self))
        refuse_broken_rules(self._sequence_rules())

    def _input_rules(self) -> Iterator[Rule]:
        """Yield rules on inputs: cameras, a state that fits, and nothing that nobody reads."""
        allowed = (STATE, self.domain_feature_key)
        unread = [k for k in self.input_features if k not in self.cameras and k not in allowed]
        yield (
            bool(unread) or not self.cameras or (self.use_proprio and self.state is None),
            f"inputs of {self.type}: {', '.join(self.input_features) or 'none'}",
            f"cameras, '{STATE}' with policy.use_proprio, and policy.domain_feature_key: nothing "
            "else is read",
            "name those to read in --policy.input_features, or choose another dataset",
        )
        width = self.state.shape[0] if self.state and self.use_proprio else 0
        yield (
            width > self.max_state_dim,
            f"{STATE}: {width} numbers with policy.max_state_dim={self.max_state_dim}",
            "no more numbers than policy.max_state_dim",
            f"--policy.max_state_dim={width}, where training starts without a checkpoint",
        )

    def _action_rules(self) -> Iterator[Rule]:
        """Yield rules on how many numbers an action has, and what they mean."""
        yield (
            self.use_relative_actions and self.action_mode != AUTO,
            f"policy.use_relative_actions=true with policy.action_mode={self.action_mode}",
            "this mode gives its numbers a meaning, such as a gripper's state, which a difference "
            "does not have",
            f"--policy.action_mode={AUTO}, or --policy.use_relative_actions=false",
        )
        own = self.action.shape[0]
        yield (
            self.action_mode == AUTO and own > self.max_action_dim,
            f"{ACTION}: {own} numbers with policy.max_action_dim={self.max_action_dim}",
            "no more numbers than policy.max_action_dim",
            f"--policy.max_action_dim={own}, where training starts without a checkpoint",
        )
        mode = FIXED.get(self.action_mode)
        if mode is None:
            return
        is_exact = self.action_mode in EXACT
        yield (
            own > mode.real or (is_exact and own != mode.real),
            f"{ACTION}: {own} numbers with policy.action_mode={self.action_mode}",
            f"this mode's actions have {mode.real} numbers{'' if is_exact else ' or fewer'}",
            "--policy.action_mode=auto takes actions of any robot",
        )

    def _domain_rules(self) -> Iterator[Rule]:
        """Yield rules on the input that holds the number of the robot."""
        key = self.domain_feature_key
        if key is None:
            return
        yield (
            key not in self.input_features,
            f"policy.domain_feature_key={key}",
            "one of the policy's inputs",
            f"inputs are: {', '.join(self.input_features)}",
        )
        mode = self.normalization_mapping.get(FeatureType.STATE.value, NormMode.IDENTITY)
        yield (
            mode is not NormMode.IDENTITY,
            f"policy.domain_feature_key={key} with STATE: {mode} in policy.normalization_mapping",
            "the number of a robot is read as it is, and has the kind of a state",
            "--policy.normalization_mapping='{STATE: IDENTITY, ...}', or policy.domain_id",
        )

    def _sequence_rules(self) -> Iterator[Rule]:
        """Yield rules on the lengths that follow from the size of frames."""
        davit, bart = self.florence()
        size = self.resize_imgs_with_padding or next(iter(self.cameras.values())).shape[1:]
        rows, columns = davit.grid(*size)
        text = 1 + rows * columns + self.tokenizer_max_length
        whole = self.chunk_size + text + (self.views - 1) * (1 + rows * columns)
        smaller = "--policy.resize_imgs_with_padding=[224,224]"
        yield (
            min(rows, columns) < 1 or max(rows, columns) > davit.positions,
            f"frames of {size[0]}x{size[1]} in Florence-2's image encoder",
            f"1 to {davit.positions} cells along a side; these have {rows}x{columns}",
            smaller,
        )
        yield (
            text > bart.positions,
            f"{text} tokens of a view and a sentence",
            f"Florence-2's text encoder reads {bart.positions}",
            smaller,
        )
        yield (
            whole > self.max_len_seq,
            f"policy.max_len_seq={self.max_len_seq}",
            f"room for {whole} tokens: {self.chunk_size} actions, {text} of the first view and the "
            f"sentence, {1 + rows * columns} of each of {self.views - 1} other views",
            f"{smaller}, or --policy.max_len_seq={whole} where training starts without a "
            "checkpoint",
        )

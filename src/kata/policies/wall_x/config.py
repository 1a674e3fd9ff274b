"""Options of Wall-X, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kata.config import option
from kata.errors import PolicyError
from kata.policies.config import SHARED_STEPS
from kata.policies.qwen.vlm_config import blank_prompt, text_config, token_side, vlm_config
from kata.policies.rules import Rule, refuse_broken_rules
from kata.policies.vla import DenoisedConfig
from kata.policies.wall_x.published import PUBLISHED
from kata.spec import ACTION_TOKEN_MASK, Column, Draw, FeatureType, NormMode

if TYPE_CHECKING:
    from kata.processors.pipeline import Pipeline

_log = logging.getLogger(__name__)

WALL_OSS = "x-square-robot/wall-oss-flow"
FAST = "lerobot/fast-action-tokenizer"
TASK_STEP, WORDS_STEP = "wall_x_task_processor", "wall_x_action_words"
WORDS_TERM = "cross_entropy_loss"
MOST_STEPS = 32
"""Actions of a chunk that LeRobot writes as words; it leaves out those behind them."""

PLANNED_WORDS = 96
"""Tokens of a prompt beside its images, as plans count them."""


@dataclass(frozen=True, kw_only=True)
class Config(DenoisedConfig):
    """Wall-X's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "wall_x"

    pretrained_name_or_path: str = option(
        WALL_OSS,
        "Model whose sizes, tokenizer and first weights are taken: a Hub name or a folder.",
        is_pretrained=True,
    )
    base_config: dict[str, Any] | None = option(
        None, "Config of that model. null reads it, and checkpoints keep it.", is_own=True
    )
    load_base_weights: bool = option(
        True,
        "Start from the weights of pretrained_name_or_path where policy.path brings none, as "
        "LeRobot does; false leaves them random.",
        is_own=True,
    )
    action_tokenizer_path: str | None = option(
        None,
        "Tokenizer of actions with prediction_mode=fast, a Hub name or a folder; null takes "
        f"{FAST}. In the other mode it has no effect, and LeRobot sets null.",
        is_pretrained=True,
    )
    prediction_mode: str = option(
        "diffusion",
        "How actions are predicted: denoised (diffusion), or written as words (fast).",
        choices=("diffusion", "fast"),
    )
    max_decoding_steps: int = option(
        100,
        "Most words of a chunk in acting with prediction_mode=fast, the end included.",
        least=1,
        is_own=True,
    )
    attn_implementation: str = option(
        "eager",
        "LeRobot's kernels of the language model; it runs with no other.",
        choices=("eager",),
    )
    vision_attn_implementation: str = option(
        "auto",
        "LeRobot's choice of kernels of the image encoder. kata's are the same for all; no effect.",
        choices=("auto", "sdpa", "varlen"),
    )
    dtype: str = option(
        "bfloat16",
        "Precision of weights. bfloat16, as in LeRobot, keeps norms and the maps of state, actions "
        "and time in float32.",
        choices=("bfloat16", "float32"),
        is_own=True,
    )
    chunk_size: int = option(32, "Actions predicted at once.", least=1)
    n_action_steps: int = option(
        32, "Actions of a chunk that are executed before the next prediction.", least=1
    )
    max_state_dim: int = option(20, "Numbers that states are padded to.", least=1)
    max_action_dim: int = option(20, "Numbers that actions are padded to.", least=1)
    optimizer_lr: float = 2e-5
    optimizer_weight_decay: float = 0.01
    optimizer_grad_clip_norm: float = 1.0
    scheduler_decay_steps: int = 100_000
    scheduler_decay_lr: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(chain(self.chunk_rules(), self._unsupported_rules()))

    def _unsupported_rules(self) -> Iterator[Rule]:
        """Yield rules on options that kata cannot run."""
        yield (
            self.writes_words and self.chunk_size > MOST_STEPS,
            f"policy.chunk_size={self.chunk_size} with policy.prediction_mode=fast",
            f"LeRobot writes the first {MOST_STEPS} actions of a chunk as words",
            f"--policy.chunk_size={MOST_STEPS} and --policy.n_action_steps={MOST_STEPS}, or less",
        )
        mode = self.normalization_mapping.get(FeatureType.VISUAL.value, NormMode.IDENTITY)
        yield (
            mode is not NormMode.IDENTITY,
            f"policy.normalization_mapping with VISUAL: {mode}",
            "frames are resized as images of 256 levels, and then normalized by the model's rule",
            "VISUAL: IDENTITY",
        )

    @property
    def writes_words(self) -> bool:
        """Return True if actions are written as words."""
        return self.prediction_mode == "fast"

    @property
    def action_tokenizer(self) -> str:
        """Return the name of the action tokenizer."""
        return self.action_tokenizer_path or FAST

    @property
    def trains_padded_steps(self) -> bool:
        """Return True: as in LeRobot, the loss counts steps behind the end of an episode."""
        return True

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers of all actions; as in LeRobot, those that only pad them count here."""
        del pads
        if self.writes_words:  # their number follows from the actions (`loss_counts`)
            return {}
        return {"flow_matching_loss": float(size * self.chunk_size * self.max_action_dim)}

    def loss_counts(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the number of words of each sample, if actions are words."""
        return {WORDS_TERM: batch[ACTION_TOKEN_MASK][:, 1:].sum(1)} if self.writes_words else {}

    def draws(self) -> dict[str, Draw]:
        """Return nothing if actions are words, and else noise and times."""
        return {} if self.writes_words else super().draws()

    def act_draws(self) -> dict[str, Draw]:
        """Return nothing if actions are words, and else noise."""
        return {} if self.writes_words else super().act_draws()

    def action_tokens(self) -> int:
        """Return the words that acting writes at most, as plans count a chunk's."""
        return self.max_decoding_steps if self.writes_words else 0

    def written(self) -> dict[str, Any]:
        """Return the options as plain values; as in LeRobot, words have an action tokenizer."""
        tokenizer = self.action_tokenizer if self.writes_words else None
        return {**super().written(), "action_tokenizer_path": tokenizer}

    @property
    def base(self) -> dict[str, Any]:
        """Return the model's config; PolicyError if it cannot be had.

        Its table of tokens has as many rows as its tokenizer has tokens.
        """
        if self.base_config is not None:
            return self.base_config
        read = vlm_config(self.pretrained_name_or_path)
        # Here, since the package of steps imports torch.
        from kata.processors.tokenize import read_tokenizer

        rows = len(read_tokenizer(self.pretrained_name_or_path))
        if "text_config" in read:
            return {**read, "text_config": {**text_config(read), "vocab_size": rows}}
        return {**read, "vocab_size": rows}

    def with_columns(self, columns: Mapping[str, Column]) -> Config:
        """Return a copy that holds the model's config, so that checkpoints do."""
        known = super().with_columns(columns)
        assert isinstance(known, Config)
        return dataclasses.replace(known, base_config=self.base)

    def without_downloads(self) -> Config:
        """Return a copy without the model's weights."""
        return dataclasses.replace(self, load_base_weights=False)

    def planned(self) -> Config:
        """Return a copy without weights. Sizes of the published model need no network."""
        plain = self.without_downloads()
        if self.pretrained_name_or_path != WALL_OSS or self.base_config is not None:
            return plain
        try:
            return dataclasses.replace(plain, base_config=self.base)
        except PolicyError:
            _log.warning(
                "%s cannot be read here: the plan takes the sizes of its authors' repository",
                WALL_OSS,
            )
            return dataclasses.replace(plain, base_config=PUBLISHED)

    def tokenizer(self) -> dict[str, Any]:
        """Return the name of the model's tokenizer."""
        return {"tokenizer_name": self.pretrained_name_or_path}

    def blank_inputs(self, batch: dict[str, Any], size: int) -> dict[str, Any]:
        """Return frames in the encoder's sizes, and a prompt with PLANNED_WORDS beside images."""
        from kata.processors.qwen.wall_x import final_size  # here, since it imports torch

        side = token_side(self.base)
        return blank_prompt(batch, size, self.cameras, final_size, PLANNED_WORDS, side)

    def _task_options(self) -> dict[str, Any]:
        """Return what the step of sentences needs to write prompts."""
        return {
            "tokenizer_name": self.pretrained_name_or_path,
            "cameras": tuple(self.cameras),
            "chunk_size": self.chunk_size,
            "token_side": token_side(self.base),
            "writes_words": self.writes_words,
        }

    def processor_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps before the policy. Sentences become prompts before normalization."""
        rename, add_axis, move, normalize = ((name, {}) for name in SHARED_STEPS)
        told = [rename, add_axis, (TASK_STEP, self._task_options()), normalize]
        return [*told, *self._word_steps(), move]

    def _word_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the step that writes actions as words, if the policy learns them."""
        options = {
            "action_tokenizer_name": self.action_tokenizer,
            "tokenizer_name": self.pretrained_name_or_path,
            "most": self.max_decoding_steps,
        }
        return [(WORDS_STEP, options)] if self.writes_words else []

    def saved_pipelines(self, folder: Path, device: str) -> tuple[Pipeline, Pipeline]:
        """Return a checkpoint's pipelines, whose step of sentences writes prompts as well."""
        from kata.processors.pipeline import POSTPROCESSOR, PREPROCESSOR, load_pipeline

        place = {"device_processor": {"device": device}, TASK_STEP: self._task_options()}
        return load_pipeline(folder, PREPROCESSOR, place), load_pipeline(folder, POSTPROCESSOR)

    def validate_features(self) -> None:
        """Raise PolicyError unless there are cameras, a state, and an action, none too wide."""
        refuse_broken_rules(self.feature_rules())

"""Options of EO-1, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from kata.config import option
from kata.policies.config import SHARED_STEPS
from kata.policies.qwen.vlm_config import QWEN_3B, UNIT, blank_prompt, vlm_config, vocabulary
from kata.policies.rules import Rule, refuse_broken_rules
from kata.policies.vla import SampledTimesConfig
from kata.spec import Column

ACTIVATIONS = ("linear", "gelu", "gelu_pytorch_tanh", "relu", "sigmoid", "silu", "swish", "tanh")
ATTENTION = ("eager", "sdpa", "flash_attention_2")
PLANNED_WORDS = 96
"""Tokens of a prompt beside its images, as plans count them."""


@dataclass(frozen=True, kw_only=True)
class Config(SampledTimesConfig):
    """EO-1's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "eo1"

    vlm_base: str = option(QWEN_3B, "Qwen2.5-VL model: a Hub name or a folder.", is_pretrained=True)
    vlm_config: dict[str, Any] | None = option(
        None, "Config of that model. null reads it, and checkpoints keep it."
    )
    load_vlm_weights: bool = option(
        True,
        "Start from the weights of vlm_base where policy.path brings none, as LeRobot does; false "
        "leaves them random.",
        is_own=True,
    )
    image_min_pixels: int | None = option(
        64 * UNIT**2,
        "Fewest pixels that frames are resized to. LeRobot takes null; refused.",
        least=1,
    )
    image_max_pixels: int | None = option(
        128 * UNIT**2,
        "Most pixels that frames are resized to. LeRobot takes null; refused.",
        least=UNIT**2,
    )
    use_fast_processor: bool = option(
        False, "Resize frames with torchvision in place of Pillow, from which it differs little."
    )
    chunk_size: int = option(8, "Actions predicted at once.", least=1)
    n_action_steps: int = option(
        8, "Actions of a chunk that are executed before the next prediction.", least=1
    )
    num_denoise_steps: int = option(10, "Integration steps of a chunk in acting.", least=1)
    num_action_layers: int = option(2, "Layers of the map from tokens to actions.", least=1)
    action_act: str = option("linear", "Function between those layers.", choices=ACTIVATIONS)
    supervise_padding_action_dims: bool = option(
        True, "Let the loss count the numbers that pad actions to max_action_dim."
    )
    supervise_padding_actions: bool = option(
        True, "Let the loss count actions behind the end of an episode."
    )
    dtype: str = option(
        "auto",
        "Precision of the vision-language model's weights; auto takes that of its config. The maps "
        "of state, actions and time stay in float32.",
        choices=("auto", "bfloat16", "float32"),
    )
    force_fp32_autocast: bool = option(
        True, "Compute the maps of state, actions and time in float32 also in mixed precision."
    )
    attn_implementation: str | None = option(
        None,
        "LeRobot's choice of kernels. kata's attention is the same for all; no effect.",
        choices=ATTENTION,
    )
    gradient_checkpointing: bool = option(
        False, "Compute activations of each layer again in the backward pass."
    )
    optimizer_betas: tuple[float, float] = (0.9, 0.999)
    optimizer_weight_decay: float = 0.1
    optimizer_grad_clip_norm: float = 1.0
    scheduler_warmup_steps: int = 900
    scheduler_decay_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(chain(self.chunk_rules(), self.time_rules(), self._pixel_rules()))

    def _pixel_rules(self) -> Iterator[Rule]:
        """Yield rules on the sizes of frames."""
        least, most = self.image_min_pixels, self.image_max_pixels
        for name, given, default in (
            ("image_min_pixels", least, 64 * UNIT**2),
            ("image_max_pixels", most, 128 * UNIT**2),
        ):
            yield (
                given is None,
                f"policy.{name}=null",
                "LeRobot then takes the limits of the model's own files; kata takes stated ones",
                f"--policy.{name}={default}",
            )
        yield (
            least is not None and most is not None and least > most,
            f"policy.image_min_pixels={least} with policy.image_max_pixels={most}",
            "the fewest pixels are no more than the most",
            f"--policy.image_min_pixels={most} or less",
        )

    @property
    def trains_padded_steps(self) -> bool:
        """Return `supervise_padding_actions`."""
        return self.supervise_padding_actions

    @property
    def trains_padded_dims(self) -> bool:
        """Return `supervise_padding_action_dims`."""
        return self.supervise_padding_action_dims

    @property
    def backbone(self) -> dict[str, Any]:
        """Return the vision-language model's config; PolicyError if it cannot be had."""
        return vlm_config(self.vlm_base) if self.vlm_config is None else self.vlm_config

    def with_columns(self, columns: Mapping[str, Column]) -> Config:
        """Return a copy that holds the vision-language model's config, as LeRobot's files do."""
        known = super().with_columns(columns)
        assert isinstance(known, Config)
        return dataclasses.replace(known, vlm_config=self.backbone)

    def without_downloads(self) -> Config:
        """Return a copy without the vision-language model's weights."""
        return dataclasses.replace(self, load_vlm_weights=False)

    def tokenizer(self) -> dict[str, Any]:
        """Return the name of Qwen's tokenizer."""
        return {"tokenizer_name": self.vlm_base}

    def blank_inputs(self, batch: dict[str, Any], size: int) -> dict[str, Any]:
        """Return frames in the encoder's sizes, and a prompt with PLANNED_WORDS beside images."""
        from kata.processors.qwen.frames import fitted_size  # here, since it imports torch

        limits = (self.image_min_pixels or 0, self.image_max_pixels or 0)
        return blank_prompt(
            batch,
            size,
            self.cameras,
            lambda frame: fitted_size(frame, UNIT, *limits),
            PLANNED_WORDS,
        )

    def processor_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps before the policy; prompts are written before the move to the device."""
        rename, add_axis, move, normalize = ((name, {}) for name in SHARED_STEPS)
        prompt = {"input_features": self.input_features, "chunk_size": self.chunk_size}
        tokens = {
            "processor_name": self.vlm_base,
            "image_min_pixels": self.image_min_pixels,
            "image_max_pixels": self.image_max_pixels,
            "use_fast_processor": self.use_fast_processor,
            "vocabulary": vocabulary(self.backbone),
        }
        names = ("eo1_conversation_template_processor", "eo1_qwen_processor")
        return [rename, add_axis, normalize, (names[0], prompt), (names[1], tokens), move]

    def validate_features(self) -> None:
        """Raise PolicyError unless there are cameras, a state, and an action, none too wide."""
        refuse_broken_rules(self.feature_rules())

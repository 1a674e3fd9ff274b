"""Config base classes of policies that read cameras and a sentence with PaliGemma. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from kata.config import option
from kata.policies.config import ACTION_STEPS, TokenizerSteps
from kata.policies.rules import Rule, refuse_broken_rules
from kata.policies.vla import FlowVlaConfig, SampledTimesConfig, VlaConfig
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, size_within

PALIGEMMA = "google/paligemma-3b-pt-224"
PATCH = 14
"""Side in pixels of an image patch."""

VARIANTS = ("gemma_300m", "gemma_2b")


@dataclass(frozen=True, kw_only=True)
class PaliGemmaConfig(VlaConfig):
    """Options of policies with PaliGemma, with LeRobot's names and defaults."""

    paligemma_variant: str = option(
        "gemma_2b",
        "Size of the language model. LeRobot names gemma_300m too and cannot run it; refused.",
        choices=VARIANTS,
    )
    action_expert_variant: str = option(
        "gemma_300m", "Size of the action expert.", choices=VARIANTS
    )
    dtype: str = option(
        "float32",
        "Precision of weights. bfloat16 keeps the image encoder, norms and the maps of state, "
        "actions and time in float32.",
        choices=("float32", "bfloat16"),
    )
    tokenizer_steps: ClassVar[TokenizerSteps] = {
        "text_tokenizer_name": (("tokenizer_processor", "tokenizer_name"),)
    }

    use_relative_actions: bool = option(
        False, "Learn actions minus the state at which a chunk begins."
    )
    relative_exclude_joints: list[str] = option(
        lambda: ["gripper"],
        "Parts of the names of action numbers that stay absolute with use_relative_actions.",
    )
    action_feature_names: list[str] | None = option(
        None,
        "A name for each number of the action, with use_relative_actions; null takes the "
        "dataset's.",
    )
    image_resolution: tuple[int, int] = option(
        (224, 224), "Height and width that frames are fitted into, padded on all sides.", least=1
    )
    gradient_checkpointing: bool = option(
        False, "Compute activations of each layer again in the backward pass."
    )
    compile_model: bool = option(False, "Put each layer through torch.compile.")
    compile_mode: str = option("max-autotune", "Mode of torch.compile, with compile_model.")
    freeze_vision_encoder: bool = option(False, "Keep the image encoder as it is.")
    optimizer_lr: float = 2.5e-5
    optimizer_weight_decay: float = 0.01
    optimizer_grad_clip_norm: float = 1.0
    text_tokenizer_name: str = option(
        PALIGEMMA,
        "Tokenizer of sentences: a Hub name or a folder.",
        is_own=True,
        is_pretrained=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(chain(self.chunk_rules(), self.model_rules()))

    def model_rules(self) -> Iterator[Rule]:
        """Yield rules on options that LeRobot or kata cannot run."""
        yield (
            self.paligemma_variant != "gemma_2b",
            f"policy.paligemma_variant={self.paligemma_variant}",
            "PaliGemma's images are as wide as gemma_2b; LeRobot cannot run another",
            "--policy.paligemma_variant=gemma_2b",
        )
        height, width = self.image_resolution
        yield (
            height != width or height % PATCH != 0,
            f"policy.image_resolution=[{height},{width}]",
            f"a square with a side that {PATCH} divides",
            "--policy.image_resolution=[224,224]",
        )

    def frozen_features(self) -> dict[str, tuple[str, ...]]:
        """Return what a cache may keep: the tokens of cameras, with `freeze_vision_encoder`."""
        return {"vision": tuple(self.cameras)} if self.freeze_vision_encoder else {}

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size that frames are fitted to; see `PolicyConfig.resized`."""
        return size_within(size, self.image_resolution)

    def tokenizer(self) -> dict[str, Any]:
        """Return the options of PaliGemma's tokenizer."""
        return {
            "tokenizer_name": self.text_tokenizer_name,
            "max_length": self.tokenizer_max_length,
            "padding": "max_length",
            "padding_side": "right",
        }

    def action_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps after the policy, with that for relative actions."""
        unnormalize, move = ((name, {}) for name in ACTION_STEPS)
        return [unnormalize, self.absolute_actions(), move]

    def validate_features(self) -> None:
        """Raise PolicyError unless there are cameras, a state, and an action, none too wide."""
        refuse_broken_rules(self.feature_rules())


@dataclass(frozen=True, kw_only=True)
class PiConfig(PaliGemmaConfig, FlowVlaConfig, SampledTimesConfig):
    """Options that π0 and π0.5 share, with LeRobot's names and defaults."""

    lora_targets: ClassVar[str] = (
        r".*\.gemma_expert\..*\.self_attn\.(q|v)_proj"
        r"|model\.(state_proj|action_in_proj|action_out_proj|action_time_mlp_in|action_time_mlp_out)"
    )

    num_inference_steps: int = option(10, "Integration steps of a chunk in acting.", least=1)
    train_expert_only: bool = option(False, "Keep PaliGemma as it is.")
    do_mask_loss_for_padding: bool = option(
        False,
        "Leave out actions behind the end of an episode. LeRobot trains on the last one, repeated.",
        is_own=True,
    )
    frozen_dtype: str = option(
        "float32",
        "Precision in which a frozen PaliGemma is held, computed and written, with "
        "train_expert_only.",
        choices=("float32", "bfloat16"),
        is_own=True,
    )

    def model_rules(self) -> Iterator[Rule]:
        """Yield rules on options that LeRobot or kata cannot run."""
        yield from super().model_rules()
        yield from self.time_rules()
        yield (
            self.frozen_dtype != "float32" and not self.train_expert_only,
            f"policy.frozen_dtype={self.frozen_dtype} with policy.train_expert_only=false",
            "weights that are trained have the precision of policy.dtype",
            "--policy.train_expert_only=true, or --policy.frozen_dtype=float32",
        )

    def frozen_features(self) -> dict[str, tuple[str, ...]]:
        """Return what a cache may keep: with `train_expert_only` all that PaliGemma computes."""
        if not self.train_expert_only:
            return super().frozen_features()
        cameras = tuple(self.cameras)
        return {"prefix": (*cameras, LANGUAGE_TOKENS, LANGUAGE_MASK), "vision": cameras}

    @property
    def trains_padded_steps(self) -> bool:
        """Return True unless `do_mask_loss_for_padding`."""
        return not self.do_mask_loss_for_padding

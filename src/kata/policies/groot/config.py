"""Options of GR00T N1.7, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kata.errors import PolicyError
from kata.optim.config import AdamWConfig, DiffuserSchedulerConfig
from kata.policies.groot.base_model import (
    GROOT,
    N1_5_IS_GONE,
    NATIVE_HORIZON,
    ROBOTS,
    BaseModel,
    Sidecars,
    base_model,
    sidecars,
)
from kata.policies.groot.options import GrootOptions
from kata.policies.rtc import delay_rules
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import (
    ACTION,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    VIEW,
    Batch,
    Column,
    Draw,
    Stats,
    Windows,
    dim_pad_key,
    missing_key,
    pad_key,
    relative_dimensions,
)

if TYPE_CHECKING:
    from kata.processors.pipeline import Pipeline

_log = logging.getLogger(__name__)

LIBERO, LIBERO_ROBOT = "libero", "libero_sim"
LIBERO_EXECUTES = 8
"""Actions after which NVIDIA's rollouts in LIBERO predict again."""

TERM = "flow_matching_loss"

OLD_DEFAULTS: tuple[tuple[str, Any, Any], ...] = (
    ("max_state_dim", 64, 132),
    ("max_action_dim", 32, 132),
    ("chunk_size", 50, 40),
    ("n_action_steps", 50, 40),
    ("image_size", (224, 224), (256, 256)),
)
"""Options, their defaults for N1.5, and what LeRobot takes in their place."""

TARGET, CROP = (256, 256), (230, 230)
"""Height and width of images, and of the crop of them, where the base model names none."""

PROMPT_TOKENS = 48
"""Tokens of a prompt beside those of images, which `kata plan` counts with."""


@dataclass(frozen=True, kw_only=True)
class Config(GrootOptions):
    """GR00T's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "groot"
    masks_action_dims: ClassVar[bool] = True
    normalizes_itself: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._resolve("base_model_path", self.base_model_path or GROOT)
        wanted = (self.action_decode_transform or "none").lower()
        if wanted == "auto":
            wanted = LIBERO if self.embodiment_tag == LIBERO_ROBOT else "none"
        self._resolve("action_decode_transform", None if wanted in ("none", "") else wanted)
        for name, old, new in OLD_DEFAULTS:
            value = vars(self)[name]
            if (tuple(value) if isinstance(old, tuple) else value) == old:
                _log.warning(
                    "policy.%s=%s was the default of GR00T N1.5; %s is taken, as in LeRobot",
                    name,
                    old,
                    new,
                )
                self._resolve(name, new)
        refuse_broken_rules(chain(self.chunk_rules(), self._own_rules()))

    def _resolve(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _own_rules(self) -> Iterator[Rule]:
        """Yield rules on options that LeRobot or kata cannot run."""
        yield (
            self.tokenizer_assets_repo is not None,
            f"policy.tokenizer_assets_repo={self.tokenizer_assets_repo}: GR00T N1.5",
            "LeRobot 0.6 and kata have N1.7",
            N1_5_IS_GONE,
        )
        yield (
            self.action_decode_transform not in (None, LIBERO),
            f"policy.action_decode_transform={self.action_decode_transform}",
            f"auto, none or {LIBERO}",
            "--policy.action_decode_transform=auto",
        )
        yield (
            self.lora_rank > 0 or self.lora_full_model,
            f"policy.lora_rank={self.lora_rank}, "
            f"policy.lora_full_model={str(self.lora_full_model).lower()}",
            "LeRobot ignores these options, and kata has its own",
            f"--peft.r={self.lora_rank or 16}, and leave them out",
        )
        yield (
            self.tune_top_llm_layers < 0,
            f"policy.tune_top_llm_layers={self.tune_top_llm_layers}",
            "a number of layers, 0 for none",
            "--policy.tune_top_llm_layers=0",
        )
        tuned = (self.tune_llm, self.tune_visual, self.tune_projector, self.tune_diffusion_model)
        yield (
            not any((*tuned, self.tune_vlln, self.tune_top_llm_layers)),
            "policy.tune_*: all false",
            "a part of the policy is trained",
            "--policy.tune_diffusion_model=true",
        )

    # --- the base model

    @property
    def base(self) -> BaseModel:
        """Return the base model's sizes; PolicyError if they cannot be read."""
        assert self.base_model_path is not None
        found = base_model(self.base_model_path)
        refuse_broken_rules(self._base_rules(found))
        return found

    def _base_rules(self, base: BaseModel) -> Iterator[Rule]:
        for name, mine, wanted in (
            ("max_state_dim", self.max_state_dim, base.head.state_dim),
            ("max_action_dim", self.max_action_dim, base.head.action_dim),
        ):
            yield (
                mine != wanted,
                f"policy.{name}={mine} with {base.source}, which has {wanted}",
                "vectors are padded to the size that the base model was trained with",
                f"--policy.{name}={wanted}",
            )

    @property
    def files(self) -> Sidecars | None:
        """Return what the files beside the base model say about the robot, if there are any."""
        assert self.base_model_path is not None
        return sidecars(self.base_model_path, self.embodiment_tag)

    @property
    def robots(self) -> dict[str, int]:
        """Return the numbers of the robots that the base model knows."""
        return dict(ROBOTS) if self.files is None else self.files.numbers

    @property
    def robot(self) -> int:
        """Return the number of the robot; PolicyError if the base model does not know it."""
        known = self.robots
        number = known.get(self.embodiment_tag)
        most = self.base.head.embodiments
        if number is None or number >= most:
            raise PolicyError(
                f"policy.embodiment_tag={self.embodiment_tag}",
                rule=f"robots of the base model: {', '.join(sorted(known))}"
                + ("" if number is None else f", of which it has weights for {most}"),
                remedy="--policy.embodiment_tag=new_embodiment for a robot that it does not know",
            )
        return number

    @property
    def horizon(self) -> int:
        """Return the number of actions that a chunk is padded to in training."""
        files = self.files
        if self.steps_measured_apart():
            return NATIVE_HORIZON
        most = None if files is None else files.options.get("max_action_horizon")
        if isinstance(most, int):
            return most
        return min(self.chunk_size, NATIVE_HORIZON)

    @property
    def valid_horizon(self) -> int:
        """Return the number of actions of a chunk that count."""
        if self.steps_measured_apart():
            return min(self.chunk_size, NATIVE_HORIZON)
        known = None if self.files is None else self.files.horizon
        return self.horizon if known is None else min(known, self.horizon)

    @property
    def executed(self) -> int:
        """Return the number of actions that are executed before the next prediction."""
        known = None if self.files is None else self.files.horizon
        if known is None:
            return self.n_action_steps
        libero = (LIBERO_EXECUTES,) if self.embodiment_tag == LIBERO_ROBOT else ()
        return min(self.n_action_steps, known, *libero)

    @property
    def predicted(self) -> int:
        """Return the number of actions of a predicted chunk. LeRobot cuts it to n_action_steps."""
        known = None if self.files is None else self.files.horizon
        return min(self.base.horizon, self.chunk_size, known or self.chunk_size)

    @property
    def state_dropouts(self) -> tuple[float, float]:
        """Return the shares of training samples whose state is zero, and whose token is."""
        files = self.files
        told = 0.0 if files is None else files.options.get("state_dropout_prob")
        return float(told or 0.0), self.base.state_dropout

    @property
    def image_options(self) -> dict[str, Any]:
        """Return the options of images, by LeRobot's names of them."""
        told = {} if self.files is None else self.files.options
        resized = {"image_target_size": list(TARGET), "image_crop_size": list(CROP)}
        names = ("image_target_size", "image_crop_size", "shortest_image_edge", "crop_fraction")
        if told.get("image_target_size") is not None:
            resized = {name: told.get(name) for name in names}
        switches = ("use_albumentations", "letter_box_transform")
        return {**resized, **{name: bool(told.get(name, False)) for name in switches}}

    @property
    def crops_at_random(self) -> bool:
        """Return True if training crops images at a random place, as albumentations does."""
        return self.image_options["use_albumentations"]

    # --- the data contract

    def windows(self) -> Windows:
        """Return offsets of the chunk of actions. Observations are read at the anchor."""
        known = None if self.files is None else self.files.horizon
        return {ACTION: tuple(range(min(self.chunk_size, known or NATIVE_HORIZON)))}

    def drop_last_frames(self) -> int:
        """Return the number of frames that cannot be anchors: their chunk would not be whole."""
        return len(self.windows()[ACTION]) - 1

    def draws(self) -> dict[str, Draw]:
        """Return the noise of a chunk, its time, and which samples go without their state."""
        found = {
            "noise": Draw("normal", (self.horizon, self.max_action_dim)),
            "time": Draw("uniform", (1,)),
        }
        if any(self.state_dropouts):
            found["state_dropout"] = Draw("uniform", (2,))
        return {**found, "crop": Draw("uniform", (2,))} if self.crops_at_random else found

    def act_draws(self) -> dict[str, Draw]:
        """Return the noise that a chunk is computed from."""
        return {"noise": Draw("normal", (self.base.horizon, self.max_action_dim))}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Return the number of action values of the global batch that count."""
        import numpy as np  # here, so that help need not import it

        steps = len(self.windows()[ACTION])
        pad, dim_pad = pads.get(pad_key(ACTION)), pads.get(dim_pad_key(ACTION))
        real = np.ones((size, steps), bool) if pad is None else ~pad
        counted = real[:, : self.valid_horizon].sum(1)
        dims = np.full(size, self.action.shape[0]) if dim_pad is None else (~dim_pad).sum(1)
        return {TERM: float(max(int((counted * dims).sum()), 1))}

    def own_precision(self) -> str:
        """Return 'bf16' with `use_bf16`."""
        return "bf16" if self.use_bf16 or self.use_amp else "no"

    def optimizer_preset(self) -> AdamWConfig:
        """Return AdamW with the options of this config."""
        return AdamWConfig(
            lr=self.optimizer_lr,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=1.0,
        )

    def scheduler_preset(self) -> DiffuserSchedulerConfig:
        """Return a cosine to zero at the end of the run, with the warm-up of `max_steps`."""
        warmup = math.ceil(self.max_steps * self.warmup_ratio)
        return DiffuserSchedulerConfig(name="cosine", num_warmup_steps=warmup)

    def tokenizer(self) -> dict[str, Any]:
        """Return the tokenizer, and the length of a prompt that `kata plan` counts with."""
        return {"tokenizer_name": self.text_tokenizer_name, "max_length": PROMPT_TOKENS}

    def blank_inputs(self, batch: Batch, size: int) -> Batch:
        """Return a batch of zeros with images in their final size, and tokens of a prompt."""
        import torch  # here, for configs are read without it

        from kata.policies.groot.pipelines import final_sizes

        sizes = final_sizes(self)
        length = PROMPT_TOKENS + sum(tokens for _, tokens in sizes)
        views = {
            f"{VIEW}{number}": torch.zeros(size, 3, *image, dtype=torch.uint8)
            for number, (image, _) in enumerate(sizes)
        }
        kept = {key: value for key, value in batch.items() if key not in self.cameras}
        words = torch.zeros(size, length, dtype=torch.int64)
        mask = torch.ones(size, length, dtype=torch.bool)
        return {**kept, **views, LANGUAGE_TOKENS: words, LANGUAGE_MASK: mask}

    def frozen_features(self) -> dict[str, tuple[str, ...]]:
        """Return what a cache may keep: all that the backbone makes of cameras and sentence.

        There is nothing where a part of it is trained, or where images are cropped at random. With
        `attend_padding` features depend on the other samples of a batch.
        """
        trained = self.tune_llm or self.tune_visual or self.tune_top_llm_layers > 0
        if trained or self.attend_padding or self.crops_at_random:
            return {}
        frames = 1 if self.files is None else self.files.video_horizon or 1
        views = [f"{VIEW}{number}" for number in range(frames * len(self.cameras))]
        absent = [missing_key(view) for view in views]
        return {"prefix": (*self.cameras, *views, *absent, LANGUAGE_TOKENS, LANGUAGE_MASK)}

    def validate_features(self) -> None:
        """Raise PolicyError unless there are cameras, a state, and an action, none too wide."""
        refuse_broken_rules(self.feature_rules())

    def without_downloads(self) -> Config:
        """Return a copy without the base model's weights."""
        return dataclasses.replace(self, load_base_weights=False)

    # --- relative actions, and chunks that continue others

    def relative_dimensions(self) -> list[bool] | None:
        """Return which numbers of the action are relative, with `use_relative_actions`."""
        if not self.use_relative_actions:
            return None
        names, exclude = self.action_feature_names, self.relative_exclude_joints
        return relative_dimensions(names, exclude, self.action.shape[0])

    def steps_measured_apart(self) -> int:
        """Return the steps of a chunk whose relative actions are measured each for itself.

        Statistics of the robot among the base model's files come first: there are none to measure.
        """
        files = self.files
        has_statistics = files is not None and bool(files.stats and files.modality)
        return 0 if has_statistics or not self.use_relative_actions else NATIVE_HORIZON

    def with_columns(self, columns: Mapping[str, Column]) -> Config:
        """Return a copy with the dataset's names of the action's numbers, if they are needed.

        Raises: PolicyError without names, or for a base model that cannot be used.
        """
        _ = self.robot  # before the dataset is judged by a horizon that the base model gives
        if not self.use_relative_actions:
            return self
        names = columns[ACTION].names if ACTION in columns else None
        given = self.action_feature_names if names is None else list(names)
        if given is None:
            raise PolicyError(
                "policy.use_relative_actions=true: the dataset does not name the numbers of its "
                "action",
                rule="GR00T groups numbers by their names",
                remedy="--policy.action_feature_names=[...]",
            )
        return dataclasses.replace(self, action_feature_names=given)

    def refuse_delay(self, delay: int) -> None:
        """Raise PolicyError unless chunks last while others are predicted for `delay` steps."""
        rules = delay_rules(delay, chunk=self.predicted, every=self.executed, rtc=None, trained=0)
        relative = (
            delay > 0 and self.use_relative_actions,
            f"eval.inference_delay={delay} with policy.use_relative_actions=true",
            "what is left over of a chunk is relative to an older state than the next chunk",
            "leave out --eval.inference_delay",
        )
        refuse_broken_rules([relative, *rules])

    def told_of_delay(self, delay: int) -> dict[str, Any]:
        """Return steps of a prediction and between two, for the result's file."""
        return {"inference_delay": delay, "n_action_steps": self.executed}

    # --- pipelines

    def own_pipelines(
        self, stats: Stats, *, rename_map: dict[str, str], device: str
    ) -> tuple[Pipeline, Pipeline]:
        """Return GR00T's pipelines, with the robot's statistics or these."""
        from kata.policies.groot.pipelines import groot_pipelines  # here, for it imports torch

        return groot_pipelines(self, stats, rename_map=rename_map, device=device)

    def saved_pipelines(self, folder: Path, device: str) -> tuple[Pipeline, Pipeline]:
        """Return the pipelines of a checkpoint."""
        from kata.policies.groot.pipelines import (
            saved_groot_pipelines,
        )  # here, for it imports torch

        return saved_groot_pipelines(self, folder, device)

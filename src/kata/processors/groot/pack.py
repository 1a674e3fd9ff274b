"""The step that normalizes state and actions, orders cameras and formats sentences."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from kata.errors import DataError
from kata.processors.groot.groups import ActionGroup, action_groups
from kata.processors.groot.scaling import limits_of, scaled
from kata.processors.steps import STEPS, StateDict, Step
from kata.spec import ACTION, ORIGIN, STATE, TASK, VIEW, Batch, missing_key

_log = logging.getLogger(__name__)

CAMERAS, CAMERA = "observation.images", "observation.image"

DEFAULT_TASK = "Perform the task."


@dataclass
class PackInputs(Step):
    """A step with LeRobot's options; fields are those of its JSON."""

    registry_name: ClassVar[str] = "groot_n1_7_pack_inputs_v1"

    state_horizon: int = 1
    action_horizon: int = 40
    valid_action_horizon: int = 40
    video_horizon: int | None = None
    max_state_dim: int = 132
    max_action_dim: int = 132
    language_key: str = TASK
    formalize_language: bool = True
    embodiment_tag: str = "new_embodiment"
    embodiment_mapping: dict[str, int] = field(default_factory=dict)
    normalize_min_max: bool = True
    state_dropout_prob: float = 0.0
    clip_outliers: bool = True
    use_percentiles: bool = False
    video_modality_keys: list[str] | None = None
    raw_stats: dict[str, Any] | None = None
    modality_config: dict[str, Any] | None = None
    stats: dict[str, StateDict] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        self.groups: list[ActionGroup] = []
        if self.raw_stats and self.modality_config:
            self.groups = action_groups(
                self.raw_stats,
                self.modality_config,
                use_percentiles=self.use_percentiles,
                use_relative=True,
            )

    @property
    def is_relative(self) -> bool:
        """Return True if a group of the action is relative to the state."""
        return any(group.state is not None for group in self.groups)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with scaled vectors, formatted sentences, and images in order."""
        packed = dict(batch)
        packed[self.language_key] = self._sentences(batch)
        if STATE in batch:
            state: Tensor = batch[STATE][:, -1] if batch[STATE].ndim > 2 else batch[STATE]
            if self.is_relative:
                packed[ORIGIN] = state
            packed[STATE] = self._flat(state, STATE)
            if ACTION in batch:
                packed[ACTION] = self._scaled_actions(batch[ACTION], state)
        return {**packed, **self._views(batch)}

    def _sentences(self, batch: Batch) -> list[str]:
        """Return the sentences, of lower-case letters, digits, blanks and underscores alone."""
        given = batch.get(self.language_key)
        tasks = [given] if given is None or isinstance(given, str) else list(given)
        size = next((len(v) for v in batch.values() if isinstance(v, Tensor) and v.ndim), 1)
        found: list[str] = []
        for task in tasks if len(tasks) > 1 else tasks * size:
            text = str(task) if task else DEFAULT_TASK
            if self.formalize_language:
                letters = [c for c in text.lower() if c.isalnum() or c.isspace() or c == "_"]
                text = "".join(letters)
            found.append(text)
        return found

    def _flat(self, values: Tensor, key: str) -> Tensor:
        if not self.normalize_min_max or key not in self.stats:
            return values
        low, high = limits_of(self.stats[key], values.shape[-1])
        return scaled(values, low, high, clips=self.clip_outliers)

    def _scaled_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        """Return actions (B, T, A) in [-1, 1], relative where their group is."""
        actions = actions[:, None] if actions.ndim == 2 else actions
        steps, width = actions.shape[1:]
        if sum(group.size for group in self.groups) != width or not self.normalize_min_max:
            self._refuse_other_widths(width)
            return self._flat(actions, ACTION)
        parts: list[Tensor] = []
        for group in self.groups:
            part = actions[..., group.start : group.start + group.size]
            if group.is_pose:
                raise DataError(
                    f"action group {group.name}: relative poses",
                    rule="LeRobot and kata act with relative poses, and train with joints alone",
                    remedy="another policy.embodiment_tag",
                )
            if group.state is not None:
                part = part - state[:, None, group.state : group.state + group.size]
            if group.low.ndim > 1 and steps > len(group.low):
                raise DataError(
                    f"{steps} actions in a chunk, with statistics for {len(group.low)}",
                    rule="relative actions are normalized step by step",
                    remedy=f"--policy.chunk_size={len(group.low)} or less",
                )
            low, high = (
                limit[:steps] if limit.ndim > 1 else limit for limit in (group.low, group.high)
            )
            parts.append(scaled(part, low, high, clips=self.clip_outliers))
        return torch.cat(parts, dim=-1)

    def _refuse_other_widths(self, width: int) -> None:
        if self.is_relative:
            raise DataError(
                f"{ACTION}: {width} numbers, where GR00T's statistics have "
                f"{sum(group.size for group in self.groups)}",
                rule="relative actions are normalized group by group",
                remedy="the dataset of this robot, or another policy.embodiment_tag",
            )

    def _views(self, batch: Batch) -> Batch:
        """Return images uint8 (B, 3, H, W) in the order of the prompt: by time, then by camera."""
        keys = self.ordered(key for key, value in batch.items() if isinstance(value, Tensor))
        columns: list[list[Tensor]] = []
        for key in keys:
            frames = batch[key]
            frames = frames[:, None] if frames.ndim == 4 else frames
            if frames.is_floating_point():
                frames = (frames.clamp(0, 1) * 255.0).to(torch.uint8)
            columns.append(self._aligned(frames))
        views: Batch = {}
        for step in range(len(columns[0]) if columns else 0):
            for frames in columns:
                views[f"{VIEW}{len(views)}"] = frames[step]
        for number, key in enumerate(keys * (len(columns[0]) if columns else 0)):
            if missing_key(key) in batch:
                views[missing_key(f"{VIEW}{number}")] = batch[missing_key(key)]
        return views

    def _aligned(self, frames: Tensor) -> list[Tensor]:
        """Return the last `video_horizon` frames (B, 3, H, W); the first is repeated."""
        found = list(frames.unbind(1))
        wanted = self.video_horizon or len(found)
        return [*found[:1] * (wanted - len(found)), *found[-wanted:]]

    def ordered(self, keys: Iterable[str]) -> list[str]:
        """Return the cameras among keys in the order of the prompt.

        By default that is the alphabet. With `video_modality_keys` it is theirs, and cameras that
        they do not name are left out; if no camera bears such a name, the alphabet decides.
        """
        known = [k for k in keys if not k.endswith(("_is_pad", "_is_missing"))]
        cameras = sorted(key for key in known if key.startswith(CAMERAS))
        if not cameras:
            return [CAMERA] if CAMERA in known else []
        if not self.video_modality_keys:
            return cameras
        found: list[str] = []
        for name in self.video_modality_keys:
            # LIBERO's datasets call the wrist's camera so.
            other = f"{CAMERAS}.image2" if name == "wrist_image" else ""
            match = [key for key in (f"{CAMERAS}.{name}", other) if key in cameras]
            found += match[:1]
        if len(found) < len(self.video_modality_keys) or set(found) != set(cameras):
            self._tell(found or cameras, cameras)
        return found or cameras

    def _tell(self, used: list[str], cameras: list[str]) -> None:
        """Warn once that cameras are not those that the base model was trained with."""
        if not self._told:
            self._told.add("cameras")
            _log.warning(
                "the base model knows the cameras %s; of %s it sees %s in this order (--rename_map "
                "gives cameras its names)",
                ", ".join(self.video_modality_keys or ()),
                ", ".join(cameras),
                ", ".join(used),
            )

    def config(self) -> dict[str, Any]:
        """Return the fields that LeRobot 0.6.1 reads."""
        unwritten = ("stats", "_told")
        names = [each.name for each in fields(self) if each.name not in unwritten]
        plain = {name: vars(self)[name] for name in names}
        return {**plain, "raw_stats": self.raw_stats or {}, "modality_config": self.groups_config}

    @property
    def groups_config(self) -> dict[str, Any]:
        """Return `modality_config`; empty for none."""
        return self.modality_config or {}

    def state(self) -> StateDict:
        """Return the statistics as `<feature>.<statistic>`."""
        return by_name(self.stats)

    @classmethod
    def build(cls, config: Mapping[str, Any], state: StateDict) -> PackInputs:
        """Return the step with a checkpoint's JSON and tensors."""
        return cls(**config, stats=by_feature(state))


def by_name(stats: Mapping[str, StateDict]) -> StateDict:
    """Return statistics as `<feature>.<statistic>`."""
    found: StateDict = {}
    for key, named in stats.items():
        found.update({f"{key}.{name}": tensor for name, tensor in named.items()})
    return found


def by_feature(state: StateDict) -> dict[str, StateDict]:
    """Return statistics by feature and name, from `<feature>.<statistic>`."""
    found: dict[str, StateDict] = {}
    for name, tensor in state.items():
        key, _, stat = name.rpartition(".")
        found.setdefault(key, {})[stat] = tensor
    return found


STEPS[PackInputs.registry_name] = PackInputs

"""The steps of a pipeline: plain data with `__call__(batch) -> batch` and LeRobot's options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from kata.errors import CheckpointError, did_you_mean
from kata.spec import (
    ACTION,
    ENV_STATE,
    STATE,
    TASK,
    Batch,
    Feature,
    FeatureType,
    NormMode,
    Stats,
    pad_key,
)

StateDict = dict[str, Tensor]

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Artifact:
    """The files of a folder that an option names, such as a tokenizer's.

    Attributes:
        name: of the folder in a checkpoint.
        files: content by file name.
    """

    name: str
    files: Mapping[str, bytes]


class Step(ABC):
    """The base of all steps. `registry_name` is LeRobot's; the constructor takes `config()`."""

    registry_name: ClassVar[str]
    is_saved: ClassVar[bool] = True
    """False for a step of training alone that LeRobot does not know: checkpoints leave it out."""

    @abstractmethod
    def __call__(self, batch: Batch) -> Batch:
        """Return a new batch; the caller's is not changed."""

    def config(self) -> dict[str, Any]:
        """Return the options as JSON values."""
        return {}

    def state(self) -> StateDict:
        """Return the step's tensors on the CPU; empty for most steps."""
        return {}

    def artifacts(self) -> dict[str, Artifact]:
        """Return the folders to keep with the step, by the option that names each."""
        return {}

    @classmethod
    def build(cls, config: Mapping[str, Any], state: StateDict) -> Step:
        """Return the step with these JSON options and tensors."""
        del state
        return cls(**config)


@dataclass(frozen=True)
class Rename(Step):
    """A step that renames observations and their masks from the dataset's keys to the policy's."""

    registry_name: ClassVar[str] = "rename_observations_processor"
    rename_map: dict[str, str] = field(default_factory=dict)

    def __call__(self, batch: Batch) -> Batch:
        """Return the same values under the new names."""
        names = {**self.rename_map, **{pad_key(a): pad_key(b) for a, b in self.rename_map.items()}}
        return {names.get(key, key): value for key, value in batch.items()}

    def config(self) -> dict[str, Any]:
        """Return `rename_map`, old name to new."""
        return {"rename_map": dict(self.rename_map)}


@dataclass(frozen=True)
class AddBatchAxis(Step):
    """A step that makes a batch of one from an observation; batches pass unchanged."""

    registry_name: ClassVar[str] = "to_batch_processor"

    def __call__(self, batch: Batch) -> Batch:
        """Return state (D,) as (1, D), frame (C, H, W) as (1, C, H, W), task 'x' as ['x']."""
        out = dict(batch)
        for key, value in batch.items():
            if key == TASK and isinstance(value, str):
                out[key] = [value]
            elif isinstance(value, Tensor) and value.dim() == self._single_dims(key):
                out[key] = value.unsqueeze(0)
        return out

    @staticmethod
    def _single_dims(key: str) -> int:
        if key in (STATE, ENV_STATE, ACTION):
            return 1
        return 3 if key.startswith("observation.image") else -1


@dataclass(frozen=True)
class ToDevice(Step):
    """A step that moves tensors to a device, and optionally casts floats."""

    registry_name: ClassVar[str] = "device_processor"
    device: str = "cpu"
    float_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.float_dtype is not None and self.float_dtype not in DTYPES:
            raise CheckpointError(
                f"device_processor: float_dtype={self.float_dtype}",
                rule=f"null or one of: {', '.join(DTYPES)}",
                remedy=did_you_mean(self.float_dtype, DTYPES),
            )

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch on the device; copies to a GPU are asynchronous, to the CPU not."""
        return {
            key: self._move(value) if isinstance(value, Tensor) else value
            for key, value in batch.items()
        }

    def _move(self, value: Tensor) -> Tensor:
        dtype = (
            DTYPES[self.float_dtype]
            if self.float_dtype and value.is_floating_point()
            else value.dtype
        )
        return value.to(self.device, dtype, non_blocking=self.device != "cpu")

    def config(self) -> dict[str, Any]:
        """Return `float_dtype`, and `device` without an index, for machines with other GPUs."""
        return {"device": self.device.partition(":")[0], "float_dtype": self.float_dtype}


OTHERS = 4
"""Names of statistics that a message shows."""


@dataclass
class Normalize(Step):
    """A step that normalizes each feature by the mode of its type.

    MEAN_STD gives (x - mean) / (std + eps), MIN_MAX gives 2 (x - min) / (max - min) - 1. QUANTILES
    and QUANTILE10 do the same with q01/q99 and q10/q90. eps replaces a range of zero. Nothing is
    clipped. The arithmetic is LeRobot's.
    """

    registry_name: ClassVar[str] = "normalizer_processor"
    inverse: ClassVar[bool] = False

    features: dict[str, Feature]
    norm_map: dict[str, NormMode]
    stats: dict[str, StateDict]
    eps: float = 1e-8
    normalize_observation_keys: list[str] | None = None
    _placed: dict[str, dict[str, StateDict]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_stats(
        cls, features: dict[str, Feature], norm_map: dict[str, NormMode], stats: Stats
    ) -> Normalize:
        """Return the step for a dataset's statistics; it keeps all of them, as LeRobot does."""
        tensors: dict[str, StateDict] = {}
        for key, named in stats.items():
            tensors[key] = {n: torch.as_tensor(v, dtype=torch.float32) for n, v in named.items()}
        step = cls(features=features, norm_map=norm_map, stats=tensors)
        step.check()
        return step

    def check(self, *, is_saved: bool = False) -> None:
        """Raise CheckpointError if a feature lacks the statistics that its mode needs.

        Args:
            is_saved: True for those of a checkpoint's files.
        """
        for key, feature in self.features.items():
            pair = _PAIRS.get(self._mode(feature))
            if pair is None or (not self.inverse and self._skips(key, feature)):
                continue
            missing = [name for name in pair if name not in self.stats.get(key, {})]
            if missing:
                remedy = (
                    "choose another mode in policy.normalization_mapping, or add the statistics "
                    "to the dataset"
                )
                if is_saved:
                    remedy = (
                        "fine-tune it on your data first: `kata train --policy.path=<this "
                        "checkpoint> --dataset.repo_id=...` writes a checkpoint with their "
                        "statistics"
                    )
                raise CheckpointError(
                    f"{key}: no {' and '.join(missing)} among the statistics" + self._others(key),
                    rule=f"{self._mode(feature)} needs {' and '.join(pair)}",
                    remedy=remedy,
                )

    def _others(self, key: str) -> str:
        """Return what is there instead, such as statistics of several training sets."""
        found = [name for name in self.stats if name != key and name.endswith(key)]
        found = found or list(self.stats)
        more = ", …" if len(found) > OTHERS else ""
        return f"; there are those of {', '.join(found[:OTHERS])}{more}" if found else ""

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with normalized copies of its features."""
        out = dict(batch)
        for key in self.keys(batch):
            out[key] = self.apply(key, batch[key])
        return out

    def keys(self, batch: Batch) -> list[str]:
        """Return the features in the batch that this step changes."""
        return [
            key
            for key, feature in self.features.items()
            if key in batch and not self._skips(key, feature)
        ]

    def apply(self, key: str, value: Tensor) -> Tensor:
        """Return one feature's normalized values, with any leading axes."""
        pair = self.pair(key, value)
        return value if pair is None else self.scaled(key, value, *pair)

    def pair(self, key: str, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the two statistics of the feature's mode on `like`'s device; None for no mode."""
        names = _PAIRS.get(self._mode(self.features[key]))
        if names is None or key not in self.stats:
            return None
        return self._stat(key, names[0], like), self._stat(key, names[1], like)

    def scaled(self, key: str, value: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the feature's values, normalized with these two statistics."""
        mode = self._mode(self.features[key])
        if mode is NormMode.MEAN_STD:
            return value * second + first if self.inverse else (value - first) / (second + self.eps)
        span = second - first
        span = torch.where(span == 0, torch.full_like(span, self.eps), span)
        return (value + 1) / 2 * span + first if self.inverse else 2 * (value - first) / span - 1

    def _stat(self, key: str, name: str, like: Tensor) -> Tensor:
        """Return the statistic on the values' device and dtype; it is copied once."""
        place = f"{like.device}/{like.dtype}"
        placed = self._placed.setdefault(place, {}).setdefault(key, {})
        if name not in placed:
            stat = self.stats[key][name]
            if self.features[key].type is FeatureType.VISUAL and stat.dim() == 1:
                stat = stat.reshape(-1, 1, 1)
            placed[name] = stat.to(like.device, like.dtype)
        return placed[name]

    def _mode(self, feature: Feature) -> NormMode:
        return self.norm_map.get(feature.type.value, NormMode.IDENTITY)

    def _skips(self, key: str, feature: Feature) -> bool:
        chosen = self.normalize_observation_keys
        return chosen is not None and feature.type is not FeatureType.ACTION and key not in chosen

    def config(self) -> dict[str, Any]:
        """Return `eps`, `features`, `norm_map` and, if set, `normalize_observation_keys`."""
        plain: dict[str, Any] = {
            "eps": self.eps,
            "features": {
                k: {"type": f.type.value, "shape": list(f.shape)} for k, f in self.features.items()
            },
            "norm_map": {kind: NormMode(mode).value for kind, mode in self.norm_map.items()},
        }
        if self.normalize_observation_keys is not None:
            plain["normalize_observation_keys"] = sorted(self.normalize_observation_keys)
        return plain

    def state(self) -> StateDict:
        """Return the statistics as `<feature>.<statistic>` -> tensor."""
        tensors: StateDict = {}
        for key, named in self.stats.items():
            tensors.update({f"{key}.{name}": tensor for name, tensor in named.items()})
        return tensors

    @classmethod
    def build(cls, config: Mapping[str, Any], state: StateDict) -> Normalize:
        """Return the step with a checkpoint's JSON and tensors; names split at the last dot."""
        stats: dict[str, StateDict] = {}
        for name, tensor in state.items():
            key, _, stat = name.rpartition(".")
            stats.setdefault(key, {})[stat] = tensor.to(torch.float32)
        step = cls(
            features={
                k: Feature(FeatureType(f["type"]), tuple(f["shape"]))
                for k, f in config["features"].items()
            },
            norm_map={kind: NormMode(mode) for kind, mode in config["norm_map"].items()},
            stats=stats,
            eps=config.get("eps", 1e-8),
            normalize_observation_keys=config.get("normalize_observation_keys"),
        )
        step.check(is_saved=True)
        return step


class Unnormalize(Normalize):
    """The inverse of Normalize, for actions. As in LeRobot, MEAN_STD's inverse has no eps."""

    registry_name: ClassVar[str] = "unnormalizer_processor"
    inverse: ClassVar[bool] = True


_PAIRS = {
    NormMode.MEAN_STD: ("mean", "std"),
    NormMode.MIN_MAX: ("min", "max"),
    NormMode.QUANTILES: ("q01", "q99"),
    NormMode.QUANTILE10: ("q10", "q90"),
}

STEPS: dict[str, type[Step]] = {
    step.registry_name: step for step in (Rename, AddBatchAxis, ToDevice, Normalize, Unnormalize)
}

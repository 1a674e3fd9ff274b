"""The narrow waist between data and policies: names, roles and shapes, in numpy only.

Data and policies both import this module and never each other. A *column* is a feature as a dataset
declares it (cameras as H, W, C). A *feature* is an input or output of a policy (cameras as C, H,
W). Names follow LeRobot: `observation.state`, `observation.images.<camera>`, `action`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ACTION = "action"
STATE = "observation.state"
ENV_STATE = "observation.environment_state"
ORIGIN = "observation.state.origin"
"""Key of what was subtracted from actions, (B, D): the state at which a chunk begins."""
RELATIVE_ACTION = "action.relative"
"""Key of statistics of relative actions for each step of a chunk, (T, A)."""
REWARD = "next.reward"
DONE = "next.done"
TASK = "task"
LANGUAGE_TOKENS = "observation.language.tokens"
LANGUAGE_MASK = "observation.language.attention_mask"
LANGUAGE_PLACES = "observation.language.places"
"""Key of the places of tokens in time, row and column, int64 (B, 3, L)."""
IMAGE_TOKEN, STATE_TOKEN = -1, -2
"""Numbers that stand for a token of an image and for that of the state among tokens."""
ACTION_TOKENS = "action.tokens"
ACTION_TOKEN_MASK = "action.token_mask"
VIEW = "pixel_values."
"""Beginning of the keys of images in the order in which a prompt shows them."""
DATASET_INDEX = "dataset_index"
"""Key of an int64 (B,) array in the batches of a mixture: the number of each sample's dataset."""

BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every dataset has in addition to its own features."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class FeatureType(StrEnum):
    """The role of a feature for a policy; names are LeRobot's."""

    STATE = "STATE"
    VISUAL = "VISUAL"
    ENV = "ENV"
    ACTION = "ACTION"
    REWARD = "REWARD"
    LANGUAGE = "LANGUAGE"


class NormMode(StrEnum):
    """The mode in which a feature is normalized; names are LeRobot's."""

    MEAN_STD = "MEAN_STD"
    MIN_MAX = "MIN_MAX"
    QUANTILES = "QUANTILES"
    QUANTILE10 = "QUANTILE10"
    IDENTITY = "IDENTITY"


@dataclass(frozen=True, slots=True)
class Feature:
    """One input or output of a policy. Cameras have the shape (C, H, W), everything else (D,)."""

    type: FeatureType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One feature of a dataset, as its info.json declares it.

    Attributes:
        dtype: LeRobot's name, such as 'float32', 'video' or 'string'.
        shape: of one frame; (H, W, C) for cameras.
        names: one name per dimension, flattened where the file nests them, or None.
    """

    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...] | None = None

    @property
    def is_camera(self) -> bool:
        """Return True for frames, whether they are stored in videos or in the table."""
        return self.dtype in ("video", "image")


class Draw(NamedTuple):
    """Random numbers that a policy needs per sample.

    Attributes:
        kind: 'normal' or 'uniform'.
        shape: without the batch axis.
        shared: True if all samples of a global batch get the same numbers.
        spread: True if each sample's place in the global batch, from 0 to below 1, is added to
            them.
    """

    kind: str
    shape: tuple[int, ...]
    shared: bool = False
    spread: bool = False


class Colours(NamedTuple):
    """Coefficients that convert 8-bit Y, U and V to RGB in integers; `(a * b) >> 16` rounds down.

        y = ((Y << 3) - offset) * luma >> 16,    u = (U << 3) - 1024,    v = (V << 3) - 1024
        R = y + (v * red >> 16)
        G = y + (u * green_u >> 16) + (v * green_v >> 16)
        B = y + (u * blue >> 16)                 each limited to [0, 255]

    libswscale computes the same on x86, for every Y, U and V.
    """

    luma: int
    offset: int
    red: int
    green_u: int
    green_v: int
    blue: int

    @property
    def black(self) -> tuple[int, int]:
        """Return Y, and U and V, of black."""
        return self.offset >> 3, 128


def size_within(size: tuple[int, int], room: tuple[int, int]) -> tuple[int, int]:
    """Return the largest size with the proportions of `size` that fits into `room`, as LeRobot
    rounds it; heights come before widths. What touches the room on one side and fits into it is
    returned as it is.
    """
    ratio = max(size[1] / room[1], size[0] / room[0])
    return int(size[0] / ratio), int(size[1] / ratio)


Windows: TypeAlias = dict[str, tuple[int, ...]]
"""Frame offsets around the anchor, per key.

A key that is absent is read at the anchor alone, without a time axis.
"""

Stats: TypeAlias = "dict[str, dict[str, NDArray[Any]]]"
"""Statistics per feature: min, max, mean, std, count, q01, q10, q50, q90, q99. Cameras as (C, 1,
1) in [0, 1].
"""

Batch: TypeAlias = dict[str, Any]
"""One batch by key: arrays (or tensors) with the batch axis first; `task` is a list of
sentences.
"""


def role_of(key: str, column: Column) -> FeatureType | None:
    """Return the role that LeRobot gives a column by its name; None if a policy does not use it."""
    if column.is_camera:
        return FeatureType.VISUAL
    if key == ENV_STATE:
        return FeatureType.ENV
    if key.startswith("observation"):
        return FeatureType.STATE
    if key.startswith(ACTION):
        return FeatureType.ACTION
    return None


def feature_of(key: str, column: Column) -> Feature | None:
    """Return a column as a policy sees it, cameras as (C, H, W); None if a policy does not use
    it.
    """
    role = role_of(key, column)
    if role is None or column.dtype in ("string", "language"):
        return None
    if role is FeatureType.VISUAL:
        height, width, channels = column.shape
        return Feature(role, (channels, height, width))
    return Feature(role, column.shape)


def features_of(
    columns: Mapping[str, Column], renamed: Mapping[str, str] | None = None
) -> dict[str, Feature]:
    """Return the columns that are inputs or outputs of a policy, by their own names.

    renamed: own name -> the name that decides the role, where they differ.
    """
    names = renamed or {}
    found = {key: feature_of(names.get(key, key), column) for key, column in columns.items()}
    return {key: feature for key, feature in found.items() if feature is not None}


def pad_key(key: str) -> str:
    """Return the key of the padding mask of `key`.

    The mask, bool (B, T), is True where the window goes beyond the edge of the episode.
    """
    return f"{key}_is_pad"


def frozen_key(name: str) -> str:
    """Return the key of what a frozen part of a policy made of a sample; see `FrozenRows`."""
    return f"frozen.{name}"


FROZEN_ROW, FROZEN_KNOWN, FROZEN_RECORD = (frozen_key(name) for name in ("row", "known", "record"))
"""Keys of a batch as read, where features of a frozen part are cached: the row of each sample in
the cache, int64 (B,); whether it is there, bool (B,); and its bytes, uint8 (B, N), which are absent
if no sample is there.
"""


def missing_key(camera: str) -> str:
    """Return the key of the mask of a camera that some datasets of a mixture lack.

    The mask, bool (B,), is True where the dataset has no such camera and the frames are black.
    Other batches do not have it.
    """
    return f"{camera}_is_missing"


def dim_pad_key(key: str) -> str:
    """Return the key of the mask of dimensions that some datasets of a mixture lack.

    The mask, bool (B, D), is True for these dimensions, which are zero. Other batches do not have
    it.
    """
    return f"{key}_dim_is_pad"


def relative_dimensions(
    names: Sequence[str] | None, exclude: Sequence[str], size: int
) -> list[bool]:
    """Return which of `size` dimensions are relative to the state; LeRobot's rule.

    A dimension stays absolute if its name contains one of `exclude`, whatever the case. Those
    without a name are relative.
    """
    excluded = [part.lower() for part in exclude if part]

    def is_relative(name: str) -> bool:
        return not any(part in name.lower() for part in excluded)

    return [*map(is_relative, names or ()), *[True] * size][:size]


def float32(values: Any) -> NDArray[np.float32]:
    """Return values as a float32 array of at least one dimension."""
    import numpy as np  # here, so that --help does not import it

    return np.atleast_1d(np.asarray(values, dtype=np.float32))

"""Checks of what the writer is given: features at the start, and every frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kata.data.format.info import CAMERA_NAMES
from kata.data.video.encoder import VideoOptions
from kata.errors import DataError, did_you_mean
from kata.spec import BOOKKEEPING, Column

_NUMBERS = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
)
_DTYPES = (*_NUMBERS, "string", "image", "video")
_MAX_RANK = 5


def accept_features(features: Mapping[str, Column], video: VideoOptions) -> None:
    """DataError unless every feature can be written."""
    if not features:
        raise DataError(
            "no features given", rule="a dataset has at least one", remedy="give name: Column(...)"
        )
    for key, column in features.items():
        _accept_key(key)
        if column.dtype not in _DTYPES:
            raise DataError(
                f"feature '{key}' has dtype '{column.dtype}'",
                rule=f"one of: {', '.join(_DTYPES)}",
                remedy=did_you_mean(column.dtype, _DTYPES),
            )
        if column.is_camera:
            _accept_camera(key, column, video)
        else:
            _accept_shape(key, column)


def accept_frame(
    columns: Mapping[str, Column], frame: Mapping[str, Any], task: object
) -> dict[str, Any]:
    """The values in the columns' dtypes and shapes, () for shape [1]; DataError names what is
    wrong.
    """
    if not isinstance(task, str):
        raise DataError(
            f"task is {task!r}", rule="a sentence (str)", remedy="say what the robot does"
        )
    unknown, absent = sorted(set(frame) - set(columns)), sorted(set(columns) - set(frame))
    if unknown or absent:
        raise DataError(
            f"frame lacks {absent} and has unknown {unknown}",
            rule=f"exactly: {', '.join(columns)}",
            remedy=did_you_mean(unknown[0], columns)
            if unknown
            else "give every feature in every frame",
        )
    return {key: _accept_value(key, column, frame[key]) for key, column in columns.items()}


def _accept_key(key: str) -> None:
    if not key or "/" in key:
        raise DataError(
            f"feature name '{key}'", rule="not empty, no '/'", remedy="use '.' between parts"
        )
    if key in BOOKKEEPING:
        raise DataError(
            f"feature '{key}' is given by the caller",
            rule="the writer fills it in",
            remedy="leave it out of features",
        )


def _accept_camera(key: str, column: Column, video: VideoOptions) -> None:
    if len(column.shape) != 3 or column.shape[2] != 3 or min(column.shape) < 1:
        raise DataError(
            f"camera '{key}' has shape {column.shape}",
            rule="(H, W, 3)",
            remedy="put the channels last; RGB",
        )
    names = column.names
    if names is not None and (len(names) != 3 or names[2] not in ("channels", "channel")):
        raise DataError(
            f"camera '{key}' has names {names}",
            rule=f"{CAMERA_NAMES}",
            remedy="give those, or names=None",
        )
    height, width, _ = column.shape
    even = f"{height // 2 * 2}x{width // 2 * 2}"
    if column.dtype == "video" and video.pix_fmt == "yuv420p" and (height % 2 or width % 2):
        raise DataError(
            f"camera '{key}' is {height}x{width}",
            rule="even height and width for yuv420p, which keeps one colour for 2x2 pixels",
            remedy=f"crop or resize to {even} (`kata data transcode --size={even}` resizes), or "
            "keep the frames as dtype 'image'",
        )


def _accept_shape(key: str, column: Column) -> None:
    shape = column.shape
    if (
        not shape
        or min(shape) < 1
        or len(shape) > _MAX_RANK
        or (column.dtype == "string" and shape != (1,))
    ):
        raise DataError(
            f"feature '{key}' has dtype '{column.dtype}' and shape {shape}",
            rule=f"1 to {_MAX_RANK} dimensions of 1 or more; strings (1,)",
            remedy="a single number has shape (1,)",
        )
    if column.names is not None and len(column.names) != shape[-1]:
        raise DataError(
            f"feature '{key}' has {len(column.names)} names for shape {shape}",
            rule="one name per place of the last dimension",
            remedy="give as many names, or names=None",
        )


def _accept_value(key: str, column: Column, value: Any) -> Any:
    if column.dtype == "string":
        if not isinstance(value, str):
            raise DataError(f"'{key}' is {value!r}", rule="a str", remedy="convert it")
        return value
    given = np.asarray(value)
    shape = () if column.shape == (1,) and given.shape == () else column.shape
    if given.shape != shape:
        raise DataError(
            f"'{key}' has shape {given.shape}",
            rule=f"{column.shape}" + (" (H, W, C)" if column.is_camera else ""),
            remedy="check the sensor, or the features the dataset was created with",
        )
    if column.is_camera:
        if given.dtype != np.uint8:
            raise DataError(
                f"camera '{key}' has dtype {given.dtype}",
                rule="uint8, 0 to 255",
                remedy="scale and convert the frame",
            )
        return np.ascontiguousarray(given)
    return _cast(key, column, given).reshape(() if column.shape == (1,) else column.shape)


def _cast(key: str, column: Column, given: np.ndarray) -> np.ndarray:
    target = np.dtype(column.dtype)
    fits = np.can_cast(given.dtype, target, "same_kind")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = given.astype(target) if fits else given
    if not fits or (target.kind in "iu" and not np.array_equal(cast, given)):
        raise DataError(
            f"'{key}' has dtype {given.dtype} and value {_short(given)}",
            rule=f"{column.dtype} without loss of kind or range",
            remedy="convert it before add_frame",
        )
    if target.kind == "f" and not np.isfinite(cast).all():
        raise DataError(
            f"'{key}' is {_short(given)}",
            rule=f"finite numbers of {column.dtype}",
            remedy="check the sensor",
        )
    return cast


def _short(values: np.ndarray) -> str:
    return np.array2string(values, threshold=8, precision=4)

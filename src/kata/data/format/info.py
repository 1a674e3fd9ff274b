"""meta/info.json: the dataset's declarations, checked before anything relies on them."""

from __future__ import annotations

import json
import re
import string
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kata.data.format.text import REPAIR, read_text
from kata.errors import DataError
from kata.spec import BOOKKEEPING, Column

VERSIONS = ("v3.0", "v2.1", "v2.0")
_FIELDS = ("codebase_version", "fps", "features")
INFO_FILE = "meta/info.json"
CAMERA_NAMES = ("height", "width", "channels")
BOOKKEEPING_COLUMNS = {
    key: Column("float32" if key == "timestamp" else "int64", (1,)) for key in BOOKKEEPING
}
"""The columns that every dataset has."""

_PLACES = ("chunk_index", "file_index", "episode_chunk", "episode_index", "video_key")
V3_PATHS = (
    "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
)
V2_PATHS = (
    "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
)
_FLOATS = ("float16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMERIC = frozenset({*_FLOATS, *_INTEGERS, "bool"})


@dataclass(frozen=True)
class Info:
    """The declarations of one dataset, checked.

    Attributes:
        version: of the format, 'v3.0', 'v2.1' or 'v2.0'.
        fps: frames per second.
        robot_type: name of the robot, if declared.
        columns: the features. Cameras have the shape (H, W, C), whatever was declared; the
            bookkeeping columns are always present.
        data_path: template of the table files' paths.
        video_path: template of the video files' paths.
        chunks_size: episodes per folder in v2.x.
        total_episodes: number of episodes as declared.
        notes: messages for the user, about columns that are left out.
    """

    version: str
    fps: int
    robot_type: str | None
    columns: dict[str, Column]
    data_path: str
    video_path: str
    chunks_size: int
    total_episodes: int
    notes: tuple[str, ...]

    @property
    def is_v3(self) -> bool:
        """Return True for many episodes per file, False for one file per episode."""
        return self.version.startswith("v3")


def read_info(root: Path) -> Info:
    """Read and check `root`/meta/info.json.

    Raises:
        DataError: The file is absent or wrong; the message names what.
    """
    path = root / "meta" / "info.json"
    raw = raw_info(root)
    missing = [f"'{name}'" for name in _FIELDS if name not in raw]
    if "codebase_version" not in raw and "features" not in raw:
        raise DataError(
            f"{path} is not of a LeRobot dataset: it has neither codebase_version nor features",
            rule="kata reads LeRobot datasets: " + ", ".join(VERSIONS),
            remedy="convert the recording to LeRobot's format, or write it with "
            "kata.data.DatasetWriter",
        )
    if missing:
        raise _bad(path, f"lacks {', '.join(missing)}", f"needs {', '.join(_FIELDS)}")
    version = _version(path, raw["codebase_version"])
    if (storage := raw.get("storage_format", "parquet")) not in (None, "parquet"):
        raise DataError(
            f"{path} has storage_format {storage!r}",
            rule="kata reads tables in the format 'parquet'",
            remedy="export the dataset with parquet files where it was made",
        )
    # Frames are addressed by number, which needs a whole rate.
    fps = raw["fps"]
    if not isinstance(fps, int | float) or isinstance(fps, bool) or fps < 1 or fps != int(fps):
        raise _bad(path, f"has fps {fps!r}", "a whole number of frames per second, 1 or more")
    if not isinstance(raw["features"], dict) or not raw["features"]:
        raise _bad(path, "has no features", "an object with one entry per feature")
    columns, notes = _columns(path, raw["features"])
    default_data, default_video = V3_PATHS if version.startswith("v3") else V2_PATHS
    return Info(
        version=version,
        fps=int(fps),
        robot_type=raw.get("robot_type"),
        columns=columns,
        data_path=_template(path, "data_path", raw.get("data_path") or default_data),
        video_path=_template(path, "video_path", raw.get("video_path") or default_video),
        chunks_size=int(raw.get("chunks_size") or 1000),
        total_episodes=int(raw.get("total_episodes") or 0),
        notes=tuple(notes),
    )


def raw_info(root: Path) -> dict[str, Any]:
    """Return `root`/meta/info.json unchanged, with fields that kata does not need.

    Raises:
        DataError: It is absent, or no JSON object.
    """
    path = root / "meta" / "info.json"
    text = ""
    try:
        text = read_text(path)
        raw = json.loads(text)
    except NotADirectoryError as error:
        raise _no_folder(root) from error
    except FileNotFoundError as error:
        has_tables = any(root.glob("data/**/*.parquet"))
        raise DataError(
            f"there is no dataset in {root}: meta/info.json is absent",
            rule="a LeRobot dataset has meta/info.json",
            remedy="its tables are here: bring its folder meta too"
            if has_tables
            else "check --dataset.root and --dataset.repo_id",
        ) from error
    except json.JSONDecodeError as error:
        what = f"is no JSON: {error}" if text.strip() else "is empty"
        raise _bad(path, what, "a JSON object in UTF-8") from error
    if not isinstance(raw, dict):
        raise _bad(path, f"holds a {type(raw).__name__}", "a JSON object")
    return raw


def _no_folder(root: Path) -> DataError:
    is_inside = root.name == "info.json" and root.parent.name == "meta"
    return DataError(
        f"{root} is a file, or lies below one",
        rule="a dataset is the folder that holds meta/info.json",
        remedy=f"give {root.parent.parent}" if is_inside else "give the dataset's folder",
    )


def file_name(template: str, **places: int | str) -> str:
    """Fill in a path template.

    Returns:
        The path below the dataset's folder.

    Raises:
        DataError: A value is missing, or the path leaves the folder.
    """
    try:
        name = template.format(**places)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise DataError(
            f"the path template '{template}' of info.json cannot be filled in: {error}",
            rule=f"it may use {', '.join(places)}",
            remedy="repair data_path and video_path in meta/info.json",
        ) from error
    _inside(name)
    return name


def _version(path: Path, value: Any) -> str:
    text = f"v{str(value).lstrip('v')}"
    if text not in VERSIONS:
        raise DataError(
            f"{path} has codebase_version {value!r}",
            rule=f"kata reads {', '.join(VERSIONS)}",
            remedy="convert the dataset with LeRobot's converter, or use a kata that knows this "
            "version",
        )
    return text


def _columns(path: Path, features: dict[str, Any]) -> tuple[dict[str, Column], list[str]]:
    columns: dict[str, Column] = {}
    notes: list[str] = []
    for key, spec in features.items():
        # Names of cameras become parts of paths.
        if "/" in key or "\\" in key or ".." in key:
            raise _bad(
                path, f"has a feature called '{key}'", "names of features hold no '/', '\\' or '..'"
            )
        if not isinstance(spec, dict) or "dtype" not in spec:
            raise _bad(path, f"describes feature '{key}' without a dtype", "every feature has one")
        left_out = _why_left_out(spec)
        if left_out:
            notes.append(f"'{key}' is left out: {left_out}")
            continue
        columns[key] = _column(path, key, spec)
    for key, column in BOOKKEEPING_COLUMNS.items():
        columns.setdefault(key, column)
    return columns, notes


def _why_left_out(spec: dict[str, Any]) -> str:
    dtype = str(spec["dtype"])
    if dtype == "language":
        return "language columns are not read"
    if dtype not in _NUMERIC and dtype not in ("string", "image", "video"):
        return f"columns of dtype '{dtype}' are not read"
    for place in ("info", "video_info"):
        extra = spec.get(place) or {}
        if extra.get("is_depth_map") or extra.get("video.is_depth_map"):
            return "depth maps are not read"
    return ""


def _column(path: Path, key: str, spec: dict[str, Any]) -> Column:
    dtype, shape = str(spec["dtype"]), spec.get("shape")
    if not isinstance(shape, list):
        raise _bad(path, f"gives feature '{key}' the shape {shape!r}", "a list of whole numbers")
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise _bad(path, f"gives feature '{key}' the shape {list(shape)}", "positive whole numbers")
    shape = tuple(shape) or (1,)
    if dtype in ("video", "image"):
        if len(shape) != 3:
            raise _bad(
                path, f"gives camera '{key}' the shape {list(shape)}", "height, width, channels"
            )
        return Column(dtype, _height_width_channels(shape, spec.get("names")))
    names = tuple(_flat_names(spec.get("names")))
    return Column(dtype, shape, names if len(names) == shape[-1] else None)


def _height_width_channels(shape: tuple[int, ...], names: Any) -> tuple[int, ...]:
    """Return the shape of a camera as (H, W, C).

    LeRobot takes it for (H, W, C) if the third name says so, else for (C, H, W). Without names the
    sizes decide.
    """
    if isinstance(names, list) and len(names) == 3:
        last = names[2] in ("channel", "channels")
    else:
        # No camera is four pixels wide or less, and none has more than four channels.
        last = shape[2] <= 4
    return shape if last else (*shape[1:], shape[0])


def _flat_names(names: Any) -> list[str]:
    if names is None:
        return []
    if not isinstance(names, dict | list | tuple):
        return [str(names)]
    found: list[str] = []
    for value in names.values() if isinstance(names, dict) else names:
        found += _flat_names(value)
    return found


def _template(path: Path, field: str, template: Any) -> str:
    if not isinstance(template, str):
        raise _bad(path, f"has {field} {template!r}", "a path with places in braces")
    try:
        parts = [
            (name, spec or "")
            for _, name, spec, _ in string.Formatter().parse(template)
            if name is not None
        ]
    except ValueError as error:
        raise _bad(
            path, f"has {field} '{template}': {error}", "a path with places in braces"
        ) from error
    # Only plain names and widths: str.format would also evaluate attributes and items of a value.
    unknown = [
        name for name, spec in parts if name not in _PLACES or not re.fullmatch(r"0?\d?d?", spec)
    ]
    if unknown:
        raise _bad(
            path,
            f"has {field} '{template}' with the place '{unknown[0]}'",
            f"places: {', '.join(_PLACES)}, also with ':03d'",
        )
    _inside(template)
    return template


def _inside(name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or (len(name) > 1 and name[1] == ":"):
        raise DataError(
            f"the path '{name}' of info.json leaves the dataset's folder",
            rule="data_path and video_path stay below the dataset's folder: no '..', not absolute",
            remedy="repair data_path and video_path in meta/info.json",
        )


def _bad(path: Path, what: str, rule: str) -> DataError:
    return DataError(
        f"{path} {what}",
        rule=rule,
        remedy=f"{REPAIR} where the files show what is right; else edit it",
    )

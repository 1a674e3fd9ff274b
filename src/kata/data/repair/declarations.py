"""Repairs of info.json and of file names: rate, path templates, folders, entries of features."""

from __future__ import annotations

import copy as copying
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.format.info import (
    BOOKKEEPING_COLUMNS,
    CAMERA_NAMES,
    INFO_FILE,
    V2_PATHS,
    V3_PATHS,
    raw_info,
)
from kata.data.format.read import folder_alike
from kata.data.format.v3 import feature_entry
from kata.data.repair.rates import table_rate, video_rate
from kata.data.repair.working_copy import WorkingCopy
from kata.spec import Column

_SAMPLED_FILES = 20
"""Files that are asked for their rate: each costs a read."""

_PLACE = re.compile(r"\{(\w+)(?::0?(\d*)d?)?\}")


def repair_declarations(copy: WorkingCopy) -> None:
    """Correct what info.json says about paths, rate and features, where the files leave one answer.

    Raises:
        DataError: There is no info.json, or it holds no JSON object.
    """
    raw = raw_info(copy.root)
    before = copying.deepcopy(raw)
    if isinstance(raw.get("features"), dict):
        _repair_paths(copy, raw)
        _repair_features(copy, raw)
        _repair_rate(copy, raw)
    if raw != before:
        copy.write_json(INFO_FILE, raw)


def _is_v3(raw: dict[str, Any]) -> bool:
    return str(raw.get("codebase_version", "")).lstrip("v").startswith("3")


# --- paths --------------------------------------------------------------------------------------


def _repair_paths(copy: WorkingCopy, raw: dict[str, Any]) -> None:
    has_video = any(
        isinstance(each, dict) and each.get("dtype") == "video" for each in raw["features"].values()
    )
    usual_data, usual_video = V3_PATHS if _is_v3(raw) else V2_PATHS
    _repair_template(copy, raw, "data_path", usual_data)
    if has_video:
        _repair_template(copy, raw, "video_path", usual_video)


def _repair_template(copy: WorkingCopy, raw: dict[str, Any], name: str, usual: str) -> None:
    """Take the usual template, or the usual folder, where the files show that it is meant."""
    declared = raw.get(name)
    files = _file_names(copy.root)
    if not isinstance(declared, str):
        if _count(files, usual):
            raw[name] = usual
            copy.changed(
                "paths", f"{name} is '{usual}', which the files follow; it was {declared!r}"
            )
        return
    if not _is_v3(raw) and "{chunk_index" in declared:
        declared = raw[name] = declared.replace("{chunk_index", "{episode_chunk")
        copy.changed(
            "paths",
            f"{name} says {{episode_chunk}} for {{chunk_index}}, as readers of its format want it",
        )
    as_declared = _count(files, declared)
    if declared != usual and _count(files, usual) > as_declared:
        raw[name] = usual
        copy.changed("paths", f"{name} is '{usual}', which the files follow; it was '{declared}'")
    elif not as_declared:
        _repair_folder(copy, files, name, declared)


def _repair_folder(copy: WorkingCopy, files: list[str], name: str, template: str) -> None:
    """Rename the one folder that is called nearly as the template says, as 'video' for 'videos'."""
    top, _, rest = template.partition("/")
    found = folder_alike(copy.root, top)
    if not found or not _count(files, f"{found}/{rest}"):
        return
    for file in files:
        if file.startswith(f"{found}/"):
            copy.move(file, f"{top}/{file.removeprefix(f'{found}/')}")
    copy.changed("paths", f"the files of {found}/ lie in {top}/ now, as {name} says")


def _file_names(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]


def _count(files: Iterable[str], template: str) -> int:
    """Return how many files a path template describes."""
    known = name_pattern(template)
    return sum(known.fullmatch(file) is not None for file in files)


def name_pattern(template: str) -> re.Pattern[str]:
    """Return a pattern of the file names that a path template describes, with a group per place."""
    pattern, end = "", 0
    groups: set[str] = set()
    for found in _PLACE.finditer(template):
        name, digits = found[1], found[2] or 1
        value = "[^/]+" if name == "video_key" else rf"\d{{{digits},}}"
        pattern += re.escape(template[end : found.start()])
        pattern += f"(?P={name})" if name in groups else f"(?P<{name}>{value})"
        groups.add(name)
        end = found.end()
    return re.compile(pattern + re.escape(template[end:]))


# --- features -----------------------------------------------------------------------------------


def _repair_features(copy: WorkingCopy, raw: dict[str, Any]) -> None:
    tables = [copy.root / name for name in copy.names("data/**/*.parquet")]
    types = _column_types(tables)
    for key, entry in raw["features"].items():
        if "/" in key or "\\" in key or ".." in key:
            copy.leave(
                "features",
                f"'{key}' is no name of a feature",
                f"--drop=[{key}] leaves it out of the copy",
            )
        elif isinstance(entry, dict):
            _repair_shape(copy, tables, key, entry)
            _repair_names(copy, key, entry)
    for key, kind in types.items():
        if key not in raw["features"]:
            _declare(copy, tables, raw, key, kind)


def _column_types(tables: list[Path]) -> dict[str, pa.DataType]:
    """Return the columns of the first data file that can be read."""
    for path in tables:
        try:
            return {field.name: field.type for field in pq.read_schema(path)}
        except (pa.ArrowException, UnicodeDecodeError, OSError):
            continue
    return {}


def _repair_shape(copy: WorkingCopy, tables: list[Path], key: str, entry: dict[str, Any]) -> None:
    shape = entry.get("shape")
    if isinstance(shape, list) and all(isinstance(size, int) and size > 0 for size in shape):
        return
    width = _width(tables, key)
    if width:
        entry["shape"] = [width]
        copy.changed(
            "features", f"'{key}' has the shape [{width}], as its column has; it was {shape!r}"
        )


def _repair_names(copy: WorkingCopy, key: str, entry: dict[str, Any]) -> None:
    """LeRobot needs the field, and for cameras three names."""
    shape = entry.get("shape")
    if entry.get("dtype") in ("video", "image") and not entry.get("names"):
        if isinstance(shape, list) and len(shape) == 3 and shape[2] <= 4:
            entry["names"] = list(CAMERA_NAMES)
            copy.changed(
                "features", f"'{key}' has the names {', '.join(CAMERA_NAMES)}; it had none"
            )
    elif "names" not in entry:
        entry["names"] = None
        copy.changed("features", f"'{key}' has the field 'names', without names")


def _declare(
    copy: WorkingCopy, tables: list[Path], raw: dict[str, Any], key: str, kind: pa.DataType
) -> None:
    if key in BOOKKEEPING_COLUMNS:
        raw["features"][key] = feature_entry(BOOKKEEPING_COLUMNS[key])
        copy.changed("features", f"'{key}' is declared")
    elif key in copy.answers.declare:
        flat = (
            kind.value_type if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) else kind
        )
        width = _width(tables, key)
        if width and (
            pa.types.is_integer(flat) or pa.types.is_floating(flat) or pa.types.is_boolean(flat)
        ):
            dtype = str(flat.to_pandas_dtype()().dtype)
            raw["features"][key] = feature_entry(Column(dtype, (width,)))
            copy.changed("features", f"'{key}' is declared: {dtype} [{width}]")
    elif key not in copy.answers.drop:
        copy.leave(
            "features",
            f"the data files have the column '{key}', which info.json does not declare; LeRobot "
            "opens no such dataset",
            f"--declare=[{key}] adds it to info.json",
            f"--drop=[{key}] leaves it out of the copy",
        )


def _width(tables: list[Path], key: str) -> int | None:
    """Return how many values every row of a column has, None when rows differ."""
    widths: set[int] = set()
    for path in tables:
        try:
            column: Any = pq.read_table(path, columns=[key])[key].combine_chunks()
        except (pa.ArrowException, UnicodeDecodeError, OSError, KeyError):
            return None
        if pa.types.is_fixed_size_list(column.type):
            widths.add(column.type.list_size)
        elif pa.types.is_list(column.type):
            widths |= set(column.value_lengths().to_pylist())
        else:
            widths.add(1)
    return widths.pop() if len(widths) == 1 else None


# --- rate ---------------------------------------------------------------------------------------


def _repair_rate(copy: WorkingCopy, raw: dict[str, Any]) -> None:
    declared = raw.get("fps")
    wanted = copy.answers.fps
    if wanted is None and isinstance(declared, str) and re.fullmatch(r"[1-9]\d*(\.0*)?", declared):
        wanted = int(float(declared))
    if wanted is None:
        wanted = _measured_rate(copy, declared)
    if wanted is not None and wanted != declared:
        raw["fps"] = wanted
        copy.changed("rate", f"fps is {wanted}; it was {declared!r}")


def _measured_rate(copy: WorkingCopy, declared: Any) -> int | None:
    """Return the rate on which tables and videos agree against info.json."""
    is_valid = isinstance(declared, int | float) and declared >= 1 and declared == int(declared)
    tables = {table_rate(copy.root / name) for name in _sample(copy.names("data/**/*.parquet"))} - {
        None
    }
    if is_valid and tables in (set(), {int(declared)}):
        return None
    videos = {video_rate(copy.root / name) for name in _sample(copy.names("**/*.mp4"))} - {None}
    if len(tables | videos) == 1 and ((tables and videos) or not is_valid):
        return (tables | videos).pop()
    if not is_valid or int(declared) not in tables:
        rates = sorted(
            {rate for rate in tables | videos if rate} | ({int(declared)} if is_valid else set())
        )
        said = ", ".join(
            f"{name} {sorted(map(str, found))}"
            for name, found in (("tables", tables), ("videos", videos))
        )
        copy.leave(
            "rate",
            f"info.json says {declared!r} frames per second; {said}",
            *(f"--fps={rate}" for rate in rates),
        )
    return None


def _sample(names: list[str]) -> list[str]:
    if len(names) <= _SAMPLED_FILES:
        return names
    return [names[place] for place in np.linspace(0, len(names) - 1, _SAMPLED_FILES).astype(int)]

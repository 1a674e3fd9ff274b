"""A summary of a dataset as plain values, from its metadata and from its files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from kata.data.dataset.columns import schema_names
from kata.data.dataset.concat import Concat
from kata.data.dataset.dataset import Dataset, open_source
from kata.data.dataset.roles import find_roles
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.feature_stats import STATS, load_stats
from kata.data.format.info import Info, raw_info, read_info
from kata.data.format.read import read_episode_table
from kata.data.format.selection import AVAILABLE
from kata.data.format.source import Source
from kata.data.format.tasks import read_tasks
from kata.data.format.v3 import EPISODE_FILES
from kata.data.remote.remote_store import RemoteStore
from kata.data.storage.store import Store, StoredFile
from kata.data.video.encoder import probe_video
from kata.data.video.packet_index import build_index
from kata.errors import DataError
from kata.spec import BOOKKEEPING, features_of, role_of


def facts(source: Source, concat: Concat | None = None) -> dict[str, Any]:
    """Everything that `kata data info` says, ready for JSON. No frame is decoded, nothing is
    fetched but metadata.

    concat: the columns that a run would join.

    Raises: DataError when the metadata is absent or damaged.
    """
    root = source.root
    info = read_info(root)
    notes = [*source.notes, *info.notes]
    layout = read_episode_table(root, info, source.ensure, notes)
    here = _here(source.store, layout)
    length = layout.length
    return {
        "name": source.repo_id,
        "root": source.place,
        "version": info.version,
        "robot_type": info.robot_type,
        "fps": info.fps,
        "episodes": {
            "total": len(length),
            "here": int(here.sum()),
            "declared": raw_info(root).get("total_episodes"),
        },
        "frames": {"total": int(length.sum()), "here": int(length[here].sum())},
        "duration_s": float(length.sum() / info.fps),
        "episode_frames": {
            "min": int(length.min()),
            "median": float(np.median(length)),
            "max": int(length.max()),
        },
        "bytes": _sizes(source, layout),
        **_kept(source),
        "tasks": read_tasks(root, info, layout, notes),
        "columns": {
            key: _column(info, key) for key, column in info.columns.items() if not column.is_camera
        },
        "cameras": {
            key: _camera(source, info, layout, key)
            for key, c in info.columns.items()
            if c.is_camera
        },
        "statistics": _statistics(root, info),
        "training": _training(source, here, notes, concat or {}),
    }


def _here(store: Store, layout: EpisodeTable) -> np.ndarray:
    """(E,) whether every file of an episode exists; a camera without any file does not count."""
    whole = np.ones(len(layout.index), dtype=bool)
    for span in layout.spans():
        stamps = store.stamps(span.files)
        present = np.array([name in stamps for name in span.files], dtype=bool)
        if present.any() or span is layout.data:
            whole &= present[span.file]
    return whole


def _kept(source: Source) -> dict[str, int]:
    """Bytes of metadata and tables of a dataset in a store that are on this machine."""
    return {} if source.mirror is None else {"kept_bytes": source.mirror.kept_bytes()}


def _sizes(source: Source, layout: EpisodeTable) -> dict[str, int]:
    """Bytes by top folder, of the files beside these, and in all."""
    sizes: dict[str, int] = {}
    for name, size in _files(source, layout):
        top = name.partition("/")[0] if "/" in name else "other"
        sizes[top] = sizes.get(top, 0) + size
    return {**dict(sorted(sizes.items())), "total": sum(sizes.values())}


def _files(source: Source, layout: EpisodeTable) -> Iterator[tuple[str, int]]:
    """Yield names and sizes of the files; of a web server, those that the dataset must have."""
    if isinstance(source.far, RemoteStore):
        listed = source.far.listing()
        if listed is None:
            meta = [path for path in source.root.glob("meta/**/*") if path.is_file()]
            names = [path.relative_to(source.root).as_posix() for path in meta]
            for span in layout.spans():
                names += span.files
            listed = source.far.stamps(dict.fromkeys(names))
        for name, stamp in listed.items():
            yield name, stamp.size
        return
    for path in source.root.rglob("*"):
        if path.is_file():
            yield path.relative_to(source.root).as_posix(), path.stat().st_size


def _column(info: Info, key: str) -> dict[str, Any]:
    column = info.columns[key]
    role = None if key in BOOKKEEPING else role_of(key, column)
    return {
        "dtype": column.dtype,
        "shape": list(column.shape),
        "names": list(column.names) if column.names else None,
        "role": role.value if role else None,
    }


def _camera(source: Source, info: Info, layout: EpisodeTable, key: str) -> dict[str, Any]:
    column = info.columns[key]
    span = layout.videos.get(key) if column.dtype == "video" else layout.data
    known: dict[str, Any] = {"dtype": column.dtype, "shape": list(column.shape), "files": 0}
    if span is None:
        return known
    present = list(source.store.stamps(span.used()))
    known["files"] = len(present)
    if not present:
        return known
    try:
        first = StoredFile(source.store, present[0])
        return known | (_video(first) if column.dtype == "video" else _image(first, key))
    except DataError as error:
        return known | {"damaged": error.what}


def _video(file: StoredFile) -> dict[str, Any]:
    """Codec and cost of a camera from its first file."""
    index, probe = build_index(file), probe_video(file)
    edges = np.flatnonzero(np.diff(index.start, prepend=-1, append=-1))
    return {
        "codec": probe["video.codec"] or "unknown",
        "pix_fmt": probe["video.pix_fmt"] or "unknown",
        "gop": int(np.diff(edges).max()),
        "bytes_per_frame": round(float(index.size.sum()) / len(index), 1),
    }


def _image(stored: StoredFile, key: str) -> dict[str, Any]:
    name = stored.name
    try:
        with stored.open() as data:
            file = pq.ParquetFile(data, pre_buffer=False)
            group = file.metadata.row_group(0)
            size = 0
            for number in range(group.num_columns):
                part = group.column(number)
                if part.path_in_schema.startswith(f"{key}."):
                    size += part.total_compressed_size
            batch = next(file.iter_batches(1, columns=[key]), None)
        if batch is None:
            return {"damaged": f"{name}: no row can be read"}
        cell = batch[key][0].as_py()
        with Image.open(io.BytesIO(cell["bytes"])) as image:
            kind, mode = str(image.format).lower(), image.mode
    except (
        pa.ArrowException,
        UnicodeDecodeError,
        OSError,
        UnidentifiedImageError,
        KeyError,
        TypeError,
    ) as error:
        return {"damaged": f"{name}: {error}"}
    return {"codec": kind, "pix_fmt": mode, "bytes_per_frame": round(size / group.num_rows, 1)}


def _statistics(root: Path, info: Info) -> dict[str, Any]:
    """Return which statistics are stored for the dataset and per episode.

    `lacking` lists the ones of LeRobot's ten figures that the dataset's own do not have.
    """
    path = root / "meta" / "stats.json"
    try:
        stored = load_stats(path) if path.is_file() else {}
    except DataError as error:
        return {"damaged": error.what}
    wanted = [key for key, column in info.columns.items() if column.dtype != "string"]
    lacking: dict[str, list[str]] = {}
    for key in wanted:
        absent = [stat for stat in STATS if stat not in stored.get(key, {})]
        if absent:
            lacking[key] = absent
    if info.is_v3:
        per_episode = any(_has_episode_stats(path) for path in root.glob(EPISODE_FILES))
    else:
        per_episode = (root / "meta" / "episodes_stats.jsonl").is_file()
    return {
        "dataset": path.is_file(),
        "per_episode": per_episode,
        "lacking": lacking,
    }


def _has_episode_stats(path: Path) -> bool:
    return any(name.startswith("stats/") for name in schema_names(path))


def _training(source: Source, here: np.ndarray, notes: list[str], concat: Concat) -> dict[str, Any]:
    """Return what `kata train` would read, or the message with which it would refuse."""
    if source.revision is not None and not here.all():
        return {
            "notes": [*notes, f"{int((~here).sum())} episodes are still to be fetched from the Hub"]
        }
    refused = None
    try:
        data = open_source(source, concat=concat)
    except DataError as error:
        refused = str(error)
        if not here.any():
            return {"refused": refused, "notes": notes}
        try:
            data = open_source(source, episodes=AVAILABLE, concat=concat)
        except DataError:
            return {"refused": refused, "notes": notes}
    seen = _seen(data)
    return seen if refused is None else {"refused": refused, "with_episodes_available": seen}


def _seen(data: Dataset) -> dict[str, Any]:
    roles = find_roles(data.columns, {})
    features: dict[str, dict[str, Any]] = {}
    for key, feature in features_of(data.columns, roles.found).items():
        features[key] = {"role": feature.type.value, "shape": list(feature.shape)}
        if key in roles.found:
            features[key]["found"] = roles.found[key]
    return {
        "episodes": len(data.layout.index),
        "frames": data.num_frames,
        "features": features,
        "unclear": roles.unclear,
        "concat": {key: list(parts) for key, parts in data.concat.items()},
        "fingerprint": data.fingerprint,
        "notes": data.notes,
    }

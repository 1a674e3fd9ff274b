"""Repairs of what info.json counts, and of what it declares about videos."""

from __future__ import annotations

import copy as copying
from typing import Any

from kata.data.edit.compatibility import shared
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.info import INFO_FILE, Info, raw_info, read_info
from kata.data.format.read import read_episode_table
from kata.data.format.selection import drop_absent_cameras
from kata.data.format.tasks import read_tasks
from kata.data.format.v3 import totals, whole_split
from kata.data.repair.working_copy import WorkingCopy
from kata.data.storage.store import LocalStore, local_file
from kata.data.video.encoder import probe_video
from kata.errors import DataError

_PROBED = ("video.codec", "video.pix_fmt", "video.fps", "video.height", "video.width")
"""Properties that `kata data check` compares with the files."""


def repair_totals(copy: WorkingCopy) -> None:
    """Write the counts and the videos' properties that the files have.

    Raises:
        DataError: The metadata cannot be read.
    """
    info, raw = read_info(copy.root), raw_info(copy.root)
    before = copying.deepcopy(raw)
    whole = read_episode_table(copy.root, info, lambda _: None, [])
    layout, _ = drop_absent_cameras(LocalStore(copy.root), info, whole, whole)
    tasks = read_tasks(copy.root, info, layout, [])
    _count(copy, raw, _counts(info, layout, len(tasks)))
    for key, span in layout.videos.items():
        _declare(copy, key, raw["features"][key], span.used())
    if raw != before:
        copy.write_json(INFO_FILE, raw)


def _counts(info: Info, layout: EpisodeTable, tasks: int) -> dict[str, int]:
    episodes = len(layout.index)
    counts = totals(episodes, int(layout.length.sum()), tasks)
    if info.is_v3:
        return counts
    chunks = -(-episodes // info.chunks_size)
    return counts | {"total_videos": episodes * len(layout.videos), "total_chunks": chunks}


def _count(copy: WorkingCopy, raw: dict[str, Any], counts: dict[str, int]) -> None:
    for name, number in counts.items():
        if raw.get(name) != number:
            copy.changed("totals", f"{name} is {number}; it was {raw.get(name, 'absent')}")
            raw[name] = number
    splits = raw.get("splits")
    whole = whole_split(counts["total_episodes"])
    if isinstance(splits, dict) and list(splits) == ["train"] and splits != whole:
        copy.changed("totals", f"splits.train is {whole['train']}; it was {splits['train']}")
        raw["splits"] = whole


def _declare(copy: WorkingCopy, key: str, entry: dict[str, Any], names: list[str]) -> None:
    """Correct the declared properties of videos; null where files differ, as LeRobot has it."""
    place = "video_info" if "video_info" in entry and "info" not in entry else "info"
    declared = entry.get(place) or {}
    probes: list[dict[str, Any]] = []
    for name in names:
        try:
            probes.append(probe_video(local_file(copy.root / name)))
        except (DataError, FileNotFoundError):
            continue  # a damaged file, which the check at the end names
    if not probes:
        return
    found = shared(probes)
    wrong = {
        name: found[name] for name in _PROBED if name in declared and declared[name] != found[name]
    }
    for name, value in wrong.items():
        copy.changed("declared video", f"{name} of '{key}' is {value}; it was {declared[name]}")
    if wrong:
        entry[place] = {**declared, **wrong}
    _declare_shape(copy, key, entry, probes if len(probes) == len(names) else [])


def _declare_shape(
    copy: WorkingCopy, key: str, entry: dict[str, Any], probes: list[dict[str, Any]]
) -> None:
    """Correct the shape where all files have one size; frames of videos have three channels."""
    sizes = {(probe["video.height"], probe["video.width"]) for probe in probes}
    shape = entry["shape"]
    if len(sizes) != 1 or len(shape) != 3:
        return
    size = sizes.pop()
    is_last = shape[2] <= 4
    found = [*size, 3] if is_last else [3, *size]
    if shape != found:
        entry["shape"] = found
        copy.changed("declared video", f"the shape of '{key}' is {found}; it was {shape}")

"""Repairs of videos: times that are slightly off get exact ones, by copying packets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kata.data.check.cameras import FRAME_TOLERANCE_S, frame_times_off
from kata.data.edit.video_copy import copy_packets
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.info import Info, read_info
from kata.data.format.read import read_episode_table
from kata.data.format.selection import drop_absent_cameras
from kata.data.repair.rates import video_rate
from kata.data.repair.working_copy import WorkingCopy
from kata.data.storage.store import LocalStore, local_file
from kata.data.video.packet_index import open_index
from kata.errors import DataError


def repair_videos(copy: WorkingCopy) -> None:
    """Give the frames of every video the times k / fps where it is clear which frame is which.

    Raises:
        DataError: The metadata cannot be read.
    """
    info = read_info(copy.root)
    whole = read_episode_table(copy.root, info, lambda _: None, [])
    layout, _ = drop_absent_cameras(LocalStore(copy.root), info, whole, whole)
    for key, span in layout.videos.items():
        exact: list[str] = []
        open_: list[str] = []
        for number in np.unique(span.file).tolist():
            name = span.files[number]
            verdict = _retime(copy, info, layout, key, number)
            if verdict is not None:
                (exact if verdict else open_).append(name)
        if exact:
            copy.changed(
                "video times", f"frames of '{key}' are shown at k / {info.fps} s: {_some(exact)}"
            )
        if open_:
            files = [span.files.index(name) for name in open_]
            _leave(copy, info, key, open_, layout.index[np.isin(span.file, files)].tolist())


def _retime(
    copy: WorkingCopy, info: Info, layout: EpisodeTable, key: str, number: int
) -> bool | None:
    """Correct one file; None where nothing can be done, False where there are several answers."""
    span = layout.videos[key]
    path = copy.root / span.files[number]
    try:
        index = open_index(local_file(path))
    except (DataError, FileNotFoundError):
        return None
    off_s, even_s = frame_times_off(index, info.fps)
    if off_s <= FRAME_TOLERANCE_S:
        return None
    if len(index) != len(index.pts):
        return False  # frames that are not shown would become shown
    claimed = int(layout.length[span.file == number].sum())
    is_sure = even_s * info.fps <= 0.5 or (copy.answers.fps is not None and len(index) == claimed)
    if is_sure:
        copy.replace(span.files[number], lambda target: copy_packets(path, target, info.fps))
    return is_sure


def _leave(
    copy: WorkingCopy, info: Info, key: str, names: Sequence[str], episodes: list[int]
) -> None:
    rates = {rate for name in names if (rate := video_rate(copy.root / name))}
    said = (
        f"shows {' or '.join(map(str, sorted(rates)))} frames per second, info.json says {info.fps}"
    )
    if rates <= {info.fps}:
        said = f"has gaps: its frames do not follow each other by 1 / {info.fps} s"
    copy.leave(
        "video times",
        f"'{key}' {said}: {_some(names)}",
        *(
            f"--fps={rate} shows frame k of every file and table at k / {rate} s"
            for rate in sorted({*rates, info.fps})
        ),
        f"--exclude={episodes} leaves the episodes out".replace(", ", ","),
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more files" if len(names) > 1 else ""
    return f"{names[0]}{more}"

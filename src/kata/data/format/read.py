"""Reading of a dataset's episode table, whatever its format version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from kata.data.format.episode_table import EpisodeTable, Fetch, Span
from kata.data.format.info import Info
from kata.data.format.text import REPAIR
from kata.errors import DataError


def read_episode_table(root: Path, info: Info, fetch: Fetch, notes: list[str]) -> EpisodeTable:
    """Read the episode table of a dataset from its metadata.

    Args:
        root: the dataset's folder.
        info: its declarations.
        fetch: downloads files that only the Hub has.
        notes: messages for the user are appended.

    Raises:
        DataError: The metadata is absent, damaged or contradicts itself.
    """
    from kata.data.format import v2, v3

    layout = v3.read_v3(root, info) if info.is_v3 else v2.read_v2(root, info, fetch, notes)
    layout = _as_spelled(root, layout, notes)
    if not len(layout.index):
        raise DataError(
            f"{root} has no episodes", rule="at least one", remedy="record or download some"
        )
    if len(np.unique(layout.index)) != len(layout.index):
        values, counts = np.unique(layout.index, return_counts=True)
        raise DataError(
            f"{root}/meta names episode {values[counts > 1][0]} more than once",
            rule="one entry per episode",
            remedy=f"{REPAIR} where the entries are equal; else remove the wrong one",
        )
    return layout


def _as_spelled(root: Path, layout: EpisodeTable, notes: list[str]) -> EpisodeTable:
    """Return the table with the files that exist, if a folder has nearly the declared name."""
    spans = [_spelled(root, span, notes) for span in layout.spans()]
    videos = dict(zip(layout.videos, spans[1:], strict=True))
    return replace(layout, data=spans[0], videos=videos)


def _spelled(root: Path, span: Span, notes: list[str]) -> Span:
    if not span.files or any((root / name).is_file() for name in span.files):
        return span
    top = span.files[0].partition("/")[0]
    found = folder_alike(root, top)
    names = tuple(f"{found}/{name.partition('/')[2]}" for name in span.files)
    if not found or not any((root / name).is_file() for name in names):
        return span
    note = f"files lie in '{found}/', not in '{top}/' as info.json says"
    notes += [note] * (note not in notes)
    return replace(span, files=names)


def folder_alike(root: Path, name: str) -> str:
    """Return the one folder with nearly this name, as 'video' for 'videos'; '' if there is none."""
    wanted = name.lower().rstrip("s")
    folders = [path.name for path in root.iterdir() if path.is_dir()]
    alike = [each for each in folders if each != name and each.lower().rstrip("s") == wanted]
    return alike[0] if len(alike) == 1 else ""


def refuse_empty(root: Path, layout: EpisodeTable) -> None:
    """Raise DataError when one of the chosen episodes has no frames."""
    bad = layout.index[layout.length < 1].tolist()
    if bad:
        more = f" ({len(bad)} such episodes)" if len(bad) > 1 else ""
        listed = ",".join(map(str, bad))
        raise DataError(
            f"{root}/meta gives episode {bad[0]} no frames{more}",
            rule="an episode has at least one frame",
            remedy=f"leave it out: --dataset.exclude_episodes=[{listed}]; {REPAIR}",
        )

"""Selection of episodes: those that are asked for and whose files are present."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.format.episode_table import EpisodeTable, Span
from kata.data.format.info import Info
from kata.data.storage.lfs_pointer import refuse_pointer
from kata.data.storage.store import Store
from kata.errors import DataError

AVAILABLE = "available"


def choose(
    repo_id: str, known: Int64, episodes: Sequence[int] | str | None, exclude: Sequence[int] | None
) -> Int64:
    """Return the positions of the selected episodes in `known`, ascending.

    Args:
        repo_id: the dataset, for messages.
        known: (E,) indices of all episodes, ascending.
        episodes: indices to read, 'available', or None for all.
        exclude: indices to leave out.

    Raises:
        DataError: An episode does not exist, or none is left.
    """
    if isinstance(episodes, str) and episodes != AVAILABLE:
        raise DataError(
            f"--dataset.episodes is '{episodes}'",
            rule=f"a list of episode numbers, or '{AVAILABLE}'",
            remedy="write for example --dataset.episodes=[0,1,2]",
        )
    wanted = known
    if episodes is not None and not isinstance(episodes, str):
        wanted = _known(repo_id, known, episodes)
    left = np.setdiff1d(wanted, _known(repo_id, known, exclude or ()))
    if not left.size:
        what = f"no episode of {repo_id} is selected: the list is empty"
        if len(wanted):
            what = f"no episode of {repo_id} is left: {len(wanted)} wanted, all of them excluded"
        raise DataError(
            what,
            rule="at least one episode",
            remedy="check --dataset.episodes and --dataset.exclude_episodes",
        )
    return np.flatnonzero(np.isin(known, left))


def _known(repo_id: str, known: Int64, episodes: Sequence[int]) -> Int64:
    wanted = np.unique(np.asarray(list(episodes), dtype=np.int64))
    unknown = np.setdiff1d(wanted, known)
    if unknown.size:
        names = ", ".join(map(str, unknown[:5])) + (", ..." if unknown.size > 5 else "")
        raise DataError(
            f"{repo_id} has no episode {names}",
            rule=f"episodes are numbered {known.min()} to {known.max()}",
            remedy="check --dataset.episodes and --dataset.exclude_episodes",
        )
    return wanted


def drop_absent_cameras(
    store: Store, info: Info, whole: EpisodeTable, chosen: EpisodeTable, *, available: bool = False
) -> tuple[EpisodeTable, list[str]]:
    """Leave out cameras that were declared but never recorded.

    v3.0 names the file of each camera per episode. v2.x does not, so there a camera counts if any
    of its files exists. With `available` that rule holds for v3.0 as well.

    Returns:
        The episode table without these cameras, and their names.
    """
    is_named = info.version == "v3.0" and not available
    absent: list[str] = []
    for key, column in info.columns.items():
        if column.dtype != "video":
            continue
        is_there = key in whole.videos and (is_named or _any_file(store, whole.videos[key]))
        if not is_there:
            absent.append(key)
    return chosen.without(absent), absent


def _any_file(store: Store, span: Span) -> bool:
    # The first one is there as a rule, so that the others need not be looked up.
    return bool(store.stamps(span.files[:1]) or store.stamps(span.files))


def only_whole(
    repo_id: str, store: Store, layout: EpisodeTable, *, available: bool
) -> EpisodeTable:
    """Return the episodes whose files all exist. Unless `available`, all episodes must have theirs.

    Raises:
        DataError: Files are missing; the message has the number of episodes and the first names.
    """
    # For each series of files, (E,) True where the episode's file exists; each file is looked up
    # once, since network disks need a millisecond for it.
    has_files: list[NDArray[np.bool_]] = []
    missing: list[str] = []
    spans = list(layout.spans())
    # All at once, since a store without listings is asked for each.
    found = store.stamps(list(chain.from_iterable(span.files for span in spans)))
    for span in spans:
        is_there = np.array([name in found for name in span.files], dtype=bool)
        has_files.append(is_there[span.file])
        used = np.unique(span.file)
        missing += [span.files[number] for number in used if not is_there[number]]
    whole = np.all(has_files, axis=0)
    if whole.all() or (available and whole.any()):
        return layout.take(np.flatnonzero(whole))
    count = int((~whole).sum())
    # Cameras without any file are ignored with 'available', so that option may still help.
    usable = np.all([has_files[0], *(each for each in has_files[1:] if each.any())], axis=0)
    raise DataError(
        f"{repo_id} in {store.location('')} lacks files of {count} of {len(whole)} episodes "
        f"({len(missing)} files): {', '.join(missing[:3])}" + (", ..." if len(missing) > 3 else ""),
        rule="every selected episode has its table file and one file per video camera",
        remedy="download the rest" + (", or use --dataset.episodes=available" * bool(usable.any())),
    )


def refuse_pointers(store: Store, layout: EpisodeTable) -> None:
    """Raise DataError if the first file in use of any series is a Git LFS pointer.

    A clone has either all files or none, so one of each series is enough.
    """
    for span in layout.spans():
        for name in span.used()[:1]:
            path = store.path(name)
            if path is not None:
                refuse_pointer(path)

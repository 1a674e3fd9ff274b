"""Which episodes are read: the ones asked for, and of these the ones whose files are here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kata.data.arrays import Int64
from kata.data.format.episode_table import EpisodeTable, Span
from kata.data.format.info import Info
from kata.data.storage.lfs_pointer import refuse_pointer
from kata.errors import DataError

AVAILABLE = "available"


def choose(
    repo_id: str, known: Int64, episodes: Sequence[int] | str | None, exclude: Sequence[int] | None
) -> Int64:
    """Positions of the wanted episodes in `known` (ascending), each once.

    Raises: DataError for an unknown episode or an empty selection.
    """
    if isinstance(episodes, str) and episodes != AVAILABLE:
        raise DataError(
            f"--dataset.episodes is '{episodes}'",
            rule=f"a list of episode numbers, or '{AVAILABLE}'",
            remedy="write for example --dataset.episodes=[0,1,2]",
        )
    wanted = (
        known if episodes is None or isinstance(episodes, str) else _known(repo_id, known, episodes)
    )
    left = np.setdiff1d(wanted, _known(repo_id, known, exclude or ()))
    if not left.size:
        raise DataError(
            f"no episode of {repo_id} is left: {len(wanted)} wanted, all of them excluded"
            if len(wanted)
            else f"no episode of {repo_id} is selected: the list is empty",
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
    root: Path, info: Info, whole: EpisodeTable, chosen: EpisodeTable, *, available: bool = False
) -> tuple[EpisodeTable, list[str]]:
    """The layout without video features that were declared but never recorded, and their names.

    v3.0 says per episode which file each camera has; v2.x does not, so there a camera without any
    file counts. With `available` it does in v3.0 too.
    """
    declared = [key for key, column in info.columns.items() if column.dtype == "video"]
    told = info.version == "v3.0" and not available
    absent = [
        key
        for key in declared
        if key not in whole.videos or not (told or _any_file(root, whole.videos[key]))
    ]
    return chosen.without(absent), absent


def _any_file(root: Path, span: Span) -> bool:
    return any((root / name).is_file() for name in span.files)


def only_whole(repo_id: str, root: Path, layout: EpisodeTable, *, available: bool) -> EpisodeTable:
    """The episodes whose files all exist; all of them must unless `available`.

    Raises: DataError with the number of episodes that lack files and the first missing names.
    """
    here = [
        np.array([(root / name).is_file() for name in span.files], dtype=bool)
        for span in layout.spans()
    ]
    has_files = [each[span.file] for each, span in zip(here, layout.spans(), strict=True)]
    whole = np.all(has_files, axis=0)
    if whole.all() or (available and whole.any()):
        return layout.take(np.flatnonzero(whole))
    count = int((~whole).sum())
    missing = [n for span in layout.spans() for n in span.used() if not (root / n).is_file()]
    # Cameras without any file are left out of what is available.
    usable = np.all([has_files[0], *(each for each in has_files[1:] if each.any())], axis=0)
    raise DataError(
        f"{repo_id} in {root} lacks files of {count} of {len(whole)} episodes "
        f"({len(missing)} files): {', '.join(missing[:3])}" + (", ..." if len(missing) > 3 else ""),
        rule="every selected episode has its table file and one file per video camera",
        remedy="download the rest" + (", or use --dataset.episodes=available" * bool(usable.any())),
    )


def refuse_pointers(root: Path, layout: EpisodeTable) -> None:
    """Raise DataError for the first file that is a Git LFS pointer: a clone has all or none."""
    for span in layout.spans():
        for name in span.used()[:1]:
            refuse_pointer(root / name)

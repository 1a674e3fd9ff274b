"""The steps of a repair, in order, and the folder that appears when all of them are done."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kata.data.check import Problem, Report, check_dataset
from kata.data.edit.staged import new_folder
from kata.data.format.info import raw_info, read_info
from kata.data.format.read import read_episode_table
from kata.data.format.source import Source
from kata.data.format.text import REPAIR
from kata.data.repair.columns import repair_columns
from kata.data.repair.declarations import repair_declarations
from kata.data.repair.episodes import repair_episodes
from kata.data.repair.features import drop_features, repair_layout
from kata.data.repair.statistics import repair_statistics
from kata.data.repair.tasks import repair_tasks
from kata.data.repair.text import repair_text
from kata.data.repair.totals import repair_totals
from kata.data.repair.videos import repair_videos
from kata.data.repair.working_copy import Answers, Change, Counting, Undecided, WorkingCopy
from kata.data.storage.lfs_pointer import refuse_pointer
from kata.errors import DataError

LIST = "meta/repair.json"
"""The list of changes in a corrected copy."""

_STEPS = (
    repair_text,
    drop_features,
    repair_declarations,
    repair_layout,
    repair_episodes,
    repair_tasks,
    repair_columns,
    repair_videos,
    repair_totals,
    repair_statistics,
)


@dataclass(frozen=True)
class Repaired:
    """The outcome of a repair.

    report: What a check finds in the copy. copied: Files that could not be linked.
    """

    changes: tuple[Change, ...]
    undecided: tuple[Undecided, ...]
    report: Report
    copied: int

    def plain(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        return {
            "changes": [asdict(each) for each in self.changes],
            "undecided": [asdict(each) for each in self.undecided],
            "left": self.report.plain(),
        }


class _UnwantedError(Exception):
    """Leaves the new folder without keeping it."""


def repair_dataset(
    source: Source,
    out: Path,
    answers: Answers,
    *,
    dry_run: bool,
    counting: Counting,
    say: Callable[[str], None],
) -> Repaired:
    """Write a corrected copy of a dataset; the dataset itself is only read.

    Nothing is written where nothing can be corrected.

    Args:
        source: Where the dataset is.
        out: The folder of the copy; it appears whole or not at all.
        answers: What the user decides.
        dry_run: Find out what would be changed, and keep nothing.
        counting: Shows how far the measuring of cameras and the check at the end are.
        say: Takes a sentence about a leftover that was removed.

    Raises:
        DataError: There is no dataset, or the copy cannot be written.
        ConfigError: An answer does not fit.
    """
    root = source.root
    if not (root / "meta" / "info.json").is_file():
        raw_info(root)
    refuse_pointer(root / "meta" / "info.json")
    _fetch(source)
    found: list[Repaired] = []
    try:
        with new_folder(out, inputs=[root], need_bytes=_need_bytes(root, out), say=say) as folder:
            copy = WorkingCopy(folder, answers, counting, dry_run)
            copy.fill(root)
            stopped = _run_steps(copy)
            report = check_dataset(Source(source.repo_id, folder), counting=counting)
            known = {problem.what for problem in report.problems}
            for error in stopped:
                if error.what not in known:
                    copy.leave("not looked at", error.what, error.remedy)
            shown = root if dry_run or not copy.changes else out
            found.append(_outcome(copy, report, shown))
            if dry_run or not copy.changes:
                raise _UnwantedError
            copy.write_json(LIST, {"changes": found[0].plain()["changes"]})
    except _UnwantedError:
        pass
    return found[0]


def _fetch(source: Source) -> None:
    """Fetch all files of a dataset on the Hub; the metadata are here already."""
    if source.revision is None:
        return
    info = read_info(source.root)
    whole = read_episode_table(source.root, info, source.ensure, [])
    source.ensure(list(itertools.chain.from_iterable(span.files for span in whole.spans())))


def _need_bytes(root: Path, out: Path) -> int:
    """Return what the copy takes: everything on another disk, else tables and metadata at most."""
    beside = next(folder for folder in out.absolute().parents if folder.exists())
    is_linked = beside.stat().st_dev == root.stat().st_dev
    rewritten = (".parquet", ".json", ".jsonl")
    files = [path for path in root.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if not is_linked or path.suffix in rewritten)


def _outcome(copy: WorkingCopy, report: Report, shown: Path) -> Repaired:
    """Name files by the folder in which the user finds them, not by that of the work."""

    def renamed(text: str) -> str:
        return text.replace(str(copy.root), str(shown))

    undecided = [replace(each, what=renamed(each.what)) for each in copy.undecided]
    problems = [
        replace(each, what=renamed(each.what), remedy=_remedy(each, copy.dry))
        for each in report.problems
    ]
    report = replace(report, problems=tuple(problems))
    return Repaired(tuple(copy.changes), tuple(undecided), report, copy.copied)


def _remedy(problem: Problem, is_dry: bool) -> str:
    """Return another remedy for a problem that the repair has just left alone."""
    if REPAIR not in problem.remedy:
        return problem.remedy
    if is_dry and problem.kind == "statistics":
        return "the same command without --dry_run"
    return "solve what is named above first, then repeat this command"


def _run_steps(copy: WorkingCopy) -> list[DataError]:
    """Run every step that can read what it needs; returns why the others could not."""
    stopped: list[DataError] = []
    for step in _STEPS:
        try:
            step(copy)
        except DataError as error:
            stopped.append(error)
    return stopped

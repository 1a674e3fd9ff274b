"""`kata data repair`: a corrected copy of a dataset; the dataset itself is only read."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from kata.data.commands.options import RepairOptions, folder_source_of
from kata.data.repair.dataset import LIST, Repaired, repair_dataset
from kata.data.repair.working_copy import Answers
from kata.log import counting
from kata.tables import table_lines

LEFT = 1
"""Exit status when errors are left."""


def main(options: RepairOptions) -> int:
    """Write the copy, print what was changed and what is left; 0 where no error is, else 1."""
    source = folder_source_of(options.dataset)
    folder = source.root.resolve()
    out = Path(options.out) if options.out else folder.with_name(f"{folder.name}-repaired")
    episodes = options.dataset.episodes
    answers = Answers(
        options.fps,
        options.encoding,
        tuple(options.drop),
        tuple(options.declare),
        tuple(options.dataset.exclude_episodes or ()),
        None if episodes is None or isinstance(episodes, str) else tuple(episodes),
    )
    repaired = repair_dataset(
        source,
        out,
        answers,
        dry_run=options.dry_run,
        counting=counting,
        say=logging.getLogger(__name__).info,
    )
    if options.json:
        print(json.dumps(repaired.plain(), indent=2))
    else:
        print("\n".join(_lines(repaired, out, options)))
    return LEFT if repaired.report.errors else 0


def _lines(repaired: Repaired, out: Path, options: RepairOptions) -> list[str]:
    lines = ["would be changed:" if options.dry_run else "changed:"] if repaired.changes else []
    lines += table_lines([(each.kind, each.what) for each in repaired.changes], indent="  ")
    if repaired.undecided:
        lines += ["", "left as it is, for there is more than one answer, or none:"]
    for each in repaired.undecided:
        lines.append(f"  {each.kind}: {each.what}")
        lines += [f"    {choice}" for choice in each.choices]
    if repaired.report.problems:
        lines += ["", "what a check of the copy finds:", repaired.report.text(options.examples)]
    return [*lines, "", _summary(repaired, out, options)]


def _summary(repaired: Repaired, out: Path, options: RepairOptions) -> str:
    if not repaired.changes:
        left = (
            "nothing that has one answer"
            if repaired.report.problems or repaired.undecided
            else "nothing to correct"
        )
        return f"nothing was written: there is {left}"
    if options.dry_run:
        return "nothing was written: this was a dry run"
    copied = (
        f"; {repaired.copied} files were copied, for they cannot be linked there"
        if repaired.copied
        else ""
    )
    count = len(repaired.changes)
    return f"{count} change{'s' * (count > 1)} in {out}, listed in {LIST} too{copied}"

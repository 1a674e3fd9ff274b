"""`kata data check`: everything that is wrong with a dataset, before it costs a night."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kata.data.check import check_dataset
from kata.data.commands.options import Place, option, resolve
from kata.errors import ConfigError
from kata.log import counting

PROBLEMS = 1
"""Exit status when there are errors."""


@dataclass(frozen=True)
class CheckOptions(Place):
    """Options of `kata data check`."""

    episodes: list[int] | str | None = option(
        None, "episodes to check, or 'available'; null is all"
    )
    exclude_episodes: list[int] | None = option(None, "episodes to leave out")
    decode: bool = option(False, "decode every frame too")
    threads: int | None = option(
        None, "how many files or groups of pictures at a time; null is one per core"
    )
    examples: int = option(3, "problems of one sort that are printed; --json has all")
    json: bool = option(False, "print everything as JSON")


def main(args: Sequence[str]) -> int:
    """Check, print the report; 0 without errors, 1 with."""
    options = resolve(CheckOptions, args, "kata data check <folder> [options]")
    if options is None:
        return 0
    if options.threads is not None and options.threads < 1:
        raise ConfigError(
            f"threads={options.threads}", rule="1 or more", remedy="leave it out for one per core"
        )
    report = check_dataset(
        options.source(),
        episodes=options.episodes,
        exclude_episodes=options.exclude_episodes,
        decode=options.decode,
        threads=options.threads,
        counting=counting,
    )
    print(json.dumps(report.plain(), indent=2) if options.json else report.text(options.examples))
    return PROBLEMS if report.errors else 0

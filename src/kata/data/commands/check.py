"""`kata data check`: everything that is wrong with a dataset, before it costs a night."""

from __future__ import annotations

import json

from kata.data.check import check_dataset
from kata.data.commands.options import CheckOptions, source_of
from kata.log import counting

PROBLEMS = 1
"""Exit status when there are errors."""


def main(options: CheckOptions) -> int:
    """Check, print the report; 0 without errors, 1 with."""
    report = check_dataset(
        source_of(options.dataset),
        episodes=options.dataset.episodes,
        exclude_episodes=options.dataset.exclude_episodes,
        decode=options.decode,
        threads=options.threads,
        counting=counting,
    )
    print(json.dumps(report.plain(), indent=2) if options.json else report.text(options.examples))
    return PROBLEMS if report.errors else 0

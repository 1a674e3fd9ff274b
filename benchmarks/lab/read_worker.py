"""One measurement of kata's reader that takes turns with a partner's.

`python -m benchmarks.lab.read_worker '<JSON>'` is `kata.bench.read_worker` that, once it is set up,
stands still until the partner is too.
"""

from __future__ import annotations

import json
import sys

from benchmarks.lab import interleave
from kata.bench.course import Course, ProcessPauses
from kata.bench.read_worker import Reading, measure


class TurnsCourse(Course):
    """A measurement whose process stands still while the partner runs."""

    own_share = 0.5

    def begin(self) -> None:
        """Stand still until the first turn."""
        interleave.begin()

    def end(self, *, is_first: bool) -> ProcessPauses:
        """Return the turns of the partner."""
        return interleave.end(is_first=is_first)


if __name__ == "__main__":
    print(json.dumps(measure(Reading(**json.loads(sys.argv[1])), TurnsCourse())))

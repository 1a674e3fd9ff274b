"""Other samples for those whose frames cannot be decoded: which ones, and how many are too many."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kata.data.draws import philox
from kata.errors import DataError

ATTEMPTS = 8
"""Substitutes tried for one sample; with one bad frame in a hundred, that none of them is whole is less likely than
one in 10^15."""
SHARE_MAX = 0.001
"""Substituted samples out of all that were read, above which a run stops: more is no accident."""
COUNT_MIN = 10
"""Substituted samples that are always let pass, so that one bad frame does not stop a run in its first steps."""


def substitute_anchor(seed: int, position: int, attempt: int, anchors: int) -> int:
    """The anchor number in [0, anchors) that stands in for the sample at `position`; `attempt` counts from 0.

    It depends on these numbers alone (Philox, as every draw), so that the stream goes on unshifted and a resumed run
    takes the same one. The remainder of 64 random bits favours no anchor noticeably.
    """
    counter = np.array([[attempt, position & 0xFFFFFFFF, position >> 32, (seed >> 32) & 0xFFFFFFFF]], dtype=np.uint64)
    words = philox(counter, (seed & 0xFFFFFFFF, zlib.crc32(b"substitute")))[0]
    return (int(words[0]) << 32 | int(words[1])) % anchors


@dataclass
class Substituted:
    """The account of a run: what was substituted, by position, and whether it is too much.

    lines: one entry per position, as bad_frames.jsonl holds them. A position that is read twice, as after a jump,
    counts once.
    """

    lines: dict[int, dict[str, Any]] = field(default_factory=dict)

    def note(self, position: int, line: dict[str, Any], samples: int) -> None:
        """Take a substitution; `samples` were read so far, this one included.

        Raises: DataError when more than one in a thousand samples, and more than ten, had to be substituted.
        """
        self.lines[position] = {"position": position, **line}
        count = len(self.lines)
        if count > max(COUNT_MIN, SHARE_MAX * samples):
            episodes = sorted({entry["episode"] for entry in self.lines.values()})
            raise DataError(
                f"{count} of {samples} samples have frames that cannot be decoded, the last: {line}",
                rule=f"at most {SHARE_MAX:.1%} of the samples, or {COUNT_MIN}, are substituted",
                remedy=f"download the files again, or --dataset.exclude_episodes={str(episodes).replace(' ', '')}",
            )

"""Substitutes for samples whose frames cannot be decoded, and the limit to their number."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kata.data.arrays import Int64
from kata.data.dataset.anchors import AnchorRows
from kata.data.loader.reader import Reader
from kata.data.sampling.philox import philox
from kata.errors import DataError, FrameError

ATTEMPTS = 8
"""Substitutes tried for one sample. If one frame in a hundred is bad, all of them fail with a
probability below 10^-15.
"""
SHARE_MAX = 0.001
"""Fraction of substituted samples above which a run stops: more is no accident."""
COUNT_MIN = 10
"""Substituted samples that never stop a run, so that it survives a bad frame in its first steps."""
FILES_SHOWN = 3


@dataclass(frozen=True)
class Substitution:
    """One substitution: the sample at `position`, anchored at `row`, was replaced by another one.

    Attributes:
        position: in the stream.
        row: the anchor whose sample cannot be decoded.
        instead: the anchor that was read.
        error: of the bad frame.
    """

    position: int
    row: int
    instead: int
    error: FrameError


class Substitutes:
    """A finder of substitutes for samples with a frame that cannot be decoded; give it to Batches.

    A sample is judged by reading it alone, and its substitute depends on seed and position. So
    neither depends on the rest of the batch, on threads, or on the frames in memory.

    Args:
        reader: reads samples by row.
        rows: (n,) the rows that may be anchors, ascending.
        first_rows: (k,) the first row of each dataset; a substitute is of the same dataset.
        seed: of the run.
        note: called with each substitution; may raise to end the run.
    """

    def __init__(
        self,
        reader: Reader,
        rows: Int64 | AnchorRows,
        first_rows: Int64,
        seed: int,
        note: Callable[[Substitution], None],
    ) -> None:
        self._reader = reader
        self._rows = AnchorRows.of(rows)
        self._seed = seed
        self._note = note
        # The range of anchor numbers of each dataset.
        self._bounds = np.append(self._rows.before(first_rows), len(rows))

    def __call__(self, positions: Int64, rows: Int64) -> Int64:
        """Return the anchors to read in place of some that cannot be decoded.

        Args:
            positions: of the samples in the stream (B,).
            rows: their anchors (B,).

        Returns:
            Anchors that can be decoded (B,).

        Raises:
            DataError: no whole sample is found in `ATTEMPTS` attempts.
        """
        chosen = rows.copy()
        for place, error in enumerate(read_alone(self._reader, rows)):
            if error is not None:
                position, row = int(positions[place]), int(rows[place])
                chosen[place] = self._instead(position, row, error)
                self._note(Substitution(position, row, int(chosen[place]), error))
        return chosen

    def _instead(self, position: int, row: int, error: FrameError) -> int:
        number = int(self._rows.before(np.array([row]))[0])
        part = int(np.searchsorted(self._bounds, number, side="right")) - 1
        begin, end = self._bounds[part : part + 2].tolist()
        for attempt in range(ATTEMPTS):
            chosen = substitute_anchor(self._seed, position, attempt, end - begin)
            found = self._rows[begin + chosen]
            if read_alone(self._reader, np.array([found]))[0] is None:
                return int(found)
        raise DataError(
            f"{error.what}, and {ATTEMPTS} other samples drawn in its place have frames that "
            "cannot be decoded either",
            rule="a bad frame is an exception",
            remedy="`kata data check <folder> --decode` lists what is damaged; get those files "
            "again",
        ) from error


def read_alone(reader: Reader, rows: Int64) -> list[FrameError | None]:
    """Read each of the samples anchored at `rows` (B,) alone; return its error, or None."""
    # All are started before the first is awaited, so that the decoders work in parallel.
    coming = [reader.start(rows[place : place + 1]) for place in range(len(rows))]
    found: list[FrameError | None] = []
    for one in coming:
        try:
            one.result()
            found.append(None)
        except FrameError as error:
            found.append(error)
    return found


def substitute_anchor(seed: int, position: int, attempt: int, anchors: int) -> int:
    """Return the number in [0, anchors) of the anchor to read for the sample at `position`.

    It depends on these numbers alone (Philox, as every draw), so the stream is not shifted, and a
    resumed run takes the same anchor. The remainder of 64 random bits favours no anchor noticeably.

    Args:
        seed: of the run.
        position: of the sample in the stream.
        attempt: counts from 0.
        anchors: the number to choose from.
    """
    counter = np.array(
        [[attempt, position & 0xFFFFFFFF, position >> 32, (seed >> 32) & 0xFFFFFFFF]],
        dtype=np.uint64,
    )
    words = philox(counter, (seed & 0xFFFFFFFF, zlib.crc32(b"substitute")))[0]
    return (int(words[0]) << 32 | int(words[1])) % anchors


@dataclass
class Substituted:
    """The substitutions of a run by position, and the limit to their number.

    Attributes:
        lines: one entry per position, as in bad_frames.jsonl, with `file` and, in a mixture,
            `dataset`. A position that is read twice, as after a jump, counts once.
    """

    lines: dict[int, dict[str, Any]] = field(default_factory=dict)

    def note(self, position: int, line: dict[str, Any], samples: int) -> None:
        """Record a substitution; `samples` were read so far, including this one.

        Raises:
            DataError: More than one in a thousand samples, and more than ten, had to be
                substituted.
        """
        self.lines[position] = {"position": position, **line}
        count = len(self.lines)
        if count > max(COUNT_MIN, SHARE_MAX * samples):
            files = sorted(
                {"/".join(filter(None, (x.get("dataset"), x["file"]))) for x in self.lines.values()}
            )
            more = f" and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
            raise DataError(
                f"{count} of {samples} samples have frames that cannot be decoded, in "
                f"{', '.join(files[:FILES_SHOWN])}{more}",
                rule=f"at most {SHARE_MAX:.1%} of the samples, or {COUNT_MIN}, are substituted",
                remedy="`kata data check <folder> --decode` lists what is damaged: get those files "
                "again, or leave "
                "their episodes out with `exclude_episodes`",
            )

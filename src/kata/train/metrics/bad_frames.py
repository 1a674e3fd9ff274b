"""Samples with frames that cannot be decoded: what was read in their place is counted, listed
and bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kata.data.arrays import Int64
from kata.data.dataset.anchors import AnchorRows
from kata.data.dataset.mixture import Mixture
from kata.data.loader.batches import SubstituteFn
from kata.data.loader.provenance import sample_locations
from kata.data.loader.reader import Reader
from kata.data.loader.substitutes import Substituted, Substitutes, Substitution, read_alone
from kata.dist.world import World
from kata.errors import FrameError
from kata.run import Run
from kata.train.metrics.append_log import AppendLog
from kata.train.metrics.meter import Meter, NullMeter, drop_lines_after, read_metrics
from kata.update.state import TrainState

USES = ("train", "validate")


class BadFrames:
    """The list of a run, bad_frames.jsonl, one line for each position of a stream whose sample was
    substituted.

    Each rank lists and bounds what it reads itself, those after the first in
    bad_frames.rank<N>.jsonl. Lines after the state's step are dropped, so that a resumed run
    leaves, and counts, what a straight one does.
    """

    def __init__(
        self, folder: Path, meter: Meter | NullMeter, state: TrainState, run: Run, world: World
    ) -> None:
        name = "bad_frames.jsonl" if world.is_first else f"bad_frames.rank{world.rank}.jsonl"
        self.path = folder / name
        self._meter = meter
        self._state = state
        self._run = run
        self._record = AppendLog(self.path)
        drop_lines_after(self.path, state.step)
        known = read_metrics(self.path) if self.path.exists() else []
        self._accounts: dict[str, Substituted] = {}
        for use in USES:
            lines = {line["position"]: line for line in known if line["used_to"] == use}
            self._accounts[use] = Substituted(lines)

    def substitute(
        self,
        use: str,
        data: Mixture,
        reader: Reader,
        rows: Int64 | AnchorRows,
        samples: Callable[[int], int],
    ) -> SubstituteFn:
        """Return the function that Batches call for frames that cannot be decoded.

        samples: returns the number of samples read up to a position.
        """
        if self._run.on_bad_frame == "stop":
            return lambda _, wanted: _stop(data, reader, wanted)

        def note(found: Substitution) -> None:
            self._take(use, data, found, samples(found.position))

        return Substitutes(reader, rows, data.first_rows, self._run.seed, note)

    def close(self) -> None:
        """End the list."""
        self._record.close()

    def remarks(self) -> list[str]:
        """Return remarks for the user at the end."""
        count = sum(len(account.lines) for account in self._accounts.values())
        if not count:
            return []
        return [
            f"{count} samples have frames that cannot be decoded, others were read in their place; "
            f"see {self.path}"
        ]

    def _take(self, use: str, data: Mixture, found: Substitution, samples: int) -> None:
        """List and count a substitution, once per position."""
        account = self._accounts[use]
        if found.position in account.lines:
            return
        # A sample is read before the step that it is for.
        step = self._state.step + (use == "train")
        line = {"step": step, "used_to": use, **_told(data, found)}
        self._record.add((json.dumps(line) + "\n").encode())
        plain = {
            name: value for name, value in line.items() if name not in ("step", "why", "substitute")
        }
        self._meter.note(step, "bad_frame", {**plain, "listed": self.path.name})
        account.note(found.position, line, samples)


def _stop(data: Mixture, reader: Reader, rows: Int64) -> Int64:
    """`rows`, where all are whole when read again.

    Raises: FrameError that says whose frame cannot be decoded.
    """
    for row, error in zip(rows, read_alone(reader, rows), strict=True):
        if error is not None:
            sample = sample_locations(data, np.array([row]))[0]
            of = f" of {sample['dataset']}" if "dataset" in sample else ""
            raise FrameError(
                f"{error.what}; the sample of episode {sample['episode']}{of}, frame "
                f"{sample['frame']}, needs it",
                rule=error.rule,
                remedy=f"{error.remedy}; --on_bad_frame=substitute trains on, with other samples "
                "for such",
                camera=error.camera,
                file=error.file,
                frame=error.frame,
                row=error.row,
            ) from error
    return rows


def _told(data: Mixture, found: Substitution) -> dict[str, Any]:
    """A substitution in the words of whoever looks for it; files are below the dataset's folder."""
    sample, substitute = sample_locations(data, np.array([found.row, found.instead]))
    files, camera = sample.pop("files"), found.error.camera
    del substitute["files"]
    return {
        "position": found.position,
        **sample,
        "camera": camera,
        "file": files.get(camera, files["data"]),  # pictures lie in the table
        "why": found.error.what,
        "substitute": substitute,
    }

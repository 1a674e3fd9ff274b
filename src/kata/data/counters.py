"""Counters of what a reader has done: totals over all of its threads."""

from __future__ import annotations

from dataclasses import dataclass, fields
from threading import Lock
from typing import Any


@dataclass(frozen=True)
class ReadCounters:
    """Totals since the reader was made.

    Attributes:
        read_s: seconds spent reading encoded bytes. All seconds are summed over threads, so they
            may exceed the time that passed.
        decode_s: seconds spent in decoders.
        convert_s: seconds spent converting colors and copying.
        frames_asked: frames in the batches that were read; a frame counts once per place in a
            batch.
        frames_held: of the frames asked for, those in the frame cache, in the frame buffer, or
            already being decoded for another batch.
        frames_decoded: pictures that decoders returned, including those that were only needed to
            decode another one.
        bytes_read: encoded bytes.
        requests: requests to stores that are far.
        request_s: seconds that these took, summed over all of them.
        bytes_fetched: bytes that these brought.
        store_wait_s: seconds during which at least one decoding task waited for such bytes.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    convert_s: float = 0.0
    frames_asked: int = 0
    frames_held: int = 0
    frames_decoded: int = 0
    bytes_read: int = 0
    requests: int = 0
    request_s: float = 0.0
    bytes_fetched: int = 0
    store_wait_s: float = 0.0

    def since(self, before: ReadCounters) -> ReadCounters:
        """Return the difference to an earlier snapshot."""
        return ReadCounters(
            *(getattr(self, f.name) - getattr(before, f.name) for f in fields(self))
        )

    def __add__(self, other: ReadCounters) -> ReadCounters:
        return ReadCounters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class CounterCollector:
    """A set of counters that several threads add to."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._total: dict[str, Any] = {field.name: 0 for field in fields(ReadCounters)}

    def add(self, **done: float) -> None:
        """Add to the counters, given by their names in ReadCounters."""
        with self._lock:
            for name, value in done.items():
                self._total[name] += value

    def snapshot(self) -> ReadCounters:
        """Return the current totals."""
        with self._lock:
            return ReadCounters(**self._total)

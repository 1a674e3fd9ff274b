"""What reading has cost so far: totals over all threads of a reader."""

from __future__ import annotations

from dataclasses import dataclass, fields
from threading import Lock
from typing import Any


@dataclass(frozen=True)
class ReadCounters:
    """Totals since the reader was made. Seconds are summed over threads, so they may exceed the
    time that passed.

    read_s: in reading bytes (encoded frames). decode_s: in decoders. convert_s: in colour
        conversion and copies.
    frames_asked: frames in the batches read, each place counted. frames_held: those of them whose
        picture was in the frame cache, still held from an earlier batch, or already wanted by one.
        frames_decoded: pictures that decoders gave, also the ones that only led to another.
        bytes_read: encoded bytes.
    """

    read_s: float = 0.0
    decode_s: float = 0.0
    convert_s: float = 0.0
    frames_asked: int = 0
    frames_held: int = 0
    frames_decoded: int = 0
    bytes_read: int = 0

    def since(self, before: ReadCounters) -> ReadCounters:
        """What was done between two snapshots."""
        return ReadCounters(
            *(getattr(self, f.name) - getattr(before, f.name) for f in fields(self))
        )

    def __add__(self, other: ReadCounters) -> ReadCounters:
        return ReadCounters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class CounterCollector:
    """Collects work from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._total: dict[str, Any] = {field.name: 0 for field in fields(ReadCounters)}

    def add(self, **done: float) -> None:
        """Count this, too: figures of ReadCounters by name."""
        with self._lock:
            for name, value in done.items():
                self._total[name] += value

    def snapshot(self) -> ReadCounters:
        """The totals now."""
        with self._lock:
            return ReadCounters(**self._total)

"""Measuring both sides of a comparison in turns, in CPU seconds of this process."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Mapping
from typing import Any


def cpu_s() -> float:
    """Return the CPU seconds of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


def seconds_in_turns(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each way in each round, after a round that does not count.

    Every second round goes through the ways from behind.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name in [*ways][:: -1 if number % 2 else 1]:
            began = cpu_s()
            ways[name]()
            if number >= 0:
                found[name].append(round(cpu_s() - began, 5))
    return found


def compared(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Any]:
    """Return seconds, their medians, and of each way the median of its rounds' shares of LeRobot's.

    Args:
        ways: what is measured, by name; one is 'lerobot'.
        rounds: that count.
    """
    seconds = seconds_in_turns(ways, rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    shares: dict[str, float] = {}
    for name, values in seconds.items():
        pairs = zip(values, seconds["lerobot"], strict=True)
        shares[name] = round(statistics.median(own / peer for own, peer in pairs), 4)
    del shares["lerobot"]
    return {"cpu_seconds": seconds, "medians": medians, "of_lerobot": shares}

"""The verdict of `kata bench scale`, from the seconds of each step on each rank.

It is arithmetic without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kata.train.metrics.bottleneck import WAIT_SHARE

Round = Mapping[str, Any]
"""The figures that rank 0 reports.

`ranks` and `batch_size` per rank stand beside `steps`, which holds a list for each rank by name.
`other_cores` is the number of cores that other programs used meanwhile.
"""


def summarise_ranks(rounds: Mapping[int, Sequence[Round]]) -> dict[int, dict[str, Any]]:
    """Return the figures by number of ranks.

    Each is the median over the rounds of a round's median over its steps. A step ends with its
    slowest rank. `exposed_s` is the time that the other ranks add to a step. It holds communication
    that the backward pass does not hide, and waiting for each other. `unhidden_s` is that time when
    everything is sent after the backward pass. `hidden` is the share of it that sending during the
    backward pass saves, which is negative where that costs more.
    """
    found: dict[int, dict[str, Any]] = {}
    for ranks, measured in rounds.items():
        each = [_of_round(one) for one in measured]
        figures: dict[str, Any] = {"ranks": ranks, "batch_size": measured[0]["batch_size"]}
        for name in each[0]:
            figures[name] = median(one[name] for one in each)
        found[ranks] = figures
    base = found[min(found)]
    for figures in found.values():
        figures["efficiency"] = (
            figures["samples_s"] / figures["ranks"] / (base["samples_s"] / base["ranks"])
        )
        figures["bound_by"] = bound_by(figures)
        if (
            base["ranks"] == 1
            and "exposed_s" in figures
            and figures["batch_size"] == base["batch_size"]
        ):
            figures |= _cost(figures, base)
    return found


def bound_by(figures: Mapping[str, Any]) -> str:
    """Return the first of 'data' and 'communication' with a notable share, else 'compute'."""
    if figures["wait_s"] >= WAIT_SHARE * figures["step_s"]:
        return "data"
    if figures.get("exposed_s", 0.0) >= WAIT_SHARE * figures.get("together_s", 1.0):
        return "communication"
    return "compute"


def _of_round(measured: Round) -> dict[str, float]:
    steps = measured["steps"]
    slowest = {name: _slowest(each) for name, each in steps.items()}
    figures = {name: median(values) for name, values in slowest.items()}
    for name, each in steps.items():
        if name.endswith("cpu_s"):
            figures[name] = sum(median(rank) for rank in each)
    figures["other_cores"] = measured["other_cores"]
    figures["steps_s"] = 1 / figures["step_s"]
    figures["samples_s"] = measured["batch_size"] * measured["ranks"] / figures["step_s"]
    if "together_s" in slowest:
        figures["exposed_s"] = _more(slowest["together_s"], slowest["apart_s"])
        figures["unhidden_s"] = _more(slowest["after_s"], slowest["apart_s"])
        figures["hidden"] = (
            1 - figures["exposed_s"] / figures["unhidden_s"] if figures["unhidden_s"] > 0 else 0.0
        )
    return figures


def _more(longer: Sequence[float], shorter: Sequence[float]) -> float:
    return max(0.0, median(a - b for a, b in zip(longer, shorter, strict=True)))


def _slowest(each: Sequence[Sequence[float]]) -> list[float]:
    return [max(step) for step in zip(*each, strict=True)]


def _cost(several: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, float]:
    """Return the extra time of a step of several ranks, as shares of the step of one rank.

    Both have the same threads, and one batch again and again, so that no data is read. `cost_cpu`
    is CPU time per rank.
    """
    alone_s = one["apart_s"]
    return {
        "cost": several["together_s"] / alone_s - 1,
        "cost_communication": several["exposed_s"] / alone_s,
        "cost_shared_machine": several["apart_s"] / alone_s - 1,
        "cost_cpu": several["together_cpu_s"] / several["ranks"] / one["apart_cpu_s"] - 1,
    }

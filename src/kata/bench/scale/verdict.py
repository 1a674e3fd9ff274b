"""From the seconds of each step on each rank to what more ranks bring, and what binds.

Torch-free arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kata.train.metrics.bottleneck import WAIT_SHARE

Round = Mapping[str, Any]
"""What rank 0 told: `ranks`, `batch_size` per rank, under `steps` a list for each rank by name;
`other_cores` that other programs used meanwhile.
"""


def summarise(rounds: Mapping[int, Sequence[Round]]) -> dict[int, dict[str, Any]]:
    """Figures by number of ranks, each the median over the rounds of a round's median over its
    steps.

    A step ends with its slowest rank. `exposed_s` is what a step with the other ranks takes longer
    than the same one without them: communication that the backward pass does not hide, and waiting
    for each other on the way. `unhidden_s` is the same where all is sent after the backward pass,
    and `hidden` the share of it that sending during the backward pass saves; less than nothing
    where that costs more.
    """
    found: dict[int, dict[str, Any]] = {}
    for ranks, measured in rounds.items():
        each = [_of_round(one) for one in measured]
        figures: dict[str, Any] = {name: median(one[name] for one in each) for name in each[0]}
        found[ranks] = {"ranks": ranks, "batch_size": measured[0]["batch_size"], **figures}
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
    """'data', 'communication' or 'compute': the first that takes a share of the step worth
    naming.
    """
    if figures["wait_s"] >= WAIT_SHARE * figures["step_s"]:
        return "data"
    if figures.get("exposed_s", 0.0) >= WAIT_SHARE * figures.get("together_s", 1.0):
        return "communication"
    return "compute"


def _of_round(measured: Round) -> dict[str, float]:
    steps = measured["steps"]
    slowest = {name: _slowest(each) for name, each in steps.items()}
    cpu = {
        name: sum(median(rank) for rank in each)
        for name, each in steps.items()
        if name.endswith("cpu_s")
    }
    figures = {name: median(values) for name, values in slowest.items()} | cpu
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
    """What a step of several ranks takes over one rank's with the same threads and batch, as shares
    of that one.

    Without data: the same batch again and again. `cost_cpu` is CPU time per rank.
    """
    alone_s = one["apart_s"]
    return {
        "cost": several["together_s"] / alone_s - 1,
        "cost_communication": several["exposed_s"] / alone_s,
        "cost_shared_machine": several["apart_s"] / alone_s - 1,
        "cost_cpu": several["together_cpu_s"] / several["ranks"] / one["apart_cpu_s"] - 1,
    }

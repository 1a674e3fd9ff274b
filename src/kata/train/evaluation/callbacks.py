"""Callbacks that judge the policy: validation, and evaluation in an environment."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kata.dist.engine import Engine
from kata.policies.base import Policy
from kata.run import Run
from kata.train.checkpoint.async_save import AsyncSaver
from kata.train.evaluation.env_eval import AsyncEnvEval
from kata.train.evaluation.validation import Validator
from kata.train.loop import Callback
from kata.train.metrics.meter import Meter, NullMeter, read_metrics
from kata.update.state import TrainState

_log = logging.getLogger(__name__)


@dataclass
class BestValidation:
    """The best validation so far, also across restarts."""

    figures: dict[str, Any] | None = None

    def back_to(self, before: dict[str, Any] | None) -> None:
        """Restore the best on the disk, since the weights of a better one could not be saved."""
        self.figures = before


def best_before(folder: Path, step: int) -> dict[str, Any] | None:
    """Return the best validation up to `step` in the record of a resumed run, or None."""
    if step == 0 or not (folder / "metrics.jsonl").is_file():
        return None
    lines = [
        line
        for line in read_metrics(folder / "metrics.jsonl")
        if line["kind"] == "validation"
        and line["step"] <= step
        and math.isfinite(line["action_error"])
    ]
    if not lines:
        return None
    best = min(lines, key=lambda line: line["action_error"])
    for name in ("kind", "epoch", "samples", "time"):
        best.pop(name, None)
    return {**best, "checkpoint": str(folder / "checkpoints" / "best")}


def evaluated_policy(run: Run, state: TrainState) -> Policy:
    """Return the policy with the weights to evaluate: the averaged ones if `run` asks for them."""
    return state.ema if state.ema is not None and run.ema.use_for_eval else state.policy


def validation_callback(
    run: Run,
    validator: Validator,
    saving: AsyncSaver,
    meter: Meter | NullMeter,
    best: BestValidation,
) -> Callback:
    """Return the validation: all ranks judge, rank 0 keeps the figures, and all the best weights.

    Args:
        run: whether checkpoints are saved, and which weights are judged.
        validator: judges a policy.
        saving: writes the best weights.
        meter: takes the figures.
        best: the best validation so far, which this updates.
    """

    def note(state: TrainState, figures: dict[str, Any]) -> bool:
        """Note the figures on rank 0; return True for the best so far."""
        meter.note(state.step, "validation", figures)
        if not math.isfinite(figures["action_error"]):
            _log.warning("validation at step %d: the action error is not finite", state.step)
            return False
        return best.figures is None or figures["action_error"] < best.figures["action_error"]

    def keep(state: TrainState, figures: dict[str, Any]) -> None:
        before = best.figures
        best.figures = {"step": state.step, **figures}
        if run.save_checkpoint:
            policy = evaluated_policy(run, state)
            kept = saving.best(policy, state.step, figures, lambda: best.back_to(before))
            best.figures["checkpoint"] = str(kept)

    def validate(state: TrainState) -> None:
        figures = validator(evaluated_policy(run, state))
        if validator.group.broadcast_from_rank0(lambda: note(state, figures)):
            keep(state, figures)

    return validate


def evaluation_callbacks(
    run: Run, env_eval: AsyncEnvEval, state: TrainState, engine: Engine
) -> list[tuple[int, Callback]]:
    """Return the callbacks that start evaluations when they are due, and collect their results.

    Results are collected as often as figures are logged. An evaluation before the first step starts
    here.
    """

    def evaluate(state: TrainState) -> None:
        is_last = state.step == run.steps
        if is_last:
            env_eval.collect(wait=True)
        if engine.group.broadcast_from_rank0(lambda: env_eval.may_start(state.step)):
            env_eval.start(evaluated_policy(run, state), state.step)
        if is_last:
            env_eval.collect(wait=True)

    if run.env_eval_at_start and state.step == 0:
        evaluate(state)
    return [(run.env_eval_freq, evaluate), (run.log_freq, lambda _: env_eval.collect())]

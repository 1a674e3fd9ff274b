"""Traces of steps, kept in the cache folder, so that a step is traced once. Torch-free."""

from __future__ import annotations

import functools
import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kata
from kata.config import encode
from kata.data.storage.array_file import cache_folder
from kata.errors import PolicyError
from kata.files import write_json
from kata.plan.step_trace import StepTrace
from kata.run import Run
from kata.run.dataset import FEATURE_CACHES

_NO_MATTER = ("device", "push_to_hub", "repo_id", "private", "tags", "license", "pretrained_path")
"""Options of a policy that change no operation of its step."""


def trace_path(run: Run, device: str) -> Path:
    """Return the file that keeps the trace of a run's step."""
    policy = encode(run.policy)
    for name in _NO_MATTER:
        policy.pop(name, None)
    asked: dict[str, Any] = {
        "policy": policy,
        "optimizer": encode(run.optimizer),
        "ema": run.ema.enable,
        "peft": encode(run.peft),
        "frozen_bits": run.frozen_bits,
        "precision": run.precision,
        "recomputes": run.gradient_checkpointing,
        "features": run.dataset.cache if run.dataset.cache in FEATURE_CACHES else None,
        "device": device,
        "versions": [kata.__version__, version("torch")],
        "sources": _sources(),
    }
    text = json.dumps(asked, sort_keys=True, default=str)
    return cache_folder() / "plan" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


@functools.cache
def _sources() -> str:
    """Return a digest of the times of kata's files, so that changed code is traced again."""
    folder = Path(kata.__file__).parent
    stamps = [(str(path), path.stat().st_mtime_ns) for path in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()


def kept_trace(run: Run, device: str) -> StepTrace | None:
    """Return the trace that is in the cache folder, or None."""
    path = trace_path(run, device)
    try:
        return StepTrace.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None  # it is traced again, which costs seconds


def step_trace_of(run: Run, device: str = "cuda") -> StepTrace:
    """Return the trace of a run's step: that in the cache folder, or a new one.

    Args:
        run: the options, with the policy's features.
        device: 'cuda' or 'cpu': the device whose rules apply.

    Raises:
        PolicyError: the step cannot be traced.
    """
    if run.policy.is_guest:
        raise PolicyError(
            f"{run.policy.type}: a plan cannot trace a policy of LeRobot",
            rule="a step is traced without weights, on tensors without values; LeRobot's policies "
            "read values in their forward pass",
            remedy="plan kata's own policy of that kind, where there is one; or let the first "
            "steps of a run show their memory and time",
        )
    found = kept_trace(run, device)
    if found is not None:
        return found
    from kata.plan.tracing.trace import trace_step

    trace = trace_step(run, device=device)
    path = trace_path(run, device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, trace.to_json())
    except OSError:
        pass  # a cache that cannot be written costs the next plan the time of a trace
    return trace

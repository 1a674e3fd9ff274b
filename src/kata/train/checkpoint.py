"""Checkpoints in LeRobot's layout: written beside, then renamed, so that none is ever half there.

<run>/checkpoints/000500/pretrained_model/   config.json model.safetensors train_config.json policy_*processor*
                        /pretrained_model_ema/  the same with averaged weights (only with --ema.enable)
                        /training_state/     training_step.json optimizer_* scaler.json
<run>/checkpoints/last -> 000500, best -> a folder of its own with the best weights so far
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from kata.adapt import Pipeline
from kata.adapt.tensors import read_tensors, write_tensors
from kata.config import encode
from kata.errors import CheckpointError
from kata.policies.base import Policy
from kata.policies.load import load_weights, save_weights
from kata.run import Run
from kata.train.state import TrainState
from kata.units import bytes_text

PRETRAINED, PRETRAINED_EMA, TRAINING = "pretrained_model", "pretrained_model_ema", "training_state"


@dataclass(frozen=True)
class Saver:
    """Writes and finds the checkpoints of one run folder."""

    folder: Path
    run: Run
    before: Pipeline
    after: Pipeline

    @property
    def checkpoints(self) -> Path:
        """The folder that holds them."""
        return self.folder / "checkpoints"

    def save(self, state: TrainState) -> Path:
        """Write the checkpoint of this step and point `last` at it."""
        digits = max(6, len(str(self.run.steps)))
        target = self.checkpoints / f"{state.step:0{digits}d}"
        self._publish(target, lambda folder: self._fill(folder, state))
        _point(self.checkpoints / "last", target.name)
        return target

    def save_best(self, policy: Policy, step: int, values: dict[str, Any]) -> Path:
        """Replace `checkpoints/best` by these weights; `validation.json` says their step and figures."""

        def fill(folder: Path) -> None:
            self.write_pretrained(folder / PRETRAINED, policy)
            (folder / "validation.json").write_text(json.dumps({"step": step, **values}, indent=4))

        return self._publish(self.checkpoints / "best", fill)

    def newest(self) -> Path | None:
        """The newest whole checkpoint, or None."""
        found = sorted(p for p in self.checkpoints.glob("*") if p.name.isdigit() and (p / TRAINING).is_dir())
        return found[-1] if found else None

    def restore(self, state: TrainState, source: Path) -> None:
        """Fill the state from a checkpoint of this run."""
        load_weights(state.policy, source / PRETRAINED / "model.safetensors")
        if state.ema is not None:
            load_weights(state.ema, source / PRETRAINED_EMA / "model.safetensors")
        training = source / TRAINING
        try:
            _load_optimizer(state.optimizer, training)
            if state.scaler is not None:
                state.scaler.load_state_dict(json.loads((training / "scaler.json").read_text()))
            state.step = json.loads((training / "training_step.json").read_text())["step"]
        except (OSError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{training}: cannot be read ({error})",
                rule="a checkpoint holds the optimiser's state beside the weights",
                remedy=f"delete {source} to continue from the one before it",
            ) from error

    def _publish(self, target: Path, fill: Callable[[Path], None]) -> Path:
        """Fill a hidden folder, flush it to the disk, and rename it to `target` in one go."""
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            fill(partial)
            for path in partial.rglob("*"):
                _flush(path)
            if target.exists():
                old = target.with_name(f".{target.name}.old")
                shutil.rmtree(old, ignore_errors=True)
                target.rename(old)
                partial.rename(target)
                shutil.rmtree(old)
            else:
                partial.rename(target)
            _flush(target.parent)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(
                f"{target}: cannot be written ({error})",
                rule="a run folder needs space and write permission for each checkpoint",
                remedy="free space or choose another --output_dir; checkpoints written before are whole",
            ) from error
        return target

    def _fill(self, folder: Path, state: TrainState) -> None:
        self.write_pretrained(folder / PRETRAINED, state.policy)
        if state.ema is not None:
            self.write_pretrained(folder / PRETRAINED_EMA, state.ema)
        training = folder / TRAINING
        training.mkdir()
        _save_optimizer(state.optimizer, training)
        if state.scaler is not None:
            (training / "scaler.json").write_text(json.dumps(state.scaler.state_dict()))
        counts = {"step": state.step, "num_processes": 1, "batch_size": self.run.batch_size}
        text = json.dumps({**counts, "grad_accum_steps": self.run.accumulation}, indent=4)
        (training / "training_step.json").write_text(text)

    def write_pretrained(self, folder: Path, policy: Policy, weights: dict[str, Tensor] | None = None) -> Path:
        """Make a folder with all that acting needs; `weights` (by own name) instead of the policy's present ones."""
        folder.mkdir()
        save_weights(policy, folder / "model.safetensors", state=weights)
        self.run.policy.save(folder)
        write_json(folder / "train_config.json", encode(self.run))
        self.before.save(folder)
        self.after.save(folder)
        return folder


def checkpoint_bytes(policy: Policy, run: Run) -> int:
    """How much disk one checkpoint takes: weights, the optimiser's two moments, and the average."""
    weights = sum(t.numel() * t.element_size() for t in policy.state_dict().values())
    trained = sum(p.numel() * p.element_size() for p in policy.parameters() if p.requires_grad)
    return weights * (2 if run.ema.enable else 1) + 2 * trained


def check_space(folder: Path, needed_bytes: int) -> None:
    """CheckpointError when the disk cannot hold one checkpoint (or two, while one replaces another)."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise CheckpointError(
            f"{folder}: {bytes_text(free_bytes)} free",
            rule=f"one checkpoint of this policy takes {bytes_text(needed_bytes)}",
            remedy="free space, or choose another --output_dir",
        )


def write_json(path: Path, value: Any) -> None:
    """JSON as LeRobot writes it, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=4, ensure_ascii=False), encoding="utf-8")
    os.replace(partial, path)


def _save_optimizer(optimizer: Optimizer, folder: Path) -> None:
    state = optimizer.state_dict()
    tensors = {
        f"state/{number}/{name}": torch.as_tensor(value)
        for number, named in state["state"].items()
        for name, value in named.items()
    }
    write_tensors(folder / "optimizer_state.safetensors", tensors)
    write_json(folder / "optimizer_param_groups.json", state["param_groups"])


def _load_optimizer(optimizer: Optimizer, folder: Path) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in read_tensors(folder / "optimizer_state.safetensors").items():
        _, number, name = key.split("/", 2)
        state.setdefault(int(number), {})[name] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _point(link: Path, name: str) -> None:
    """A relative symbolic link, replaced in one go."""
    beside = link.with_name(f".{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(name)
    os.replace(beside, link)


def _flush(path: Path) -> None:
    """What lies in the file, or the names that lie in the folder, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""The files of a checkpoint, in LeRobot's layout.

<run>/checkpoints/000500/
    pretrained_model/      config.json, model.safetensors, train_config.json, policy_*processor*
                           processors/<name>/policy_*processor*: per dataset of a mixture
    pretrained_model_ema/  the same with the EMA of the weights, only with --ema.enable
    training_state/        training_step.json, optimizer_*, scaler.json
    sharded_state/         weights, EMA and optimizer state (see kata.train.checkpoint.sharded)
    manifest.json          size and hash of each of these files
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from kata.config import encode
from kata.dist.engine import Engine
from kata.dist.skip_step import optimizer_parameters
from kata.errors import CheckpointError
from kata.files import write_json
from kata.finetune.weights import load_trained, save_trained, save_whole, weights_file
from kata.optim.config import AdamW8bitConfig, SGDConfig
from kata.optim.eight_bit import BLOCK, SMALLEST
from kata.policies.base import Policy
from kata.policies.load import load_weights, save_weights
from kata.processors import Pipeline
from kata.processors.tensors import read_tensors, write_tensors
from kata.run import Run
from kata.train.checkpoint.folder import VALIDATION
from kata.train.checkpoint.manifest import (
    MODEL,
    PRETRAINED,
    PRETRAINED_EMA,
    TRAINING,
    step_of,
)
from kata.train.checkpoint.sharded import has_shards, load_optimizer_state, restore_shards
from kata.train.checkpoint.snapshot import Snapshot, stored_tensors
from kata.update.state import TrainState


def last_finite(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint whose weights can be read and are finite, or None.

    The newest of all may not qualify: an update with finite gradients can still overflow the
    weights.
    """
    for folder in sorted((p for p in checkpoints.glob("*") if p.name.isdigit()), reverse=True):
        try:
            tensors = read_tensors(weights_file(folder / PRETRAINED))
        except CheckpointError:
            continue
        if all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            return folder
    return None


TEXT_BYTES, SHARD_HEADER_BYTES = 65_536, 2_048


PROCESSORS = "processors"


OPTIMIZER = "optimizer_state.safetensors"


@dataclass(frozen=True)
class Saver:
    """Writes the files of one run's checkpoints, and fills a state from them.

    `policy` arguments give names, not weights. by_dataset: pipelines of each dataset of a mixture.
    """

    run: Run
    before: Pipeline
    after: Pipeline
    by_dataset: Mapping[str, tuple[Pipeline, Pipeline]] = field(default_factory=dict)

    def write(self, folder: Path, policy: Policy, held: Snapshot) -> None:
        """Write the content of a checkpoint."""
        whole = held.step >= self.run.steps
        self.write_pretrained(folder / PRETRAINED, policy, held.weights, whole=whole)
        if held.ema is not None:
            self.write_pretrained(folder / PRETRAINED_EMA, policy, held.ema, whole=whole)
        training = folder / TRAINING
        training.mkdir()
        if held.optimizer_state is not None:
            tensors = {f"state/{name}": tensor for name, tensor in held.optimizer_state.items()}
            write_tensors(training / OPTIMIZER, tensors)
        write_json(training / "optimizer_param_groups.json", held.groups)
        if held.scaler is not None:
            write_json(training / "scaler.json", held.scaler)
        counts = {
            "step": held.step,
            "num_processes": self.run.ranks,
            "batch_size": self.run.batch_size,
        }
        write_json(
            training / "training_step.json", {**counts, "grad_accum_steps": self.run.accumulation}
        )

    def write_best(
        self, folder: Path, policy: Policy, held: Snapshot, values: dict[str, Any]
    ) -> None:
        """Write the content of a best checkpoint; `validation.json` holds its step and figures."""
        self.write_pretrained(folder / PRETRAINED, policy, held.weights, whole=True)
        write_json(folder / VALIDATION, {"step": held.step, **values})

    def write_pretrained(
        self,
        folder: Path,
        policy: Policy,
        weights: dict[str, Tensor] | None,
        *,
        whole: bool = False,
    ) -> Path:
        """Make a folder with all files for inference.

        Args:
            folder: is made.
            policy: gives names, and the base that it refers to.
            weights: the tensors that the snapshot holds; None leaves them out, for they are in
                shards.
            whole: write the weights of the base too. An adapter never has them.
        """
        folder.mkdir()
        if weights is not None and policy.reference is None:
            save_weights(policy, folder / MODEL, state=weights)
        elif weights is not None and whole and self.run.peft is None:
            save_whole(policy, folder / MODEL, weights)
        elif weights is not None:
            save_trained(policy, folder, weights, self.run.peft)
        self.run.policy.save(folder)
        write_json(folder / "train_config.json", encode(self.run))
        self.before.save(folder)
        self.after.save(folder)
        for name, pipelines in self.by_dataset.items():
            own = folder / PROCESSORS / name
            own.mkdir(parents=True)
            for pipeline in pipelines:
                pipeline.save(own, with_artifacts=False)
        return folder

    def restore(self, state: TrainState, source: Path, engine: Engine) -> None:
        """Fill the state from a checkpoint of this run; each rank fills what the engine gives it.

        Raises:
            CheckpointError: a file cannot be read, or the checkpoint is beyond the last step.
        """
        training = source / TRAINING
        if has_shards(source):
            restore_shards(state, source)
        else:
            _fill(state.policy, source / PRETRAINED, engine)
            if state.ema is not None:
                _fill(state.ema, source / PRETRAINED_EMA, engine)
        try:
            if not has_shards(source):
                _load_optimizer(state.optimizer, training, engine)
            if state.scaler is not None:
                state.scaler.load_state_dict(json.loads((training / "scaler.json").read_text()))
            state.step = step_of(source)
        except (OSError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{training}: cannot be read ({error})",
                rule="a checkpoint holds the optimiser's state beside the weights",
                remedy=f"delete {source} to continue from the one before it",
            ) from error
        if state.step > self.run.steps:
            raise CheckpointError(
                f"steps={self.run.steps}, but {source} has done {state.step}",
                rule="a resumed run takes no step back",
                remedy=f"give --steps={state.step} or more, or start from it with --policy.path in "
                "another folder",
            )


def checkpoint_bytes(policy: Policy, run: Run) -> int:
    """Return the bytes of a checkpoint, on disk and in host memory.

    It holds weights, optimizer state and EMA. TEXT_BYTES cover its JSON files, statistics and
    headers. SHARD_HEADER_BYTES cover the header of a shard. With format 'both' the weights count
    twice.
    """
    trained = sum(p.numel() * p.element_size() for p in policy.parameters() if p.requires_grad)
    states = 2 * trained
    if isinstance(run.optimizer, SGDConfig):
        states = trained if run.optimizer.momentum > 0 else 0
    if isinstance(run.optimizer, AdamW8bitConfig):
        states = sum(_state_bytes_8bit(p) for p in policy.parameters() if p.requires_grad)
    stored = sum(t.numel() * t.element_size() for t in stored_tensors(policy).values())
    weights = stored * (2 if run.ema.enable else 1)
    if run.stored_as == "safetensors":
        return weights + states + TEXT_BYTES
    tensors = len(policy.state_dict()) * (4 + run.ema.enable)
    headers = SHARD_HEADER_BYTES * tensors * run.mesh[1] + TEXT_BYTES
    return weights * (2 if run.stored_as == "both" else 1) + states + headers


def _state_bytes_8bit(parameter: Tensor) -> int:
    """Return the bytes of both means of a tensor: small ones stay in 32 bits."""
    numbers = parameter.numel()
    if numbers < SMALLEST:
        return 8 * numbers
    return 2 * (numbers + 4 * -(-numbers // BLOCK))


def weight_bytes(policy: Policy) -> int:
    """Return the bytes of the weights."""
    return sum(t.numel() * t.element_size() for t in policy.state_dict().values())


def _fill(policy: Policy, folder: Path, engine: Engine) -> None:
    if policy.reference is None:
        load_weights(policy, folder / MODEL, engine.shard)
    else:
        load_trained(policy, folder, engine.shard)


def _load_optimizer(optimizer: Optimizer, folder: Path, engine: Engine) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    params = optimizer_parameters(optimizer)
    for key, tensor in read_tensors(folder / OPTIMIZER).items():
        _, number, name = key.split("/", 2)
        like = params[int(number)]
        # A count of steps has another shape than its parameter, and is the same on every rank.
        is_sharded = tensor.shape == like.shape
        mine = engine.shard(tensor, like) if is_sharded else tensor
        state.setdefault(int(number), {})[name] = mine
    load_optimizer_state(optimizer, state)

"""The files of a run's checkpoints: LeRobot's names, beside the counters that resume it.

<run>/checkpoints/000500/     by steps in the environment
    pretrained_model/         what acting needs
    algorithm/                config.json, model.safetensors: critics, targets, temperature
    training_state/           <network>/optimizer_*, training_step.json
    manifest.json
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from kata.config import encode
from kata.config.option import declaration
from kata.errors import CheckpointError
from kata.eval.rollout_policy import Acting
from kata.files import write_json
from kata.pointers import LAST, point
from kata.policies.load import load_weights, save_weights
from kata.processors.tensors import read_tensors, write_tensors
from kata.rl.sac.algorithm import Sac
from kata.rl.sac.config import SacConfig
from kata.train.checkpoint.folder import home_of, publish
from kata.train.checkpoint.manifest import MODEL, PRETRAINED, TRAINING
from kata.train.checkpoint.saver import OPTIMIZER
from kata.train.checkpoint.sharded import load_optimizer_state
from kata.train.checkpoint.snapshot import optimizer_tensors

ALGORITHM = "algorithm"
COUNTS = "training_step.json"


@dataclasses.dataclass(frozen=True)
class Counts:
    """A run's progress.

    Attributes:
        step: steps in the environment that the learner has taken.
        episodes: that it has taken.
        updates: that it has done.
    """

    step: int
    episodes: int
    updates: int


def save_checkpoint(
    folder: Path, acting: Acting, sac: Sac, counts: Counts, run: dict[str, Any]
) -> Path:
    """Write a checkpoint, which appears whole, and point `last` at it.

    Args:
        folder: of the run.
        acting: the policy with its pipelines.
        sac: of the run.
        counts: see `Counts`.
        run: the run's options as plain values.

    Raises:
        OSError: the disk refuses.
    """

    def fill(target: Path) -> None:
        pretrained = target / PRETRAINED
        pretrained.mkdir()
        save_weights(acting.policy, pretrained / MODEL)
        acting.config.save(pretrained)
        acting.before.save(pretrained)
        acting.after.save(pretrained)
        write_json(pretrained / "rl_config.json", run)
        _write_algorithm(target / ALGORITHM, acting, sac)
        for name, optimizer in sac.optimizers.items():
            _write_optimizer(target / TRAINING / name, optimizer)
        found = {**dataclasses.asdict(counts), "interaction_step": counts.step}
        write_json(target / TRAINING / COUNTS, found)

    home = home_of(folder)
    target = home / f"{counts.step:06d}"
    publish(target, counts.step, fill)
    point(home / LAST, target.name)
    return target


def restore(source: Path, acting: Acting, sac: Sac) -> Counts:
    """Fill a run's policy and critics from its checkpoint; return how far it was.

    Raises:
        CheckpointError: a file cannot be read.
        PolicyError: weights do not fit.
    """
    load_weights(acting.policy, source / PRETRAINED / MODEL)
    sac.load_state_dict(read_tensors(source / ALGORITHM / MODEL))
    for name, optimizer in sac.optimizers.items():
        found: dict[int, dict[str, Tensor]] = {}
        for key, tensor in read_tensors(source / TRAINING / name / OPTIMIZER).items():
            _, number, kind = key.split("/", 2)
            found.setdefault(int(number), {})[kind] = tensor
        load_optimizer_state(optimizer, found)
    counts = read_counts(source)
    sac.updates = counts.updates
    return counts


def read_counts(source: Path) -> Counts:
    """Return how far a checkpoint is.

    Raises:
        CheckpointError: its file cannot be read.
    """
    path = source / TRAINING / COUNTS
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        counts = Counts(int(raw["step"]), int(raw["episodes"]), int(raw["updates"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error})",
            rule="a JSON object with step, episodes and updates",
            remedy=f"delete {source} to continue from the one before it",
        ) from error
    return counts


def _write_algorithm(folder: Path, acting: Acting, sac: Sac) -> None:
    """Write the critics as LeRobot does; its config has no options of kata's own."""
    folder.mkdir()
    write_tensors(folder / MODEL, sac.state_dict())
    plain = encode(sac.config)
    known = [f.name for f in dataclasses.fields(sac.config)]
    theirs = [name for name in known if not declaration(SacConfig, name).is_own]
    policy = json.loads((folder.parent / PRETRAINED / "config.json").read_text(encoding="utf-8"))
    layers = policy["discrete_critic_network_kwargs"]
    found: dict[str, Any] = {"type": "sac", **{name: plain[name] for name in theirs}}
    write_json(
        folder / "config.json",
        {**found, "discrete_critic_network_kwargs": layers, "policy_config": policy},
    )


def _write_optimizer(folder: Path, optimizer: Optimizer) -> None:
    folder.mkdir(parents=True)
    state = optimizer.state_dict()
    tensors = {f"state/{name}": value for name, value in optimizer_tensors(state).items()}
    write_tensors(folder / OPTIMIZER, tensors)
    write_json(folder / "optimizer_param_groups.json", state["param_groups"])

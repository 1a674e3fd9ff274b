"""Conversion of a checkpoint's state between formats, by one process without ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from kata.config import decode
from kata.errors import CheckpointError
from kata.policies import build_policy
from kata.policies.base import Policy
from kata.policies.config import PolicyConfig
from kata.policies.load import load_weights, save_weights
from kata.processors.tensors import read_tensors, write_tensors
from kata.run import read_policy_config
from kata.train.checkpoint.folder import publish
from kata.train.checkpoint.manifest import MODEL, PRETRAINED, PRETRAINED_EMA, SHARDS, TRAINING
from kata.train.checkpoint.saver import OPTIMIZER
from kata.train.checkpoint.sharded import (
    EMA,
    OPTIMIZER_STATE,
    WEIGHTS,
    ShardedReader,
    has_shards,
    write_shards,
)


@dataclass(frozen=True)
class _State:
    """Weights and EMA by the policy's names, optimizer state as `<number>/<name>`.

    Without EMA, `ema` is empty.
    """

    weights: dict[str, Tensor]
    ema: dict[str, Tensor]
    optimizer_state: dict[str, Tensor]


def convert_checkpoint(source: Path, target: Path, to: str) -> int:
    """Write the checkpoint `source` as `target`, which may be the same, and return its bytes.

    Args:
        source: a complete checkpoint.
        target: folder to write.
        to: 'safetensors', 'dcp' or 'both' (see the option `checkpoint_format`).

    Raises:
        CheckpointError: the source cannot be read, or the target cannot be written.
    """
    policy = _policy_of(source)
    state = _from_shards(source) if has_shards(source) else _from_files(source, policy)
    step = json.loads((source / TRAINING / "training_step.json").read_text(encoding="utf-8"))[
        "step"
    ]
    try:
        return publish(target, step, lambda folder: _fill(folder, source, policy, state, to))
    except OSError as error:
        raise CheckpointError(
            f"{target}: cannot be written ({error})",
            rule="a conversion needs space for another checkpoint",
            remedy="free space, or choose another --out",
        ) from error


def _policy_of(source: Path) -> Policy:
    """Build the policy for its parameter names only; no weights are loaded."""
    config = decode(PolicyConfig, read_policy_config(source / PRETRAINED, []), at="policy")
    return build_policy(config.without_downloads())


def _from_shards(source: Path) -> _State:
    found = ShardedReader(source).full()

    def part(prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in found.items()
            if name.startswith(prefix)
        }

    return _State(part(WEIGHTS), part(EMA), part(OPTIMIZER_STATE))


def _from_files(source: Path, policy: Policy) -> _State:
    def weights(folder: str) -> dict[str, Tensor]:
        load_weights(policy, source / folder / MODEL)
        return {name: tensor.clone() for name, tensor in policy.state_dict().items()}

    stored = read_tensors(source / TRAINING / OPTIMIZER)
    ema = weights(PRETRAINED_EMA) if (source / PRETRAINED_EMA).is_dir() else {}
    return _State(
        weights(PRETRAINED),
        ema,
        {n.removeprefix("state/"): tensor for n, tensor in stored.items()},
    )


def _fill(folder: Path, source: Path, policy: Policy, state: _State, to: str) -> None:
    (folder / TRAINING).mkdir()
    for path in (source / TRAINING).iterdir():
        if path.name != OPTIMIZER:
            shutil.copy2(path, folder / TRAINING)
    _acting(folder / PRETRAINED, source, policy, state.weights if to != "dcp" else None)
    if state.ema and to != "dcp":
        _acting(folder / PRETRAINED_EMA, source, policy, state.ema)
    if to == "safetensors":
        write_tensors(
            folder / TRAINING / OPTIMIZER,
            {f"state/{n}": tensor for n, tensor in state.optimizer_state.items()},
        )
        return
    (folder / SHARDS).mkdir()
    parts = ((WEIGHTS, state.weights), (EMA, state.ema), (OPTIMIZER_STATE, state.optimizer_state))
    tensors: dict[str, Tensor] = {}
    for prefix, named in parts:
        tensors.update({prefix + name: tensor for name, tensor in named.items()})
    write_shards(folder, tensors, together=False)


def _acting(
    folder: Path, source: Path, policy: Policy, weights: Mapping[str, Tensor] | None
) -> None:
    """Write a folder for inference. The EMA shares all its files except the weights."""
    shutil.copytree(source / PRETRAINED, folder, ignore=shutil.ignore_patterns(MODEL))
    if weights is not None:
        save_weights(policy, folder / MODEL, state=dict(weights))

"""The layout of a policy on many ranks, computed in one process without memory for weights.

    python -m kata.bench.scale.layouts '{"ranks": 64, "policies": [["--policy.type=act", ...],
    ...]}'

The last line is JSON: the bytes of each rank under DDP, FSDP2 and HSDP. Torch's fake process group
stands in for the other ranks, and the meta device for memory. The modules and optimizers themselves
are laid out as on rank 0, which holds the most. They are checked against the last rank and the
whole.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from kata.bench.scale.buckets import gradient_buckets
from kata.dist.process_group import ProcessGroup
from kata.dist.shard import Sharded
from kata.dist.world import World
from kata.errors import KataError
from kata.optim.build import build_optimizer
from kata.policies import build_policy
from kata.policies.base import Policy
from kata.run import Run, resolve_run

PER_NODE = 8
"""Ranks that share a fast link: HSDP keeps a whole copy of the weights on each machine."""


def lay_out(ranks: int, policies: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return the bytes of the fullest rank for each layout of each policy.

    Args:
        ranks: The number of ranks.
        policies: Arguments of `kata train`, which name a policy each.

    Returns:
        A row per policy and layout; a policy that cannot be built has `error` instead.

    Raises:
        AssertionError: The shards do not make the whole.
    """
    found: list[dict[str, Any]] = []
    for args in policies:
        run, _ = resolve_run(args)
        try:
            each = _layouts(ranks, run)
        except KataError as error:
            each = [{"error": error.what}]
        found += [{"policy": run.policy.type, "ranks": ranks, **layout} for layout in each]
    return found


def _layouts(ranks: int, run: Run) -> list[dict[str, Any]]:
    found = [_ddp(ranks, run), _sharded("FSDP2", ranks, 1, ranks, run)]
    if ranks % PER_NODE == 0 and ranks > PER_NODE:
        found.append(
            _sharded(
                f"HSDP {ranks // PER_NODE} x {PER_NODE}", ranks, ranks // PER_NODE, PER_NODE, run
            )
        )
    return found


def _ddp(ranks: int, run: Run) -> dict[str, Any]:
    """Lay out everything on every rank, with the gradients in the buckets that DDP sends."""
    policy = _built(run)
    trained = [p for p in policy.parameters() if p.requires_grad][::-1]
    buckets = gradient_buckets(trained, run.ddp.bucket_mb)
    sent_once = sorted(itertools.chain(*buckets))
    assert sent_once == list(range(len(trained))), "a gradient lies in one bucket"
    sizes = _bytes(policy, run)
    sent = 2 * (ranks - 1) * sizes["gradients_bytes"] // ranks
    return {
        "layout": "DDP",
        "pieces": len(buckets),
        **_summed({**sizes, "together_bytes": 0}),
        "sent_bytes": sent,
    }


def _sharded(name: str, ranks: int, copies: int, shards: int, run: Run) -> dict[str, Any]:
    """Lay out as the first rank, which holds the most, and as the last, which holds the least."""
    whole = {key: p.shape for key, p in _built(run).named_parameters()}
    sizes: list[dict[str, int]] = []
    for rank, place in ((0, 0), (ranks - 1, shards - 1)):
        with _as_rank(rank, ranks):
            policy = _built(run)
            together, sent = _traffic(policy, copies, shards)
            group = ProcessGroup(World(rank, ranks))
            Sharded(group, torch.device("cpu"), copies=copies, shards=shards).place(
                policy, policy.shard_units()
            )
            for key, p in policy.named_parameters():
                _check_piece(key, _local(p).shape, whole[key], place, shards)
            sizes.append({**_bytes(policy, run), "together_bytes": together})
    assert all(
        most >= least for most, least in zip(sizes[0].values(), sizes[1].values(), strict=True)
    ), sizes
    return {
        "layout": name,
        "pieces": 1 + len(policy.shard_units()),
        **_summed(sizes[0]),
        "sent_bytes": sent,
    }


def _check_piece(key: str, shard: torch.Size, whole: torch.Size, place: int, shards: int) -> None:
    """Assert that a shard is the rows [place * rows, + rows) of the whole that exist."""
    rows = -(-whole[0] // shards)
    expected = (min(rows, max(0, whole[0] - place * rows)), *whole[1:])
    assert shard == expected, (
        f"{key}: {tuple(shard)} is shard {place} of {tuple(whole)}, not {expected}"
    )


def _traffic(policy: Policy, copies: int, shards: int) -> tuple[int, int]:
    """Return the most bytes of weights that are whole at once, and the bytes sent in a step.

    Weights outside of every unit stay whole through forward and backward. One unit computes while
    the next is gathered. A step gathers the weights twice and reduces the gradients once, and once
    more over the copies.
    """
    units: list[int] = []
    for unit in policy.shard_units():
        units.append(sum(p.nbytes for p in unit.parameters()))
    whole = sum(p.nbytes for p in policy.parameters())
    trained = sum(p.nbytes for p in policy.parameters() if p.requires_grad)
    together = (
        whole - sum(units) + max((a + b for a, b in itertools.pairwise(units)), default=sum(units))
    )
    sent = (shards - 1) * (2 * whole + trained) // shards
    return together, sent + 2 * (copies - 1) * trained // (copies * shards)


def _bytes(policy: Policy, run: Run) -> dict[str, int]:
    """Return the bytes that this rank holds after a step of its optimizer."""
    assert run.optimizer is not None
    optimizer = build_optimizer(policy.param_groups(), run.optimizer)
    trained = [p for p in policy.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.empty_like(p)
    optimizer.step()
    moments: list[Tensor] = []
    for state in optimizer.state.values():
        moments += [value for value in state.values() if isinstance(value, Tensor)]
    return {
        "weights_bytes": _nbytes(policy.parameters()),
        "gradients_bytes": _nbytes(p.grad for p in trained if p.grad is not None),
        "moments_bytes": _nbytes(moments),
        "buffers_bytes": _nbytes(policy.buffers()),
    }


def _summed(sizes: dict[str, int]) -> dict[str, int]:
    return {**sizes, "sum_bytes": sum(sizes.values())}


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(_local(tensor).nbytes for tensor in tensors)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _built(run: Run) -> Policy:
    """Build the policy at its full size, without memory."""
    with torch.device("meta"):
        return build_policy(run.policy.without_downloads())


@contextmanager
def _as_rank(rank: int, ranks: int) -> Generator[None]:
    """Let torch see this process as rank `rank` of `ranks`."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    print(json.dumps(lay_out(**json.loads(sys.argv[1]))))

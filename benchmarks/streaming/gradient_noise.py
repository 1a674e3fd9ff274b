"""Noise of minibatch gradients in clip order, by that of a full shuffle, at fixed weights.

    python -m benchmarks.streaming.gradient_noise <pusht-v30> --policy=diffusion --out=<file>

A small policy trains on the dataset. At some steps its weights are held, and the gradient of every
sample is computed and projected to --sketch random directions, which keep distances. With these the
gradient of any batch is a mean of rows, so that every batch of many epochs is judged, in each
order: its noise is the squared distance from the gradient of all samples.

The dataset is small and its frames would fit into memory. So the memory of an order is a fraction
of its decoded frames; how clips follow from it is the code that training uses. A full shuffle
needs no sampling: without repetition the mean of m of n samples has the variance
v / m * (n - m) / (n - 1), where v is that of a sample. `full` in the results is a control of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kata.bench.process_stats import machine
from kata.data import Batches, Reader
from kata.data.loader.shuffle import (
    Shuffle,
    ShuffleChoice,
    held_frame_bytes,
    make_order,
)
from kata.data.sampling.clip_order import ClipOrder, Clips, order_quality
from kata.data.sampling.permutation import PermutationOrder, SampleOrder
from kata.policies import build_policy
from kata.policies.base import Policy
from kata.run import resolve_run
from kata.spec import Batch
from kata.train.input.feed import Feed
from kata.train.input.prepare import Prepared, prepare
from kata.update.step import weighted

LIMIT = 1.05
"""Noise of a batch in clip order by that in a full shuffle, at most."""

POLICIES: dict[str, tuple[str, ...]] = {
    "act": (
        "--policy.dim_model=128",
        "--policy.dim_feedforward=256",
        "--policy.chunk_size=16",
        "--policy.n_action_steps=16",
    ),
    "diffusion": (
        "--policy.down_dims=[64,128]",
        "--policy.crop_shape=null",
        "--policy.use_separate_rgb_encoder_per_camera=false",
    ),
}
GROUPS = (1, 10, 100)
"""Consecutive batches whose mean gradient is judged: Adam averages over about ten."""

Grads = NDArray[np.float32]
"""(N, sketch) projected gradients, a row for each sample."""


@dataclass(frozen=True)
class Shrunk:
    """The pipeline before the policy, after frames are shrunk to `height`; 0 leaves them."""

    before: Any
    cameras: Sequence[str]
    height: int

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch as the policy takes it."""
        small = dict(batch)
        for key in self.cameras:
            frames = batch[key]
            if self.height and frames.shape[-2] > self.height:
                size = (self.height, round(frames.shape[-1] * self.height / frames.shape[-2]))
                flat = functional.interpolate(frames.flatten(0, -4), size, mode="area")
                small[key] = flat.unflatten(0, frames.shape[:-3])
        return self.before(small)


def open_feed(
    live: ExitStack, prepared: Prepared, order: SampleOrder, size: int, micro: int, height: int
) -> Feed:
    """Open batches of `size` samples in an order, in micro-batches of `micro`."""
    reading = prepared.reading
    reader = live.enter_context(
        Reader(
            prepared.data.train,
            reading.windows,
            threads=1,
            keys=reading.keys,
            frame_memory=256 * 2**20,
        )
    )
    batches = live.enter_context(Batches(reader, prepared.data.rows, order, size))
    before = prepared.normalization.before
    shrunk: Any = Shrunk(before, reading.cameras, height)
    return Feed(
        batches=batches,
        config=prepared.run.policy,
        preprocess=shrunk,
        device=prepared.device,
        micro_size=micro,
        seed=prepared.run.seed,
        cameras=reading.cameras,
        windows=tuple(reading.windows),
    )


def train(policy: Policy, feed: Feed, steps: range, optimizer: torch.optim.Optimizer) -> float:
    """Take some steps in a full shuffle, and return the mean loss of the last twenty."""
    last: list[float] = []
    for step in steps:
        batch = feed.at(step)
        loss, _ = weighted(policy(batch.micros[0], **batch.draws[0]), batch.weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = [*last[-19:], float(loss.detach())]
    return float(np.mean(last)) if last else math.nan


class Sketch:
    """A random projection of gradients: signs, then sums of every `size`-th number."""

    def __init__(self, policy: Policy, size: int) -> None:
        self.size = size
        self._parameters = [each for each in policy.parameters() if each.requires_grad]
        count = sum(each.numel() for each in self._parameters)
        drawn = torch.Generator().manual_seed(0)
        padded = -(-count // size) * size
        self._signs = torch.randint(0, 2, (padded,), generator=drawn).mul_(2).sub_(1).float()
        self._flat = torch.zeros(padded)

    def of(self, loss: Tensor) -> Tensor:
        """Return the projected gradient (size,) of a loss."""
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        begin = 0
        for parameter, grad in zip(self._parameters, found, strict=True):
            end = begin + parameter.numel()
            self._flat[begin:end] = 0 if grad is None else grad.reshape(-1)
            begin = end
        torch.mul(self._flat, self._signs, out=self._flat)
        return self._flat.view(-1, self.size).sum(0)


def gradients(policy: Policy, feed: Feed, sketch: Sketch, count: int) -> Grads:
    """Return the projected gradient of each of `count` samples, as a part of a batch's mean."""
    rows = feed.batches.rows[np.arange(count)]
    whole = feed.batches.reader.masks(rows) | {"position": np.arange(count)}
    mean = {name: float(value) / count for name, value in feed.weights(whole, count).items()}
    found = np.empty((count, sketch.size), np.float32)
    for number, (micro, draws) in enumerate(_single(feed, count)):
        torch.manual_seed(number)  # each sample has its own dropout, whatever batch it is in
        loss, _ = weighted(policy(micro, **draws), mean)
        found[number] = sketch.of(loss).numpy()
    return found


def _single(feed: Feed, count: int) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """Yield the first `count` samples, each as a micro-batch with its draws."""
    size = feed.batches.batch_size
    for step in range(-(-count // size)):
        batch = feed.at(step)
        left = count - step * size
        yield from list(zip(batch.micros, batch.draws, strict=True))[:left]


@dataclass(frozen=True)
class Candidate:
    """An order to judge with batches of one size.

    Attributes:
        shuffle: the order.
        size: samples of a batch.
        memory: of all decoded frames, the fraction that fits into memory.
        is_default: True if `--dataset.shuffle=auto` chooses it.
        note: what a start says of it.
    """

    shuffle: Shuffle
    size: int
    memory: float = 1.0
    is_default: bool = True
    note: str = ""


def candidates(prepared: Prepared, args: argparse.Namespace) -> list[Candidate]:
    """Return the orders to judge: a full shuffle, and clips for each size and memory."""
    data, reading, rows = prepared.data.train, prepared.reading, prepared.data.rows
    where = (data, reading.windows, reading.cameras, rows)
    (dataset,) = data.datasets
    frame = sum(
        held_frame_bytes(dataset, key, reading.windows.get(key, (0,)), reading.frame_format)
        for key in reading.cameras
    )
    found = [Candidate(Shuffle(), size) for size in args.batch_sizes]
    for size in args.batch_sizes:
        for memory in args.memory:
            budget = int(memory * frame * dataset.num_frames)
            choice = ShuffleChoice(Shuffle("auto"), budget, size, 0, reading.frame_format)
            (usual,), _ = choice.choose(*where)
            (shuffle,), (note,) = replace(choice, asked=Shuffle("clips")).choose(*where)
            found.append(Candidate(shuffle, size, memory, usual.kind == "clips", note))
    return found


def made(prepared: Prepared, shuffle: Shuffle, seed: int) -> SampleOrder:
    """Return an order that a shuffle describes, with a seed."""
    data, reading, rows = prepared.data.train, prepared.reading, prepared.data.rows
    if shuffle.kind == "full":
        return PermutationOrder(len(rows), seed)
    whole = make_order([shuffle], data, reading.windows, reading.cameras, rows, seed)
    (order,) = whole.orders
    return order


def noise(grads: Grads, order: SampleOrder, size: int, group: int) -> NDArray[np.float64]:
    """Return the squared distance of each group of batches of an epoch from the whole gradient."""
    anchors = order.at(np.arange(order.n))
    count = order.n // (size * group)
    if not count:
        return np.empty(0)
    mean = grads.mean(0, dtype=np.float64)
    whole = anchors[: count * size * group].reshape(count, size * group)
    return np.array([np.square(grads[each].mean(0) - mean).sum() for each in whole])


def judged(
    prepared: Prepared, shuffle: Shuffle, grads: Grads, size: int, seeds: int
) -> dict[str, Any]:
    """Return the noise of an order by that of a full shuffle, over epochs of several seeds."""
    n = len(grads)
    variance = float(np.square(grads - grads.mean(0)).sum() / n)
    result: dict[str, Any] = {}
    each = [made(prepared, shuffle, seed) for seed in range(seeds)]
    for group in GROUPS:
        m = size * group
        expected = variance / m * (n - m) / (n - 1)
        epochs = [noise(grads, order, size, group) for order in each]
        if not len(epochs[0]):
            continue
        ratios = np.array([epoch.mean() / expected for epoch in epochs])
        error = ratios.std(ddof=1) / math.sqrt(seeds)
        result[f"batches_{group}"] = {"ratio": float(ratios.mean()), "error": float(error)}
        if group == 1:
            edge = max(len(epochs[0]) // 100, 1)
            first = np.mean([epoch[:edge].mean() for epoch in epochs]) / expected
            result["first_hundredth"] = {"batches": edge, "ratio": float(first)}
    return result


def correlation(grads: Grads, clips: Clips) -> float:
    """Return the mean correlation of the gradients of two samples of one clip."""
    centred = grads - grads.mean(0)
    variance = float(np.square(centred).sum() / len(grads))
    anchors, place = clips.anchors(np.arange(len(clips)))
    sums = np.zeros((len(clips), grads.shape[1]), np.float32)
    np.add.at(sums, place, centred[anchors])
    own = np.bincount(place, np.square(centred[anchors]).sum(1), len(clips))
    pairs = float((clips.length * (clips.length - 1)).sum())
    return float((np.square(sums).sum(1) - own).sum() / max(pairs, 1) / variance)


def measure(args: argparse.Namespace, cache: str) -> dict[str, Any]:
    """Train, and judge all orders at each of the steps."""
    episodes = range(args.first, args.first + args.episodes)
    run, _ = resolve_run(
        [
            f"--policy.type={args.policy}",
            *POLICIES[args.policy],
            "--policy.pretrained_backbone_weights=null",
            "--policy.push_to_hub=false",
            "--policy.device=cpu",
            "--dataset.repo_id=bench/noise",
            f"--dataset.root={args.dataset}",
            f"--dataset.episodes=[{','.join(map(str, episodes))}]",
            "--dataset.shuffle=full",
            f"--batch_size={args.train_batch}",
            f"--output_dir={cache}/run",
        ]
    )
    prepared = prepare(run)
    count = len(prepared.data.rows)
    policy = build_policy(prepared.run.policy).train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr)
    sketch, chosen = Sketch(policy, args.sketch), candidates(prepared, args)
    points: list[dict[str, Any]] = []
    with ExitStack() as live:
        order = PermutationOrder(count, 1)
        feed = open_feed(live, prepared, order, args.train_batch, args.train_batch, args.height)
        one = open_feed(
            live, prepared, PermutationOrder(count, 0, shuffle=False), 16, 1, args.height
        )
        done = 0
        for step in args.steps:
            loss = train(policy, feed, range(done, step), optimizer)
            done = step
            grads = gradients(policy, one, sketch, count)
            points.append({"step": step, "loss": loss} | compared(prepared, chosen, grads, args))
            print(json.dumps(points[-1]), flush=True)
    parameters = sum(each.numel() for each in policy.parameters())
    return {"samples": count, "parameters": parameters, "points": points}


def compared(
    prepared: Prepared, chosen: Sequence[Candidate], grads: Grads, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the ratios of all orders at fixed weights, and what of the gradient is noise."""
    mean = np.square(grads.mean(0, dtype=np.float64)).sum()
    variance = np.square(grads - grads.mean(0)).sum() / len(grads)
    found: list[dict[str, Any]] = []
    for each in chosen:
        ratios = {**vars(each), "shuffle": vars(each.shuffle)}
        ratios |= judged(prepared, each.shuffle, grads, each.size, args.seeds)
        if each.shuffle.kind == "clips":
            order = made(prepared, each.shuffle, 0)
            assert isinstance(order, ClipOrder)
            ratios["clips"] = len(order.clips)
            ratios["correlation_in_clips"] = correlation(grads, order.clips)
            ratios |= vars(order_quality(order, order.clips, each.size, batches=1000))
        found.append(ratios)
    return {"simple_noise_scale": float(variance / mean), "orders": found}


def main() -> None:
    """Measure, print the largest ratio, and keep everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--policy", choices=sorted(POLICIES), default="diffusion")
    parser.add_argument("--episodes", type=int, default=15)
    parser.add_argument("--first", type=int, default=0, help="episode of the dataset")
    parser.add_argument("--height", type=int, default=0, help="of frames for the policy; 0: own")
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 300])
    parser.add_argument("--train_batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--memory", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--sketch", type=int, default=2048)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("KATA_CACHE", cache)
        found = measure(args, cache)
    ratios: list[float] = []
    for point in found["points"]:
        defaults = [each for each in point["orders"] if each["is_default"] and each["memory"] < 1]
        ratios += [each["batches_1"]["ratio"] for each in defaults]
    worst = max(ratios)
    print(f"a batch's noise by that of a full shuffle is {worst:.3f} at most; limit {LIMIT}")
    if args.out is not None:
        settings = {name: value for name, value in vars(args).items() if name != "out"}
        kept = {
            "machine": machine(),
            "settings": settings | {"dataset": args.dataset.name},
            "policy": POLICIES[args.policy],
            "limit": LIMIT,
            "largest_ratio": worst,
            "reached": worst < LIMIT,
            **found,
        }
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()

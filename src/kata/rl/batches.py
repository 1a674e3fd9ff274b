"""Batches of transitions: drawn from buffers, moved at random, normalized. Keyed by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kata.data.sampling.philox import draw_below
from kata.eval.rollout_policy import Acting
from kata.processors import frames_to_float
from kata.rl.episodes.ring import Ring
from kata.rl.sac.algorithm import Transitions
from kata.rl.sac.config import DROPPED
from kata.spec import ACTION

Arrays = dict[str, NDArray[Any]]


class SeededDraws:
    """The random numbers of one update, which follow from seed and update alone.

    dropped: share of numbers that dropout sets to zero.
    """

    def __init__(
        self, seed: int, update: int, device: torch.device, dropped: float = DROPPED
    ) -> None:
        self._dropped = dropped
        low, high = draw_below(seed, update, "rl update", (2,), 2**31).tolist()
        self._stream = torch.Generator(device).manual_seed(low << 31 | high)
        self._device = device

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(shape, generator=self._stream, device=self._device)

    def dropout(self, values: Tensor) -> Tensor:
        """Return the values with some of them zero and the others scaled up."""
        if not self._dropped:
            return values
        uniform = torch.rand(values.shape, generator=self._stream, device=self._device)
        return values * (uniform >= self._dropped) / (1 - self._dropped)

    def some_critics(self, count: int, of: int) -> Tensor:
        """Return numbers of different critics, (count,)."""
        return torch.randperm(of, generator=self._stream, device=self._device)[:count]


@dataclass(frozen=True)
class Buffers:
    """The buffers of a run.

    Attributes:
        online: own episodes, with takeovers as they happened.
        offline: demonstrations, and the segments in which a human acted.
    """

    online: Ring
    offline: Sequence[Ring] = ()

    @property
    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return sum(ring.nbytes for ring in (self.online, *self.offline))


@dataclass(frozen=True)
class Sampling:
    """The way in which batches are drawn.

    Attributes:
        size: transitions of a batch.
        own: of them from own episodes.
        seed: of the run.
        shift: pixels by which pictures are moved at random.
        normalize_actions: False leaves recorded actions in the environment's units.
        dropped: share of pooled image features that dropout sets to zero.
        clone_successes: True clones the policy's own steps in episodes that succeeded, too.
    """

    size: int
    own: int
    seed: int
    shift: int = 0
    normalize_actions: bool = True
    dropped: float = DROPPED
    clone_successes: bool = False


class TransitionBatches:
    """Batches by number, half of each from the offline buffers (RLPD, arXiv 2302.02948).

    Args:
        buffers: of the run.
        acting: the policy, whose pipeline normalizes what it reads, and actions.
        sampling: see `Sampling`.
    """

    def __init__(self, buffers: Buffers, acting: Acting, sampling: Sampling) -> None:
        self._buffers = buffers
        self._config = acting.config
        self._before = acting.before
        self._sampling = sampling
        self._device = acting.device

    def at(self, number: int) -> Transitions:
        """Return the batch of this number, which follows from the buffers' content and the seed."""
        parts: list[Arrays] = []
        offline = [ring for ring in self._buffers.offline if ring.transitions]
        missing = self._sampling.size - self._sampling.own
        # Until the offline part holds its share, all transitions are the run's own.
        mixes = missing > 0 and sum(ring.transitions for ring in offline) >= missing
        online = self._sampling.own if mixes else self._sampling.size
        parts += self._drawn([self._buffers.online], online, number, "online")
        if mixes:
            parts += self._drawn(offline, missing, number, "offline")
        return self._prepared(_joined(parts))

    def demonstrated(self, number: int) -> Transitions:
        """Return the batch of this number from demonstrations alone."""
        rings = [ring for ring in self._buffers.offline if ring.transitions]
        return self._prepared(_joined(self._drawn(rings, self._sampling.size, number, "demos")))

    def draws(self, update: int) -> SeededDraws:
        """Return the random numbers of an update."""
        sampling = self._sampling
        return SeededDraws(sampling.seed, update, self._device, sampling.dropped)

    def _drawn(self, rings: Sequence[Ring], count: int, number: int, kind: str) -> list[Arrays]:
        """Return transitions drawn evenly from all steps of the rings, ring by ring."""
        ends = np.cumsum([ring.transitions for ring in rings])
        steps = draw_below(self._sampling.seed, number, f"rl {kind}", (count,), int(ends[-1]))
        moves = self._moves(count, number, kind)
        parts: list[Arrays] = []
        for ring, end in zip(rings, ends, strict=True):
            mine = (steps >= end - ring.transitions) & (steps < end)
            if mine.any():
                offsets = {key: values[mine] for key, values in moves.items()}
                parts.append(self._gathered(ring, steps[mine] - end + ring.transitions, offsets))
        return parts

    def _moves(self, count: int, number: int, kind: str) -> Arrays:
        """Return the pixels by which each picture is moved, (count, 2), by 'when key'."""
        seed, shift = self._sampling.seed, self._sampling.shift
        if not shift:
            return {}
        found: Arrays = {}
        for key in self._config.cameras:
            for when in ("seen", "next"):
                purpose = f"rl shift {kind} {when} {key}"
                moved = draw_below(seed, number, purpose, (count, 2), 2 * shift + 1)
                found[f"{when} {key}"] = moved - shift
        return found

    def _gathered(self, ring: Ring, steps: NDArray[np.int64], moves: Arrays) -> Arrays:
        first, after = ring.rows(steps)
        found: Arrays = {
            "action": ring.action[first],
            "reward": ring.reward[first],
            "penalty": ring.penalty[first],
            "done": ring.done[first],
            "shown": self._shown(ring, first),
        }
        for key, values in ring.observations.items():
            for when, rows in (("seen", first), ("next", after)):
                name = f"{when} {key}"
                moved = moves.get(name)
                found[name] = values[rows] if moved is None else shifted_frames(values, rows, moved)
        return found

    def _shown(self, ring: Ring, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for the steps that behavior cloning follows."""
        human = ring.intervention[rows]
        return human | ring.success[rows] if self._sampling.clone_successes else human

    def _prepared(self, whole: Arrays) -> Transitions:
        tensors = {name: torch.from_numpy(values) for name, values in whole.items()}
        tensors = {name: value.to(self._device) for name, value in tensors.items()}
        action, rest = tensors["action"].tensor_split([self._config.action.shape[0]], dim=1)
        if self._sampling.normalize_actions:
            action = self._before({ACTION: action})[ACTION]
        return Transitions(
            self._observations(tensors, "seen"),
            torch.cat((action, rest), 1),
            tensors["reward"],
            tensors["done"].float(),
            self._observations(tensors, "next"),
            tensors["penalty"],
            tensors["shown"].float(),
        )

    def _observations(self, tensors: Mapping[str, Tensor], when: str) -> dict[str, Tensor]:
        seen = {key: tensors[f"{when} {key}"] for key in self._config.input_features}
        return self._before(frames_to_float(seen, self._config.cameras))


def _joined(parts: Sequence[Arrays]) -> Arrays:
    """Return all transitions of the parts."""
    found: Arrays = {}
    for name in parts[0]:
        found[name] = np.concatenate([part[name] for part in parts])
    return found


def shifted_frames(
    frames: NDArray[Any], rows: NDArray[np.int64], moves: NDArray[np.int64]
) -> NDArray[Any]:
    """Return frames (B, H, W, C) at `rows`, each moved by (down, right) pixels; edges repeat.

    Args:
        frames: (N, H, W, C).
        rows: (B,), of the frames.
        moves: (B, 2), whole pixels.
    """
    height, width = frames.shape[1:3]
    found = np.empty((len(rows), *frames.shape[1:]), frames.dtype)
    # Blocks are copied at once: indexing pixel by pixel takes 15 times as long.
    for target, row, (down, right) in zip(found, rows.tolist(), moves.tolist(), strict=True):
        top, left = max(0, -down), max(0, -right)
        bottom, end = min(height, height - down), min(width, width - right)
        inner = target[top:bottom]
        inner[:, left:end] = frames[row, top + down : bottom + down, left + right : end + right]
        inner[:, :left] = inner[:, left : left + 1]
        inner[:, end:] = inner[:, end - 1 : end]
        target[:top] = target[top]
        target[bottom:] = target[bottom - 1]
    return found

"""Feed: turns step numbers into batches on the device, with what the policy draws and the loss is
divided by.

positions -> order -> windows -> frames (threads, read ahead) | numpy
copy -> float -> rename, normalise -> micro-batches           | torch, on the device
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kata.data import Batches
from kata.data.sampling.philox import draw
from kata.policies.config import PolicyConfig
from kata.processors import Pipeline, frames_to_float, planes_to_rgb
from kata.processors.augment import Augment
from kata.spec import ACTION, DATASET_INDEX, Batch, Colours, Draw, dim_pad_key, missing_key, pad_key


class Share(NamedTuple):
    """A dataset of a mixture in one batch: its number, its name, and the loss denominators over
    its samples there.
    """

    number: int
    name: str
    weights: dict[str, float]


@dataclass(frozen=True)
class StepBatch:
    """What one rank needs for one step.

    micros: batches to put through the model one after the other. draws: per micro-batch, the
        policy's random numbers.
    weights: denominators of the loss terms over the global batch. positions: where the samples
        stand in the stream.
    first_micro: the number of the first micro-batch, counted over all ranks.
    shares: the part of each dataset of a mixture in the global batch; empty for one dataset.
    """

    micros: list[Batch]
    draws: list[dict[str, Tensor]]
    weights: dict[str, float]
    positions: np.ndarray
    dataloading_s: float
    preprocessing_s: float
    first_micro: int = 0
    shares: list[Share] = field(default_factory=list)


def pinned(size: int) -> NDArray[np.uint8]:
    """Fresh page-locked memory (size,), which a CUDA device reads while the host goes on; see
    `kata.data.storage.buffers`.
    """
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


class Copying(Protocol):
    """A copy on its way, as torch.cuda.Event."""

    def query(self) -> bool:
        """True once it has ended."""
        ...


class Copier:
    """Copies host tensors to the device. On CUDA from pinned memory, on a stream of its own, so
    that the copy runs while the device still computes the step before.

    A tensor in pinned memory is held until its copy has ended, so that batches are not written
    there meanwhile. Another is copied into such memory first, which torch keeps for the next one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._held = deque[tuple[Tensor, Copying]]()

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor on the device; usable at once by whatever is launched next on the current
        stream.
        """
        while self._held and self._held[0][1].query():
            self._held.popleft()
        copied, copying = self._copy(tensor)
        if copying is not None:
            self._held.append((tensor, copying))
        return copied

    def _copy(self, tensor: Tensor) -> tuple[Tensor, Copying | None]:
        """The tensor on the device; and its copying, where that still reads memory that is not
        torch's own.
        """
        if self._stream is None:
            return tensor.to(self.device), None
        reused = tensor.is_pinned()
        source = tensor if reused else tensor.pin_memory()
        with torch.cuda.stream(self._stream):
            copied = source.to(self.device, non_blocking=True)
        copying = self._stream.record_event() if reused else None
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        copied.record_stream(
            current
        )  # allocated on the other stream: not to be reused before this one is done
        return copied, copying


@dataclass(frozen=True)
class Feed:
    """Batches by step number. `seed` and `purpose` key the draws, so that validation draws other
    numbers.

    datasets: names of a mixture's datasets; empty for one dataset.
    `augment` changes the frames, each sample and camera by numbers of its own; None leaves them.
    colours: of the cameras whose frames come as planes. rename_map: dataset key -> policy key,
        where they differ.
    """

    batches: Batches
    config: PolicyConfig
    preprocess: Pipeline
    device: torch.device
    micro_size: int
    seed: int
    cameras: tuple[str, ...]
    purpose: str = "train"
    windows: tuple[str, ...] = field(default=())
    datasets: tuple[str, ...] = field(default=())
    augment: Augment | None = None
    colours: Mapping[str, Colours] = field(default_factory=dict[str, Colours])
    rename_map: Mapping[str, str] = field(default_factory=dict[str, str])
    copier: Copier = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "copier", Copier(self.device))

    def at(self, step: int) -> StepBatch:
        """The batch of update number `step` (0 is the first). Errors of the reader surface here."""
        began_s = time.perf_counter()
        raw = self.batches.at(step)
        read_s = time.perf_counter()
        part, size = self.batches.rank_slice, self.batches.batch_size
        whole = self.batches.masks(step)
        micros, draws = self.ready(raw, step * size)
        weights, shares = self.weights(whole, size), self.shares(whole)
        return StepBatch(
            micros,
            draws,
            weights,
            raw["position"],
            dataloading_s=read_s - began_s,
            preprocessing_s=time.perf_counter() - read_s,
            first_micro=part.number * len(micros),
            shares=shares,
        )

    def column(self, key: str) -> str:
        """Return the dataset's key of what the policy calls `key`."""
        return next((old for old, new in self.rename_map.items() if new == key), key)

    def weights(self, whole: Batch, size: int) -> dict[str, float]:
        """Denominators of the loss terms over `size` samples with these masks."""
        return self.config.loss_weights(size, self._pads(whole))

    def ready(self, raw: Batch, lead: int) -> tuple[list[Batch], list[dict[str, Tensor]]]:
        """Samples as read, turned into micro-batches and their draws.

        lead: the first position of the batch that these are, or are a part of; what its samples
            share is drawn there.
        """
        positions: np.ndarray = raw["position"]
        drawn = {
            name: self._draw(name, spec, positions, lead)
            for name, spec in self.config.draws().items()
        }
        parts = [slice(i, i + self.micro_size) for i in range(0, len(positions), self.micro_size)]
        micros = [
            self.preprocess(self._augmented(self._placed(raw, part), positions[part]))
            for part in parts
        ]
        draws = [
            {name: self._tensor(value[part]) for name, value in drawn.items()} for part in parts
        ]
        return micros, draws

    def act_draws(self, raw: Batch) -> list[dict[str, Tensor]]:
        """Return, for each micro-batch of `ready`, what `predict_chunk` draws, keyed like all
        other draws.
        """
        positions: np.ndarray = raw["position"]
        drawn: list[dict[str, Tensor]] = []
        for i in range(0, len(positions), self.micro_size):
            part = positions[i : i + self.micro_size]
            wanted = self.config.act_draws()
            drawn.append(
                {
                    name: self._tensor(self._draw(name, spec, part, int(positions[0])))
                    for name, spec in wanted.items()
                }
            )
        return drawn

    def shares(self, whole: Batch) -> list[Share]:
        """Which datasets of the mixture are in a batch with these masks, with their
        denominators.
        """
        shares: list[Share] = []
        for number, name in enumerate(self.datasets):
            mine = whole[DATASET_INDEX] == number
            if size := int(mine.sum()):
                pads = {key: pad[mine] for key, pad in self._pads(whole).items()}
                shares.append(Share(number, name, self.config.loss_weights(size, pads)))
        return shares

    def _pads(self, raw: Batch) -> dict[str, np.ndarray]:
        """Return the masks that denominators are counted with, under the policy's names."""
        pads = {pad_key(self.rename_map.get(key, key)): raw[pad_key(key)] for key in self.windows}
        if dim_pad_key(ACTION) in raw:
            pads[dim_pad_key(ACTION)] = raw[dim_pad_key(ACTION)]
        return pads

    def _placed(self, raw: Mapping[str, Any], part: slice) -> Batch:
        """One micro-batch on the device, frames as floats.

        Arrays are views until they are copied there.
        """
        placed = {
            key: self._tensor(value[part]) if isinstance(value, np.ndarray) else value[part]
            for key, value in raw.items()
        }
        return frames_to_float(placed | self._converted(placed), self.cameras)

    def _converted(self, placed: Batch) -> Batch:
        return {key: planes_to_rgb(placed[key], colours) for key, colours in self.colours.items()}

    def _draw(self, name: str, spec: Draw, positions: np.ndarray, lead: int) -> np.ndarray:
        purpose = f"{self.purpose}/{name}"
        if not spec.shared:
            return draw(self.seed, positions, purpose, spec)
        return np.repeat(draw(self.seed, np.array([lead]), purpose, spec), len(positions), axis=0)

    def _augmented(self, batch: Batch, positions: np.ndarray) -> Batch:
        if self.augment is None:
            return batch
        changed = dict(batch)
        for key in self.cameras:
            uniforms = Draw("uniform", (self.augment.uniforms,))
            changed[key] = self.augment(
                changed[key], draw(self.seed, positions, f"augment/{key}", uniforms)
            )
            if (
                missing_key(key) in batch
            ):  # black stays black, as it is when the policy acts without that camera
                changed[key][batch[missing_key(key)]] = 0
        return changed

    def _tensor(self, values: np.ndarray) -> Tensor:
        return self.copier(torch.from_numpy(values))

"""The feed, which turns step numbers into batches on the device.

A batch carries the numbers that the policy draws, and the denominators of the loss.

positions -> order -> windows -> frames (threads, read ahead) | numpy
copy -> float -> rename, normalise -> micro-batches           | torch, on the device
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kata.data import Batches
from kata.data.sampling.philox import draw
from kata.policies.config import PolicyConfig
from kata.processors import Pipeline, frames_to_float, planes_to_rgb
from kata.processors.augment import Augment
from kata.spec import (
    ACTION,
    DATASET_INDEX,
    FROZEN_KNOWN,
    FROZEN_RECORD,
    FROZEN_ROW,
    Batch,
    Colours,
    Draw,
    dim_pad_key,
    missing_key,
    pad_key,
)
from kata.update.step_batch import Share, StepBatch

_OF_THE_CACHE = (FROZEN_ROW, FROZEN_KNOWN, FROZEN_RECORD)
"""Keys of a batch as read that are not for the policy."""


def pinned(size: int) -> NDArray[np.uint8]:
    """Return fresh page-locked memory (size,), which a CUDA device reads beside the host's work.

    `kata.data.storage.buffers` says how it is kept.
    """
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


class Copying(Protocol):
    """A running copy, as torch.cuda.Event is one."""

    def query(self) -> bool:
        """Return True once it has ended."""
        ...


class Copier:
    """A copier of host tensors to the device.

    On CUDA it copies from pinned memory on a separate stream, so that the copy runs while the
    device still computes the step before. It holds a tensor in pinned memory until its copy has
    ended, so that no batch is written there meanwhile. Any other tensor is copied into pinned
    memory first, which torch keeps for the next one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._held = deque[tuple[Tensor, Copying]]()

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device; work launched next on the current stream may use it."""
        while self._held and self._held[0][1].query():
            self._held.popleft()
        copied, copying = self._copy(tensor)
        if copying is not None:
            self._held.append((tensor, copying))
        return copied

    def _copy(self, tensor: Tensor) -> tuple[Tensor, Copying | None]:
        """Return the tensor on the device, and its copy while that reads memory not torch's."""
        if self._stream is None:
            return tensor.to(self.device), None
        reused = tensor.is_pinned()
        source = tensor if reused else tensor.pin_memory()
        with torch.cuda.stream(self._stream):
            copied = source.to(self.device, non_blocking=True)
        copying = self._stream.record_event() if reused else None
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        # The memory belongs to the other stream, which must not reuse it before this one is done.
        copied.record_stream(current)
        return copied, copying


class Features(Protocol):
    """A source of what a frozen part of the policy makes of samples, such as `FrozenFeatures`."""

    def completed(self, micros: list[Batch], raw: Batch) -> list[Batch]:
        """Return micro-batches with the features of all samples of a batch as read."""
        ...


@dataclass(frozen=True)
class Feed:
    """Batches by step number.

    Attributes:
        seed: With `purpose` the key of the draws, so that validation draws other numbers.
        datasets: The names of a mixture's datasets; empty for one dataset.
        augment: Changes the frames, each sample and camera by different numbers; None leaves them.
        colours: The colours of the cameras whose frames come as planes.
        rename_map: Dataset key -> policy key, where they differ.
        features: Gives samples what the policy's frozen part makes of them; None leaves that to the
            policy.
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
    features: Features | None = None
    copier: Copier = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "copier", Copier(self.device))

    def at(self, step: int) -> StepBatch:
        """Return the batch of update `step` (0 is the first), or raise the error of the reader."""
        began_s = time.perf_counter()
        raw = self.batches.at(step)
        read_s = time.perf_counter()
        part, size = self.batches.rank_slice, self.batches.batch_size
        whole = self.batches.masks(step)
        whole["position"] = np.arange(step * size, (step + 1) * size)
        micros, draws = self.ready(raw, step * size)
        if self.features is not None:
            micros = self.features.completed(micros, raw)
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
        """Return the denominators of the loss terms over `size` samples with these masks."""
        return self.config.loss_weights(size, self._pads(whole))

    def ready(self, raw: Batch, lead: int) -> tuple[list[Batch], list[dict[str, Tensor]]]:
        """Turn samples as read into micro-batches and their draws.

        Args:
            raw: The samples of a batch, or of a part of one.
            lead: The first position of that batch, at which the draws that its samples share are
                drawn.
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
        draws: list[dict[str, Tensor]] = []
        for part in parts:
            draws.append({name: self._tensor(value[part]) for name, value in drawn.items()})
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
        """Return the datasets of the mixture in a batch with these masks, with denominators."""
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
        for name in self.config.counted_draws():
            pads[name] = self._draw(name, self.config.draws()[name], raw["position"], 0)
        return pads

    def _placed(self, raw: Mapping[str, Any], part: slice) -> Batch:
        """Return one micro-batch on the device, frames as floats.

        Arrays are views until they are copied there.
        """
        placed = {
            key: self._tensor(value[part]) if isinstance(value, np.ndarray) else value[part]
            for key, value in raw.items()
            if key not in _OF_THE_CACHE
        }
        cameras = [key for key in self.cameras if key in placed]
        return frames_to_float(placed | self._converted(placed), cameras)

    def _converted(self, placed: Batch) -> Batch:
        return {
            key: planes_to_rgb(placed[key], colours)
            for key, colours in self.colours.items()
            if key in placed
        }

    def _draw(self, name: str, spec: Draw, positions: np.ndarray, lead: int) -> np.ndarray:
        purpose = f"{self.purpose}/{name}"
        if not spec.shared:
            return draw(self.seed, positions, purpose, spec)
        drawn = draw(self.seed, np.array([lead]), purpose, spec)
        if not spec.spread:
            return np.repeat(drawn, len(positions), axis=0)
        # A sample keeps its place in the batch, whichever rank or micro-batch it is in.
        place = ((positions - lead) / self.batches.batch_size).astype(np.float32)
        return drawn + place.reshape(-1, *(1,) * len(spec.shape))

    def _augmented(self, batch: Batch, positions: np.ndarray) -> Batch:
        if self.augment is None:
            return batch
        changed = dict(batch)
        for key in self.cameras:
            uniforms = Draw("uniform", (self.augment.uniforms,))
            changed[key] = self.augment(
                changed[key], draw(self.seed, positions, f"augment/{key}", uniforms)
            )
            if missing_key(key) in batch:
                # Black stays black, as it is when the policy acts without that camera.
                changed[key][batch[missing_key(key)]] = 0
        return changed

    def _tensor(self, values: np.ndarray) -> Tensor:
        return self.copier(torch.from_numpy(values))

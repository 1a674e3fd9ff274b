"""Cached features of a policy's frozen part: what is known is read, and the rest computed and kept.

batch as read -> known records | missing samples -> frozen part -> cache -> features in the batch
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kata.config import encode
from kata.data import Reader
from kata.data.loader.feature_cache import FeatureCache, FeatureFiles
from kata.errors import FrameError, PolicyError
from kata.policies.base import Policy
from kata.policies.config import PolicyConfig
from kata.processors import Pipeline
from kata.processors.tokenize import tokenizer_digest
from kata.run import Run
from kata.run.dataset import FEATURE_CACHES
from kata.spec import ACTION, FROZEN_KNOWN, FROZEN_RECORD, FROZEN_ROW, Batch, frozen_key
from kata.train.input.feed import Copier, Feed
from kata.train.input.prepare import Prepared
from kata.units import num_bytes
from kata.update.step import autocast

_ALIGNED = 8
"""Bytes that a record is a multiple of, so that its numbers can be read in place."""

_TRIED = 64
"""Samples that are tried to learn the shapes of features, where frames are damaged."""

GROUP = 8
"""Samples whose features are computed at a time."""

_NO_INPUTS = ("optimizer_", "scheduler_", "pretrained_", "push_", "gradient_", "compile_", "rtc_")
"""Beginnings of a policy's options that decide no feature of its frozen part."""


class _Field(NamedTuple):
    """A feature in a record."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    first: int
    end: int


class RecordLayout:
    """The places of features in a record of bytes.

    Args:
        features: those of a sample, (1, ...), by name.
    """

    def __init__(self, features: Mapping[str, Tensor]) -> None:
        self._fields: list[_Field] = []
        end = 0
        # Wide numbers come first, so that each begins at a multiple of its size.
        for name in sorted(features, key=lambda name: (-features[name].element_size(), name)):
            tensor = features[name]
            shape, first = tensor.shape[1:], end
            end += math.prod(shape) * tensor.element_size()
            self._fields.append(_Field(name, tensor.dtype, shape, first, end))
        self.row_bytes = -(-end // _ALIGNED) * _ALIGNED

    def packed(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return features (B, ...) as records, uint8 (B, row_bytes)."""
        size = len(next(iter(features.values())))
        parts: list[Tensor] = []
        for name, dtype, shape, _, _ in self._fields:
            tensor = features[name]
            if (tensor.dtype, tensor.shape[1:]) != (dtype, shape):
                raise PolicyError(
                    f"frozen feature {name}: {tensor.dtype} {tuple(tensor.shape[1:])}, "
                    f"and {dtype} {tuple(shape)} before",
                    rule="shapes and types of frozen features do not depend on the batch",
                    remedy="--dataset.cache=disk, which keeps frames instead",
                )
            parts.append(tensor.contiguous().view(size, -1).view(torch.uint8))
        whole = torch.cat(parts, dim=1)
        return torch.nn.functional.pad(whole, (0, self.row_bytes - whole.shape[1]))

    def unpacked(self, records: Tensor) -> dict[str, Tensor]:
        """Return the features in records; they are views of these."""
        found: dict[str, Tensor] = {}
        for name, dtype, shape, first, end in self._fields:
            flat = records[:, first:end].view(dtype)
            found[name] = flat.unflatten(1, shape) if shape else flat[:, 0]
        return found


@dataclass(frozen=True)
class FrozenFeatures:
    """The features of a run, computed once per sample.

    Attributes:
        policy: computes them.
        kind: see `PolicyConfig.frozen_features`.
        cache: keeps them.
        layout: of the cache's rows.
        precision: of the forward passes.
        copier: brings records to the device.
    """

    policy: Policy
    kind: str
    cache: FeatureCache
    layout: RecordLayout
    precision: str
    copier: Copier

    def completed(self, micros: list[Batch], raw: Batch) -> list[Batch]:
        """Return micro-batches with the features of all samples, and without what these stand for.

        Args:
            micros: ready for the policy; cameras may be absent where all samples are known.
            raw: the same samples as read.
        """
        rows, known = raw[FROZEN_ROW], raw[FROZEN_KNOWN]
        record: NDArray[np.uint8] | None = raw.get(FROZEN_RECORD)
        replaced = {*self.policy.config.frozen_features()[self.kind]}
        found: list[Batch] = []
        end = 0
        for micro in micros:
            part = slice(end, end + len(micro[ACTION]))
            end = part.stop
            records = None if record is None else self.copier(torch.from_numpy(record[part]))
            whole = self._whole(micro, rows[part], known[part], records)
            rest = {key: value for key, value in micro.items() if key not in replaced}
            features = self.layout.unpacked(whole)
            found.append(rest | {frozen_key(name): value for name, value in features.items()})
        return found

    def _whole(
        self, micro: Batch, rows: np.ndarray, known: np.ndarray, records: Tensor | None
    ) -> Tensor:
        """Return the records of all samples of a micro-batch."""
        missing = np.flatnonzero(~known)
        if not len(missing) and records is not None:
            return records
        fresh = self._fresh(micro, missing)
        self.cache.store(rows[missing], fresh.cpu().numpy())
        if records is None:
            return fresh
        # The records as read belong to the reader.
        return records.index_copy(0, torch.from_numpy(missing).to(records.device), fresh)

    def _fresh(self, micro: Batch, missing: np.ndarray) -> Tensor:
        """Return the records of the samples at these places, which are computed.

        Kernels round by the number of rows that they get. Which samples are missing depends on
        when an earlier process ended, so groups always have one size: a killed run is continued
        with the same bits. The last group is filled up with its own samples.
        """
        size = min(GROUP, len(micro[ACTION]))
        parts: list[Tensor] = []
        for first in range(0, len(missing), size):
            places = np.resize(missing[first : first + size], size)
            found = frozen_part(self.policy, self.kind, _chosen(micro, places), self.precision)
            parts.append(self.layout.packed(found))
        return torch.cat(parts)[: len(missing)]


def frozen_part(policy: Policy, kind: str, batch: Batch, precision: str) -> dict[str, Tensor]:
    """Return what the frozen part of a policy makes of a batch, in mixed precision."""
    device = next(policy.parameters()).device
    with autocast(precision, device), torch.no_grad():
        return policy.frozen_features(batch, kind)


def with_features(
    live: ExitStack, prepared: Prepared, policy: Policy, reader: Reader, feed: Feed
) -> Feed:
    """Return the feed with cached features, if `dataset.cache` asks for some; `live` closes them.

    Args:
        live: closes the cache.
        prepared: the run, its data and pipelines.
        policy: its weights are there.
        reader: of the training episodes; it leaves out frames where features are known.
        feed: of the training episodes.
    """
    run = prepared.run
    kind = run.dataset.cache
    if kind not in FEATURE_CACHES:
        return feed
    refuse_trained(policy, kind)
    micro = _first_sample(prepared, reader, feed)
    layout = RecordLayout(frozen_part(policy, kind, micro, run.precision))
    options = run.dataset
    files = FeatureFiles(
        None if options.cache_dir is None else Path(options.cache_dir).expanduser(),
        None if options.cache_size is None else int(num_bytes(options.cache_size)),
        _identity(run, kind, policy, prepared),
        layout.row_bytes,
    )
    cache = live.enter_context(FeatureCache(prepared.data.train, prepared.reading.cameras, files))
    reader.take_features(cache)
    source = FrozenFeatures(policy, kind, cache, layout, run.precision, feed.copier)
    return dataclasses.replace(feed, features=source)


def refuse_trained(policy: Policy, kind: str) -> None:
    """Raise PolicyError if something of the frozen part is trained after all, by an adapter."""
    kept: list[torch.nn.Parameter] = []
    for module in policy.frozen_modules():
        kept += module.parameters()
    trained = {id(p) for p in kept if p.requires_grad}
    names = [name for name, p in policy.named_parameters() if id(p) in trained]
    if names:
        raise PolicyError(
            f"dataset.cache={kind} with {len(names)} trained tensors in the frozen part, the first "
            f"is {names[0]}",
            rule="features are kept for the whole run, so nothing that computes them may change",
            remedy="leave that part out of --peft.target_modules, or --dataset.cache=disk",
        )


def _first_sample(prepared: Prepared, reader: Reader, feed: Feed) -> Batch:
    """Return the first sample that can be decoded, as a micro-batch of one."""
    rows = prepared.data.rows
    last: FrameError | None = None
    for number in range(min(_TRIED, len(rows))):
        try:
            raw = reader.read(rows[np.array([number])])
        except FrameError as error:
            last = error
            continue
        micros, _ = feed.ready({**raw, "position": np.zeros(1, np.int64)}, 0)
        return micros[0]
    assert last is not None
    raise last


def _identity(run: Run, kind: str, policy: Policy, prepared: Prepared) -> list[Any]:
    """Return, as JSON values, all that decides the features beside the dataset's files."""
    pipelines = [pipeline for pipeline, _ in prepared.normalization.per_dataset]
    return [
        kind,
        _options(run.policy),
        modules_digest(policy.frozen_modules()),
        [_described(pipeline) for pipeline in pipelines],
        [run.precision, run.frozen_bits, run.tf32, prepared.device.type, torch.__version__],
        [run.dataset.resize, run.rename_map, encode(run.dataset.mix), run.dataset.concat],
        sorted(prepared.reading.cameras),
    ]


def _options(policy: PolicyConfig) -> dict[str, Any]:
    """Return the options of a policy that may decide its features."""
    plain = policy.written()
    return {name: value for name, value in plain.items() if not name.startswith(_NO_INPUTS)}


def _described(pipeline: Pipeline) -> list[Any]:
    """Return the steps before the policy, with their statistics and tokenizers."""
    found: list[Any] = []
    for step in pipeline.steps:
        options = step.config()
        state = {key: value for key, value in step.state().items() if not key.startswith(ACTION)}
        tokenizer = options.get("tokenizer_name", options.get("model_name"))
        found.append(
            [
                step.registry_name,
                json.loads(json.dumps(options, default=str)),
                {key: np.asarray(value).tolist() for key, value in sorted(state.items())},
                None if tokenizer is None else tokenizer_digest(str(tokenizer)),
            ]
        )
    return found


def modules_digest(modules: Iterable[torch.nn.Module]) -> str:
    """Return a digest of the names, types and bytes of all tensors of modules."""
    found = hashlib.sha256()
    for number, module in enumerate(modules):
        for name, tensor in sorted(module.state_dict().items()):
            found.update(f"{number}.{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().view(-1)
            found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _chosen(batch: Batch, places: np.ndarray) -> Batch:
    """Return the samples of a batch at these places."""
    size = len(batch[ACTION])
    chosen: Batch = {}
    for key, value in batch.items():
        if isinstance(value, Tensor) and value.ndim and len(value) == size:
            chosen[key] = value[torch.from_numpy(places).to(value.device)]
        elif isinstance(value, list):
            chosen[key] = [value[place] for place in places.tolist()]
        else:
            chosen[key] = value
    return chosen

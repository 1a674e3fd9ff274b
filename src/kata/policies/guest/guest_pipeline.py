"""LeRobot's processors of a policy as a pipeline of kata."""

from __future__ import annotations

import copy
import functools
import random
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kata.errors import CheckpointError, PolicyError
from kata.policies.guest.library import import_processors, part
from kata.processors.pipeline import POSTPROCESSOR, PREPROCESSOR, Pipeline
from kata.processors.steps import Normalize, Rename, Step, ToDevice
from kata.spec import ACTION, DATASET_INDEX, Batch, Stats

if TYPE_CHECKING:
    from kata.policies.guest.config import GuestConfig

_POSITION = "position"
OBSERVED = "observed"
"""Key of a function that returns a batch as its policy sees it when it acts."""
_REPLACED = (Rename.registry_name, ToDevice.registry_name)


@dataclass(frozen=True)
class GuestPipeline(Pipeline):
    """LeRobot's pipeline of processors. It saves itself as LeRobot does.

    Attributes:
        steps: the steps that kata asks about: the renaming, and the normalization of actions.
        inner: LeRobot's pipeline.
    """

    inner: Any = None

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch after every processor, or the actions after them.

        What LeRobot leaves out and kata needs is passed on. A batch of the dataset has positions
        in the order of samples, which key the random numbers of processors.
        """
        if self.name == POSTPROCESSOR:
            return {**batch, ACTION: self.inner(batch[ACTION])}
        with _keyed(batch.get(_POSITION)):
            made: Batch = self.inner(dict(batch))
        kept = {key: value for key, value in batch.items() if _is_katas(key)}
        if ACTION in batch:
            kept[OBSERVED] = functools.partial(self._observed, batch)
        return {**kept, **made}

    def _observed(self, batch: Batch) -> Batch:
        """Return what the policy sees of a recorded batch as it acts: it without the actions.

        Some processors write the actions into the sentences of the batch.
        """
        seen = {key: value for key, value in batch.items() if not key.startswith(ACTION)}
        with _keyed(batch.get(_POSITION)):
            return self.inner(seen)

    def replaced(self, **by_name: Step) -> Pipeline:
        """Return a copy with other names or another device."""
        unknown = set(by_name) - set(_REPLACED)
        assert not unknown, f"a guest's processors keep their {unknown}"
        inner = copy.copy(self.inner)
        inner.steps = [_with_options(each, by_name) for each in self.inner.steps]
        mine = tuple(by_name.get(each.registry_name, each) for each in self.steps)
        return replace(self, steps=mine, inner=inner)

    def save(self, folder: Path, *, with_artifacts: bool = True) -> None:
        """Write LeRobot's files of this pipeline into an existing folder."""
        before = set(folder.iterdir())
        self.inner.save_pretrained(folder)
        # LeRobot's tensor files would be readable by their owner alone.
        mode = (folder / f"{self.name}.json").stat().st_mode
        for path in set(folder.iterdir()) - before:
            path.chmod(mode)


def new_pipelines(
    config: GuestConfig, stats: Stats, *, rename_map: dict[str, str], device: str
) -> tuple[Pipeline, Pipeline]:
    """Return the processors that LeRobot makes for a policy.

    Args:
        config: the policy's options, with the dataset's features.
        stats: of the frames that are trained on, by the policy's names.
        rename_map: dataset key -> policy key.
        device: the policy's device. Actions come back on the CPU.
    """
    made = config.as_lerobot()
    made.device = device
    made.validate_features()
    tensors: dict[str, dict[str, Tensor]] = {}
    for key, named in stats.items():
        tensors[key] = {n: torch.as_tensor(v, dtype=torch.float32) for n, v in named.items()}
    meta = _DatasetFacts(config.dataset_features, tensors)
    try:
        before, after = part("policies.factory").make_pre_post_processors(
            made, dataset_stats=tensors, dataset_meta=meta
        )
    except Exception as error:  # whatever a processor or a download raises
        raise PolicyError(
            f"{config.type}: LeRobot cannot make its processors: {type(error).__name__}: "
            f"{' '.join(str(error).split())}",
            rule="LeRobot's extra for this policy is installed, and what it downloads can be had",
            remedy=f"pip install 'lerobot[{config.lerobot_name}]', or the options that the "
            "message names",
        ) from error
    actions = Normalize.from_stats(
        dict(config.output_features), dict(config.normalization_mapping), stats
    )
    pipeline = GuestPipeline(PREPROCESSOR, (Rename({}), actions), before)
    renames: dict[str, Step] = {Rename.registry_name: Rename(rename_map)}
    return pipeline.replaced(**renames), GuestPipeline(POSTPROCESSOR, (), after)


def load_pipelines(config: GuestConfig, folder: Path, device: str) -> tuple[Pipeline, Pipeline]:
    """Return the processors of a checkpoint.

    Args:
        config: the policy's options.
        folder: a `pretrained_model` folder.
        device: the policy's device.

    Raises:
        CheckpointError: LeRobot cannot read them.
    """
    made = config.as_lerobot()
    made.validate_features()
    import_processors(config.lerobot_name)  # which makes their steps known by name
    place = {ToDevice.registry_name: {"device": device}}
    try:
        before, after = part("policies.factory").make_pre_post_processors(
            made, pretrained_path=str(folder), preprocessor_overrides=place
        )
    except Exception as error:  # processors of other packages raise anything
        raise CheckpointError(
            f"{folder}: LeRobot cannot read its processors: {' '.join(str(error).split())}",
            rule=f"{PREPROCESSOR}.json and {POSTPROCESSOR}.json, as LeRobot writes them",
            remedy="copy the checkpoint again; steps of a plugin need its package",
        ) from error
    renamed: dict[str, str] = {}
    for step in before.steps:
        if _name_of(step) == Rename.registry_name:
            renamed |= step.get_config()["rename_map"]
    pipeline = GuestPipeline(PREPROCESSOR, (Rename(renamed),), before)
    return pipeline, GuestPipeline(POSTPROCESSOR, (), after)


@dataclass(frozen=True)
class _DatasetFacts:
    """The part of LeRobot's metadata of a dataset that processors may read."""

    features: Mapping[str, Any]
    stats: Mapping[str, Any]


def _with_options(step: Any, by_name: Mapping[str, Step]) -> Any:
    """Return a processor with the options of the step that takes its place, or itself."""
    name = _name_of(step)
    if name not in by_name:
        return step
    options = {**step.get_config(), **by_name[name].config()}
    if name == ToDevice.registry_name:
        options["float_dtype"] = step.get_config().get("float_dtype")
    return type(step)(**options)


def _name_of(step: Any) -> str:
    """Return LeRobot's registry name of a processor; '' for one that is not registered."""
    return str(vars(type(step)).get("_registry_name", ""))


def _is_katas(key: str) -> bool:
    return key in (DATASET_INDEX, _POSITION) or key.endswith(("_is_missing", "_dim_is_pad"))


@contextmanager
def _keyed(positions: Tensor | None) -> Generator[None]:
    """Seed the random numbers that processors draw by the first sample's position in the order.

    The streams of the rest of the program stay as they are.
    """
    if positions is None:
        yield
        return
    seed = zlib.crc32(f"processors/{int(positions[0])}".encode())
    streams = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(streams[0])
            np.random.set_state(streams[1])

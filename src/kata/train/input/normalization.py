"""From statistics to the pipelines that a run trains and acts with, for one dataset and for
several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kata.data.dataset.mixture import Data, Mixture, MixtureEntry
from kata.data.stats.dataset_stats import dataset_stats
from kata.data.stats.mixture_stats import joint_stats, part_stats
from kata.dist.process_group import ProcessGroup
from kata.errors import DataError
from kata.policies.config import PolicyConfig
from kata.policies.pipelines import canonical_pipelines
from kata.processors import Normalize, PerDataset, Pipeline, Rename, Step, Unnormalize
from kata.run import DatasetConfig, Run
from kata.spec import IMAGENET_MEAN, IMAGENET_STD, FeatureType, NormMode, Stats

Pipelines = tuple[Pipeline, Pipeline]
"""Before a policy and after it."""


def dataset_pipelines(
    mixture: Mixture, policy: PolicyConfig, stats: Sequence[Stats], device: str
) -> dict[str, Pipelines]:
    """What each dataset acts with: its own names, its own statistics or the joint ones."""
    return {
        part.name: canonical_pipelines(
            policy, own, rename_map=_of_observations(part, policy), device=device
        )
        for part, own in zip(mixture.parts, stats, strict=True)
    }


def _of_observations(part: MixtureEntry, policy: PolicyConfig) -> dict[str, str]:
    return {old: new for old, new in (part.rename or {}).items() if new in policy.input_features}


def training_pipelines(each: list[Pipelines], *, alike: bool) -> Pipelines:
    """The pipelines for batches of all datasets, which the reader has named alike already.

    alike: all have the same statistics, so that the first one's steps serve for all.
    """
    before: dict[str, Step] = {Rename.registry_name: Rename({})}
    after: dict[str, Step] = {}
    if not alike:
        before[Normalize.registry_name] = _merged([pair[0] for pair in each], Normalize)
        after[Unnormalize.registry_name] = _merged([pair[1] for pair in each], Unnormalize)
    return each[0][0].replaced(**before), each[0][1].replaced(**after)


def _merged(pipelines: list[Pipeline], kind: type[Normalize]) -> PerDataset:
    return PerDataset(tuple(step for p in pipelines for step in p.steps if type(step) is kind))


@dataclass(frozen=True)
class NormalizationSetup:
    """How values are normalised.

    stats: of the frames trained on (all datasets together), under the policy's names. before,
        after: for training.
    acting: what a checkpoint acts with. by_dataset: the same for each dataset of a mixture.
        by_itself: the pipeline before the policy and the statistics in it, per dataset in order.
    """

    stats: Stats
    before: Pipeline
    after: Pipeline
    acting: Pipelines
    by_itself: list[tuple[Pipeline, Stats]]
    by_dataset: dict[str, Pipelines] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def fit_normalization(
    data: Data, policy: PolicyConfig, run: Run, device: str, group: ProcessGroup
) -> NormalizationSetup:
    """Statistics of exactly the frames trained on, and the pipelines made of them.

    Rank 0 computes them for all.
    """
    if isinstance(data, Mixture):
        return _of_mixture(data, policy, run.dataset, device, group)
    (own,) = _computed_on_rank0(
        group, lambda: [dataset_stats(data, cameras=_camera_stats_needed(policy, run.dataset))]
    )
    stats = _coloured(
        {run.rename_map.get(key, key): named for key, named in own.items()}, policy, run.dataset
    )
    before, after = canonical_pipelines(policy, stats, rename_map=run.rename_map, device=device)
    return NormalizationSetup(
        stats,
        before,
        after,
        (before, after),
        [(before, stats)],
        notes=constant_dimensions(stats, policy),
    )


def _computed_on_rank0(group: ProcessGroup, work: Callable[[], list[Stats]]) -> list[Stats]:
    """Statistics may take long, and another processor may round them differently."""
    told: list[dict[str, dict[str, tuple[Any, str]]]] = group.broadcast_from_rank0(
        lambda: [
            {
                key: {name: (value.tolist(), str(value.dtype)) for name, value in named.items()}
                for key, named in s.items()
            }
            for s in work()
        ]
    )
    return [
        {
            key: {name: np.array(value, dtype) for name, (value, dtype) in named.items()}
            for key, named in s.items()
        }
        for s in told
    ]


def _of_mixture(
    mixture: Mixture, policy: PolicyConfig, options: DatasetConfig, device: str, group: ProcessGroup
) -> NormalizationSetup:
    cameras, each = _camera_stats_needed(policy, options), options.mix_stats == "each"

    def compute() -> list[Stats]:
        joint = joint_stats(mixture, cameras)
        return [joint, *part_stats(mixture, joint, own=each, cameras=cameras)]

    joint, *parts = (_coloured(own, policy, options) for own in _computed_on_rank0(group, compute))
    wanted = {**policy.input_features, **policy.output_features}
    alike = not each and not any(mixture.padded(key) for key in wanted)
    by_dataset = dataset_pipelines(mixture, policy, parts, device)
    before, after = training_pipelines(list(by_dataset.values()), alike=alike)
    judged = zip(mixture.names, parts, strict=True) if each else [("", joint)]
    return NormalizationSetup(
        joint,
        before,
        after,
        by_dataset[options.mix_primary or mixture.names[0]],
        [(by_dataset[name][0], own) for name, own in zip(mixture.names, parts, strict=True)],
        by_dataset,
        [
            f"{name}: {note}" if name else note
            for name, own in judged
            for note in constant_dimensions(own, policy)
        ],
    )


def _camera_stats_needed(config: PolicyConfig, options: DatasetConfig) -> bool:
    """Camera statistics may have to decode frames: only done when they are used."""
    visual = config.normalization_mapping.get(FeatureType.VISUAL.value, NormMode.IDENTITY)
    return visual is not NormMode.IDENTITY and not (
        options.use_imagenet_stats and visual is NormMode.MEAN_STD
    )


def _coloured(stats: Stats, config: PolicyConfig, options: DatasetConfig) -> Stats:
    """The statistics with ImageNet's for colour cameras, where these are asked for."""
    coloured = {key: dict(named) for key, named in stats.items()}
    for key, feature in config.cameras.items() if options.use_imagenet_stats else ():
        if feature.shape[0] == 3:
            colour = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
            named = {
                name: np.array(v, dtype=np.float64).reshape(3, 1, 1) for name, v in colour.items()
            }
            coloured[key] = {**coloured.get(key, {}), **named}
    return coloured


def constant_dimensions(stats: Stats, config: PolicyConfig) -> list[str]:
    """What to say of dimensions that never change; DataError for a feature that never does."""
    notes: list[str] = []
    for key, feature in {**config.input_features, **config.output_features}.items():
        if feature.type is FeatureType.VISUAL or key not in stats:
            continue
        spread = np.asarray(stats[key]["max"]) - np.asarray(stats[key]["min"])
        constant = np.flatnonzero(spread == 0).tolist()
        if constant and len(constant) == spread.size:
            raise DataError(
                f"{key}: every dimension is constant",
                rule="a state or action that never changes cannot be learnt from",
                remedy="check the recording, or leave the feature out of policy.input_features",
            )
        if constant:
            notes.append(f"{key}: dimensions {constant} never change in the selected frames")
    return notes

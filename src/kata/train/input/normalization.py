"""Normalization: from the statistics of the training frames to pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.stats.mixture_stats import joint_stats, part_stats
from kata.data.stats.relative_stats import refuse_narrow_states, relative_stats, stats_by_step
from kata.dist.process_group import ProcessGroup
from kata.errors import DataError
from kata.policies.config import PolicyConfig
from kata.policies.pipelines import canonical_pipelines
from kata.processors import Normalize, PerDataset, Pipeline, Rename, Step, Unnormalize
from kata.run import DatasetConfig, Run
from kata.spec import (
    ACTION,
    IMAGENET_MEAN,
    IMAGENET_STD,
    RELATIVE_ACTION,
    STATE,
    FeatureType,
    NormMode,
    Stats,
)

Pipelines = tuple[Pipeline, Pipeline]
"""The pipeline before a policy, and the one after it."""


@dataclass(frozen=True)
class NormalizationSetup:
    """The pipelines of a run, and the statistics in them.

    Args:
        stats: of the frames trained on, all datasets together, under the policy's names.
        before: the pipeline that batches pass through before the policy in training.
        after: the pipeline that predicted actions pass through in training.
        acting: the pipelines that a checkpoint acts with.
        per_dataset: for each dataset in order, the pipeline before the policy and its statistics.
        by_dataset: the pipelines that a checkpoint holds for each dataset of `dataset.mix`.
        notes: messages for the user.
    """

    stats: Stats
    before: Pipeline
    after: Pipeline
    acting: Pipelines
    per_dataset: list[tuple[Pipeline, Stats]]
    by_dataset: dict[str, Pipelines]
    notes: list[str]


def fit_normalization(
    mixture: Mixture, policy: PolicyConfig, run: Run, device: str, group: ProcessGroup
) -> NormalizationSetup:
    """Compute statistics of exactly the frames trained on, and make the pipelines of them.

    Rank 0 computes the statistics for all ranks.

    Args:
        mixture: the training episodes.
        policy: with the dataset's features.
        run: its dataset options choose the statistics; its rename_map goes into the pipelines.
        device: type of the device that normalizes.
        group: the ranks that train together.
    """
    options = run.dataset
    cameras = _camera_stats_needed(policy, options)
    is_each = options.mix_stats == "each"

    changed = _changed_stats(policy, run)

    def compute() -> list[Stats]:
        joint = joint_stats(mixture, cameras) | changed(mixture.parts)
        return [
            joint, *part_stats(mixture, joint, own=is_each, cameras=cameras, changed=changed)
        ]  # fmt: skip

    # 1. Statistics under the policy's names: the joint ones, then those of each dataset.
    computed = _computed_on_rank0(group, compute)
    joint, *parts = (_coloured(_renamed(own, run), policy, options) for own in computed)
    # 2. The pipelines that a checkpoint holds, one pair for each dataset.
    by_dataset: dict[str, Pipelines] = {}
    for part, own in zip(mixture.parts, parts, strict=True):
        renames = run.rename_map or _of_observations(part, policy)
        by_dataset[part.name] = canonical_pipelines(policy, own, rename_map=renames, device=device)
    # 3. The pipelines for training, which serve batches of all datasets.
    wanted = {**policy.input_features, **policy.output_features}
    is_alike = not is_each and not any(mixture.padded(key) for key in wanted)
    if not (is_alike or mixture.is_single):
        _refuse_own_steps(policy)
    before, after = _training_pipelines(
        list(by_dataset.values()), run.rename_map, is_alike=is_alike or mixture.is_single
    )
    return NormalizationSetup(
        joint,
        before,
        after,
        acting=by_dataset[options.mix_primary or mixture.names[0]],
        per_dataset=[
            (by_dataset[name][0], own) for name, own in zip(mixture.names, parts, strict=True)
        ],
        by_dataset={} if options.mix is None else by_dataset,
        notes=[
            *_relative_notes(policy),
            *_constant_notes(mixture, policy, joint, parts if is_each else None),
        ],
    )


def _refuse_own_steps(policy: PolicyConfig) -> None:
    """Raise DataError for a policy whose own steps normalize all datasets alike."""
    if policy.is_guest or policy.normalizes_itself:
        raise DataError(
            f"{policy.type}: the datasets of the mixture would be normalized each for itself",
            rule="this policy's own processors have one set of statistics",
            remedy="--dataset.mix_stats=joint, and vectors of one size",
        )


def _changed_stats(policy: PolicyConfig, run: Run) -> Callable[[Sequence[MixtureEntry]], Stats]:
    """Return a function that gives the statistics of relative actions, if the policy has them."""
    is_relative = policy.relative_dimensions()
    old = {new: name for name, new in run.rename_map.items()}
    action, state = (old.get(key, key) for key in (ACTION, STATE))

    def changed(parts: Sequence[MixtureEntry]) -> Stats:
        if is_relative is None:
            return {}
        refuse_narrow_states(parts, action, state, is_relative)
        if steps := policy.steps_measured_apart():
            apart = stats_by_step(
                parts, action=action, state=state, steps=steps, is_relative=is_relative
            )
            return {RELATIVE_ACTION: apart}
        offsets, drop_last = policy.windows()[ACTION], policy.drop_last_frames()
        found = relative_stats(
            parts,
            action=action,
            state=state,
            offsets=offsets,
            is_relative=is_relative,
            drop_last=drop_last,
        )
        return {action: found}

    return changed


def _renamed(stats: Stats, run: Run) -> Stats:
    return {run.rename_map.get(key, key): summary for key, summary in stats.items()}


def _of_observations(part: MixtureEntry, policy: PolicyConfig) -> dict[str, str]:
    return {old: new for old, new in (part.rename or {}).items() if new in policy.input_features}


def _training_pipelines(
    each: list[Pipelines], rename_map: dict[str, str], *, is_alike: bool
) -> Pipelines:
    """Return the pipelines for batches of all datasets, which have the mixture's names already.

    is_alike: all have the same statistics, so that the first one's steps serve for all.
    """
    before: dict[str, Step] = {Rename.registry_name: Rename(rename_map)}
    after: dict[str, Step] = {}
    if not is_alike:
        before[Normalize.registry_name] = _merged([pair[0] for pair in each], Normalize)
        after[Unnormalize.registry_name] = _merged([pair[1] for pair in each], Unnormalize)
    return each[0][0].replaced(**before), each[0][1].replaced(**after)


def _merged(pipelines: list[Pipeline], kind: type[Normalize]) -> PerDataset:
    steps = itertools.chain.from_iterable(pipeline.steps for pipeline in pipelines)
    return PerDataset(tuple(step for step in steps if type(step) is kind))


def _relative_notes(policy: PolicyConfig) -> list[str]:
    """Return a note on which numbers of the action are relative to the state."""
    is_relative = policy.relative_dimensions()
    if is_relative is None:
        return []
    absolute = [str(number) for number, subtracts in enumerate(is_relative) if not subtracts]
    rest = f"; absolute: {', '.join(absolute)}" if absolute else ""
    return [f"{sum(is_relative)} of {len(is_relative)} action numbers are relative{rest}"]


def _constant_notes(
    mixture: Mixture, policy: PolicyConfig, joint: Stats, parts: list[Stats] | None
) -> list[str]:
    """Return notes on constant dimensions, of all datasets together or of each one."""
    if parts is None:
        return constant_dimensions(joint, policy)
    notes: list[str] = []
    for part, own in zip(mixture.parts, parts, strict=True):
        notes += [mixture.labelled(part, note) for note in constant_dimensions(own, policy)]
    return notes


def _computed_on_rank0(group: ProcessGroup, work: Callable[[], list[Stats]]) -> list[Stats]:
    """Compute on rank 0 for all: another processor may round statistics differently."""
    sent: list[_Plain] = group.broadcast_from_rank0(lambda: list(map(_plain, work())))
    return list(map(_arrays, sent))


_Plain = dict[str, dict[str, tuple[Any, str]]]
"""Statistics as lists and names of dtypes, which can be sent to other ranks."""


def _plain(stats: Stats) -> _Plain:
    found: _Plain = {}
    for key, summary in stats.items():
        found[key] = {name: (value.tolist(), str(value.dtype)) for name, value in summary.items()}
    return found


def _arrays(stats: _Plain) -> Stats:
    found: Stats = {}
    for key, summary in stats.items():
        found[key] = {name: np.array(value, dtype) for name, (value, dtype) in summary.items()}
    return found


def _camera_stats_needed(config: PolicyConfig, options: DatasetConfig) -> bool:
    """Return True if camera statistics are used: they may have to decode frames."""
    visual = config.normalization_mapping.get(FeatureType.VISUAL.value, NormMode.IDENTITY)
    return visual is not NormMode.IDENTITY and not (
        options.use_imagenet_stats and visual is NormMode.MEAN_STD
    )


def _coloured(stats: Stats, config: PolicyConfig, options: DatasetConfig) -> Stats:
    """Return the statistics with ImageNet's for colour cameras, if the options ask for these."""
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
    """Return notes on dimensions that never change.

    Raises:
        DataError: no dimension of a feature ever changes.
    """
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

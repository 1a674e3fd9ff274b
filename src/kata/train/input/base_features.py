"""A base beside the dataset that it is trained on: cameras, sizes, normalization and sentences."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping

from kata.data.dataset.mixture import Mixture
from kata.errors import PolicyError
from kata.policies.config import PolicyConfig
from kata.run import Run
from kata.spec import Feature, FeatureType, features_of
from kata.units import counted

SHOWN = 60
"""Letters of a sentence that the table shows."""


def offered_rename(config: PolicyConfig, available: Mapping[str, Feature]) -> dict[str, str]:
    """Return the rename that gives a policy the cameras that it misses, {dataset's: policy's}.

    Names that are alike go together, and the rest in order.

    Args:
        config: the policy.
        available: the dataset's features, by name after renaming.
    """
    absent = [key for key in config.cameras if key not in available]
    cameras = [key for key, f in available.items() if f.type is FeatureType.VISUAL]
    spare = [key for key in cameras if key not in config.cameras]
    found: dict[str, str] = {}
    for key in absent:
        near = difflib.get_close_matches(key, spare, n=1, cutoff=0.8)
        if near:
            found[near[0]] = key
            spare.remove(near[0])
    rest = [key for key in absent if key not in found.values()]
    found.update(zip(spare, rest, strict=False))
    return found


def rename_text(rename: Mapping[str, str]) -> str:
    """Return the flag that renames keys, for a message."""
    return f"--rename_map='{json.dumps(dict(rename))}'"


def refuse_silent_blanks(run: Run, fitted: PolicyConfig, data: Mixture) -> None:
    """Refuse to train without a camera of the base while the dataset has one to spare.

    Args:
        run: the options, with the base's features.
        fitted: the policy with the dataset's features.
        data: the dataset.

    Raises:
        PolicyError: a camera is absent, another one is unused, and no option says that this is
            meant.
    """
    if run.policy.pretrained_path is None or run.missing_cameras == "leave_out":
        return
    absent = [key for key in run.policy.cameras if key not in fitted.input_features]
    columns = features_of(data.columns, run.rename_map)
    available = {run.rename_map.get(key, key): f for key, f in columns.items()}
    offered = offered_rename(run.policy, available)
    if not absent or not offered:
        return
    before = {new: old for old, new in run.rename_map.items()}
    whole = {**run.rename_map, **{before.get(old, old): new for old, new in offered.items()}}
    raise PolicyError(
        f"the base knows {', '.join(run.policy.cameras)}, and the dataset has no "
        f"{', '.join(absent)}; it has {', '.join(offered)}, which the base does not know",
        rule="a base sees each of its cameras under the name that it was trained with",
        remedy=f"{rename_text(whole)}; or --missing_cameras=leave_out to train without",
    )


def base_rows(run: Run, base: PolicyConfig, data: Mixture) -> list[tuple[str, str]]:
    """Return rows for the table before step 1: what the base knows beside what the dataset brings.

    Args:
        run: the options, with the policy fitted to the dataset.
        base: the policy as its checkpoint has it.
        data: the dataset.
    """
    if run.policy.pretrained_path is None:
        return []
    before = {new: old for old, new in run.rename_map.items()}
    rows = [("base", f"{run.policy.pretrained_path} ({base.type})")]
    features = {**base.input_features, **base.output_features}
    mine = {**run.policy.input_features, **run.policy.output_features}
    for number, key in enumerate(features, start=1):
        has = f"{before.get(key, key)} {_sized(mine[key])}" if key in mine else "nothing: left out"
        mode = base.normalization_mapping.get(features[key].type.value)
        normal = "" if mode is None else f", {mode}"
        rows.append(("", f"{number}. {key} {_sized(features[key])}{normal} <- {has}"))
    normalized = "normalization: statistics of this dataset take the place of the base's"
    rows.append(("", normalized))
    if run.policy.tokenizer() is not None:
        tasks: list[str] = []
        for dataset in data.datasets:
            tasks += dataset.tasks
        first = tasks[0][:SHOWN] if tasks else ""
        rows.append(("", f"prompt: {counted(len(tasks), 'sentence')}, the first is '{first}'"))
    return rows


def _sized(feature: Feature) -> str:
    return "x".join(map(str, feature.shape))

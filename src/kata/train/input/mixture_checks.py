"""Checks that the datasets of a mixture fit together under one policy."""

from __future__ import annotations

import json
from itertools import zip_longest

from kata.config import encode
from kata.data.dataset.mixture import Mixture, is_vector
from kata.errors import DataError
from kata.policies.config import PolicyConfig
from kata.run import DatasetConfig
from kata.spec import ACTION, Feature, FeatureType
from kata.tables import table_lines


def check_together(mixture: Mixture, policy: PolicyConfig, options: DatasetConfig) -> list[str]:
    """Return messages for the user about datasets that fit together under the policy's features.

    Raises:
        DataError: one table with all differences that the options do not allow.
    """
    if mixture.is_single:
        return []
    wanted = {**policy.input_features, **policy.output_features}
    found = [*_rates(mixture, options), *_nothing_shared(mixture, policy)]
    for key, feature in wanted.items():
        found += _lacking(mixture, key, feature, policy)
        found += _sizes(mixture, key, options, policy)
    if found:
        problems, remedies = zip(*found, strict=True)
        raise DataError(
            "the datasets of the mixture do not fit together:\n"
            + "\n".join("    " + line for line in (*_table(mixture, list(wanted)), "", *problems)),
            rule="one policy sees the same inputs and actions from every dataset, or is told where "
            "it does not",
            remedy="; ".join(dict.fromkeys(remedies)),
        )
    return _names_differ(mixture, wanted)


Problem = tuple[str, str]
"""A difference, and a remedy."""


def _rates(mixture: Mixture, options: DatasetConfig) -> list[Problem]:
    rates = {part.name: part.dataset.fps for part in mixture.parts}
    if len(set(rates.values())) == 1 or options.mix_any_fps:
        return []
    told = ", ".join(f"{name} {fps}" for name, fps in rates.items())
    return [
        (
            f"frames per second differ ({told}): a step lasts differently long",
            "--dataset.mix_any_fps=true takes the frames as they come",
        )
    ]


def _nothing_shared(mixture: Mixture, policy: PolicyConfig) -> list[Problem]:
    if any(not mixture.lacking(key) for key in policy.input_features):
        return []
    return [
        (
            "no input is in all of the datasets",
            "give what is the same one name with `rename_map` in the entries",
        )
    ]


def _lacking(mixture: Mixture, key: str, feature: Feature, policy: PolicyConfig) -> list[Problem]:
    visual = feature.type is FeatureType.VISUAL
    without = [p.name for p in mixture.parts if key not in p.columns and not (visual and p.fill)]
    if not without:
        return []
    shared = {k: encode(f) for k, f in policy.input_features.items() if not mixture.lacking(k)}
    remedy = "name it with `rename_map` in the entry"
    if key in policy.input_features and shared:
        remedy += f", or train on what all have: --policy.input_features='{json.dumps(shared)}'"
    if visual:
        remedy += ", or set `fill: true` in the entry to see black frames instead"
    return [(f"{', '.join(without)}: no {key}", remedy)]


def _sizes(
    mixture: Mixture, key: str, options: DatasetConfig, policy: PolicyConfig
) -> list[Problem]:
    columns = {part.name: part.columns[key] for part in mixture.parts if key in part.columns}
    if len({column.shape for column in columns.values()}) < 2:
        return []
    told = ", ".join(f"{name} {_shape(column.shape)}" for name, column in columns.items())
    if not all(is_vector(column) for column in columns.values()):
        return [
            (
                f"{key}: sizes differ ({told})",
                "bring the recordings to one size, or leave the key out of --policy.input_features",
            )
        ]
    if not options.mix_pad_vectors:
        return [
            (
                f"{key}: sizes differ ({told})",
                "--dataset.mix_pad_vectors=true fills the shorter with zeros",
            )
        ]
    if key == ACTION and not policy.masks_action_dims:
        return [
            (
                f"{key}: {policy.type} cannot leave padded dimensions out of its loss ({told})",
                "train with act",
            )
        ]
    return []


def _names_differ(mixture: Mixture, wanted: dict[str, Feature]) -> list[str]:
    """Return notes on vectors of one size whose dimensions have different names.

    Raises:
        DataError: the same names stand in another order, which would train on exchanged joints.
    """
    notes: list[str] = []
    for key in wanted:
        named = {p.name: p.columns[key].names for p in mixture.parts if key in p.columns}
        named = {name: names for name, names in named.items() if names is not None}
        if len(set(named.values())) < 2 or mixture.columns[key].is_camera:
            continue
        if len({frozenset(names) for names in named.values()}) == 1:
            told = "; ".join(f"{name}: {', '.join(names)}" for name, names in named.items())
            raise DataError(
                f"{key}: the datasets have the same dimensions in another order ({told})",
                rule="dimension i means the same in every dataset of a mixture",
                remedy="reorder the columns of one of the recordings",
            )
        differ = next(
            i for i, names in enumerate(zip_longest(*named.values())) if len(set(names)) > 1
        )
        told = ", ".join(
            f"{name} {names[differ] if differ < len(names) else '-'}"
            for name, names in named.items()
        )
        notes.append(
            f"{key}: the datasets name its dimensions differently; dimension {differ} is: {told}"
        )
    return notes


def _table(mixture: Mixture, keys: list[str]) -> list[str]:
    """Return lines of text: one row per key, one column per dataset."""
    rows = [["", *mixture.names], ["fps", *(str(part.dataset.fps) for part in mixture.parts)]]
    for key in keys:
        cells = [_shape(p.columns[key].shape) if key in p.columns else "-" for p in mixture.parts]
        rows.append([key, *cells])
    return table_lines(rows)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

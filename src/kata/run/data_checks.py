"""Checks that need metadata alone: folders without a dataset, unknown keys, unclear roles.

Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kata.config.dataset import folder_of, is_address
from kata.data.dataset.concat import Concat, join_columns
from kata.data.format.info import read_info
from kata.errors import ConfigError, did_you_mean
from kata.run.config import Run
from kata.run.roles import with_roles
from kata.spec import Column


class _Place(NamedTuple):
    """A dataset: the option's name in messages, where it lies, and the names it is given."""

    at: str
    name: str
    root: str | None
    renamed: Mapping[str, str]
    concat: Concat


def check_local_data(run: Run) -> None:
    """Refuse a folder that holds no dataset, keys that the dataset does not have, unclear roles.

    Datasets without a folder are left to opening, which may have to ask the Hub or another store.

    Raises: ConfigError for a rename or a role, DataError for a folder or a joined column.
    """
    places = _places(run)
    columns = [_columns(place) for place in places if place.root and not is_address(place.root)]
    if len(columns) == len(places):
        with_roles(run, columns)


def _columns(place: _Place) -> Mapping[str, Column]:
    """Return the columns that the metadata declares, joined, for a dataset on this machine."""
    declared = read_info(folder_of(str(place.root))).columns
    columns = join_columns(place.name, declared, place.concat)
    for old in place.renamed:
        if old not in columns:
            raise ConfigError(
                f"{place.at}rename_map: {old} is not in the dataset",
                rule=f"dataset keys: {', '.join(columns)}",
                remedy=did_you_mean(old, columns),
            )
    return columns


def _places(run: Run) -> Sequence[_Place]:
    data = run.dataset
    if data.mix is None:
        return [_Place("", data.name, data.root, run.rename_map, data.concat)]
    found: list[_Place] = []
    for number, entry in enumerate(data.mix):
        at = f"dataset.mix[{number}]."
        found.append(_Place(at, entry.called, entry.root, entry.rename_map, entry.concat))
    return found

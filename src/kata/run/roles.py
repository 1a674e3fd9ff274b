"""Roles that are found in datasets, written into the run as if the user had renamed. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from kata.data.dataset.roles import Roles, find_roles, flags, settling
from kata.errors import ConfigError
from kata.run.config import Run
from kata.spec import ACTION, Column


def with_roles(run: Run, columns: Sequence[Mapping[str, Column]]) -> tuple[Run, list[list[str]]]:
    """Return the run with the renames that each dataset needs, and the columns that were found.

    Args:
        run: as the user asked for it.
        columns: of each dataset, in the order of `dataset.mix`.

    Raises: ConfigError where several columns could have a role, with the options that would do.
    """
    if run.dataset.strict:
        return run, [[] for _ in columns]
    found: list[list[str]] = []
    if run.dataset.mix is None:
        roles = _roles(run, columns[0], run.rename_map)
        _refuse_unclear(roles, columns[0], run.dataset.name, run.rename_map, run.dataset.concat, "")
        renames = {**run.rename_map, **roles.found}
        return dataclasses.replace(run, rename_map=renames), [list(roles.found)]
    entries = list(run.dataset.mix)
    for number, entry in enumerate(entries):
        own = columns[number]
        roles = _roles(run, own, entry.rename_map)
        at = f"dataset.mix[{number}]"
        _refuse_unclear(roles, own, entry.called, entry.rename_map, entry.concat, at)
        renames = {**entry.rename_map, **roles.found}
        entries[number] = dataclasses.replace(entry, rename_map=renames)
        found.append(list(roles.found))
    dataset = dataclasses.replace(run.dataset, mix=entries)
    return dataclasses.replace(run, dataset=dataset), found


def _roles(run: Run, columns: Mapping[str, Column], renamed: Mapping[str, str]) -> Roles:
    return find_roles(columns, renamed, run.policy.input_features, run.policy.output_features)


def _refuse_unclear(
    roles: Roles,
    columns: Mapping[str, Column],
    name: str,
    renamed: Mapping[str, str],
    concat: Mapping[str, Sequence[str]],
    entry: str,
) -> None:
    """Raise ConfigError for roles that several columns could have.

    entry: the mixture's entry, empty for one dataset.
    """
    if not roles.unclear:
        return
    told: list[str] = []
    for role, keys in roles.unclear.items():
        sizes = ", ".join(f"{key} {columns[key].shape[0]}" for key in keys)
        told.append(f"no '{role}', and several columns could be it ({sizes})")
    options = flags(roles.unclear, renamed, concat)
    if entry:
        texts = settling(roles.unclear, renamed, concat)
        options = [f"{option}: {text}  in {entry}" for option, text in texts]
    if ACTION not in roles.unclear:
        options.append("--dataset.strict=true, which trains without it")
    raise ConfigError(
        f"{name}: {'; '.join(told)}",
        rule="a column takes a role by itself where it is the only one that can",
        remedy="one of these:\n          " + "\n          ".join(options),
    )

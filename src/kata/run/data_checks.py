"""Checks that need metadata alone: folders without a dataset, unknown keys. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kata.data.format.info import read_info
from kata.errors import ConfigError, did_you_mean
from kata.run.config import Run


def check_local_data(run: Run) -> None:
    """Refuse a folder that holds no dataset, and a rename of a key that the dataset does not have.

    Datasets without a folder are left to opening, which may have to ask the Hub.

    Raises: ConfigError for a rename, DataError for a folder.
    """
    for at, root, rename_map in _places(run):
        if root is None:
            continue
        columns = read_info(Path(root).expanduser()).columns
        for old in rename_map:
            if old not in columns:
                raise ConfigError(
                    f"{at}: {old} is not in the dataset",
                    rule=f"dataset keys: {', '.join(columns)}",
                    remedy=did_you_mean(old, columns),
                )


def _places(run: Run) -> list[tuple[str, str | None, Mapping[str, str]]]:
    """Return (name of the option, folder, renames) of each dataset."""
    if run.dataset.mix is None:
        return [("rename_map", run.dataset.root, run.rename_map)]
    found: list[tuple[str, str | None, Mapping[str, str]]] = []
    for number, entry in enumerate(run.dataset.mix):
        found.append((f"dataset.mix[{number}].rename_map", entry.root, entry.rename_map))
    return found

"""Checks that ranks which train together have the same options, code and data."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import kata
from kata.config import encode, names_where
from kata.config.changes import flat
from kata.data import Dataset
from kata.dist.process_group import ProcessGroup
from kata.errors import RankError
from kata.run import Run


def check_same_run(group: ProcessGroup, run: Run) -> None:
    """Refuse ranks with other options or another kata, torch or Python (RankError)."""
    if run.ranks != group.world.size:
        raise RankError(
            f"a run laid out for {run.ranks} ranks was started with {group.world.size}",
            rule="a step's samples are shared out among the ranks that there are",
            remedy="start it with `kata train`, which counts them",
        )
    if group.world.size == 1:
        return
    local = names_where(run, lambda declared: declared.per_machine)
    options = {name: value for name, value in flat(encode(run)).items() if name not in local}
    versions = {
        "kata": f"{kata.__version__} (code {_code()})",
        "torch": torch.__version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    _compare(
        group,
        options,
        "the same options, from the same config file",
        "start all ranks with the same command",
    )
    _compare(
        group,
        versions,
        "the same code, torch and Python",
        "install the same version on every machine",
    )


def check_same_data(group: ProcessGroup, data: Sequence[Dataset]) -> None:
    """Refuse ranks that see other episodes or files (RankError)."""
    if group.world.size == 1:
        return
    seen = {
        f"dataset {one.repo_id}": f"{one.fingerprint} ({len(one.episodes.index)} episodes)"
        for one in data
    }
    _compare(
        group,
        seen,
        "the same episodes in files of the same size",
        "copy the dataset again, or name one revision",
    )


def _compare(group: ProcessGroup, mine: Mapping[str, Any], rule: str, remedy: str) -> None:
    """Compare the ranks' values; all ranks find the same difference, and raise the same error."""
    first, *others = group.gather(dict(mine))
    for rank, theirs in enumerate(others, start=1):
        differing = sorted(
            name for name in {*first, *theirs} if first.get(name) != theirs.get(name)
        )
        if differing:
            name = differing[0]
            more = (
                f" (and {len(differing) - 1} more: {', '.join(differing[1:4])})"
                if len(differing) > 1
                else ""
            )
            ours, other = first.get(name), theirs.get(name)
            raise RankError(
                f"ranks disagree: {name} is {ours!r} on rank 0 and {other!r} on rank {rank}{more}",
                rule=f"all ranks have {rule}",
                remedy=remedy,
            )


def _code() -> str:
    """Return twelve hex digits over kata's own sources."""
    found = hashlib.sha256()
    home = Path(kata.__file__).parent
    for path in sorted(home.rglob("*.py")):
        found.update(str(path.relative_to(home)).encode() + path.read_bytes())
    return found.hexdigest()[:12]

"""The result of a measuring process: its figures, or its error."""

from __future__ import annotations

import json
from typing import Any

from kata.errors import ConfigError


def last_line(output: bytes) -> dict[str, Any]:
    """Return the figures, which a measuring process prints as JSON on its last line."""
    return json.loads(output.strip().splitlines()[-1])


def worker_error(name: str, status: int, stderr: bytes) -> ConfigError:
    """Return the error of a measuring process that ended with `status`, with its last words."""
    lines = stderr.decode(errors="replace").strip().splitlines() or [f"ended with {status}"]
    own = [line.removeprefix("kata: ") for line in lines if line.startswith("kata: ")]
    remedy = "`kata data check` says what is wrong with a dataset, docs/data.md what it must hold"
    if any("episodes=available" in line for line in lines):
        remedy = (
            "make a dataset of the episodes whose files are here: "
            "kata data split <folder> --dataset.episodes=available --out=<folder>"
        )
    # A message of kata's begins with its name, and its first line has the value.
    first = [line for line in lines if not line.startswith(("  rule:", "  remedy:"))]
    said = (own or first or lines)[-1].removeprefix("kata.errors.DataError: ")
    return ConfigError(f"{name}: {said}", rule="a measurement ends well", remedy=remedy)

"""Odd command lines and flipped bytes end in one message or in an answer, never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.odd.fuzz import fuzz


def test_a_few_odd_lines_and_flipped_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = fuzz(3, 20, 30, tmp_path, quick=True)
    assert found["faults"] == []
    assert sum(found["lines"].values()) == 20
    assert sum(sum(counts.values()) for counts in found["flips"].values()) == 30
    # Damage in the numbers of info.json or in a text changes what is read, without any sign.
    silent = [f"{kind} {name}" for kind, counts in found["flips"].items() for name in counts]
    assert not any("another" in each for each in silent if each.startswith("mp4"))

"""Write docs/options.md and tests/house/flags.txt from the declarations of all options.

python tools/options_page.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kata.cli import KATA
from kata.config import encode
from kata.config.reference import options_page
from kata.config.schema import EVERYTHING, is_required
from kata.config.verb import Verb

ROOT = Path(__file__).parents[1]
PAGE, LIST = ROOT / "docs/options.md", ROOT / "tests/house/flags.txt"


def frozen_list() -> str:
    """Return name, type and default of every option of every verb, a line each."""
    return "\n".join(_lines(KATA, "kata")) + "\n"


def _lines(verb: Verb, path: str) -> Iterator[str]:
    for entry in verb.entries(EVERYTHING) if verb.options else []:
        chosen = f" {entry.section}" if entry.section.startswith("--") else ""
        default = "required" if is_required(entry) else encode(entry.default)
        yield f"{path}{chosen} {entry.name}: {_type(entry.hint)} = {default}"
    for name, below in verb.verbs.items():
        yield from _lines(below, f"{path} {name}")


def _type(hint: Any) -> str:
    return (
        hint.__name__
        if isinstance(hint, type) and "[" not in str(hint)
        else str(hint).replace("None", "null")
    )


if __name__ == "__main__":
    LIST.write_text(frozen_list(), encoding="utf-8")
    PAGE.write_text(options_page(KATA), encoding="utf-8")

"""By what kept results find the files that they were made of."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from kata.data.format.episode_table import EpisodeTable, Span
from kata.data.storage.file_stamp import file_ends, file_identity

_ENDS_READ = 1000


def digest(root: Path, layout: EpisodeTable, span: Span, *words: Any) -> str:
    """32 hex digits over `words`, the place of every episode in `span`, and name, size and time of
    every file in use, with the ends of a thousand of them. Any change of a file changes it; copies
    that keep names and times share it.
    """
    files = [(name, *file_identity(root / name)) for name in span.used()]
    found = hashlib.sha256(json.dumps([*words, files]).encode())
    for array in (layout.index, layout.length, span.first, span.file):
        found.update(array.tobytes())
    for name, size, _ in files[:: -(-len(files) // _ENDS_READ)]:
        found.update(file_ends(root / name, size))
    return found.hexdigest()[:32]

"""Keys of cache entries: each cached result is keyed by the identity of its source files."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kata.data.format.episode_table import EpisodeTable, Span
from kata.data.storage.file_stamp import file_ends
from kata.data.storage.store import Store

_ENDS_READ = 1000
"""Files whose first and last bytes enter the key; to read more would delay the start of a run."""


def digest(store: Store, layout: EpisodeTable, span: Span, *words: Any) -> str:
    """Return the key of a result that was made from the files of `span`, 32 hex digits.

    It covers `words`, the place of every episode in `span`, and name, size and time of every file
    in use, with the ends of a thousand of them. Any change of a file changes it. Copies that keep
    names and times share it.

    Args:
        store: the dataset's files.
        layout: its episodes.
        span: position of the episodes in the files.
        words: JSON values that the result depends on.
    """
    used = span.used()
    stamps = store.stamps(used)
    files = [(name, *stamps[name].identity) for name in used]
    found = hashlib.sha256(json.dumps([*words, files]).encode())
    for array in (layout.index, layout.length, span.first, span.file):
        found.update(array.tobytes())
    for name, size, _ in files[:: -(-len(files) // _ENDS_READ)]:
        path = store.path(name)
        if path is not None:
            found.update(file_ends(path, size))
    return found.hexdigest()[:32]

"""Files of a dataset lie in its folder: links may not lead out of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kata.errors import DataError


def refuse_outside(root: Path, names: Iterable[str]) -> None:
    """Refuse names below `root` that links lead out of it; names of files that are absent are passed over.

    A snapshot in Hugging Face's cache links to the files of its own repository, `<repo>/snapshots/<commit>` to
    `<repo>/blobs`, which counts as inside. The folder itself may be reached through a link.

    Raises: DataError naming the file and where it leads.
    """
    base = os.path.realpath(root)
    if os.path.basename(os.path.dirname(base)) == "snapshots":
        base = os.path.dirname(os.path.dirname(base))
    folders: dict[str, str] = {}
    for name in names:
        path = os.path.join(root, name)
        folder = os.path.dirname(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = os.path.realpath(path) if os.path.islink(path) else os.path.join(folders[folder], os.path.basename(path))
        if os.path.commonpath([base, real]) != base:
            raise DataError(
                f"{path} leads to {real}",
                rule=f"the files of a dataset lie in its folder {base}",
                remedy="copy the file there, or give the folder that holds all files with --dataset.root",
            )

"""Pointers to checkpoints: `last` and `best` name one of the folders beside them.

A pointer is a symbolic link, as in LeRobot. Where the file system has none, it is a text file with
the folder's name.
"""

from __future__ import annotations

import os
from pathlib import Path

from kata.errors import CheckpointError

LAST, BEST = "last", "best"


def point(link: Path, name: str) -> None:
    """Make `link` point at the folder `name` beside it. A reader sees the old or the new target."""
    beside = link.with_name(f".{link.name}.new")
    beside.unlink(missing_ok=True)
    try:
        beside.symlink_to(name)
    except (OSError, NotImplementedError):
        # exFAT, some network file systems, Windows without the right to it
        with beside.open("w", encoding="utf-8") as file:
            file.write(name + "\n")
            file.flush()
            os.fsync(file.fileno())
    os.replace(beside, link)


def pointed(link: Path) -> Path | None:
    """Return the folder that a pointer names, which may be absent; None without a pointer.

    A copy that follows links (cp -rL, scp -r, a zip file) makes a folder of the pointer, which then
    is the checkpoint.
    """
    if link.is_symlink():
        return link.parent / os.readlink(link)
    if link.is_dir():
        return link
    if not link.is_file():
        return None
    name = link.read_text(encoding="utf-8", errors="replace").strip()
    if not name or name in (".", "..") or Path(name).name != name:
        raise CheckpointError(
            f"{link}: {name[:60]!r}",
            rule="a pointer holds the name of one folder beside it",
            remedy="write the name of a checkpoint into it, or name the checkpoint's folder itself",
        )
    return link.parent / name


def resolve_pointer(path: Path) -> Path:
    """Return the path with a text pointer in it replaced by its target."""
    for inner in (path, *path.parents):
        if (
            inner.name in (LAST, BEST)
            and inner.is_file()
            and (target := pointed(inner)) is not None
        ):
            return target / path.relative_to(inner)
    return path

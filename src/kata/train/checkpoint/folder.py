"""The folder of a run's checkpoints: publishing whole ones, finding good ones, removing others.
Torch-free.

    checkpoints/000500/             a checkpoint; `last` points at the newest
    checkpoints/best-000500/        weights of a validation; `best` points at the lowest error
    checkpoints/000600.damaged/     set aside when the run was continued from an older one
    checkpoints/.000700.partial/    being written, or what a killed save left

Whatever happens at whatever moment, names that do not begin with a dot are whole.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kata.errors import CheckpointError
from kata.files import fsync
from kata.pointers import BEST, LAST, point, resolve_pointer
from kata.train.checkpoint.manifest import (
    MANIFEST,
    PRETRAINED,
    damage,
    has_manifest,
    step_of,
    write_manifest,
)

VALIDATION, CONFIG = "validation.json", "config.json"


_PARTIAL = ".partial"
_OLD = ".old"
_GONE = ".gone"
_DAMAGED = ".damaged"
_COPY = ".copy"


@dataclass(frozen=True)
class Resumable:
    """The place from which a run continues.

    source: None if nothing was saved. notes: messages for the user.
    """

    source: Path | None
    notes: list[str] = field(default_factory=list)

    def plain(self) -> tuple[str | None, list[str]]:
        """The same as text, for other ranks."""
        return None if self.source is None else str(self.source), self.notes


def home_of(run_folder: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return run_folder / "checkpoints"


def checkpoints(home: Path) -> list[Path]:
    """Return all checkpoints, oldest first, including damaged ones."""
    return sorted(
        (p for p in home.glob("*") if p.name.isdigit() and p.is_dir()), key=lambda p: int(p.name)
    )


def best_checkpoints(home: Path) -> list[Path]:
    """The folders that `best` points at or pointed at, lowest error first."""
    found = [
        p
        for p in home.glob(f"{BEST}-*")
        if p.name.removeprefix(f"{BEST}-").isdigit() and p.is_dir()
    ]
    return sorted(found, key=lambda p: (_error(p), p.name))


def damaged(home: Path) -> list[Path]:
    """Return checkpoints that were set aside when a run continued from an older one."""
    return sorted(home.glob(f"*{_DAMAGED}"))


def begin_checkpoint(target: Path) -> Path:
    """Make the hidden folder that is to become `target`, empty."""
    partial = partial_of(target)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def partial_of(target: Path) -> Path:
    """The hidden folder that is filled before it gets this name."""
    return target.with_name(f".{target.name}{_PARTIAL}")


def publish(target: Path, step: int, fill: Callable[[Path], None], begun: bool = False) -> int:
    """Fill a hidden folder, flush it and its manifest to the disk, and rename it to `target`;
    returns its bytes.

    begun: it is there already (see `begin`), and what lies in it belongs to it.

    Raises OSError, with nothing left behind, where that cannot be done.
    """
    partial = partial_of(target)
    try:
        if not begun:
            begin_checkpoint(target)
        fill(partial)
        size = write_manifest(partial, step)
        if target.exists():
            old = target.with_name(f".{target.name}{_OLD}")
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
            partial.rename(target)
            shutil.rmtree(old)
        else:
            partial.rename(target)
        fsync(target.parent)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return size


def remove(path: Path) -> None:
    """Delete a folder; one that is cut short leaves a hidden name, which `recover` finishes."""
    gone = path.with_name(f".{path.name}{_GONE}")
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    shutil.rmtree(gone)


def recover(home: Path) -> list[str]:
    """Finish or undo what a killed process left; returns a sentence for each save that was cut
    short.
    """
    notes: list[str] = []
    for path in sorted(home.glob(".*")):
        name = path.name.removeprefix(".")
        whole = home / name.removesuffix(_OLD)
        if name.endswith(_OLD) and not whole.exists():
            path.rename(whole)
        elif name.endswith((_PARTIAL, _OLD, _GONE)):
            if name.endswith(_PARTIAL):
                notes.append(
                    f"{home / name.removesuffix(_PARTIAL)} was half-written when its save was cut "
                    "short: removed"
                )
            shutil.rmtree(path, ignore_errors=True)
    if not (home / BEST).is_symlink() and (home / BEST).is_dir():
        _adopt_best(home)
    if not (home / LAST).is_symlink() and (home / LAST).is_dir():
        notes.append(_adopt_last(home))
    return notes


def resumable(home: Path) -> Resumable:
    """The newest checkpoint that holds; damaged newer ones are set aside and named.

    Raises CheckpointError where there are checkpoints and none holds: starting over would lose the
    run unseen.
    """
    source, faults = newest_whole(home)
    if source is not None:
        notes = [_set_aside(*fault) for fault in faults]
        if not has_manifest(source):
            notes.append(f"{source} has no {MANIFEST}: its content could not be checked")
        return Resumable(source, notes)
    if faults:
        raise CheckpointError(
            f"{home}: no checkpoint that can be continued\n"
            + "\n".join(f"          {path.name}: {reason}" for path, reason in faults),
            rule="a run continues from the newest checkpoint whose files are as they were written",
            remedy="copy one of them again from where it is whole; or start again in another "
            "--output_dir",
        )
    return Resumable(None)


def newest_whole(home: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the newest checkpoint that holds, or None, and newer ones with what is wrong with
    each. Nothing is changed.
    """
    faults: list[tuple[Path, str]] = []
    for path in reversed(checkpoints(home)):
        problems = damage(path)
        if not problems:
            return path, faults
        faults.append((path, "; ".join(problems)))
    return None, faults


def locate_checkpoint(path: Path) -> Path:
    """A checkpoint by its own folder, a pointer, or its run folder (the last one); or a folder that
    acting needs.

    Raises CheckpointError where there is none.
    """
    for candidate in (path, path / LAST, home_of(path) / LAST):
        found = resolve_pointer(candidate)
        if (
            (found / PRETRAINED).is_dir()
            or (found / MANIFEST).is_file()
            or (found / CONFIG).is_file()
        ):
            return found.resolve()
    raise CheckpointError(
        f"{path}: no checkpoint there",
        rule=f"a checkpoint's folder holds {PRETRAINED}",
        remedy="give a run folder, or one of its checkpoints",
    )


def pretrained_of(found: Path) -> Path:
    """The folder that acting needs, of what `locate` found."""
    return found if (found / CONFIG).is_file() else found / PRETRAINED


def _set_aside(path: Path, reason: str) -> str:
    aside = path.with_name(path.name + _DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return f"skipped {path}, which is damaged ({reason}); set aside as {aside.name}"


def _adopt_best(home: Path) -> None:
    """A `best` that is a folder, as kata wrote it before it had several, gets its step's name
    and a pointer.
    """
    try:
        step = int(json.loads((home / BEST / VALIDATION).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        step = 0
    target = home / f"{BEST}-{step:06d}"
    if target.exists():  # a copy of the run that followed the pointer
        target = _beside(target)
    (home / BEST).rename(target)
    point(home / BEST, target.name.removesuffix(_COPY))


def _adopt_last(home: Path) -> str:
    """Give a `last` that is a folder, as copies that follow links make it, the name of its step."""
    try:
        step = step_of(home / LAST)
    except (OSError, ValueError):
        step = None
    known = {int(path.name): path for path in checkpoints(home)}
    if step is None or step in known:
        target = _beside(home / LAST if step is None else known[step])
    else:
        target = home / f"{step:06d}"
    (home / LAST).rename(target)
    return f"{home / LAST} was a folder and no pointer, as in a copy: it is {target.name} now"


def _beside(path: Path) -> Path:
    """Return a free name for the second copy of a checkpoint."""
    target = path.with_name(path.name + _COPY)
    shutil.rmtree(target, ignore_errors=True)
    return target


def _error(path: Path) -> float:
    """The action error of a best checkpoint; infinite where it cannot be read."""
    try:
        error = float(json.loads((path / VALIDATION).read_text(encoding="utf-8"))["action_error"])
    except (OSError, ValueError, KeyError, TypeError):
        return math.inf
    return math.inf if math.isnan(error) else error

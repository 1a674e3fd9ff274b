"""Rules for keeping checkpoints, and the disk space that a run will need. Torch-free."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from kata.errors import CheckpointError
from kata.pointers import BEST, LAST, pointed
from kata.run import Run
from kata.train.checkpoint.folder import best_checkpoints, checkpoints, damaged, remove
from kata.train.checkpoint.manifest import damage
from kata.units import bytes_text


@dataclass(frozen=True)
class Keep:
    """Rules for keeping checkpoints; 0 switches a rule off.

    last: how many of the newest to keep. every: keep those of each multiple of this step. best: how
    many of the lowest error to keep.

    Without `last` and `every` all stay. The targets of `last` and `best` and the newest good
    checkpoint always stay.
    """

    last: int = 0
    every: int = 0
    best: int = 1

    @classmethod
    def of(cls, run: Run) -> Keep:
        """Return the rules of a run."""
        return cls(run.keep_last, run.keep_every, run.keep_best)


@dataclass(frozen=True)
class Room:
    """Bytes of a checkpoint, of the weights alone, and of all that the rest of the run adds to
    its folder.
    """

    checkpoint: int
    weights: int
    run: int


def surplus(home: Path, keep: Keep, *, hashes: bool) -> list[Path]:
    """Return the checkpoints that may be deleted.

    Damaged checkpoints do not count towards `last`, and are deleted only if an intact one remains.
    """
    stay = {pointed(home / LAST), pointed(home / BEST)}
    going = (
        [path for path in best_checkpoints(home)[keep.best :] if path not in stay]
        if keep.best
        else []
    )
    everything = checkpoints(home)
    good = [path for path in everything if not damage(path, hashes=hashes)]
    if good and (keep.last or keep.every):
        stay |= set(good[-max(keep.last, 1) :])
        stay |= {path for path in good if keep.every and int(path.name) % keep.every == 0}
        going += [path for path in everything if path not in stay]
    return going + (damaged(home) if good and hashes else [])


def prune(home: Path, keep: Keep, *, hashes: bool = False) -> list[Path]:
    """Remove what need not stay; returns what went."""
    going = surplus(home, keep, hashes=hashes)
    for path in going:
        remove(path)
    return going


def room_needed(run: Run, home: Path, done: int, checkpoint: int, weights: int) -> Room:
    """Return the largest space that the rest of a run can add to its folder, with one save running.

    done: steps done. checkpoint, weights: bytes of a checkpoint and of the weights alone.
    """
    if not run.save_checkpoint or done >= run.steps:
        return Room(checkpoint, weights, 0)
    every, keep = run.save_freq, Keep.of(run)
    there = len(checkpoints(home))
    coming = 1 if every <= 0 else (run.steps - 1) // every - done // every + 1
    most = there + coming
    if keep.last or keep.every:
        milestones = (run.steps - done) // keep.every + 1 if keep.every else 0
        most = min(most, max(there, max(keep.last, 1) + milestones) + 1)
    kept = len(best_checkpoints(home))
    judged = max(0, max(keep.best, kept) + 1 - kept) if run.dataset.eval_split else 0
    # The last checkpoint holds the weights of the base too.
    last = weights * (1 + run.ema.enable) if run.refers and run.peft is None else 0
    total = max(most - there, 1) * checkpoint + judged * weights + last
    return Room(checkpoint, weights, total)


def check_space(folder: Path, room: Room) -> None:
    """CheckpointError when the disk cannot hold what the run will write."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < room.run:
        raise CheckpointError(
            f"{folder}: {bytes_text(free_bytes)} free",
            rule=f"the run's checkpoints, {bytes_text(room.checkpoint)} each, will take "
            f"{bytes_text(room.run)}",
            remedy="free space, choose another --output_dir, or keep fewer with --keep_last=2",
        )

"""The verbs of `kata checkpoint`, which look after checkpoints without training. Torch-free."""

from __future__ import annotations

import datetime
import shutil
from contextlib import nullcontext
from pathlib import Path

from kata.errors import CheckpointError, KataError
from kata.pointers import BEST, LAST, pointed
from kata.run.peft import is_adapter
from kata.tables import table_lines
from kata.train.checkpoint.folder import (
    best_checkpoints,
    checkpoints,
    damaged,
    home_of,
    locate_checkpoint,
    pretrained_of,
    recover,
    remove,
)
from kata.train.checkpoint.manifest import (
    MODEL,
    SHARDS,
    TRAINED,
    TRAINING,
    damage,
    has_manifest,
)
from kata.train.checkpoint.options import (
    ConversionOptions,
    ExportOptions,
    PathOptions,
    PruneOptions,
    PushOptions,
)
from kata.train.checkpoint.retention import Keep, surplus
from kata.train.checkpoint.run_lock import FolderLock
from kata.train.checkpoint.upload import push
from kata.units import bytes_text


def list_checkpoints(options: PathOptions) -> int:
    """Print step, size, age and state of each checkpoint, and what last and best point at."""
    home = _home(_path(options))
    marks = {pointed(home / name): name for name in (LAST, BEST)}
    rows = [("checkpoint", "size", "written", "pointer", "state")]
    for each in (*checkpoints(home), *best_checkpoints(home), *damaged(home)):
        written = datetime.datetime.fromtimestamp(each.stat().st_mtime)
        state = "; ".join(damage(each, hashes=False)) or "whole"
        size = sum(p.stat().st_size for p in each.rglob("*") if p.is_file())
        rows.append(
            (
                each.name,
                bytes_text(size),
                f"{written:%Y-%m-%d %H:%M}",
                marks.get(each, ""),
                _seen(each, state),
            )
        )
    print("\n".join(table_lines(rows)))
    print("Sizes were compared; `kata checkpoint verify` compares contents.")
    return 0


def verify(options: PathOptions) -> int:
    """Compare the hash of every file of a run's checkpoints, or of one; 1 where one is damaged."""
    path = _path(options)
    home = _home_or_none(path)
    found = (
        [locate_checkpoint(path)] if home is None else [*checkpoints(home), *best_checkpoints(home)]
    )
    damaged_ones = 0
    for each in found:
        problems = damage(each)
        damaged_ones += bool(problems)
        print(f"{each.name}: {_seen(each, 'damaged' if problems else 'whole')}")
        for problem in problems:
            print(f"  {problem}")
    return 1 if damaged_ones else 0


def prune_command(options: PruneOptions) -> int:
    """Remove the checkpoints that no rule keeps; last, best and the newest good one stay."""
    home = _home(_path(options))
    keep = Keep(last=options.keep_last, every=options.keep_every, best=options.keep_best)
    with FolderLock(home.parent):
        recover(home)
        going = surplus(home, keep, hashes=True)
        for each in going:
            if not options.dry_run:
                remove(each)
            print(f"{'would remove' if options.dry_run else 'removed'} {each}")
    if not going:
        print("nothing to remove")
    return 0


def export(options: ExportOptions) -> int:
    """Copy what acting needs, without the training state; weights of a base are put in."""
    source, out = _with_weights(_whole(_path(options))), Path(options.out).expanduser()
    if options.merge and not is_adapter(source):
        raise CheckpointError(
            f"{source}: holds no adapter",
            rule="--merge adds an adapter to its base",
            remedy="leave out --merge",
        )
    if out.exists():
        raise CheckpointError(
            f"{out}: exists already", rule="an export makes its folder", remedy="choose another"
        )
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(source, partial)
        if options.merge or (source / TRAINED).is_file():
            from kata.finetune.export import make_whole

            make_whole(partial, source)
        if options.dtypes_of:
            from kata.finetune.export import write_in_dtypes_of

            count = write_in_dtypes_of(partial, options.dtypes_of)
            print(f"tensors in another precision than before: {count}")
        if options.raw:
            from kata.finetune.export import as_raw_groot

            as_raw_groot(partial)
        partial.rename(out)
    except KataError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"{out}: cannot be written ({error})",
            rule="an export needs space",
            remedy="choose another --out",
        ) from error
    print(f"exported {source} to {out}")
    return 0


def upload_command(options: PushOptions) -> int:
    """Upload what acting needs to the Hub."""
    found = _with_weights(_whole(_path(options)))
    if (found / TRAINED).is_file():
        raise CheckpointError(
            f"{found}: refers to its base for the weights that were not trained",
            rule="what is uploaded holds all weights, or is an adapter",
            remedy=f"kata checkpoint export {found} --out=<folder>, then push that",
        )
    print(push(found, options.repo_id, private=options.private))
    return 0


def convert_state(options: ConversionOptions) -> int:
    """Write the state as LeRobot's files, as shards, or as both, in place or as another folder."""
    from kata.train.checkpoint.convert import convert_checkpoint

    found = locate_checkpoint(_path(options))
    if not (found / TRAINING).is_dir():
        raise CheckpointError(
            f"{found}: holds no training state",
            rule="a checkpoint that a run can continue from is converted, with all that it holds",
            remedy="name a run, or one of its checkpoints",
        )
    kept = _whole(found)
    if is_adapter(kept) or (kept / TRAINED).is_file():
        raise CheckpointError(
            f"{found}: refers to its base for the weights that were not trained",
            rule="a conversion needs all weights of a checkpoint in it",
            remedy="kata checkpoint export makes a whole copy for acting",
        )
    out = found if options.out is None else Path(options.out).expanduser()
    if out != found and out.exists():
        raise CheckpointError(
            f"{out}: exists already", rule="a conversion makes its folder", remedy="choose another"
        )
    with FolderLock(found.parent.parent) if out == found else nullcontext():
        size = convert_checkpoint(found, out, options.to)
    print(f"{found} as {options.to}: {out}, {bytes_text(size)}")
    return 0


def _path(options: PathOptions) -> Path:
    return Path(options.path).expanduser()


def _whole(path: Path) -> Path:
    """Return the folder that acting needs, of a checkpoint whose files are undamaged."""
    found = locate_checkpoint(path)
    owner = found if has_manifest(found) else found.parent
    problems = damage(owner) if has_manifest(owner) else []
    if problems:
        raise CheckpointError(
            f"{owner}: damaged ({'; '.join(problems)})",
            rule="what leaves this machine is as it was written",
            remedy="name another checkpoint; `kata checkpoint list` shows them",
        )
    return pretrained_of(found)


def _with_weights(folder: Path) -> Path:
    """Return the folder unless its weights exist as shards alone."""
    if not (folder / MODEL).is_file() and (folder.parent / SHARDS).is_dir():
        raise CheckpointError(
            f"{folder}: holds no {MODEL}",
            rule="this checkpoint holds its weights in shards (checkpoint_format=dcp)",
            remedy=f"kata checkpoint convert {folder.parent} --to=both",
        )
    return folder


def _home_or_none(path: Path) -> Path | None:
    return next(
        (home for home in (home_of(path), path) if home.is_dir() and checkpoints(home)), None
    )


def _home(path: Path) -> Path:
    home = _home_or_none(path)
    if home is None:
        raise CheckpointError(
            f"{path}: no checkpoints there",
            rule="a run folder holds checkpoints/<step>",
            remedy="give the --output_dir of a run",
        )
    return home


def _seen(path: Path, state: str) -> str:
    return state if has_manifest(path) else f"{state} as far as can be seen: it has no manifest"

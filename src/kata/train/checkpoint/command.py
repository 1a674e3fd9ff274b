"""`kata checkpoint list|verify|prune|export|push|convert`: looking after checkpoints without training. Torch-free."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kata.config import parse_flags
from kata.errors import CheckpointError, ConfigError, did_you_mean
from kata.run.checkpoint_link import BEST, LAST, pointed
from kata.run.parallel import FORMATS
from kata.train.checkpoint.folder import (
    bests,
    checkpoints,
    damaged,
    home_of,
    locate,
    pretrained_of,
    recover,
    remove,
)
from kata.train.checkpoint.manifest import MODEL, SHARDS, TRAINING, damage, has_manifest
from kata.train.checkpoint.retention import Keep, surplus
from kata.train.checkpoint.run_lock import FolderLock
from kata.train.checkpoint.upload import push
from kata.units import bytes_text

USAGE = """\
usage: kata checkpoint <verb> <path> [options]

  list <run>             step, size, age, whether each is whole, and what last and best point at
  verify <path>          read every file of a run's checkpoints, or of one, and compare its hash; names what is
                         damaged and leaves with status 1
  prune <run> --keep_last=N [--keep_every=STEPS] [--keep_best=N] [--dry_run]
                         remove what these rules do not keep; last, best and the newest good one always stay
  export <path> --out=<folder>
                         copy what acting needs, without the training state
  convert <path> --to=safetensors|dcp|both [--out=<folder>]
                         the state as LeRobot's files, in pieces, or as both (see --checkpoint_format), in its place or
                         as another folder
  push <path> --repo_id=<user>/<name> [--private=true]
                         upload that to the Hub; what is there already is not sent again

A path is a run folder (its last checkpoint, where one is meant), a checkpoint, or its pretrained_model.
"""
Options = Mapping[str, Any]


def main(args: Sequence[str]) -> int:
    """Run a verb and return the exit status."""
    if not args or args[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    name, rest = args[0], list(args[1:])
    if name not in VERBS:
        raise ConfigError(
            f"checkpoint '{name}': no such verb",
            rule=f"verbs: {', '.join(VERBS)}",
            remedy=did_you_mean(name, VERBS),
        )
    work, known = VERBS[name]
    if not rest or rest[0].startswith("--"):
        raise ConfigError(
            f"checkpoint {name}: no path",
            rule="a verb works on a folder",
            remedy=f"kata checkpoint {name} <run>",
        )
    given = {key.replace("-", "_"): value for key, value in parse_flags(rest[1:]).items()}
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{key}: no such option of checkpoint {name}",
                rule=f"options: {', '.join(known) or 'none'}",
                remedy=did_you_mean(key, known) if known else "leave it out",
            )
    return work(Path(rest[0]).expanduser(), {**known, **given})


def _list(path: Path, options: Options) -> int:
    del options
    home = _home(path)
    marks = {pointed(home / name): name for name in (LAST, BEST)}
    rows = [("checkpoint", "size", "written", "pointer", "state")]
    for each in (*checkpoints(home), *bests(home), *damaged(home)):
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
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )
    print("Sizes were compared; `kata checkpoint verify` compares contents.")
    return 0


def _verify(path: Path, options: Options) -> int:
    del options
    home = _home_or_none(path)
    found = [locate(path)] if home is None else [*checkpoints(home), *bests(home)]
    damaged_ones = 0
    for each in found:
        problems = damage(each)
        damaged_ones += bool(problems)
        print(f"{each.name}: {_seen(each, 'damaged' if problems else 'whole')}")
        for problem in problems:
            print(f"  {problem}")
    return 1 if damaged_ones else 0


def _prune(path: Path, options: Options) -> int:
    home = _home(path)
    numbers = {name: options[name] for name in ("keep_last", "keep_every", "keep_best")}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(
                f"{name}={value}",
                rule="a whole number of at least 0",
                remedy=f"for example --{name}=2",
            )
    if not any(numbers.values()):
        raise ConfigError(
            "checkpoint prune: no rule",
            rule="what is to be kept is said",
            remedy="for example --keep_last=2",
        )
    keep = Keep(last=numbers["keep_last"], every=numbers["keep_every"], best=numbers["keep_best"])
    with FolderLock(home.parent):
        recover(home)
        going = surplus(home, keep, hashes=True)
        for each in going:
            if not options["dry_run"]:
                remove(each)
            print(f"{'would remove' if options['dry_run'] else 'removed'} {each}")
    if not going:
        print("nothing to remove")
    return 0


def _export(path: Path, options: Options) -> int:
    if not options["out"]:
        raise ConfigError(
            "out: not given", rule="an export needs a folder", remedy="add --out=<folder>"
        )
    source, out = _with_weights(_whole(path)), Path(str(options["out"])).expanduser()
    if out.exists():
        raise CheckpointError(
            f"{out}: exists already", rule="an export makes its folder", remedy="choose another"
        )
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(source, partial)
        partial.rename(out)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"{out}: cannot be written ({error})",
            rule="an export needs space",
            remedy="choose another --out",
        ) from error
    print(f"exported {source} to {out}")
    return 0


def _push(path: Path, options: Options) -> int:
    if not options["repo_id"]:
        raise ConfigError(
            "repo_id: not given",
            rule="an upload needs a repository",
            remedy="add --repo_id=<user>/<name>",
        )
    print(push(_with_weights(_whole(path)), str(options["repo_id"]), private=options["private"]))
    return 0


def _convert(path: Path, options: Options) -> int:
    from kata.train.checkpoint.convert import convert

    to = options["to"]
    if to not in FORMATS[1:]:
        raise ConfigError(
            f"to={to}",
            rule=f"one of: {', '.join(FORMATS[1:])}",
            remedy="for example --to=safetensors for LeRobot",
        )
    found = locate(path)
    if not (found / TRAINING).is_dir():
        raise CheckpointError(
            f"{found}: holds no training state",
            rule="a checkpoint that a run can continue from is converted, with all that it holds",
            remedy="name a run, or one of its checkpoints",
        )
    _whole(found)
    out = found if options["out"] is None else Path(str(options["out"])).expanduser()
    if out != found and out.exists():
        raise CheckpointError(
            f"{out}: exists already", rule="a conversion makes its folder", remedy="choose another"
        )
    with FolderLock(found.parent.parent) if out == found else nullcontext():
        size = convert(found, out, to)
    print(f"{found} as {to}: {out}, {bytes_text(size)}")
    return 0


def _whole(path: Path) -> Path:
    """The folder that acting needs, of a checkpoint whose files are as they were written."""
    found = locate(path)
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
    """The same, where the weights are not in pieces alone."""
    if not (folder / MODEL).is_file() and (folder.parent / SHARDS).is_dir():
        raise CheckpointError(
            f"{folder}: holds no {MODEL}",
            rule="this checkpoint holds its weights in pieces (checkpoint_format=dcp)",
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


VERBS: dict[str, tuple[Callable[[Path, Options], int], dict[str, Any]]] = {
    "list": (_list, {}),
    "verify": (_verify, {}),
    "prune": (_prune, {"keep_last": 0, "keep_every": 0, "keep_best": 0, "dry_run": False}),
    "export": (_export, {"out": None}),
    "convert": (_convert, {"to": None, "out": None}),
    "push": (_push, {"repo_id": None, "private": None}),
}

"""Checks of the arguments after `--`, made before anything starts or is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kata.errors import ConfigError, did_you_mean
from kata.launch.options import option_error
from kata.run import Run, resolve_run


def checked_run(args: Sequence[str], ranks: int) -> Run:
    """Return the run that `kata <args>` would be on this number of ranks.

    Raises:
        ConfigError: the arguments are not valid there.
    """
    if not args or args[0] != "train":
        given = args[0] if args else "nothing"
        remedy = (
            did_you_mean(given, ["train"])
            if args
            else "for example kata launch --gpus=2 -- train --config=…"
        )
        raise ConfigError(
            f"'{given}' after --",
            rule="what is launched is `train` with its options",
            remedy=remedy,
        )
    return resolve_run(args[1:], ranks)[0]


def refuse_taken(run: Run, folder: Path) -> None:
    """A launch that may start its run again says --resume for it; it must not take another run's
    folder with that.
    """
    if not run.resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise option_error(
            "output_dir",
            folder,
            "a new run gets its own folder",
            "add --resume=true to continue the run in it, or choose another --output_dir",
        )

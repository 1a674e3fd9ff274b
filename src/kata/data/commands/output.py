"""The file that a verb writes, refused before the work and written atomically."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kata.errors import ConfigError


def new_file(option: str, text: str, *, dataset: Path, overwrite: bool) -> Path:
    """Return the path to write to.

    Raises: ConfigError for a file that exists (unless `overwrite`), or one inside the dataset.
    """
    path = Path(text).expanduser()
    if path.resolve().is_relative_to(dataset.resolve()):
        raise ConfigError(
            f"{option}={text}: lies inside the dataset",
            rule="a dataset that is read is never changed",
            remedy="choose a file elsewhere",
        )
    if path.is_dir() or (path.exists() and not overwrite):
        raise ConfigError(
            f"{option}={text}: exists already",
            rule="nothing is overwritten unasked",
            remedy="choose another name" + ("" if path.is_dir() else ", or add --overwrite"),
        )
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the path, then rename: an interruption leaves no half file.

    Raises: ConfigError when the folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            # As for any new file: mkstemp gives the owner alone the right to read.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(part, 0o666 & ~mask)
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}",
            rule="a folder with room that you may write to",
            remedy="choose another file",
        ) from error

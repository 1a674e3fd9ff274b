"""Messages of the package: one plain line each on stderr, and in the log file of a run."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any

SHOWN = logging.getLogger("kata.shown")
"""A logger for text that was printed by other means; it reaches only the log file of a run."""


def configure() -> None:
    """Send `kata.*` log records to stderr as 'kata: ...'; a second call changes nothing."""
    logger = logging.getLogger("kata")
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        handler = _Stderr()
        handler.setFormatter(_Plain())
        handler.addFilter(lambda record: record.name != SHOWN.name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def show_any_letter() -> None:
    """Let stdout and stderr write a letter that their encoding lacks as its number: a terminal in
    ASCII or Latin-1 is no reason to end.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)")
_IN_QUERY = re.compile(
    r"([?&](?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|Signature|sig|Policy"
    r"|AWSAccessKeyId|Key-Pair-Id|(?:access_)?token)=)[^&\s\"'>)]+",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}\b")
_SECRET_NAME = re.compile(r"(TOKEN|PASSWORD|SECRET|API_KEY|ACCESS_KEY|CREDENTIALS?)$")
_SHORTEST = 8  # characters of a secret; a shorter value is as likely a word of the text


def redacted(text: str) -> str:
    """Replace secrets in a text by `***`.

    These are user and password in addresses, signatures in addresses, Hugging Face tokens, and the
    values of environment variables whose names say that they are secret, such as HF_TOKEN,
    AWS_SECRET_ACCESS_KEY and WANDB_API_KEY.
    """
    text = _TOKEN.sub("***", _IN_ADDRESS.sub("***", text))
    text = _IN_QUERY.sub(r"\1***", text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name.upper()):
            text = text.replace(value, "***")
    return text


@contextmanager
def counting(title: str) -> Generator[Callable[[int, int], None]]:
    """Show a progress bar on stderr; call the value with (done, total)."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def kept_in(path: Path) -> Generator[None]:
    """Append all messages to a file until the context ends. A full disk costs these lines, not the
    run.
    """
    logger, handler = logging.getLogger("kata"), _LogFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(_Plain())
    SHOWN.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    except BaseException:
        SHOWN.info(traceback.format_exc().rstrip())
        raise
    finally:
        logger.removeHandler(handler)
        handler.close()


def outlive_the_terminal() -> None:
    """Let stdout and stderr ignore errors of a closed pipe or a terminal that is gone."""
    for name, stream in (("stdout", sys.__stdout__), ("stderr", sys.__stderr__)):
        if stream is None or vars(sys)[name] is not stream:
            continue
        stream.flush()
        raw = _Outliving(stream.fileno(), "w", closefd=False)
        lasting = TextIOWrapper(
            BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=True,
        )
        setattr(sys, name, lasting)


class _Outliving(FileIO):
    """An open file that ignores errors; once its reader is gone, it becomes the null device."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in _GONE:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())  # also for other writers and later processes
                os.close(null)
            return memoryview(data).nbytes


_GONE = (errno.EPIPE, errno.EIO)


class _Stderr(logging.Handler):
    """A handler that prints to the current stderr, which tests and bars replace."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


class _LogFile(logging.FileHandler):
    """A handler that opens its file with the first line, and drops lines that the disk does not
    take.
    """

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        del record

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        if record.name == SHOWN.name:
            return redacted(record.getMessage())
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return redacted(f"kata: {level}{record.getMessage()}")

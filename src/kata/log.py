"""What the package has to say, one plain line each on stderr."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager


def configure() -> None:
    """Send `kata.*` log records to stderr as 'kata: ...'; a second call changes nothing."""
    logger = logging.getLogger("kata")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Plain())
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s:]*:[^/@\s]+(?=@)")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}\b")
_SECRET_NAME = re.compile(r"(TOKEN|PASSWORD|SECRET|API_KEY|ACCESS_KEY|CREDENTIALS?)$")
_SHORTEST = 8  # characters of a secret; a shorter value is as likely a word of the text


def redacted(text: str) -> str:
    """The text with `***` for user and password in addresses, for Hugging Face tokens, and for the values of
    environment variables whose name says that they are secret, such as HF_TOKEN and WANDB_API_KEY.
    """
    text = _TOKEN.sub("***", _IN_ADDRESS.sub("***", text))
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name.upper()):
            text = text.replace(value, "***")
    return text


@contextmanager
def counting(title: str) -> Generator[Callable[[int, int], None]]:
    """A progress bar on stderr while something is counted; call the value with (done, total)."""
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


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return redacted(f"kata: {level}{record.getMessage()}")

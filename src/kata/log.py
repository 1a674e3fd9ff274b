"""What the package has to say, one plain line each on stderr."""

from __future__ import annotations

import logging
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


@contextmanager
def counting(title: str) -> Generator[Callable[[int, int], None]]:
    """A progress bar on stderr while something is counted; call the value with (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return f"kata: {level}{record.getMessage()}"

"""Progress: one live line on a terminal, one plain line per log interval in a log file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from numbers import Real
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kata.log import SHOWN
from kata.units import count_text, rate_text, seconds_text

REFRESH_S = 0.1


class Progress:
    """Shows how a run goes, on stderr. `quiet` shows nothing."""

    def __init__(self, steps: int, *, quiet: bool = False, console: Console | None = None) -> None:
        self._steps, self._quiet = steps, quiet
        self._console = console or Console(stderr=True)
        self._step = 0
        self._line: Mapping[str, Any] = {}
        self._live: Live | None = None
        self._drawn_s = -1.0

    def advance(self, step: int) -> None:
        """Moves the live line to `step`; costs a clock reading unless a redraw is due."""
        self._step = step
        self._draw()

    def show(self, line: Mapping[str, Any]) -> None:
        """Takes the figures of a log interval (a `train` line of metrics.jsonl)."""
        self._step, self._line = line["step"], line
        if self._console.is_terminal:
            SHOWN.info(self.text())
            self._draw()
        elif not self._quiet:
            self._print(self.text())

    def say(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """Prints what happened at a step (its plain values) above the live line."""
        if not self._quiet:
            parts = [
                f"{key} {_value_text(value)}" for key, value in values.items() if _is_plain(value)
            ]
            self._print("  ".join([f"{kind} at step {count_text(step)}:", *parts]))

    def text(self) -> str:
        """The line: step, epoch, loss, learning rate, speed, share of time waiting for data,
        time left.
        """
        parts = [f"step {count_text(self._step)}/{count_text(self._steps)}"]
        if self._line:
            line = self._line
            parts += [
                f"epoch {line['epoch']:.2f}",
                f"loss {line['loss']:.4g}{_each_text(line.get('loss_by_dataset', {}))}",
                f"lr {line['lr']:.3g}",
                f"{rate_text(line['samples_per_s'])} samples/s",
                f"data wait {line['data_wait_share']:.0%}",
                f"ETA {seconds_text(line['eta_s'])}" if self._step < self._steps else "done",
            ]
        return "  ".join(parts)

    def close(self) -> None:
        """Leaves the last state of the live line standing."""
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        now_s = time.monotonic()
        if self._quiet or not self._console.is_terminal or now_s - self._drawn_s < REFRESH_S:
            return
        self._drawn_s = now_s
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(self._render(), refresh=True)

    def _render(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self._steps, completed=self._step, width=20)
        grid.add_row(bar, Text(self.text(), no_wrap=True, overflow="ellipsis"))
        return grid

    def _print(self, text: str) -> None:
        SHOWN.info(text)
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


def _each_text(values: Mapping[str, float]) -> str:
    """' (pusht 0.12, aloha 0.3)', or nothing."""
    return (
        f" ({', '.join(f'{name} {value:.3g}' for name, value in values.items())})" if values else ""
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | Real)


def _value_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

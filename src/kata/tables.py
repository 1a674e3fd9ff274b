"""Tables of text with aligned columns, for the terminal, for log files and for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table_lines(
    rows: Iterable[Sequence[str]], *, indent: str = "", first_number: int | None = None
) -> list[str]:
    """Return a line of plain text per row. No line is wrapped or cut, however wide the table is.

    Args:
        rows: The cells; a row may lack its last ones.
        indent: The beginning of every line.
        first_number: The first column that ends, not begins, below the others; None for none.
    """
    from rich.console import Console

    cells = [list(row) for row in rows]
    if not cells:
        return []
    # A character takes at most two places on the terminal, and two separate columns.
    width = 0
    for row in cells:
        width += sum(2 * len(cell) + 2 for cell in row)
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(aligned_table(cells, first_number=first_number))
    return [f"{indent}{line}".rstrip() for line in captured.get().splitlines()]


def aligned_table(
    rows: Sequence[Sequence[str]], *, first_number: int | None = None, first_style: str = ""
) -> Table:
    """Return a table without lines around its cells, which folds cells on a narrow terminal.

    Args:
        rows: As for `table_lines`.
        first_number: As for `table_lines`.
        first_style: The style of the first column, such as 'bold'.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for place in range(max(map(len, rows))):
        is_number = first_number is not None and place >= first_number
        table.add_column(
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=place == 0,
            style=first_style if place == 0 else None,
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table

"""Tables keep every character of their cells, aligned, whatever the terminal is."""

import pytest

from kata.tables import table_lines

ROWS = [["name", "size"], ["a [red]b[/]", "12"], ["short"]]


def test_columns_begin_below_each_other_and_cells_stay_what_they_are():
    assert table_lines(ROWS, indent="  ") == [
        "  name         size",
        "  a [red]b[/]  12",
        "  short",
    ]


def test_numbers_end_below_each_other():
    assert table_lines(ROWS, first_number=1) == ["name         size", "a [red]b[/]    12", "short"]


def test_no_rows_are_no_lines():
    assert table_lines([]) == []


def test_a_narrow_terminal_with_colors_neither_cuts_nor_colors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    wide = "word " * 60 + "end"
    assert table_lines([["key", wide], ["é手", "x"]]) == [f"key  {wide}", "é手  x"]

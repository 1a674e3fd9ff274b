"""The help screens of a verb, made from the declarations of its options."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence

from kata.config.decode import encode
from kata.config.option import Declaration, shown
from kata.config.schema import Entry, is_required, kind_text
from kata.errors import ConfigError, closest

FEW = 25
"""Up to this many options a plain --help shows all of a verb."""

_NARROWEST, _WIDEST = 60, 120
_DEFAULT_MAX = 24
"""A longer default is left to --help=<word> and to the reference."""


def selected(listed: Sequence[Entry], query: str) -> list[Entry]:
    """Return the options that a help screen shows.

    Args:
        listed: all of a verb's.
        query: '' for those that people use (all, where none is marked), 'all', or a word.

    Raises: ConfigError for a word that no option has to do with.
    """
    if query == "all":
        return list(listed)
    if not query:
        common = [entry for entry in listed if entry.declared.is_common]
        return common if len(listed) > FEW else list(listed)
    word = query.removeprefix("--").lower()
    found = [e for e in listed if word in e.name.lower() or word in e.declared.help.lower()]
    if not found:
        near = closest(word, [entry.name for entry in listed])
        raise ConfigError(
            f"--help={query}: no option has this word in its name or help",
            rule="--help=<word> lists the options that have to do with it",
            remedy=f"did you mean --help={near[0]}?" if near else "--help=all lists all options",
        )
    return found


def screen(usage: str, says: str, shown_entries: Sequence[Entry], footer: Iterable[str]) -> str:
    """Return a help screen, as wide as the terminal.

    Args:
        usage: the command.
        says: a sentence on what it does.
        shown_entries: the options, in order; those of one section are put together.
        footer: lines at the end.
    """
    width = screen_width()
    bold = _bold if _has_color() else str
    lines = heading(usage, says)
    column = 2 + min(max((len(_left(e)) for e in shown_entries), default=0) + 2, width * 2 // 5)
    sections: dict[str, list[Entry]] = {}
    for entry in shown_entries:
        sections.setdefault(entry.section, []).append(entry)
    for section, members in sections.items():
        lines += ["", bold(section or "options")]
        for entry in members:
            lines += _option_lines(entry, width, column, bold)
    return "\n".join([*lines, *closing(footer)]) + "\n"


def closing(footer: Iterable[str]) -> list[str]:
    """Return the last lines of a screen, after an empty one."""
    width = screen_width()
    below: list[str] = []
    for paragraph in footer:
        below += textwrap.wrap(paragraph, width, break_on_hyphens=False)
    return ["", *below] if below else []


def screen_width() -> int:
    """Return the terminal's width in columns, within what reads well."""
    columns = shutil.get_terminal_size((80, 24)).columns
    return min(max(columns, _NARROWEST), _WIDEST)


def heading(usage: str, says: str) -> list[str]:
    """Return the first lines of a screen: the command, and a sentence on what it does."""
    width = screen_width()
    sentence = says[:1].upper() + says[1:].rstrip(".") + "."
    first = textwrap.wrap(
        f"usage: {usage}", width, subsequent_indent=" " * 7, break_on_hyphens=False
    )
    return [*first, "", *textwrap.wrap(sentence, width)]


def table(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return (name, sentence) rows as lines."""
    lines: list[str] = []
    for name, says in rows:
        wrapped = textwrap.wrap(says, screen_width() - 14)
        lines += [f"  {name:<12}{wrapped[0]}", *(" " * 14 + line for line in wrapped[1:])]
    return lines


def _option_lines(entry: Entry, width: int, column: int, bold: Callable[[str], str]) -> list[str]:
    left, right = _left(entry), describe(entry)
    room = " " * column
    wrapped = textwrap.wrap(right, width - column, break_on_hyphens=False) or [""]
    head = f"  {bold(left)}"
    if len(left) + 4 > column:
        return [head, *(room + line for line in wrapped)]
    first = head + " " * (column - 2 - len(left)) + wrapped[0]
    return [first.rstrip(), *(room + line for line in wrapped[1:])]


def _left(entry: Entry) -> str:
    """Return '--name=<default>', or with the type in place of null and of what is long."""
    default = default_text(entry)
    if default in ("", "null", "{}", "[]") or len(default) > _DEFAULT_MAX:
        default = f"<{kind_text(entry.hint)}>"
    return f"--{entry.name}={default}"


def default_text(entry: Entry) -> str:
    """Return the default as one would write it in a flag, '' for none."""
    return "" if is_required(entry) else shown(encode(entry.default))


def describe(entry: Entry) -> str:
    """Return an option's help with its rules in brackets."""
    declared = entry.declared
    facts = [fact for fact in (_unit(entry), _values(declared)) if fact]
    facts += [f"{sign} {number}" for _, sign, number in declared.bounds()]
    if is_required(entry):
        facts.append("required")
    if declared.aliases:
        facts.append("also " + ", ".join(f"--{alias}" for alias in declared.aliases))
    return f"{declared.help} [{'; '.join(facts)}]" if facts else declared.help


def _unit(entry: Entry) -> str:
    return f"in {entry.declared.unit}" if entry.declared.unit else ""


def _values(declared: Declaration) -> str:
    if declared.choices:
        return " | ".join(map(shown, declared.choices))
    return f"e.g. {declared.form.example}" if declared.form is not None else ""


def _has_color() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m"

"""The reference page of all options, docs/options.md, made from their declarations."""

from __future__ import annotations

from collections.abc import Iterator

from kata.config.help import default_text, describe
from kata.config.schema import EVERYTHING, Entry
from kata.config.verb import Verb

_HEAD = """\
# All options

This page is made from the declarations in the code (`python tools/options_page.py`); a test keeps
it current. `kata <verb> --help` shows the same on the terminal.

An option is written `--name=value`, `--name value` or `name=value`; dashes in a name are
underscores. A value is text, a number, `true` or `false`, `null`, a list `[0,3]` or a mapping
`{a: b}`. The option's type decides what it means: `no`, `1:30` and `0123` stay what they are.

**resume**: a resumed run may set it differently. **machine**: ranks may differ. **kata**: a policy
option that LeRobot does not have.
"""
_DEFAULT_MAX = 40


def options_page(root: Verb) -> str:
    """Return the page in Markdown.

    Args:
        root: the verb `kata`.
    """
    return "\n".join([_HEAD, *_verb_lines(root, "kata", 2)]).rstrip() + "\n"


def _verb_lines(verb: Verb, path: str, level: int) -> Iterator[str]:
    if verb.options:
        yield f"{'#' * level} {path}\n"
        yield f"{verb.says[:1].upper()}{verb.says[1:]}: `{path} {verb.usage}`.\n"
        sections: dict[str, list[Entry]] = {}
        for entry in verb.entries(EVERYTHING):
            sections.setdefault(entry.section, []).append(entry)
        for section, entries in sections.items():
            yield from _table(section, entries)
    for name, below in verb.verbs.items():
        yield from _verb_lines(below, f"{path} {name}", level)


def _table(section: str, entries: list[Entry]) -> Iterator[str]:
    yield f"| {section or 'option'} | default | |"
    yield "|---|---|---|"
    for entry in entries:
        default = default_text(entry)
        if len(default) > _DEFAULT_MAX:
            default = "…"
        elif default:
            default = f"`{default}`"
        text = describe(entry).replace("|", "\\|").replace("<", "\\<")
        yield f"| `--{entry.name}` | {default} | {text}{_marks(entry)} |"
    yield ""


def _marks(entry: Entry) -> str:
    declared = entry.declared
    marks = {
        "resume": declared.may_change,
        "machine": declared.per_machine,
        "kata": declared.is_own,
    }
    return "".join(f" **{mark}**" for mark, is_set in marks.items() if is_set)

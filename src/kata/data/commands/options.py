"""Options of a `kata data` verb: a frozen dataclass whose fields carry their one line of help."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from kata.config import assign, decode, encode, field_names, parse_flags
from kata.data.format.source import Source, locate
from kata.errors import ConfigError

T = TypeVar("T")


def option(default: Any, says: str) -> Any:
    """A field of an options dataclass: its default, and one line for --help."""
    return dataclasses.field(default=default, metadata={"says": says})


@dataclasses.dataclass(frozen=True)
class Place:
    """Which dataset a verb reads."""

    root: str | None = option(None, "the dataset's folder; may also stand first, without a name")
    repo_id: str | None = option(None, "<owner>/<name>: under $HF_LEROBOT_HOME, else on the Hub")
    revision: str | None = option(None, "tag, branch or commit on the Hub")

    def source(self) -> Source:
        """Where the dataset's files are; of one on the Hub only the metadata is fetched.

        Raises: ConfigError when no dataset is given, DataError when it is not found.
        """
        if self.root is None and self.repo_id is None:
            raise ConfigError(
                "no dataset given",
                rule="a folder or a repo_id",
                remedy="add --root=<folder> or --repo_id=<owner>/<name>",
            )
        name = self.repo_id or Path(str(self.root)).expanduser().resolve().name
        return locate(name, self.root, self.revision)


def resolve(cls: type[T], args: Sequence[str], usage: str, *, free: str = "root") -> T | None:
    """The options in `args`, or None after --help was answered.

    What stands before the first flag goes to the option `free`: its first word, or all words where that is a list.

    Raises: ConfigError for an unknown option (with the nearest) or a wrong value.
    """
    if any(arg in ("-h", "--help") for arg in args):
        print(_help(cls, usage), end="")
        return None
    words: list[str] = []
    rest = list(args)
    while rest and not rest[0].startswith("-") and "=" not in rest[0]:
        words.append(rest.pop(0))
    nested: dict[str, Any] = {}
    for name, value in parse_flags(rest).items():
        assign(nested, name, value)
    if words and free in nested:
        raise ConfigError(
            f"{words[0]}: given beside --{free}", rule="once", remedy=f"leave out '{words[0]}'"
        )
    many = "list" in {name: kind for name, kind, _ in field_names(cls)}.get(free, "")
    if len(words) > 1 and not many:
        raise ConfigError(
            f"'{words[1]}' is not an option", rule=f"usage: {usage}", remedy="put '--' in front"
        )
    if words:
        nested[free] = words if many else words[0]
    return decode(cls, nested)


def _help(cls: type, usage: str) -> str:
    says = {field.name: field.metadata.get("says", "") for field in dataclasses.fields(cls)}
    rows = [
        (
            f"--{name}",
            f"{kind} = {default if default == 'required' else json.dumps(encode(default))}",
            says[name],
        )
        for name, kind, default in field_names(cls)
    ]
    wide, middle = (max(len(row[place]) for row in rows) for place in (0, 1))
    return f"usage: {usage}\n\n" + "".join(
        f"  {a:<{wide}}  {b:<{middle}}  {c}".rstrip() + "\n" for a, b, c in rows
    )

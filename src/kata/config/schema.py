"""The options of a class as a flat list, from which help, completion and the reference are made."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kata.config.option import REQUIRED, Chosen, Declaration, Options, declaration, shown

EVERYTHING = {"*": "*"}
"""The choice of all types of all groups."""


def choice_of(chosen: Mapping[str, str], group: str) -> str:
    """Return the type that is chosen for a group: '' for none, '*' for all."""
    return chosen.get(group, chosen.get("*", ""))


@dataclass(frozen=True, slots=True)
class Entry:
    """One option of a verb.

    Attributes:
        name: dotted; `[]` stands for the number of an entry of a list.
        hint: the type.
        default: REQUIRED where there is none.
        declared: help and rules.
        section: the heading that it stands under.
    """

    name: str
    hint: Any
    default: Any
    declared: Declaration
    section: str = ""


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields."""
    return typing.get_type_hints(cls)


def entries(
    cls: type, chosen: Mapping[str, str] | None = None, *, prefix: str = "", section: str = ""
) -> Iterator[Entry]:
    """Yield the options below a class, in order.

    Args:
        cls: a dataclass of options.
        chosen: the chosen `type` by dotted name of the group, as {'policy': 'act'}; see EVERYTHING.
        prefix: stands before every name.
        section: the heading of options that declare none.
    """
    hints = type_hints(cls)
    for name, says in _beside(cls).items():
        declared = Declaration(help=says, is_common=True)
        yield Entry(prefix + name, str, None, declared, section or "run")
    for field in dataclasses.fields(cls):
        declared = declaration(cls, field.name)
        section = declared.section or section
        name, hint = prefix + field.name, hints[field.name]
        group = dataclass_in(hint)
        if group is None:
            yield Entry(name, hint, _default_of(field), declared, section)
            listed = listed_in(hint)
            if listed is not None:
                yield from entries(listed, chosen, prefix=name + "[].", section=section)
            continue
        below: Iterator[Entry] = entries(group, chosen, prefix=name + ".", section=section)
        is_optional = field.default is None
        if issubclass(group, Chosen) and not group.type_name:
            yield _type_entry(group, name, declared, section)
            below = _members(group, name, chosen or {}, section, is_optional=is_optional)
        for entry in below:
            inherited = _inherited(entry, declared)
            is_unknown = is_optional and entry.default is REQUIRED
            yield dataclasses.replace(inherited, default=None) if is_unknown else inherited


def _inherited(entry: Entry, group: Declaration) -> Entry:
    """Return an option with the rules on resuming and ranks of its whole group."""
    declared = dataclasses.replace(
        entry.declared,
        may_change=entry.declared.may_change or group.may_change,
        per_machine=entry.declared.per_machine or group.per_machine,
    )
    return dataclasses.replace(entry, declared=declared)


def _beside(cls: type) -> dict[str, str]:
    return cls.beside if issubclass(cls, Options) else {}


def _type_entry(family: type[Chosen], name: str, declared: Declaration, section: str) -> Entry:
    """Return the option that chooses a member of a family."""
    named = dataclasses.replace(declared, choices=tuple(family.type_names()))
    return Entry(f"{name}.type", str, None, named, section)


def _members(
    family: type[Chosen],
    name: str,
    chosen: Mapping[str, str],
    section: str,
    *,
    is_optional: bool,
) -> Iterator[Entry]:
    """Yield the options that all members share, or those of the chosen member; '*' yields both, of
    all.

    If the group is optional, a preset decides the defaults of shared options, so they are unknown
    here.
    """
    wanted = choice_of(chosen, name)
    shared = {entry.name: entry for entry in entries(family, prefix=f"{name}.", section=section)}
    if wanted in ("", "*"):
        for entry in shared.values():
            yield dataclasses.replace(entry, default=None) if is_optional else entry
    for each in family.type_names() if wanted == "*" else [wanted] * bool(wanted):
        heading = f"--{name}.type={each}"
        for entry in entries(family.type_class(each), chosen, prefix=f"{name}.", section=heading):
            same = shared.get(entry.name) if wanted == "*" else None
            if same is None or same.default != entry.default:
                yield entry


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def is_union(hint: Any) -> bool:
    """Return True for `A | B` and `Optional[A]`."""
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def alternatives(hint: Any) -> list[Any]:
    """Return the types of a union but None, text last; of any other type itself."""
    if not is_union(hint):
        return [hint]
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return sorted(kinds, key=lambda kind: kind is str)


def may_be_null(hint: Any) -> bool:
    """Return True where null is a value of the type."""
    return hint is Any or (is_union(hint) and type(None) in typing.get_args(hint))


def dataclass_in(hint: Any) -> type | None:
    """Return the dataclass inside `X` or `X | None`, else None."""
    for kind in alternatives(hint):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    return None


def listed_in(hint: Any) -> type | None:
    """Return the dataclass inside `list[X]` or `list[X] | None`, else None."""
    for kind in alternatives(hint):
        if typing.get_origin(kind) is list:
            return dataclass_in(typing.get_args(kind)[0])
    return None


_SCALARS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PLURALS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts"}
_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}


def kind_words(hint: Any) -> str:
    """Return a type in words, for a message: 'a list of whole numbers, or text'."""
    return ", or ".join(
        [*map(_kind_words, alternatives(hint)), *(["null"] if may_be_null(hint) else [])]
    )


def _kind_words(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    if origin is list or (origin is tuple and Ellipsis in inner):
        return f"a list of {_PLURALS.get(inner[0], 'entries')}"
    if origin is tuple:
        return (
            f"{_COUNTS.get(len(inner), len(inner))} {_PLURALS.get(inner[0], 'entries')} in a list"
        )
    if origin is dict:
        return f"a mapping {{name: {_kind_words(inner[1])}}}"
    return "a value"


def kind_text(hint: Any) -> str:
    """Return a type in a word, for help: 'int', 'number', 'text', 'list' or 'mapping'."""
    kind = alternatives(hint)[0]
    origin = typing.get_origin(kind) or kind
    if isinstance(origin, type) and issubclass(origin, Enum):
        return "|".join(str(member.value) for member in origin)
    words = {int: "int", float: "number", bool: "true|false", str: "text", dict: "mapping"}
    return {**words, list: "list", tuple: "list"}.get(origin, "value")


def is_required(entry: Entry) -> bool:
    """Return True for an option that has no default."""
    return entry.default is REQUIRED


def flags_of(options: Any) -> list[str]:
    """Return the flags that give an instance of a class of options without families."""
    found: list[str] = []
    for entry in entries(type(options)):
        if "[]" in entry.name:
            continue
        value: Any = options
        for name in entry.name.split("."):
            value = value.__dict__[name]
        if value != entry.default:
            found.append(f"--{entry.name}={shown(value)}")
    return found

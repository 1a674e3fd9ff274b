"""Nested dicts to frozen dataclasses and back. Names are checked here, values by draccus."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from kata.errors import ConfigError, did_you_mean

T = TypeVar("T")


def decode(cls: type[T], raw: Mapping[str, Any], at: str = "") -> T:
    """An instance of the dataclass `cls`. ConfigError for an unknown name (with the nearest) or a wrong type.

    `at` is the dotted name that messages put before the names in `raw`.
    """
    import draccus
    from draccus.utils import DraccusException

    _check_names(cls, raw, (at,) if at else ())
    try:
        return draccus.decode(cls, raw)
    except DraccusException as error:
        cause = error.__cause__ or error.__context__
        while cause is not None:
            if isinstance(cause, ConfigError):
                raise cause from error
            cause = cause.__cause__ or cause.__context__
        raise _bad_value(cls, raw, at, error) from error


def _bad_value(cls: type, raw: Mapping[str, Any], at: str, error: Exception) -> ConfigError:
    """The message for a value that has not its option's type: the dotted name, the value, and the type wanted."""
    from draccus.utils import DecodingError

    path = tuple(error.key_path) if isinstance(error, DecodingError) else ()
    hint: Any = cls
    value: Any = raw
    for name in path:
        inner = _dataclass_in(hint)
        if inner is None or not isinstance(value, Mapping) or name not in value:
            break
        chosen = _choice_of(inner)
        if chosen is not None and "type" in value:
            inner = chosen.get_choice_class(str(value["type"]))
        hint, value = typing.get_type_hints(inner).get(name, hint), value[name]
    dotted = ".".join((at, *path) if at else path)
    if not path or value is raw:
        lines = [line.strip() for line in str(error).replace("`", "").splitlines() if line.strip()]
        where = f"{at}: " if at else ""
        return ConfigError(
            where + " ".join(lines), rule="options have fixed names and types", remedy="see --help"
        )
    return ConfigError(
        f"{dotted}={value}: not a valid value",
        rule=f"the option is of type {_type_text(hint)}",
        remedy=f"leave out --{dotted} for the default, or see --help",
    )


def encode(value: Any) -> Any:
    """Plain JSON values: dataclasses as dicts (`type` first where they are chosen by it), enums by value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        chosen = _choice_of(type(value))
        return {"type": chosen.get_choice_name(type(value)), **plain} if chosen else plain
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(encode(k)): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    return value


def field_names(cls: type, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """(dotted name, type as text, default) of every option below a dataclass, in order; `name[].` for list entries."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        name, hint = prefix + field.name, hints[field.name]
        inner = _dataclass_in(hint)
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if inner is not None and _choice_of(inner) is None:
            yield from field_names(inner, name + ".")
        else:
            yield name, _type_text(hint), "required" if default is dataclasses.MISSING else default
            listed = _listed_in(hint)
            if listed is not None:
                yield from field_names(listed, name + "[].")


def _type_text(hint: Any) -> str:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " | ".join(_type_text(arg) for arg in typing.get_args(hint))
    if hint is type(None):
        return "null"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "/".join(str(member.value) for member in hint)
    if typing.get_args(hint):
        inner = ", ".join(_type_text(arg) for arg in typing.get_args(hint))
        return f"{str(hint).partition('[')[0]}[{inner}]"
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _choice_of(cls: type) -> Any:
    """The class itself when it is chosen by a `type` key, else None."""
    from draccus.choice_types import ChoiceType

    return cls if isinstance(cls, ChoiceType) else None


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass inside `X` or `X | None`, else None."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if union else (hint,)
    found = [o for o in options if isinstance(o, type) and dataclasses.is_dataclass(o)]
    return found[0] if found else None


def _listed_in(hint: Any) -> type | None:
    """The dataclass inside `list[X]` or `list[X] | None`, else None."""
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options: tuple[Any, ...] = typing.get_args(hint) if union else (hint,)
    lists = [option for option in options if typing.get_origin(option) is list]
    return _dataclass_in(typing.get_args(lists[0])[0]) if lists else None


def _check_entries(cls: type, values: list[Any], dotted: str) -> None:
    """Each entry of a list decoded for itself, so that a message names its number."""
    for number, entry in enumerate(values):
        at = f"{dotted}[{number}]"
        if not isinstance(entry, Mapping):
            first = next(f.name for f in dataclasses.fields(cls))
            raise ConfigError(
                f"{at}={entry}: not a group of options",
                rule="each entry has options of its own: "
                + ", ".join(f.name for f in dataclasses.fields(cls)),
                remedy=f"write '- {first}: …'",
            )
        decode(cls, entry, at)


def _check_names(cls: type, raw: Mapping[str, Any], path: tuple[str, ...]) -> None:
    chosen = _choice_of(cls)
    names = dict(raw)
    if chosen is not None:
        known_types = ", ".join(sorted(chosen.get_known_choices()))
        kind = names.pop("type", None)
        if kind is None:
            raise ConfigError(
                f"{'.'.join(path)}: no type",
                rule=f"{'.'.join(path)}.type is one of: {known_types}",
                remedy=f"add --{'.'.join(path)}.type=…",
            )
        cls = chosen.get_choice_class(str(kind))
    hints = typing.get_type_hints(cls)
    known = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    for name, value in names.items():
        dotted = ".".join((*path, str(name)))
        if name not in known:
            where = f" in {'.'.join(path)}" if path else ""
            raise ConfigError(
                f"{dotted}: no such option",
                rule=f"the options{where} have fixed names",
                remedy=did_you_mean(str(name), known),
            )
        listed = _listed_in(known[name])
        if listed is not None and isinstance(value, list):
            _check_entries(listed, value, dotted)
        inner = _dataclass_in(known[name])
        if inner is None:
            continue
        if isinstance(value, Mapping):
            _check_names(inner, value, (*path, str(name)))
        elif value is not None:
            raise ConfigError(
                f"{dotted}={value}: not a group of options",
                rule=f"{dotted} has options of its own, such as "
                + ", ".join(f"{dotted}.{f.name}" for f in dataclasses.fields(inner)[:3]),
                remedy=f"set one of them, e.g. --{dotted}.{dataclasses.fields(inner)[0].name}=…",
            )

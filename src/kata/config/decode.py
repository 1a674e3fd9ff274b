"""Nested dicts to classes of options and back: names checked, texts read as their option's type."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from kata.config.flags import Text, parse_yaml
from kata.config.option import Chosen, Options, declaration, refuse_broken, shown
from kata.config.schema import (
    alternatives,
    dataclass_in,
    entries,
    kind_words,
    listed_in,
    may_be_null,
    type_hints,
)
from kata.errors import ConfigError, closest

T = TypeVar("T")

SWITCH = "enable"
"""The option that switches its group on: the others are refused where it is not named at all."""

_NULL = ("", "~", "null", "Null", "NULL", "None")
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_INT = re.compile(r"[-+]?\d+(_\d+)*")
_FLOAT = re.compile(r"[-+]?(\d+(_\d+)*(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


class _MisfitError(Exception):
    """A value that is not of its option's type."""


def decode(cls: type[T], raw: Mapping[str, Any], at: str = "", *, verb: str = "") -> T:
    """Make an instance of a class of options.

    Args:
        cls: the class; for a family such as PolicyConfig `raw` holds a `type`.
        raw: options by name, nested; texts of flags and YAML files, or values of JSON and Python.
        at: the dotted name that messages put before the names in `raw`.
        verb: the command that takes these options, such as 'kata train', for messages.

    Raises: ConfigError for an unknown name, a missing option, or a value that breaks type or rule.
    """
    return _Decoder(cls, raw, at, verb).group(cls, raw, at)


def refuse_unknown(cls: type, raw: Mapping[str, Any], verb: str) -> None:
    """Refuse a name in `raw` that is no option or group of `cls`, with the nearest."""
    decoder = _Decoder(cls, raw, "", verb)
    known = {field.name for field in dataclasses.fields(cls)}
    for name in raw:
        if name not in known:
            raise decoder.unknown(name)


def decode_value(hint: Any, value: Any, name: str) -> Any:
    """Return one value as its type; see `decode`."""
    return _Decoder(Options, {}, "", "").option(hint, value, name)


class _Decoder:
    """One decoding; it keeps the class and the names that it began with, for messages."""

    def __init__(self, cls: type, raw: Mapping[str, Any], at: str, verb: str) -> None:
        self._root = cls
        self._raw = raw
        self._at = at
        self._verb = verb or "kata <verb>"

    def group(self, cls: Any, raw: Mapping[str, Any], at: str) -> Any:
        """Make an instance of `cls`."""
        given = dict(raw)
        if issubclass(cls, Chosen) and not cls.type_name:
            cls = typing.cast("Any", self._member(cls, given.pop("type", None), at))
        hints = type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(typing.cast("Any", cls))}
        values: dict[str, Any] = {}
        for name, value in given.items():
            dotted = f"{at}.{name}" if at else str(name)
            if name not in fields:
                raise self.unknown(dotted)
            values[str(name)] = decoded = self.option(hints[name], value, dotted)
            refuse_broken(
                declaration(cls, name),
                dotted,
                decoded,
                fields[name].default,
                cls.refused_with if issubclass(cls, Options) else ConfigError,
                written=str(value) if isinstance(value, Text) else "",
            )
        for name, field in fields.items():
            if name not in values and _is_required(field):
                raise _absent(f"{at}.{name}" if at else name, declaration(cls, name).help)
        if values and SWITCH in fields and SWITCH not in values:
            raise ConfigError(
                f"--{at}.{next(iter(values))} without --{at}.{SWITCH}",
                rule=f"the options of {at} have no effect unless {at}.{SWITCH} is true",
                remedy=f"add --{at}.{SWITCH}=true, or leave out --{at}.{next(iter(values))}",
            )
        return cls(**values)

    def _member(self, family: type[Chosen], name: Any, at: str) -> type[Chosen]:
        if name is None:
            raise ConfigError(
                f"{at}.type: not given",
                rule=f"one of: {', '.join(sorted(family.type_names()))}",
                remedy=f"add --{at}.type=…",
            )
        return family.type_class(str(name))

    def option(self, hint: Any, value: Any, dotted: str) -> Any:
        """Return the value of one option."""
        group, listed = dataclass_in(hint), listed_in(hint)
        try:
            if group is not None and not _is_null(hint, value):
                return self._subgroup(group, value, dotted)
            if listed is not None and not _is_null(hint, value):
                return self._list(listed, value, dotted)
            return self._value(hint, value, dotted)
        except _MisfitError as error:
            reason = f" ({error})" if str(error) else ""
            raise ConfigError(
                f"{dotted}={shown(value)}: not a valid value{reason}",
                rule=f"the value is {kind_words(hint)}",
                remedy=f"leave out --{dotted} for the default, or see --help={dotted}",
            ) from error

    def _subgroup(self, cls: type, value: Any, dotted: str) -> Any:
        value = _yaml(value, "{")
        if isinstance(value, Mapping):
            return self.group(cls, typing.cast("Mapping[str, Any]", value), dotted)
        below = [field.name for field in dataclasses.fields(cls)]
        raise ConfigError(
            f"{dotted}={shown(value)}: not a group of options",
            rule=f"{dotted} has options: {', '.join(f'{dotted}.{name}' for name in below[:3])} …",
            remedy=f"set one of them, for example --{dotted}.{below[0]}=…",
        )

    def _list(self, cls: type, value: Any, dotted: str) -> list[Any]:
        """Return groups of options, each decoded for itself, so that a message names its number."""
        value = _yaml(value, "[")
        if not isinstance(value, list):
            raise _MisfitError
        each = typing.cast("list[Any]", value)
        return [self._subgroup(cls, entry, f"{dotted}[{n}]") for n, entry in enumerate(each)]

    def _value(self, hint: Any, value: Any, dotted: str) -> Any:
        """Return a value as the first of the hint's types that it fits."""
        if hint is Any:
            return plain(value)
        if _is_null(hint, value):
            return None
        kinds = alternatives(hint)
        if {str, list[str]} <= set(kinds) and isinstance(_yaml(value, "["), Text):
            # Any text is a list of one, too; a name or a pattern stays a text.
            kinds = [kind for kind in kinds if kind != list[str]]
        for kind in kinds[:-1]:
            try:
                return self._kind(kind, value, dotted)
            except _MisfitError:
                continue
        return self._kind(kinds[-1], value, dotted)

    def _kind(self, kind: Any, value: Any, dotted: str) -> Any:
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._subgroup(kind, value, dotted)
        if origin is dict:
            mapping = _yaml(value, "{")
            if not isinstance(mapping, Mapping):
                raise _MisfitError
            items = typing.cast("Mapping[Any, Any]", mapping).items()
            return {
                str(name): self._value(inner[1], each, f"{dotted}.{name}") for name, each in items
            }
        if origin in (list, tuple):
            return self._sequence(origin, inner, value, dotted)
        return _scalar(kind, value)

    def _sequence(self, origin: Any, inner: tuple[Any, ...], value: Any, dotted: str) -> Any:
        parts: Any = _yaml(value, "[")
        if isinstance(parts, Text):
            # `0,3` is a list of numbers; a text may hold commas and stays one entry.
            parts = (
                [parts] if inner[0] is str else [Text(part) for part in parts.split(",") if parts]
            )
        if not isinstance(parts, list | tuple):
            raise _MisfitError
        fixed = origin is tuple and Ellipsis not in inner
        if fixed and len(parts) != len(inner):
            raise _MisfitError
        kinds = inner if fixed else [inner[0]] * len(parts)
        return origin(
            self._value(kind, part, dotted) for kind, part in zip(kinds, parts, strict=True)
        )

    def unknown(self, dotted: str) -> ConfigError:
        """Return the error for a name that is no option, with the nearest of the root class."""
        root = self._root
        if issubclass(root, Chosen) and not root.type_name:
            root = root.type_class(str(self._raw["type"]))
        known = [each.name for each in entries(root, _types(self._raw))]
        known = [f"{self._at}.{name}" if self._at else name for name in known]
        groups = {name.rpartition(".")[0] for name in known} - {""}
        near = closest(dotted, [*known, *sorted(groups), "help"])
        word = dotted.rpartition(".")[2]
        return ConfigError(
            f"--{dotted}: no such option of {self._verb}",
            rule=f"options have fixed names; `{self._verb} --help=all` lists them",
            remedy=f"did you mean {' or '.join(f'--{each}' for each in near)}?"
            if near
            else f"`{self._verb} --help={word}` lists those that have to do with it",
        )


def _types(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return the chosen `type` of each group that names one."""
    groups = {name: value for name, value in raw.items() if isinstance(value, Mapping)}
    return {name: str(group["type"]) for name, group in groups.items() if "type" in group}


def _absent(dotted: str, says: str) -> ConfigError:
    return ConfigError(
        f"{dotted}: not given",
        rule=says.rstrip(".") or "this option has no default",
        remedy=f"add --{dotted}=…",
    )


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_null(hint: Any, value: Any) -> bool:
    null = value is None or (isinstance(value, Text) and str(value) in _NULL)
    return null and may_be_null(hint)


def _yaml(value: Any, opening: str) -> Any:
    """Parse a text that begins with the bracket; return anything else unchanged."""
    if not isinstance(value, Text) or not value.lstrip().startswith(opening):
        return value
    try:
        return parse_yaml(value)
    except ValueError as error:
        raise _MisfitError(error) from error


def _scalar(kind: Any, value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple) or value is None:
        raise _MisfitError
    if kind is str:
        return _text(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        names = {str(member.value): member for member in kind}
        if str(value) not in names:
            raise _MisfitError
        return names[str(value)]
    readers = {bool: _bool, int: _int, float: _float}
    return readers[kind](value)


def _text(value: Any) -> str:
    if isinstance(value, bool):  # a flag without a value
        raise _MisfitError("no text")
    text = str(value)
    quoted = isinstance(value, Text) and len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]
    return text[1:-1] if quoted else text


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in (*_TRUE, *_FALSE):
        raise _MisfitError
    return word in _TRUE


def _int(value: Any) -> int:
    """Return a whole number; `1e5` and `8.0` are whole, and leading zeros mean nothing."""
    if isinstance(value, bool):
        raise _MisfitError
    text = str(value)
    if _INT.fullmatch(text):
        return int(text)
    number = _float(value)
    if not number.is_integer():
        raise _MisfitError
    return int(number)


def _float(value: Any) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not _FLOAT.fullmatch(str(value)):
        raise _MisfitError
    number = float(value)
    if number in (float("inf"), float("-inf")):
        raise _MisfitError
    return number


def plain(value: Any) -> Any:
    """Return texts as what they look like, without a type: null, true, numbers, else text."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in typing.cast("list[Any]", value)]
    if not isinstance(value, Text):
        return value
    text = str(value)
    if text in _NULL:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[0] in "[{":
        with suppress(_MisfitError):
            return plain(_yaml(value, text[0]))
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else _text(value)


def encode(value: Any) -> Any:
    """Return plain JSON values: dataclasses as dicts with their `type` first, enums by value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {"type": value.type} if isinstance(value, Chosen) else {}
        return {
            **named,
            **{f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)},
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(encode(name)): encode(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    return value

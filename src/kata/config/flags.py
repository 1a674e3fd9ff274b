"""Flags and config files as nested dicts of texts, whose meaning the options' types decide."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kata.errors import ConfigError
from kata.log import redacted


class Text(str):
    """A value as it was written, without quotes around it.

    The type of its option decides what it means, so that `1:30`, `0123`, `no` and dates stay what
    they are. A value that YAML or JSON quotes is a plain `str`.
    """

    __slots__ = ()


def parse_flags(args: Sequence[str]) -> dict[str, Any]:
    """Return `--a.b=c`, `--a.b c` and `a.b=c` as {'a.b': Text('c')}; the last of equal names wins.

    A flag without a value is True, as in `--resume`. Dashes in a name are underscores.

    Raises: ConfigError for anything else, and for a value with a password in it.
    """
    found: dict[str, Any] = {}
    rest = list(args)
    while rest:
        token = rest.pop(0)
        name, equals, text = token.removeprefix("--").partition("=")
        if not equals and token.startswith("--") and rest and not _is_flag(rest[0]):
            equals, text = "=", rest.pop(0)
        if not name or not (token.startswith("--") or equals):
            raise ConfigError(
                f"'{token}' is not an option",
                rule="options are --name=value, --name value or name=value",
                remedy="put '--' in front, or quote a value that holds spaces",
            )
        _refuse_secrets(name, text)
        found[name.replace("-", "_")] = Text(text) if equals else True
    return found


def _refuse_secrets(name: str, text: str) -> None:
    """Refuse credentials: options are written to configs, checkpoints, reports and trackers."""
    if redacted(text) != text:
        raise ConfigError(
            f"{name}: {redacted(text)} holds a password or token",
            rule=(
                "options are written into configs, checkpoints and reports, where credentials "
                "do not belong"
            ),
            remedy=(
                "leave them to the environment (HF_TOKEN, WANDB_API_KEY, …) or to the tool's "
                "own login"
            ),
        )


def _is_flag(token: str) -> bool:
    if token.startswith("--"):
        return True
    name, equals, _ = token.partition("=")
    return bool(equals) and name.replace(".", "").isidentifier()


def parse_yaml(text: str) -> Any:
    """Return what a YAML text holds, its unquoted scalars as `Text`.

    Raises: ValueError for a text that is no YAML, or that names a Python object.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """A loader that leaves the meaning of unquoted scalars open; `<<` still merges."""

        yaml_implicit_resolvers = {  # noqa: RUF012 - the library's own form
            "<": [("tag:yaml.org,2002:merge", yaml.SafeLoader.yaml_implicit_resolvers["<"][0][1])]
        }

    def scalar(loader: Loader, node: yaml.ScalarNode) -> str:
        value = str(loader.construct_scalar(node))
        return Text(value) if node.style is None else value

    Loader.add_constructor("tag:yaml.org,2002:str", scalar)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from error


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON config file, or the train_config.json of a folder.

    Raises: ConfigError for a file that cannot be read or holds no mapping.
    """
    for inner in ("train_config.json", "pretrained_model/train_config.json"):
        if path.is_dir() and (path / inner).is_file():
            path = path / inner
    raw = _parsed(path)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(
            f"config {path}: holds a {type(raw).__name__}",
            rule="a mapping of option names to values",
            remedy="see configs/ for examples",
        )
    nested: dict[str, Any] = {}
    for name, value in raw.items():
        assign(nested, str(name), value)
    return nested


def read_list(path: Path) -> list[Any]:
    """Read a YAML or JSON file that holds a list, for an option that takes one."""
    raw = _parsed(path)
    if not isinstance(raw, list):
        raise ConfigError(
            f"{path}: holds a {type(raw).__name__}",
            rule="a list",
            remedy="begin each entry with '- ' at the margin",
        )
    return raw


def _parsed(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(
            f"config {path}: no such file",
            rule="a .yaml or .json file, or a folder with train_config.json",
            remedy="check the path",
        )
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text) if path.suffix == ".json" else parse_yaml(text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"config {path}: {str(error).splitlines()[0]}",
            rule="valid YAML or JSON, in UTF-8",
            remedy="correct the file",
        ) from error
    for number, line in enumerate(text.splitlines(), start=1):
        _refuse_secrets(f"config {path}, line {number}", line.strip())
    return raw


def assign(nested: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `a.b.c` in a nested dict and make the dicts on the way; a mapping merges into another.

    A text in braces is a mapping as well, so that `--env.kwargs={a: 1} --env.kwargs.b=2` adds up.
    """
    if isinstance(value, Text) and value.startswith("{"):
        with suppress(ValueError):  # who decodes the option says what is wrong with the text
            value = parse_yaml(value)
    *parents, last = dotted.split(".")
    for name in parents:
        inner = nested.get(name)
        if not isinstance(inner, dict):
            inner = nested[name] = {}
        nested = inner
    old = nested.get(last)
    if isinstance(old, dict) and isinstance(value, dict):
        value = overlay(old, value)
    nested[last] = value


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` over `base`, dict by dict, in a copy. Another `type` replaces the whole dict."""
    if "type" in over and over["type"] != base.get("type", over["type"]):
        return copy.deepcopy(dict(over))
    merged = copy.deepcopy(dict(base))
    for name, value in over.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, Mapping):
            merged[name] = overlay(old, value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged

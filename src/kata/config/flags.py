"""Flags and config files as nested dicts. Values are YAML fragments, names are dotted paths, as in LeRobot."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kata.errors import ConfigError
from kata.log import redacted


def parse_flags(args: Sequence[str]) -> dict[str, Any]:
    """`--a.b=c`, `--a.b c` and `a.b=c` as {'a.b': value}; the last of equal names wins.

    A flag without a value is `true`, as in `--resume`. Values: null, true, 1e-4, [0, 3], {'a': 'b'}, plain text.
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
        found[name] = parse_value(text, name) if equals else True
    return found


def _refuse_secrets(name: str, text: str) -> None:
    """Options are written to configs, checkpoints, reports and trackers: no credential may be among them."""
    if redacted(text) != text:
        raise ConfigError(
            f"{name}: {redacted(text)} holds a password or token",
            rule="options are written into configs, checkpoints and reports, where credentials do not belong",
            remedy="leave them to the environment (HF_TOKEN, WANDB_API_KEY, …) or to the tool's own login",
        )


def _is_flag(token: str) -> bool:
    return token.startswith("--") or (
        "=" in token and token.partition("=")[0].replace(".", "").isidentifier()
    )


def parse_value(text: str, name: str) -> Any:
    """A value as YAML reads it; `None` means null, as people write it in Python."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{name}={text}: cannot be read ({str(error).splitlines()[0]})",
            rule="a YAML or JSON value",
            remedy='put the value in single quotes for the shell, e.g. \'{"a": "b"}\'',
        ) from error
    return None if value == "None" else value


def read_config(path: Path) -> dict[str, Any]:
    """A YAML or JSON config file, or the train_config.json of a folder (also one holding `pretrained_model`)."""
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
    """A YAML or JSON file that holds a list, for an option that takes one."""
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
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"config {path}: {str(error).splitlines()[0]}",
            rule="valid YAML or JSON",
            remedy="correct the file",
        ) from error
    for number, line in enumerate(text.splitlines(), start=1):
        _refuse_secrets(f"config {path}, line {number}", line.strip())
    return raw


def assign(nested: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `a.b.c` in a nested dict, making the dicts on the way; a mapping merges into what is there."""
    *parents, last = dotted.split(".")
    for name in parents:
        inner = nested.get(name)
        if not isinstance(inner, dict):
            inner = nested[name] = {}
        nested = inner
    old = nested.get(last)
    if isinstance(old, dict) and isinstance(value, dict):
        value = merge(old, value)
    nested[last] = value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, dict by dict; neither is changed. Another `type` replaces the whole dict."""
    if "type" in over and over["type"] != base.get("type", over["type"]):
        return copy.deepcopy(dict(over))
    merged = copy.deepcopy(dict(base))
    for name, value in over.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, Mapping):
            merged[name] = merge(old, value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged

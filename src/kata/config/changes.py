"""Options of a run that continues: which of them have changed since it began."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kata.config.decode import encode
from kata.config.option import Declaration, Options, names_where, shown
from kata.errors import ConfigError


def refuse_changes(
    before: Options, now: Options, may_change: Callable[[Declaration], bool], rule: str, remedy: str
) -> None:
    """Refuse options that have changed, and may not.

    Args:
        before: those that the run began with.
        now: those that it is to continue with.
        may_change: returns True for the declaration of an option, or of a group, that may.
        rule: of the message.
        remedy: of the message; `{name}` in it becomes the first option that has changed.

    Raises:
        ConfigError: one has changed.
    """
    old, new = flat(encode(before)), flat(encode(now))
    free = names_where(now, may_change)
    differing = [name for name in {*old, *new} if old.get(name) != new.get(name)]
    changed = sorted(name for name in differing if not _is_below(name, free))
    if not changed:
        return
    name = changed[0]
    more = f" (and {len(changed) - 1} more: {', '.join(changed[1:4])})" if changed[1:] else ""
    raise ConfigError(
        f"resume: {name} was {shown(old.get(name))} and is now {shown(new.get(name))}{more}",
        rule=rule,
        remedy=remedy.format(name=name),
    )


def flat(raw: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the options of groups and lists by dotted name."""
    found: dict[str, Any] = {}
    for name, value in raw.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
            for number, each in enumerate(value):
                found |= flat(each, f"{prefix}{name}[{number}].")
        else:
            found[prefix + name] = value
    return found


def _is_below(name: str, groups: Iterable[str]) -> bool:
    """Return True for a dotted name that is among `groups`, or an option of one of them."""
    return any(name == group or name.startswith((f"{group}.", f"{group}[")) for group in groups)

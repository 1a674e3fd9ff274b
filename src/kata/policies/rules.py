"""What options must be, as rules that are looked at one after the other. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kata.errors import PolicyError, did_you_mean

Rule = tuple[bool, str, str, str]
"""(broken, what, rule, remedy)"""


def refuse(rules: Iterable[Rule]) -> None:
    """Raise PolicyError for the first rule that is broken; those after it are not looked at."""
    for broken, what, rule, remedy in rules:
        if broken:
            raise PolicyError(what, rule=rule, remedy=remedy)


def size_rules(config: object, names: Iterable[str]) -> Iterator[Rule]:
    """Options that count something are at least 1."""
    for name in names:
        value: int = getattr(config, name)
        yield (
            value < 1,
            f"policy.{name}={value}",
            "at least 1",
            f"give --policy.{name} a positive number",
        )


def choice_rules(config: object, choices: Mapping[str, tuple[str, ...]]) -> Iterator[Rule]:
    """Options that are chosen by name have a name that is known."""
    for name, known in choices.items():
        value: str = getattr(config, name)
        yield (
            value not in known,
            f"policy.{name}={value}",
            f"one of: {', '.join(known)}",
            did_you_mean(value, known),
        )

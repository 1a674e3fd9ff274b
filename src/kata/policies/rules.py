"""Rules on options, checked one after the other. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable

from kata.errors import PolicyError

Rule = tuple[bool, str, str, str]
"""(broken, what, rule, remedy)"""


def refuse_broken_rules(rules: Iterable[Rule]) -> None:
    """Raise PolicyError for the first rule that is broken; those after it are not looked at."""
    for broken, what, rule, remedy in rules:
        if broken:
            raise PolicyError(what, rule=rule, remedy=remedy)

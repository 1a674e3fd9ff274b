"""Options that a run may not change once it has begun."""

from dataclasses import dataclass, field, replace

import pytest

from kata.config import Options, option
from kata.config.changes import flat, refuse_changes
from kata.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Inner(Options):
    rate: float = option(0.1, "A rate.")
    place: str | None = option(None, "A place.", may_change=True)


@dataclass(frozen=True, kw_only=True)
class Run(Options):
    save: int = option(1, "How often.", may_change=True)
    save_last: bool = option(True, "The last one, too.")
    inner: Inner = field(default_factory=Inner)


def refuse(now):
    refuse_changes(
        Run(), now, lambda declared: declared.may_change, rule="it stays", remedy="not --{name}"
    )


@pytest.mark.parametrize("now", [Run(), Run(save=2), Run(inner=Inner(place="here"))])
def test_what_may_change_changes(now):
    refuse(now)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (Run(save=2, save_last=False), "resume: save_last was true and is now false\n"),
        (Run(inner=Inner(rate=0.2)), "resume: inner.rate was 0.1 and is now 0.2\n"),
        (
            replace(Run(save_last=False), inner=Inner(rate=0.2, place="here")),
            "resume: inner.rate was 0.1 and is now 0.2 (and 1 more: save_last)\n",
        ),
    ],
)
def test_what_decides_numbers_stays(now, told):
    """An option whose name begins like one that may change is another one."""
    with pytest.raises(ConfigError) as found:
        refuse(now)
    assert str(found.value).startswith(told)
    assert f"not --{told.split()[1]}" in str(found.value)


def test_groups_and_lists_of_groups_are_flattened():
    raw = {"a": {"b": 1, "c": {}}, "d": [{"e": 2}, {"e": 3}], "f": [1, 2]}
    assert flat(raw) == {"a.b": 1, "d[0].e": 2, "d[1].e": 3, "f": [1, 2]}

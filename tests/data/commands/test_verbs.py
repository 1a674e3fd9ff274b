"""The table of `kata data` verbs: each one exists, answers --help, and says what is wrong with its options."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import pytest

from kata.cli import main
from kata.data.commands import VERBS, Verb, run_verb
from kata.data.commands.options import option, resolve
from kata.errors import ConfigError

SEEN: list[list[str]] = []


def noted(args: list[str]) -> int:
    SEEN.append(args)
    return 7


@dataclass(frozen=True)
class Options:
    root: str | None = option(None, "where")
    parts: list[str] | None = option(None, "some")
    count: int = option(3, "how many")


def test_a_verb_gets_what_stands_behind_it() -> None:
    verbs = {"note": Verb(f"{__name__}:noted", "takes note")}
    assert run_verb(["note", "--a=1", "b"], verbs) == 7
    assert import_module(__name__).SEEN[-1] == ["--a=1", "b"]


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_lists_every_verb(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *args]) == 0
    said = capsys.readouterr().out
    for name, verb in VERBS.items():
        assert f"  {name} " in said
        assert verb.says in said
    assert "demo" in said


@pytest.mark.parametrize("name", [*VERBS, "demo", "replay"])
def test_every_verb_answers_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: kata data {name} ")


def test_an_unknown_verb_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "dmeo"]) == 2
    assert "did you mean 'demo'?" in capsys.readouterr().err


def test_words_before_the_flags_have_no_name() -> None:
    assert resolve(Options, ["here", "--count=4"], "x") == Options("here", None, 4)
    assert resolve(Options, ["a", "b", "--root=c"], "x", free="parts") == Options("c", ["a", "b"])
    assert resolve(Options, [], "x") == Options()


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["a", "b"], "'b'"),
        (["a", "--root=b"], "beside --root"),
        (["--coutn=1"], "did you mean 'count'?"),
        (["--count=x"], "type int"),
    ],
)
def test_wrong_options_are_named(args: list[str], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(Options, args, "kata data x <folder>")
    assert word in str(caught.value)
    assert caught.value.rule
    assert caught.value.remedy

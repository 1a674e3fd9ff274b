"""The verbs of `kata data`: each one exists, answers --help, and says what is wrong with its
options.
"""

from __future__ import annotations

import pytest

from kata.cli import DATA, main

VERBS = DATA.verbs


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_lists_every_verb(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *args]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, verb in VERBS.items():
        assert f" {name} {verb.says}" in said


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_answers_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: kata data {name} ")


def test_an_unknown_verb_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "dmeo"]) == 2
    assert "did you mean 'demo'?" in capsys.readouterr().err

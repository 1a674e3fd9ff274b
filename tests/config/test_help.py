"""Help of every verb: what it shows, how wide it is, and what `--help=<word>` selects."""

from __future__ import annotations

import pytest

from kata.cli import KATA, main
from kata.config.verb import Verb


def paths(verb: Verb = KATA, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, below in verb.verbs.items():
        found += paths(below, (*path, name))
    return found


def said(capsys, *args: str) -> str:
    assert main(list(args)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_every_verb_answers_help_within_the_terminal(capsys, monkeypatch, path, columns):
    monkeypatch.setenv("COLUMNS", columns)
    text = said(capsys, *path, "--help")
    assert text.startswith(" ".join(["usage: kata", *path]))
    assert "\033" not in text, "a pipe gets no colours"
    assert said(capsys, *path, "-h") == text
    assert max(map(len, text.splitlines())) <= int(columns)


def test_train_shows_what_people_use_and_says_how_to_see_more(capsys):
    text = said(capsys, "train", "--help")
    assert "--batch_size=8" in text
    assert "--policy.type=<text>" in text
    assert "--fsdp.wrap" not in text
    assert "--help=all" in text
    every = said(capsys, "train", "--help=all")
    assert "--fsdp.wrap=units" in every
    assert "--policy.type=vqbet" in every


def test_a_word_selects_the_options_that_have_to_do_with_it(capsys):
    text = said(capsys, "train", "--help=eval_split")
    assert text.count("\n  --") == 1
    assert "held out for validation" in " ".join(text.split())
    assert "--dataset.clip_pool" in said(capsys, "train", "--help=clip")
    assert main(["train", "--help=evl_split"]) == 2
    assert "did you mean --help=dataset.eval_split" in capsys.readouterr().err


def test_a_type_selects_its_options(capsys):
    text = said(capsys, "train", "--policy.type=act", "--help")
    assert "--policy.chunk_size=100" in text
    assert "--batch_size" not in text
    assert "--optimizer.betas=[0.9,0.999]" in said(
        capsys, "train", "--optimizer.type=adamw", "--help"
    )
    assert "--nodes=1" in said(capsys, "launch", "--target=slurm", "--help")
    assert main(["train", "--policy.type=atc", "--help"]) == 2
    assert "did you mean 'act'" in capsys.readouterr().err


def test_help_of_what_stands_behind_two_dashes_is_not_this_verbs(capsys):
    assert main(["launch", "--ranks=1", "--gpus=1", "--", "train", "--help"]) == 2
    assert "usage" not in capsys.readouterr().out


def test_a_terminal_gets_bold_names_unless_it_does_not_want_them(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[1m--episodes=50\033[0m" in said(capsys, "quickstart", "--help")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in said(capsys, "quickstart", "--help")


def test_a_short_help_in_full(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert (
        said(capsys, "doctor", "--help")
        == """\
usage: kata doctor [options]

Check this machine: versions, GPUs, codecs, disk, and faults.

options
  --output_dir=outputs  Folder on the disk whose speed is measured.
  --json=false          Print everything as JSON.

Exit status: 0 nothing is wrong, 1 something is.
"""
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["data", "info", "a", "b"], ("'b' is not an option", "usage: kata data info")),
        (["data", "info", "a", "--root=b"], ("a: given beside --dataset.root", "leave out 'a'")),
        (
            ["data", "info", "--dataset=5"],
            ("dataset=5: not a group of options", "--dataset.repo_id="),
        ),
        (["data", "stats", "--epsodes=3"], ("did you mean --dataset.episodes",)),
        (["data", "demo"], ("kata data demo: no root", "usage: kata data demo <folder>")),
        (["doctor", "now"], ("'now' is not an option",)),
        (["quickstart", "--step=3"], ("did you mean --steps",)),
        (["train", "--chunk_size=3"], ("--chunk_size: no such option of kata train",)),
    ],
)
def test_what_a_verb_does_not_take_is_refused_in_its_own_words(capsys, args, words):
    assert main(args) == 2
    said = capsys.readouterr().err
    for word in (*words, "rule:", "remedy:"):
        assert word in said

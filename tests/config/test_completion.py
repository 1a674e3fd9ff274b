"""Completion answers with this verb's words; the scripts work in the shells that are here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kata.cli import KATA
from kata.config.completion import SCRIPTS, completions


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kata tr", ["train"]),
        ("kata data me", ["merge"]),
        ("kata data ", list(KATA.verbs["data"].verbs)),
        ("kata train --datas", ["--dataset."]),
        ("kata train --dataset.ro", ["--dataset.root="]),
        ("kata train --dataset.root=", []),
        ("kata train --policy.type=d", ["--policy.type=diffusion"]),
        ("kata train --policy.chu", []),
        ("kata train --policy.type=act --policy.chu", ["--policy.chunk_size="]),
        ("kata train --tf32=", ["--tf32=true", "--tf32=false"]),
        ("kata train --policy.device=c", ["--policy.device=cpu", "--policy.device=cuda"]),
        ("kata launch --gpus=2 -- tr", ["train"]),
        ("kata launch --gpus=2 -- train --seed", ["--seed="]),
        ("kata launch --target=slurm --nod", ["--nodes="]),
        ("kata data info da", []),
        ("kata nonsense ", []),
        ("kata completion --shell=z", ["--shell=zsh"]),
    ],
)
def test_words_that_may_stand_at_the_end_of_a_line(line, words):
    assert completions(KATA, line) == words


@pytest.fixture
def command(tmp_path) -> Path:
    """A folder with `kata` in it, for PATH."""
    script = tmp_path / "kata"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kata "$@"\n')
    script.chmod(0o755)
    return tmp_path


def shell(command: Path, *args: str) -> list[str]:
    import os

    env = {**os.environ, "PATH": f"{command}:{os.environ['PATH']}"}
    done = subprocess.run(args, env=env, capture_output=True, text=True, check=True, cwd=command)
    return done.stdout.split()


BASH = """
{script}
COMP_LINE='{line}' COMP_POINT={point} COMP_CWORD=0
_kata
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kata qui", ["quickstart"]),
        ("kata train --dataset.ro", ["--dataset.root="]),
        ("kata train --policy.type=v", ["vqbet"]),
    ],
)
def test_bash_completes(command, line, words):
    script = BASH.format(script=SCRIPTS["bash"], line=line, point=len(line))
    assert shell(command, "bash", "-c", script) == words


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not here")
def test_fish_completes(command):
    script = SCRIPTS["fish"] + "complete -C 'kata train --policy.type=v'"
    assert "--policy.type=vqbet" in shell(command, "fish", "-c", script)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not here")
def test_zsh_completes(command):
    """compadd and compdef belong to zsh's editor; here they print what they are given."""
    script = (
        "compdef() { :; }; compadd() { shift 3; print -l -- $@; }\n"
        + SCRIPTS["zsh"]
        + "words=(kata train --policy.type=v); CURRENT=3; _kata"
    )
    assert shell(command, "zsh", "-fc", script) == ["--policy.type=vqbet"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_script_is_printed(name, capsys):
    from kata.cli import main

    assert main(["completion", name]) == 0
    assert capsys.readouterr().out == SCRIPTS[name]
    assert main(["completion", "tcsh"]) == 2
    assert "one of: bash, zsh, fish" in capsys.readouterr().err

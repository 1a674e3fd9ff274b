"""What lies beside the package for starting runs: example configs, the script, the Dockerfile."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from kata.policies import types_from_recordings
from kata.run import resolve_run

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SCRIPT = ROOT / "scripts" / "train_multi_gpu.sh"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_example_is_a_run(path):
    """As its first line says to start it."""
    first = path.read_text().splitlines()[0]
    command = re.fullmatch(rf"# kata train --config=configs/{path.name} (.*)", first)
    args = [word.replace("<user>/<name>", "a/b") for word in command[1].split()]
    run, _ = resolve_run([f"--config={path}", *args, "--policy.push_to_hub=false"])
    assert run.output_dir


def test_every_policy_has_an_example():
    assert set(types_from_recordings()) <= {path.stem for path in CONFIGS}
    for path in CONFIGS:
        if path.stem in types_from_recordings():
            assert re.search(rf"^  type: {path.stem}$", path.read_text(), re.MULTILINE)


def run_script(tmp_path, *args: str, **env: str) -> subprocess.CompletedProcess:
    stand_in = tmp_path / "kata"
    stand_in.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    stand_in.chmod(0o755)
    environment = {**os.environ, "KATA": str(stand_in), **env}
    return subprocess.run(
        [SCRIPT, *args], env=environment, capture_output=True, text=True, check=True
    )


def test_the_script_launches_all_gpus_or_some_ranks(tmp_path):
    args = ("--config", "configs/run.yaml", "--job_name=my run")
    assert run_script(tmp_path, *args).stdout.splitlines() == ["launch", "--", "train", *args]
    assert run_script(tmp_path, *args, RANKS="2").stdout.splitlines() == [
        "launch",
        "--ranks=2",
        "--",
        "train",
        *args,
    ]
    usage = run_script(tmp_path).stdout
    assert usage.startswith("Trains on all visible GPUs")
    assert usage.rstrip().endswith("not in PATH.")


def test_the_image_installs_what_is_pinned():
    text = (ROOT / "Dockerfile").read_text()
    copied = " ".join(re.findall(r"^COPY (.*)$", text, re.MULTILINE)).split()
    for needed in (
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "LICENSE",
        "src",
        "configs",
        "scripts",
    ):
        assert needed in copied
        assert (ROOT / needed).exists()
        assert f"!{needed}" in (ROOT / ".dockerignore").read_text().splitlines()
    assert "uv pip install --system --no-cache --compile-bytecode --constraint " in text
    assert "--constraint constraints.txt '.[" in text
    extras = re.search(r"'\.\[([\w,]+)\]'", text)[1].split(",")
    offered = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    assert all(re.search(rf"^{extra} = \[", offered, re.MULTILINE) for extra in extras)
    assert "ENTRYPOINT" not in text  # a job's command begins with `kata`

"""A policy of another package: the one that docs/adding_a_policy.md shows, installed beside
kata.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kata import policies
from kata.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_policy.md"


@pytest.fixture
def package(tmp_path) -> Path:
    """A folder to put on Python's path: the package and the record of its entry point."""
    blocks = dict(
        re.findall(r"```python\n# (toy_policy/\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    )
    assert set(blocks) == {"toy_policy/config.py", "toy_policy/model.py"}
    assert sum(len(text.splitlines()) for text in blocks.values()) < 75
    site = tmp_path / "site"
    for name, text in {**blocks, "toy_policy/__init__.py": ""}.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    record = site / "toy_policy-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-policy\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[kata.policies]\ntoy = toy_policy\n")
    return site


def kata(package, *arguments):
    path = os.pathsep.join([str(package), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "kata", *arguments]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=300
    )


def test_a_policy_of_another_package_trains_and_resumes(package, tiny_dataset, tmp_path):
    run = [
        "train", "--policy.type=toy", "--policy.width=8", "--policy.device=cpu", "--policy.push_to_hub=false",  # noqa: E501
        "--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}", f"--output_dir={tmp_path}/run",  # noqa: E501
        "--batch_size=4", "--save_freq=2", "--log_freq=1",
    ]  # fmt: skip
    done = kata(package, *run, "--steps=2")
    assert done.returncode == 0, done.stderr
    done = kata(package, *run, "--steps=4", "--resume=true")
    assert done.returncode == 0, done.stderr
    last = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model"
    assert json.loads((last / "config.json").read_text())["width"] == 8


def test_a_name_that_kata_has_already_is_refused(monkeypatch):
    monkeypatch.setattr(policies, "_outside", lambda: {"act": "somebody.elses"})
    with pytest.raises(ConfigError, match=r"somebody\.elses"):
        policies.config_class("act")

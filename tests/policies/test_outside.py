"""A policy of another package: the one that docs/adding_a_policy.md shows, installed beside
kata.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kata import policies
from kata.cli import main
from kata.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_policy.md"


@pytest.fixture
def package(tmp_path) -> Iterator[Path]:
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
    policies._outside.cache_clear()
    yield site
    policies._outside.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_policy"]:
        del sys.modules[name]


def test_a_policy_of_another_package_trains_and_resumes(
    package, tiny_dataset, tmp_path, monkeypatch, plain_charts
):
    monkeypatch.syspath_prepend(package)
    run = [
        "train", "--policy.type=toy", "--policy.width=8", "--policy.device=cpu", "--policy.push_to_hub=false",  # noqa: E501
        "--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}", f"--output_dir={tmp_path}/run",  # noqa: E501
        "--batch_size=4", "--save_freq=2", "--log_freq=1",
    ]  # fmt: skip
    assert main([*run, "--steps=2"]) == 0
    assert main([*run, "--steps=4", "--resume=true"]) == 0
    last = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model"
    assert json.loads((last / "config.json").read_text())["width"] == 8


def test_a_name_that_kata_has_already_is_refused(monkeypatch):
    monkeypatch.setattr(policies, "_outside", lambda: {"act": "somebody.elses"})
    with pytest.raises(ConfigError, match=r"somebody\.elses"):
        policies.config_class("act")

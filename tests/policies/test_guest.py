"""Guests without LeRobot: they are refused with what to install. tools/peer trains them."""

import importlib.util
import json
import subprocess
import sys

import pytest

from kata.errors import ConfigError
from kata.policies import config_class, lerobot_type, stored_type
from kata.policies.guest import library
from kata.run import read_policy_config, resolve_run

without_lerobot = pytest.mark.skipif(
    importlib.util.find_spec("lerobot") is not None, reason="LeRobot is here"
)


@without_lerobot
def test_a_guest_without_lerobot_says_what_to_install():
    with pytest.raises(ConfigError) as refused:
        resolve_run(["--policy.type=lerobot.act", "--dataset.repo_id=me/data"])
    assert "LeRobot is not installed" in refused.value.what
    assert "pip install 'kata[lerobot]' with Python 3.12" in refused.value.remedy
    assert refused.value.remedy.endswith("or train kata's own: --policy.type=act")


@without_lerobot
def test_a_policy_that_kata_has_not_is_not_offered_as_its_own():
    with pytest.raises(ConfigError) as refused:
        config_class("lerobot.evo1")
    assert "kata's own" not in refused.value.remedy


@without_lerobot
def test_a_checkpoint_of_a_policy_that_kata_lacks_is_a_guest(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"type": "evo1"}))
    with pytest.raises(ConfigError, match=r"lerobot\.evo1: LeRobot is not installed"):
        read_policy_config(tmp_path, [])


def test_an_older_lerobot_is_refused_with_its_version(monkeypatch):
    monkeypatch.setattr(library, "is_installed", lambda: True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.4.3")
    library.config_kind.cache_clear()
    with pytest.raises(ConfigError, match=r"lerobot\.act: LeRobot is 0\.4\.3"):
        library.config_kind("act")


def test_the_names_of_guests_are_those_of_lerobots_folders(tmp_path, monkeypatch):
    for name in ("act", "fastwam", "rtc"):
        folder = tmp_path / "lerobot" / "policies" / name
        folder.mkdir(parents=True)
        (folder / f"configuration_{name}.py").touch()
    (tmp_path / "lerobot" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lerobot", raising=False)
    assert library.guest_names() == ["lerobot.act", "lerobot.fastwam"]
    assert "lerobot" not in sys.modules
    with pytest.raises(ConfigError, match=r"did you mean 'lerobot\.fastwam'"):
        config_class("fastwam")


def test_types_of_checkpoints_and_of_guests():
    assert [stored_type(name) for name in ("act", "evo1", "lerobot.act")] == [
        "act",
        "lerobot.evo1",
        "lerobot.act",
    ]
    assert [lerobot_type(name) for name in ("act", "lerobot.act")] == ["act", "act"]


def test_lerobot_is_imported_for_guests_alone():
    code = (
        "import sys; from kata.run import resolve_run; "
        "resolve_run(['--policy.type=act', '--dataset.repo_id=me/data']); "
        "assert not {'lerobot', 'torch', 'kata.policies.guest.config'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

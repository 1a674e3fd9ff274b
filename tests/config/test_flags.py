import json

import pytest

from kata.config import merge, parse_flags, read_config
from kata.errors import ConfigError


def test_the_three_ways_to_write_a_flag_are_one():
    for args in (["--a.b=1"], ["--a.b", "1"], ["a.b=1"]):
        assert parse_flags(args) == {"a.b": 1}


def test_values_are_yaml_and_none_is_null():
    args = [
        "--x=null",
        "--y=None",
        "--z=[0,3]",
        '--m={"a": "b"}',
        "--t=true",
        "--s=plain text",
        "--e=1e-4",
        "--resume",
    ]
    assert parse_flags(args) == {
        "x": None, "y": None, "z": [0, 3], "m": {"a": "b"}, "t": True, "s": "plain text", "e": "1e-4", "resume": True,
    }  # fmt: skip


def test_the_last_of_equal_flags_wins():
    assert parse_flags(["--a=1", "a=2"]) == {"a": 2}


def test_a_negative_number_may_follow_a_flag():
    assert parse_flags(["--a", "-3"]) == {"a": -3}


@pytest.mark.parametrize("args", [["stray"], ["--"], ["--a=[0,"]])
def test_what_is_no_flag_is_refused_with_the_text(args):
    with pytest.raises(ConfigError) as caught:
        parse_flags(args)
    assert args[0].removeprefix("--").partition("=")[0] in str(caught.value)
    assert caught.value.rule
    assert caught.value.remedy


def test_merging_lays_dicts_over_dicts_and_a_new_type_starts_afresh():
    base = {"o": {"type": "adam", "lr": 1, "eps": 2}, "x": 1}
    assert merge(base, {"o": {"lr": 3}}) == {"o": {"type": "adam", "lr": 3, "eps": 2}, "x": 1}
    assert merge(base, {"o": {"type": "sgd"}})["o"] == {"type": "sgd"}
    assert base["o"]["lr"] == 1


def test_files_of_both_kinds_and_folders_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("policy.type: act\nsteps: 3\n")
    (tmp_path / "train_config.json").write_text(json.dumps({"policy": {"type": "act"}, "steps": 3}))
    want = {"policy": {"type": "act"}, "steps": 3}
    assert read_config(tmp_path / "a.yaml") == read_config(tmp_path) == want


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2", "\x00"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        read_config(tmp_path / "bad.yaml")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "none.yaml")

import json

import pytest

from kata.config import Text, assign, overlay, parse_flags, plain, read_config
from kata.errors import ConfigError


def test_the_three_ways_to_write_a_flag_are_one():
    for args in (["--a.b=1"], ["--a.b", "1"], ["a.b=1"]):
        assert parse_flags(args) == {"a.b": "1"}


def test_a_value_stays_the_text_that_was_typed():
    texts = [
        "null",
        "[0,3]",
        '{"a": "b"}',
        "1:30",
        "0123",
        "1_000",
        "1e3",
        "no",
        "on",
        "2026-11-22",
        "plain text",
        "=",
        "",
    ]
    for text in texts:
        found = parse_flags([f"--x={text}"])["x"]
        assert (found, type(found)) == (text, Text)
    assert parse_flags(["--resume"]) == {"resume": True}


def test_the_last_of_equal_flags_wins_and_dashes_are_underscores():
    assert parse_flags(["--a-b=1", "a_b=2"]) == {"a_b": "2"}


def test_a_negative_number_may_follow_a_flag():
    assert parse_flags(["--a", "-3"]) == {"a": "-3"}


@pytest.mark.parametrize("args", [["stray"], ["--"]])
def test_what_is_no_flag_is_refused_with_the_text(args):
    with pytest.raises(ConfigError) as caught:
        parse_flags(args)
    assert args[0].removeprefix("--").partition("=")[0] in str(caught.value)
    assert caught.value.rule
    assert caught.value.remedy


def test_merging_lays_dicts_over_dicts_and_a_new_type_starts_afresh():
    base = {"o": {"type": "adam", "lr": 1, "eps": 2}, "x": 1}
    assert overlay(base, {"o": {"lr": 3}}) == {
        "o": {"type": "adam", "lr": 3, "eps": 2},
        "x": 1,
    }
    assert overlay(base, {"o": {"type": "sgd"}})["o"] == {"type": "sgd"}
    assert base["o"]["lr"] == 1


def test_a_mapping_and_a_flag_below_it_add_up():
    nested: dict = {}
    for name, value in parse_flags(["--a={x: 1, y: 2}", "--a.y=3", "--b={broken"]).items():
        assign(nested, name, value)
    assert nested == {"a": {"x": "1", "y": "3"}, "b": "{broken"}


def test_without_a_type_texts_are_what_they_look_like():
    want = {
        "null": None,
        "~": None,
        "None": None,
        "true": True,
        "3": 3,
        "-2": -2,
        "1e3": 1000.0,
        "no": "no",
    }
    want |= {
        "1:30": "1:30",
        "2026-11-22": "2026-11-22",
        "[1, a]": [1, "a"],
        "{a: 1}": {"a": 1},
        "'1'": "1",
    }
    for text, value in want.items():
        found = plain(Text(text))
        assert (found, type(found)) == (value, type(value)), text
    assert plain(Text("[1")) == "[1"
    assert plain("1") == "1", "what is quoted in a file is text"


def test_files_of_both_kinds_and_folders_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("policy.type: act\nsteps: 3\nname: '3'\n<<: {seed: 1:30}\n")
    found = read_config(tmp_path / "a.yaml")
    assert found == {"policy": {"type": "act"}, "steps": "3", "name": "3", "seed": "1:30"}
    assert (type(found["steps"]), type(found["name"]), type(found["seed"])) == (Text, str, Text)
    (tmp_path / "train_config.json").write_text(json.dumps({"policy": {"type": "act"}, "steps": 3}))
    assert read_config(tmp_path) == {"policy": {"type": "act"}, "steps": 3}


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2", "\x00"])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        read_config(tmp_path / "bad.yaml")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "none.yaml")

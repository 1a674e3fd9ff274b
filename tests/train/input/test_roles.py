"""A run on columns with other names is the run on the same columns with LeRobot's."""

import json
from pathlib import Path

import pytest

from kata.cli import main
from kata.data import open_dataset
from kata.errors import ConfigError, PolicyError
from kata.run import resolve_run
from kata.spec import ACTION, STATE
from kata.train import train
from kata.train.input.prepare import prepare
from tests.conftest import TINY_ACT
from tests.data.parts_maker import JOINED, in_one, in_parts, in_words
from tests.train.test_train import equal, numbers, weights

CONCAT = f"--dataset.concat={json.dumps(JOINED)}"
OPTIONS = ("--steps=3", "--dataset.eval_split=0.3", "--save_freq=2")


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    home = tmp_path_factory.mktemp("roles")
    return {
        "parts": in_parts(home / "parts"),
        "one": in_one(home / "one"),
        "words": in_words(home / "words", (8, 9)),
    }


@pytest.fixture
def run(tmp_path):
    def resolved(*args, out="run"):
        return resolve_run([*TINY_ACT, f"--output_dir={tmp_path}/{out}", *args])[0]

    return resolved


def of(root: Path) -> tuple[str, str]:
    return "--dataset.repo_id=t/d", f"--dataset.root={root}"


def processors(trained) -> str:
    folder = trained.folder / "checkpoints/last/pretrained_model"
    return (folder / "policy_preprocessor.json").read_text()


def test_a_found_role_is_a_typed_rename(run, roots, tmp_path):
    typed = json.dumps({"actions": ACTION, "state": STATE})
    found = train(run(*of(roots["words"]), *OPTIONS))
    renamed = train(run(*of(roots["words"]), f"--rename_map={typed}", *OPTIONS, out="typed"))
    named = train(run(*of(in_one(tmp_path / "data", (8, 9))), *OPTIONS, out="named"))
    for other in (renamed, named):
        assert equal(weights(found), weights(other))
        assert numbers(found) == numbers(other)
    assert processors(found) == processors(renamed)
    recorded = json.loads((found.folder / "train_config.json").read_text())
    assert recorded["rename_map"] == {"actions": ACTION, "state": STATE}


def test_joined_parts_are_the_column_they_would_have_been(run, roots):
    joined = train(run(*of(roots["parts"]), CONCAT, *OPTIONS))
    one = train(run(*of(roots["one"]), *OPTIONS, out="one"))
    assert equal(weights(joined), weights(one))
    assert numbers(joined) == numbers(one)
    assert processors(joined) == processors(one)


def test_a_mixture_joins_and_names_each_dataset_by_itself(run, roots, tmp_path):
    entries = [
        {"repo_id": "t/parts", "root": str(roots["parts"]), "concat": JOINED},
        {"repo_id": "t/words", "root": str(roots["words"])},
    ]
    named = in_one(tmp_path / "named", (8, 9))
    as_one = [
        {"repo_id": "t/parts", "root": str(roots["one"])},
        {"repo_id": "t/words", "root": str(named)},
    ]
    mixed = train(run(f"--dataset.mix={json.dumps(entries)}", *OPTIONS))
    other = train(run(f"--dataset.mix={json.dumps(as_one)}", *OPTIONS, out="one"))
    assert equal(weights(mixed), weights(other))
    assert numbers(mixed) == numbers(other)


def test_a_mixture_with_found_roles_is_resumed_by_its_own_command(run, roots):
    entries = [{"repo_id": f"t/{n}", "root": str(roots[n])} for n in ("words", "one")]
    options = (f"--dataset.mix={json.dumps(entries)}", *OPTIONS)
    straight = train(run(*options))
    train(run(*options, "--steps=2", out="part"))
    resumed = train(run(*options, "--resume=true", out="part"))
    assert equal(weights(straight), weights(resumed))


def test_the_table_says_what_was_taken_for_what(run, roots, capsys):
    train(run(*of(roots["words"]), "--steps=1"))
    train(run(*of(roots["parts"]), CONCAT, "--steps=1", out="joined"))
    told = " ".join(capsys.readouterr().out.split())
    assert "actions 4 -> policy: action 4, MEAN_STD (found)" in told
    assert "state 4 -> policy: observation.state 4, MEAN_STD (found)" in told
    assert told.count("(found)") == 2
    assert "action = action.joints 3 + action.gripper_close 1" in told


def test_strict_wants_the_names_of_lerobot(run, roots):
    with pytest.raises(PolicyError, match="outputs of ACT: actions"):
        prepare(run(*of(roots["words"]), "--dataset.strict=true"))


def test_parts_are_refused_with_the_option_that_joins_them(run, roots, capsys):
    args = [*TINY_ACT, *of(roots["parts"])]
    assert main(["train", *args]) == 2
    said = capsys.readouterr().err
    start = said.index("--dataset.concat=")
    flag = said[start : said.index("\n", start)].replace("'", "")
    prepared = prepare(run(*of(roots["parts"]), flag))
    assert prepared.run.policy.action.shape == (4,)
    assert '--rename_map=\'{"action.joints": "action"}\'' in said


def test_an_unclear_entry_of_a_mixture_is_named(run, roots):
    entries = [
        {"repo_id": "t/one", "root": str(roots["one"])},
        {"repo_id": "t/parts", "root": str(roots["parts"])},
    ]
    with pytest.raises(ConfigError) as caught:
        prepare(run(f"--dataset.mix={json.dumps(entries)}"))
    assert "in dataset.mix[1]" in caught.value.remedy


def test_info_shows_what_a_run_would_take(roots, capsys):
    assert main(["data", "info", str(roots["words"])]) == 0
    assert "actions -> action (found)" in capsys.readouterr().out
    assert main(["data", "info", str(roots["parts"])]) == 0
    said = capsys.readouterr().out
    assert "--dataset.concat='{" in said
    assert main(["data", "info", str(roots["parts"]), CONCAT]) == 0
    assert "action = action.joints + action.gripper_close" in capsys.readouterr().out
    assert open_dataset("t/p", root=roots["parts"]).columns.keys() >= {"action.joints"}

"""A journal as a dataset: every pixel and number, ends told apart, read back as demonstrations."""

import shutil

import numpy as np
import pytest

from kata.data import Reader, open_dataset
from kata.errors import CheckpointError, DataError
from kata.eval.env_check import Fit
from kata.eval.envs.registry import EnvSpec
from kata.rl.command import export_command
from kata.rl.demos import Demos
from kata.rl.environment import EnvRules
from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.rl.episodes.journal import Journal
from kata.rl.export import DatasetForm, write_dataset
from kata.rl.options import ExportRunOptions
from kata.spec import ACTION, DONE, REWARD, STATE
from tests.rl.test_environment import SCHEMA
from tests.rl.test_trainer import REACH, TOP, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "reach"
    train(folder, *REACH, "--policy.online_step_before_learning=100")
    shapes = {TOP: (64, 64, 3), STATE: (2,)}
    return folder, Journal(folder / "journal", Schema(shapes, (TOP,), 2))


def export(run, target, **more):
    return export_command(ExportRunOptions(run=str(run), output_dir=str(target), **more))


def columns(root, keys):
    dataset = open_dataset("a/b", root=root)
    with Reader(dataset, {}, keys=keys) as reader:
        return dataset, reader.read(np.arange(dataset.num_frames))


def test_a_journal_is_exported_with_every_pixel_and_number(run, tmp_path, capsys):
    folder, journal = run
    assert export(folder, tmp_path / "data") == 0
    assert "2 episodes, 24 frames" in capsys.readouterr().out
    names = ("next.truncated", "next.success", "complementary_info.is_intervention")
    dataset, found = columns(tmp_path / "data", [TOP, STATE, ACTION, REWARD, DONE, *names])
    assert dataset.num_episodes == 2
    played = [journal.read(number) for number in range(2)]
    for key in (TOP, STATE):
        wanted = np.concatenate([each.observations[key][:-1] for each in played])
        assert np.array_equal(found[key], wanted)
    human = np.concatenate([each.intervention for each in played])
    assert human.any()
    assert np.array_equal(found[names[2]].reshape(-1) > 0, human)
    assert np.array_equal(found[ACTION], np.concatenate([each.action for each in played]))
    ends = np.arange(24) % 12 == 11
    assert np.array_equal(found["next.truncated"].reshape(-1), ends)
    assert not found[DONE].any()


def test_exported_episodes_are_demonstrations_again(tmp_path):
    steps = np.arange(5, dtype=np.float32)
    played = PlayedEpisode(
        {STATE: np.stack([steps, -steps], 1)},
        np.full((4, 2), 0.5, np.float32),
        np.array([0, 0, 0, 1], np.float32),
        np.full(4, -0.02, np.float32),
        np.zeros(4, np.bool_),
        terminated=True,
        success=True,
    )
    write_dataset(tmp_path / "data", [played], DatasetForm(10, SCHEMA, "play"))
    dataset, _ = columns(tmp_path / "data", [STATE])
    how = Fit({}, {}, np.full(2, -1, np.float32), np.full(2, 1, np.float32))
    given = Demos(dataset, SCHEMA, EnvRules(EnvSpec("x"), how, "success"), None)
    found = next(given.episodes())
    assert found.terminated
    assert found.success
    for mine, theirs in (
        (found.reward, played.reward),
        (found.action, played.action),
        (found.penalty, played.penalty),
        (found.observations[STATE][:-1], played.observations[STATE][:-1]),
    ):
        assert np.array_equal(mine, theirs)


def test_what_cannot_be_exported_is_refused(run, tmp_path):
    with pytest.raises(DataError, match="none of 2 episodes"):
        export(run[0], tmp_path / "data", which="successes")
    with pytest.raises(DataError, match="exists"):
        export(run[0], run[0])
    with pytest.raises(CheckpointError, match="the folder of a run"):
        export(tmp_path, tmp_path / "data")
    damaged = shutil.copytree(run[0], tmp_path / "damaged", symlinks=True)
    path = damaged / "journal/000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match="content changed"):
        export(damaged, tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged"]
    export(run[0], tmp_path / "human", which="human", frames="h264")
    assert (tmp_path / "human/videos").is_dir()

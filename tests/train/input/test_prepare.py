import dataclasses

import numpy as np
import pytest

from kata.data import open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.format.episode_table import TaskLists
from kata.errors import DataError, PolicyError
from kata.spec import Feature, FeatureType
from kata.train.input.datasets import split_episodes
from kata.train.input.features import fit_features, refuse_missing_tasks, refuse_short_episodes
from kata.train.input.prepare import prepare


@pytest.fixture
def data(tiny_dataset):
    return open_dataset("tests/tiny", root=tiny_dataset)


def test_held_out_episodes_are_whole_per_task_and_spread(data):
    train, held = split_episodes(data, 0.34)
    assert sorted([*train.episodes.index, *held.episodes.index]) == list(range(6))
    assert {tasks[0] for tasks in held.episodes.tasks} == {"reach 0", "reach 1"}
    assert held.episodes.index.tolist() == [2, 3], "the middle episode of each task, not the last"


def test_tasks_shown_once_give_an_episode_together(tmp_path):
    from tests.data import dataset_maker

    root = dataset_maker.make(tmp_path / "set", lengths=[4, 5, 6, 7])
    data = open_dataset("tests/once", root=root)
    tasks = TaskLists.of((f"task {number}",) for number in range(4))
    once = dataclasses.replace(data, layout=dataclasses.replace(data.layout, tasks=tasks))
    train, held = split_episodes(once, 0.25)
    assert (len(train.episodes.index), held.episodes.index.tolist()) == (3, [2])


def test_no_share_holds_out_nothing(data):
    assert split_episodes(data, 0.0)[1] is None


def test_statistics_are_of_the_training_frames_alone(tiny_run):
    prepared = prepare(tiny_run("--dataset.eval_split=0.34"))
    action = prepared.data.train.datasets[0].column("action")
    np.testing.assert_allclose(
        prepared.normalization.stats["action"]["mean"], action.astype(np.float64).mean(0), rtol=1e-6
    )
    whole = prepare(tiny_run())
    assert not np.allclose(
        whole.normalization.stats["action"]["mean"], prepared.normalization.stats["action"]["mean"]
    )


def test_colour_statistics_are_imagenets_unless_refused(tiny_run):
    imagenet = prepare(tiny_run()).normalization.stats["observation.images.top"]
    assert imagenet["mean"].reshape(3).tolist() == [0.485, 0.456, 0.406]
    own = prepare(tiny_run("--dataset.use_imagenet_stats=false")).normalization.stats[
        "observation.images.top"
    ]
    assert not np.allclose(own["mean"], imagenet["mean"])


def test_a_fresh_policy_takes_all_inputs_in_the_datasets_order(data, tiny_run):
    config = fit_features(tiny_run().policy, Mixture.of(data), {})
    assert list(config.input_features) == [
        "observation.images.top",
        "observation.images.wrist",
        "observation.state",
    ]
    assert config.output_features == {"action": Feature(FeatureType.ACTION, (2,))}


def test_a_chosen_camera_is_the_only_one_that_is_read(tiny_run):
    chosen = (
        '--policy.input_features={"observation.images.wrist": {"type": "VISUAL", "shape": [3, 32, '
        "32]}, "
        '"observation.state": {"type": "STATE", "shape": [3]}}'
    )
    assert prepare(tiny_run(chosen)).reading.cameras == ("observation.images.wrist",)


def test_renaming_maps_a_dataset_to_a_policys_names(data, tiny_run):
    rename = {"observation.images.top": "observation.images.front"}
    config = fit_features(tiny_run().policy, Mixture.of(data), rename)
    assert "observation.images.front" in config.input_features
    prepared = prepare(tiny_run("--rename_map={observation.images.top: observation.images.front}"))
    assert "observation.images.front" in prepared.normalization.stats
    assert prepared.reading.cameras == ("observation.images.top", "observation.images.wrist")


def test_two_keys_under_one_name_are_refused(data, tiny_run):
    with pytest.raises(PolicyError, match="one name"):
        fit_features(
            tiny_run().policy,
            Mixture.of(data),
            {"observation.images.top": "observation.images.wrist"},
        )


def test_what_a_dataset_lacks_is_told_with_what_helps_against_it(data, tiny_run):
    has = Mixture.of(data)
    config = fit_features(tiny_run().policy, has, {})
    state = {"observation.state": Feature(FeatureType.STATE, (5,))}
    camera = {"observation.images.side": Feature(FeatureType.VISUAL, (3, 32, 32))}
    sized, named = "another size needs a policy trained from the start", "--rename_map="
    for inputs, words, others in ((state, sized, named), (camera, named, sized)):
        policy = config.with_features(inputs, config.output_features)
        with pytest.raises(PolicyError) as caught:
            fit_features(policy, has, {})
        assert words in caught.value.remedy
        assert others not in caught.value.remedy


def test_episodes_without_a_sentence_are_left_out_unless_that_leaves_none(data):
    def told(*tasks):
        lists = TaskLists.of(tasks)
        return dataclasses.replace(data, layout=dataclasses.replace(data.layout, tasks=lists))

    some = told(("push",), ("",), (), ("push",), ("push",), ("push",))
    with pytest.raises(DataError) as caught:
        refuse_missing_tasks(some)
    expected = "write the sentences into the dataset, or --dataset.exclude_episodes=[1,2]"
    assert caught.value.remedy == expected
    with pytest.raises(DataError) as caught:
        refuse_missing_tasks(told(*[()] * 6))
    assert caught.value.remedy == "write the sentences into the dataset"


def test_episodes_shorter_than_the_policy_needs_are_refused_with_the_remedy(data):
    refuse_short_episodes(data, 11)
    with pytest.raises(DataError) as caught:
        refuse_short_episodes(data, 13)
    assert "episode 0 with 12 frames" in str(caught.value)
    assert caught.value.remedy == "--dataset.exclude_episodes=[0,1]"
    with pytest.raises(DataError) as caught:
        refuse_short_episodes(data, 100)
    assert "exclude" not in caught.value.remedy


def test_dimensions_that_never_change_are_said(tiny_run):
    prepared = prepare(tiny_run("--dataset.episodes=[0,2,4]"))
    assert any("observation.state: dimensions [2]" in note for note in prepared.notes)

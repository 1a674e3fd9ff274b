"""Kept ranges: a dataset of which some frames are left out is the dataset that never had them."""

import json

import numpy as np
import pytest

from kata.config import encode
from kata.config.keep_ranges import read_keep_ranges
from kata.data import Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.loader.provenance import sample_locations
from kata.data.loader.shuffle import Shuffle, make_order
from kata.data.stats.dataset_stats import dataset_stats
from kata.data.writing.dataset_writer import DatasetWriter
from kata.errors import ConfigError, DataError
from kata.run import resolve_run
from kata.spec import ACTION, ENV_STATE, STATE
from kata.train.input.datasets import open_data, split_episodes
from tests.data.small_maker import CAMERA, small

KEEP = {"0": [[2, 7]], "1": [], "2": [[0, 3], [3, 5], [6, 8]]}
PIECES = [(0, 2, 7), (2, 0, 3), (2, 3, 5), (2, 6, 8), (3, 0, 10)]
KEYS = (ENV_STATE, STATE, ACTION)
WINDOWS = {STATE: (-2, 0), ACTION: (0, 1, 2, 3), CAMERA: (-1, 0)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return small(tmp_path_factory.mktemp("keep") / "whole", camera=(CAMERA, 8))


@pytest.fixture(scope="module")
def parts(whole, tmp_path_factory):
    """The kept ranges recorded as episodes of their own."""
    root = tmp_path_factory.mktemp("keep") / "parts"
    data = open_dataset("x/whole", root=whole)
    features = {key: column for key, column in data.columns.items() if key in (*KEYS, CAMERA)}
    with (
        Reader(data, {}) as reader,
        DatasetWriter.create(root, fps=data.fps, features=features) as writer,
    ):
        for episode, first, end in PIECES:
            start = data.episodes.start[episode]
            batch = reader.read(np.arange(start + first, start + end))
            for place in range(end - first):
                frame = {key: batch[key][place] for key in features}
                writer.add_frame(frame, task=batch["task"][place])
            writer.save_episode()
    return root


def kept(root, keep=KEEP, **more):
    return open_dataset("x/whole", root=root, keep_ranges=keep, **more)


def test_batches_are_those_of_a_dataset_recorded_without_these_frames(whole, parts):
    ours, theirs = kept(whole), open_dataset("x/parts", root=parts)
    assert ours.episodes.length.tolist() == theirs.episodes.length.tolist()
    assert ours.episodes.index.tolist() == [0, 2, 2, 2, 3]
    for drop in (0, 1):
        assert np.array_equal(anchor_rows(ours, drop), anchor_rows(theirs, drop))
    batches = []
    for data in (ours, theirs):
        with Reader(data, WINDOWS) as reader:
            batches.append(reader.read(anchor_rows(data)))
    for key in (*KEYS, CAMERA, *(f"{key}_is_pad" for key in WINDOWS), "task"):
        assert np.array_equal(batches[0][key], batches[1][key]), key


def test_clips_of_video_stay_within_kept_ranges(tiny_dataset):
    whole = open_dataset("x/tiny", root=tiny_dataset)
    data = open_dataset("x/tiny", root=tiny_dataset, keep_ranges={"1": [[3, 8], [9, 13]], "4": []})
    camera = "observation.images.top"
    rows = anchor_rows(data)
    shuffle = Shuffle("clips", clip_pool=3, clip_frames=4, clip_gop=2)
    order = make_order([shuffle], Mixture.of(data), {camera: (-1, 0)}, [camera], rows, 7)
    positions = order.at(np.arange(len(rows)))
    assert np.array_equal(np.sort(positions), rows)
    with Reader(data, {camera: (-1, 0)}) as reader, Reader(whole, {}) as plain:
        batch = reader.read(positions)
        recorded = data.opened_rows(positions)
        assert np.array_equal(batch[camera][:, 1], plain.read(recorded)[camera])
        first = np.isin(positions, data.episodes.start)
        assert np.array_equal(batch[f"{camera}_is_pad"][:, 0], first)
        before = np.where(first, recorded, recorded - 1)
        assert np.array_equal(batch[camera][:, 0], plain.read(before)[camera])


def test_statistics_are_those_of_the_kept_frames(whole, parts):
    ours, theirs = dataset_stats(kept(whole)), dataset_stats(open_dataset("x/parts", root=parts))
    for key in (*KEYS, CAMERA):
        for name, value in theirs[key].items():
            # The writer stores camera statistics of its own; ours come from sampled frames.
            near = 1e-6 if key != CAMERA else 0.05
            if key != CAMERA or name in ("mean", "std"):
                np.testing.assert_allclose(ours[key][name], value, atol=near)


def test_messages_name_the_recorded_episode_and_frame(whole):
    data = kept(whole)
    found = sample_locations(
        Mixture.of(data), np.array([0, data.episodes.start[3], data.num_frames - 1])
    )
    assert [(each["episode"], each["frame"]) for each in found] == [(0, 2), (2, 6), (3, 9)]


def test_fingerprints_tell_ranges_apart_and_nothing_else(whole):
    plain = open_dataset("x/whole", root=whole)
    assert kept(whole, {}).fingerprint == plain.fingerprint
    assert kept(whole, {"0": [[0, 9]]}).fingerprint == plain.fingerprint
    found = {kept(whole, {"0": [each]}).fingerprint for each in ([0, 5], [1, 6], [2, 7])}
    assert len(found) == 3
    assert not kept(whole, {"0": [[0, 9]]}).is_cut
    assert kept(whole).notes[-1] == (
        "keep_ranges: 2 of 4 episodes are cut, 1 left out; 22 of 38 frames are read"
    )


def test_a_selection_and_ranges_work_together(whole):
    data = kept(whole, exclude_episodes=[3])
    assert data.episodes.index.tolist() == [0, 2, 2, 2]
    assert data.num_episodes == 2
    cut = data.subset([1, 3])
    assert cut.first_frame.tolist() == [0, 6]
    assert np.array_equal(
        cut.column(STATE)[3:], open_dataset("x/w", root=whole).column(STATE)[26:28]
    )


def test_validation_keeps_the_ranges_of_an_episode_together(whole):
    train, held = split_episodes(kept(whole, {"0": [[0, 4], [5, 9]], "2": [[0, 3], [4, 8]]}), 0.5)
    assert held is not None
    assert train.num_episodes + held.num_episodes == 4
    assert not set(train.episodes.index.tolist()) & set(held.episodes.index.tolist())
    assert train.num_frames + held.num_frames == 8 + 11 + 7 + 10


BAD_FILES = {
    "no JSON": ("{", "valid JSON"),
    "a list": ("[[0, 5]]", "JSON object"),
    "an episode twice": ('{"0": [[0, 1]], "0": [[1, 2]]}', "'0' stands there twice"),
    "a name": ('{"first": [[0, 5]]}', "'first' is no episode"),
    "a number": ('{"0": 5}', "range 5"),
    "one number": ('{"0": [[5]]}', r"range \[5\]"),
    "no frames": ('{"0": [[5, 5]]}', r"range \[5, 5\]"),
    "half a frame": ('{"0": [[0, 1.5]]}', r"range \[0, 1.5\]"),
    "negative": ('{"0": [[-1, 4]]}', r"range \[-1, 4\]"),
    "overlapping": ('{"0": [[0, 5], [4, 8]]}', r"range \[4, 8\] after frame 4"),
    "descending": ('{"0": [[5, 8], [0, 4]]}', r"range \[0, 4\] after frame 7"),
}


@pytest.mark.parametrize(("text", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_refused_with_value_rule_and_remedy(tmp_path, text, said):
    path = tmp_path / "keep.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_keep_ranges(path)
    assert str(path) in caught.value.what
    assert caught.value.rule
    assert caught.value.remedy


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file") as caught:
        read_keep_ranges(tmp_path / "keep.json")
    assert "kata data check" in caught.value.remedy


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ({"7": [[0, 3]]}, "has no episode 7"),
        ({"0": [[0, 10]]}, "kept up to frame 10"),
        ({str(number): [] for number in range(4)}, "leaves all 4 episodes out"),
    ],
)
def test_ranges_of_another_dataset_are_refused(whole, keep, said):
    with pytest.raises(DataError, match=said) as caught:
        kept(whole, keep)
    assert "kata data check" in caught.value.remedy


def test_ranges_of_an_episode_that_is_not_selected_are_allowed(whole):
    assert kept(whole, episodes=[3]).num_frames == 10


def test_a_run_records_what_the_file_says_and_keeps_it(vector_run, tmp_path):
    path = tmp_path / "keep.json"
    path.write_text(json.dumps({"1": [[0, 3]]}))
    run = vector_run(f"--dataset.keep_ranges={path}")
    assert run.dataset.keep_ranges == {"1": [[0, 3]]}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "train_config.json").write_text(json.dumps(encode(run)))
    assert vector_run("--resume=true").dataset.keep_ranges == {"1": [[0, 3]]}
    assert vector_run("--resume=true", f"--dataset.keep_ranges={path}") is not None
    path.write_text(json.dumps({"1": [[0, 2]]}))
    with pytest.raises(ConfigError, match=r"dataset\.keep_ranges\.1"):
        vector_run("--resume=true", f"--dataset.keep_ranges={path}")


def test_each_entry_of_a_mixture_has_its_own_ranges(vector_dataset, tmp_path):
    path = tmp_path / "keep.json"
    path.write_text(json.dumps({"1": [[0, 3]], "2": []}))
    entries = [
        {"repo_id": "x/a", "root": str(vector_dataset), "keep_ranges": str(path)},
        {"repo_id": "x/b", "root": str(small(tmp_path / "b"))},
    ]
    mix = tmp_path / "mix.yaml"
    mix.write_text(json.dumps(entries))
    run = resolve_run([f"--dataset.mix={mix}", "--policy.type=act", "--policy.push_to_hub=false"])[
        0
    ]
    data = open_data(run.dataset)
    assert data.num_frames == 4 + 3 + 4 + 38
    assert data.num_episodes == 3 + 4
    with pytest.raises(ConfigError, match="belongs to one dataset"):
        resolve_run([f"--dataset.mix={mix}", f"--dataset.keep_ranges={path}", "--policy.type=act"])

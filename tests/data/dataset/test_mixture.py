"""Several datasets read as one: every sample is what its own dataset's reader gives, under
common names.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from kata.data import Dataset, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry, vector_names
from kata.data.loader.provenance import sample_locations
from kata.data.sampling.mixture_order import MixtureOrder
from kata.data.stats.dataset_stats import dataset_stats
from kata.data.stats.mixture_stats import joint_stats, part_stats
from kata.errors import DataError
from tests.data.dataset_maker import change_info, features, make
from tests.data.small_maker import CAMERA, small

FRONT = "observation.images.front"
WINDOWS = {"action": (0, 1, 2), "observation.state": (-1, 0)}


def opened(root: Path, **options) -> Dataset:
    return open_dataset(f"tests/{root.name}", root=small(root, **options))


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Dataset, Dataset]:
    """Sizes differ, and only the first has a camera, under another name."""
    home = tmp_path_factory.mktemp("pair")
    first = opened(home / "first", state=3, action=2, camera=(FRONT, 6), lengths=(5, 7))
    return first, opened(home / "second", seed=1, state=5, action=3, lengths=(4, 6, 5))


@pytest.fixture
def mixture(pair) -> Mixture:
    return Mixture(
        (
            MixtureEntry("first", pair[0], 3, {FRONT: CAMERA}),
            MixtureEntry("second", pair[1], 1, fill=True),
        )
    )


def test_each_sample_is_its_own_datasets(mixture, pair):
    rows = np.array([20, 0, 11, 12, 26, 4, 12])
    own = [Reader(data, WINDOWS) for data in pair]
    with Reader(mixture, {**WINDOWS, CAMERA: (-1, 0)}) as reader:
        batch = reader.read(rows)
        assert batch["dataset_index"].tolist() == [1, 0, 0, 1, 1, 0, 1]
        for place, row in enumerate(rows):
            number = int(row >= 12)
            alone = own[number].read(np.array([row - 12 * number]))
            for key in (*WINDOWS, "observation.environment_state"):
                wide, narrow = batch[key][place], alone[key][0]
                np.testing.assert_array_equal(wide[..., : narrow.shape[-1]], narrow)
                assert not wide[..., narrow.shape[-1] :].any()
            for key in ("action_is_pad", "index", "episode_index", "frame_index", "timestamp"):
                np.testing.assert_array_equal(batch[key][place], alone[key][0])
            assert batch["task"][place] == alone["task"][0]
    for reader in own:
        reader.close()


def test_what_is_lacking_is_black_or_zero_and_marked(mixture, pair):
    with (
        Reader(mixture, {CAMERA: (-1, 0)}) as reader,
        Reader(pair[0], {FRONT: (-1, 0)}) as alone,
    ):
        batch = reader.read(np.array([2, 13]))
        np.testing.assert_array_equal(batch[CAMERA][0], alone.read(np.array([2]))[FRONT][0])
        assert batch[CAMERA].shape == (2, 2, 6, 6, 3)
        assert not batch[CAMERA][1].any()
        assert batch[f"{CAMERA}_is_missing"].tolist() == [False, True]
        assert batch["action_dim_is_pad"].tolist() == [[False, False, True], [False, False, False]]
        assert batch["observation.state_dim_is_pad"].sum(1).tolist() == [2, 0]
        assert "observation.environment_state_dim_is_pad" not in batch
        for rows in (np.array([2, 13]), np.array([13]), np.array([0, 20, 2])):
            read, masks = reader.read(rows), reader.masks(rows)
            marks = [
                key for key in read if key.endswith(("_is_pad", "_is_missing", "dataset_index"))
            ]
            assert set(masks) == set(marks)
            assert all(masks[key].tolist() == read[key].tolist() for key in marks)
        # The keys do not depend on which datasets happen to be in a batch.
        assert all(set(reader.read(np.array([row]))) == set(batch) for row in (0, 20))


def test_a_mixture_of_one_reads_what_its_dataset_reads(pair):
    rows = np.array([3, 0, 11])
    with (
        Reader(Mixture((MixtureEntry("one", pair[0]),)), WINDOWS) as mixed,
        Reader(pair[0], WINDOWS) as alone,
    ):
        batch, plain = mixed.read(rows), alone.read(rows)
        pads = {f"{key}_is_pad" for key in WINDOWS}
        assert set(batch) == set(plain) == {*pair[0].columns, *pads, "task"}
        assert set(mixed.masks(rows)) == pads, "nothing tells datasets apart"
        for key, value in plain.items():
            np.testing.assert_array_equal(batch[key], value)
        assert batch["index"].tolist() == pair[0].column("index")[rows].tolist()
        for bad in (-1, pair[0].num_frames):
            with pytest.raises(IndexError):
                mixed.read(np.array([bad]))


def test_a_mixture_of_one_names_its_dataset_nowhere(pair):
    single = Mixture.of(pair[0])
    (part,) = single.parts
    assert (single.repo_id, single.names, single.labels) == ("tests/first", ("tests/first",), ())
    assert (single.labelled(part, "note"), single.key_prefix(part)) == ("note", "")
    assert single.notes == pair[0].notes
    assert "dataset" not in sample_locations(single, np.array([3]))[0]
    np.testing.assert_array_equal(anchor_rows(single, 1), anchor_rows(pair[0], 1))


def test_one_pool_of_threads_serves_all_datasets(mixture):
    with Reader(mixture, {}, threads=2) as reader:
        reader.read(np.arange(27))
        assert len([t for t in threading.enumerate() if t.name.startswith("kata-decode")]) <= 2
    assert not [
        t for t in threading.enumerate() if t.name.startswith(("kata-decode", "kata-mixture"))
    ]


def test_rows_and_episodes_are_numbered_through(mixture, pair):
    assert mixture.num_frames == 27
    assert mixture.episodes.start.tolist() == [0, 5, 12, 16, 22]
    rows = anchor_rows(mixture, 1)
    assert mixture.sizes(rows) == [len(anchor_rows(data, 1)) for data in pair]
    assert mixture.shares(rows).counts == (3, 1)
    unweighted = Mixture(
        tuple(MixtureEntry(p.name, p.dataset, None, p.rename) for p in mixture.parts)
    )
    rows = anchor_rows(unweighted)
    assert unweighted.shares(rows).counts == (4, 5), "12 and 15 samples"
    epoch = MixtureOrder.full(unweighted.sizes(rows), unweighted.shares(rows), 3).at(
        np.arange(len(rows))
    )
    assert sorted(epoch) == list(range(27)), "an epoch of the mixture shows every sample once"


def test_an_episode_in_two_entries_is_refused_and_a_division_is_not(pair):
    first = pair[0]
    with pytest.raises(DataError, match="share 1 episodes, the first is 1"):
        Mixture((MixtureEntry("a", first), MixtureEntry("b", first.subset([1]))))
    assert (
        Mixture(
            (MixtureEntry("a", first.subset([0])), MixtureEntry("b", first.subset([1])))
        ).num_frames
        == first.num_frames
    )


def test_renames_that_do_not_fit_are_refused(pair):
    with pytest.raises(DataError, match="did you mean 'observation\\.state'"):
        Mixture((MixtureEntry("a", pair[0], 1, {"observation.stat": "x"}),))
    with pytest.raises(DataError, match="two keys one name"):
        Mixture((MixtureEntry("a", pair[0], 1, {"observation.state": "action"}),))


def test_joint_statistics_of_a_divided_dataset_are_those_of_the_whole(pair):
    whole = pair[1]
    divided = Mixture(
        (MixtureEntry("a", whole.subset([0, 1])), MixtureEntry("b", whole.subset([2])))
    )
    expected, found = dataset_stats(whole, cameras=False), joint_stats(divided, cameras=False)
    assert set(found) == set(expected)
    for key, summary in expected.items():
        for name, value in summary.items():
            np.testing.assert_array_equal(found[key][name], value, err_msg=f"{key} {name}")


def test_camera_statistics_are_joined_by_frames(tmp_path):
    cameras = [
        opened(tmp_path / str(i), seed=i, camera=(CAMERA, 8), lengths=(6 + i, 5)) for i in range(2)
    ]
    found = joint_stats(
        Mixture(tuple(MixtureEntry(str(i), data) for i, data in enumerate(cameras)))
    )[CAMERA]
    own = [dataset_stats(data)[CAMERA] for data in cameras]
    np.testing.assert_allclose(found["mean"], (own[0]["mean"] * 11 + own[1]["mean"] * 12) / 23)
    assert found["count"].tolist() == [23]


def test_a_dimension_that_only_some_have_is_summed_over_those(mixture, pair):
    joint = joint_stats(mixture, cameras=False)["action"]
    first, second = (data.column("action").astype(np.float64) for data in pair)
    np.testing.assert_allclose(joint["mean"][:2], np.concatenate([first, second[:, :2]]).mean(0))
    np.testing.assert_allclose(joint["q90"][2], np.quantile(second[:, 2], 0.9))
    assert joint["count"].tolist() == [27]


def test_dimensions_that_a_dataset_lacks_stay_zero_when_normalised(mixture, pair):
    joint = joint_stats(mixture)
    for own in (False, True):
        first, second = part_stats(mixture, joint, own=own)
        lacking = {name: value[2:] for name, value in first["action"].items() if name != "count"}
        assert (lacking["mean"], lacking["std"], lacking["min"], lacking["max"]) == (0, 1, -1, 1)
        expected = dataset_stats(pair[0], cameras=False)["action"] if own else joint["action"]
        np.testing.assert_array_equal(first["action"]["mean"][:2], expected["mean"][:2])
        np.testing.assert_array_equal(second[CAMERA]["mean"], joint[CAMERA]["mean"])


def test_a_dimension_is_named_where_all_datasets_that_have_it_agree(tmp_path):
    parts: list[MixtureEntry] = []
    for name, names in (("one", ["x", "y"]), ("two", ["x", "z", "grip"]), ("none", None)):
        shape = [2] if names is None else [len(names)]
        root = make(tmp_path / name, camera="")
        action = {"dtype": "float64", "shape": shape, "names": names}
        change_info(root, features={**features(""), "action": action})
        parts.append(MixtureEntry(name, open_dataset(f"x/{name}", root=root)))
    one, two, none = parts
    assert vector_names(Mixture((one,)), "action") == ("x", "y")
    assert vector_names(Mixture((one, two)), "action") == ("x", "action[1]", "grip")
    assert vector_names(Mixture((one, none)), "action") == ("action[0]", "action[1]")

"""Datasets of every format open with the episodes, columns, tasks and notes that their files
have.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kata.data import Reader, open_dataset
from kata.spec import FeatureType
from tests.data.dataset_maker import CAMERA, GOLDEN, SHARED, change_info, change_table, make

VERSIONS = ("v3.0", "v2.1", "v2.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_format_reads_the_same_frames(tmp_path: Path, version: str) -> None:
    data = open_dataset("x/y", root=make(tmp_path, version=version))
    assert (data.version, data.fps, data.robot_type, data.num_frames) == (version, 10, "made", 16)
    np.testing.assert_array_equal(data.episodes.length, [5, 7, 4])
    np.testing.assert_array_equal(data.episodes.start, [0, 5, 12])
    assert list(data.episodes.tasks) == [("pick",), ("place",), ("pick",)]
    assert data.tasks == ["pick", "place"]
    assert data.notes == []
    base = np.concatenate([100.0 * e + np.arange(n) for e, n in enumerate((5, 7, 4))])
    state = data.column("observation.state")
    assert state.dtype == np.float32
    np.testing.assert_array_equal(state, base[:, None] + [0, 0.25, 0.5])
    np.testing.assert_array_equal(data.column("action"), np.stack([base, -base], axis=1))
    assert data.column("action").dtype == np.float32
    np.testing.assert_array_equal(data.column("grid")[:, 1, 2], base + 5)
    assert data.column("next.done").dtype == np.bool_
    assert data.column("next.done").sum() == 3
    np.testing.assert_array_equal(data.column("index"), np.arange(16))


def test_columns_keep_the_order_of_info_json_and_flat_names(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path))
    declared = list(json.loads((tmp_path / "meta/info.json").read_text())["features"])
    assert list(data.columns) == declared
    assert data.columns["observation.state"].names == ("a", "b", "c")
    assert data.columns["action"].names == ("x", "y")
    assert list(data.cameras) == [CAMERA]
    features = data.features()
    assert features[CAMERA].shape == (3, 32, 48)
    assert features["action"].type is FeatureType.ACTION
    assert "next.reward" not in features


def test_a_list_of_episodes_gives_them_in_file_order(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path), episodes=[2, 0])
    np.testing.assert_array_equal(data.episodes.index, [0, 2])
    np.testing.assert_array_equal(data.episodes.start, [0, 5])
    np.testing.assert_array_equal(data.column("episode_index"), [0] * 5 + [2] * 4)
    left = open_dataset("x/y", root=tmp_path, exclude_episodes=[1])
    np.testing.assert_array_equal(left.episodes.index, [0, 2])
    assert left.fingerprint == data.fingerprint


def test_a_subset_equals_opening_those_episodes(tmp_path: Path) -> None:
    whole = open_dataset("x/y", root=make(tmp_path))
    part, opened = (
        whole.subset([1, 2]).subset([1]),
        open_dataset("x/y", root=tmp_path, episodes=[2]),
    )
    assert part.fingerprint == opened.fingerprint
    np.testing.assert_array_equal(
        part.column("observation.state"), opened.column("observation.state")
    )
    with Reader(part, {}) as one, Reader(opened, {}) as other:
        np.testing.assert_array_equal(
            one.read(np.arange(4))[CAMERA], other.read(np.arange(4))[CAMERA]
        )


def test_fingerprints_are_equal_for_equal_data_only(tmp_path: Path) -> None:
    one = open_dataset("x/y", root=make(tmp_path / "one"))
    same = open_dataset("z/z", root=make(tmp_path / "same"))
    assert one.fingerprint == same.fingerprint
    assert len(one.fingerprint) == 16
    others = [
        one.subset([0, 1]),
        open_dataset("x/y", root=make(tmp_path / "longer", lengths=(5, 7, 5))),
        open_dataset("x/y", root=make(tmp_path / "old", version="v2.1")),
    ]
    change_info(tmp_path / "same", fps=20)
    others.append(open_dataset("x/y", root=tmp_path / "same"))
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_bookkeeping_columns_that_are_missing_are_derived_and_said(tmp_path: Path) -> None:
    make(tmp_path)
    gone = ("frame_index", "index", "timestamp", "episode_index", "task_index")
    whole = open_dataset("x/y", root=tmp_path)
    kept = {key: whole.column(key) for key in gone}
    for path in sorted(tmp_path.glob("data/*/*.parquet")):
        change_table(path, lambda columns: [columns.pop(key) for key in gone])
    data = open_dataset("x/y", root=tmp_path)
    for key in gone:
        np.testing.assert_array_equal(data.column(key), kept[key])
        assert any(key in note for note in data.notes)


def test_what_cannot_be_read_is_left_out_and_said(tmp_path: Path) -> None:
    language = {"dtype": "language", "shape": [1], "names": None}
    depth = {"dtype": "video", "shape": [32, 48, 1], "names": None, "info": {"is_depth_map": True}}
    absent = {"dtype": "video", "shape": [32, 48, 3], "names": None}
    number = {"dtype": "float32", "shape": [4], "names": None}
    extra = {"language_events": language, "depth": depth, "gone": absent, "effort": number}
    make(tmp_path, version="v2.1", extra=extra)
    for path in tmp_path.glob("data/*/*.parquet"):
        change_table(path, lambda columns: columns.update(secret=[1] * len(columns["index"])))
    data = open_dataset("x/y", root=tmp_path)
    assert not set(extra) & set(data.columns)
    for key in (*extra, "secret"):
        assert any(key in note for note in data.notes), key


def test_tasks_come_from_the_episodes_when_their_file_is_absent(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "meta/tasks.parquet").unlink()
    data = open_dataset("x/y", root=tmp_path)
    assert data.tasks == ["pick", "place"]
    assert any("tasks.parquet" in note for note in data.notes)


def test_a_task_file_with_an_unnamed_index_is_read(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "meta/tasks.parquet"
    table = pq.read_table(path)
    pq.write_table(table.rename_columns(["task_index", "__index_level_0__"]), path)
    assert open_dataset("x/y", root=tmp_path).tasks == ["pick", "place"]


def test_strings_are_read_as_lists(tmp_path: Path) -> None:
    make(tmp_path, camera="", extra={"note": {"dtype": "string", "shape": [1], "names": None}})
    for path in tmp_path.glob("data/*/*.parquet"):
        change_table(path, lambda columns: columns.update(note=[f"n{i}" for i in columns["index"]]))
    with Reader(open_dataset("x/y", root=tmp_path), {}) as reader:
        assert reader.read(np.array([15, 0]))["note"] == ["n15", "n0"]


def test_a_dataset_lies_in_the_local_home_of_lerobot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    make(tmp_path / "x" / "y", camera="")
    assert open_dataset("x/y").root == tmp_path / "x" / "y"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is absent")
def test_the_oddities_of_a_v20_recording_read() -> None:
    data = open_dataset("gr00t", root=SHARED / "gr00t-sim-picknplace")
    assert data.num_frames == 2096
    assert list(data.cameras) == ["observation.images.ego_view"]
    assert data.column("observation.state").dtype == np.float32
    np.testing.assert_allclose(data.column("timestamp")[:2], [0.05, 0.1], atol=1e-6)
    np.testing.assert_array_equal(data.column("frame_index")[414:418], [414, 415, 0, 1])
    for word in ("egoview", "frame_index", "chunk-004"):
        assert any(word in note for note in data.notes)
    with Reader(data, {"action": (0, 1)}) as reader:
        assert reader.read(np.array([0, 2095]))["observation.images.ego_view"].shape == (
            2,
            256,
            256,
            3,
        )


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is absent")
def test_a_partial_download_reads_its_available_episodes() -> None:
    data = open_dataset("g1", root=SHARED / "g1-bottle", episodes="available")
    np.testing.assert_array_equal(data.episodes.index, np.arange(10, 20))
    assert data.num_frames == 3608
    assert data.column("index")[0] == 4236


def test_golden_folder_is_small() -> None:
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 600_000

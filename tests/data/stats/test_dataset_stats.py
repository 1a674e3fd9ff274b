"""Statistics describe exactly the selected frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.data import open_dataset
from kata.data.stats.dataset_stats import dataset_stats, sample_rows
from tests.data.dataset_maker import CAMERA, SHARED, change_table, level, make, write_json

KEYS = ["min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"]
LEVELS = (0.01, 0.1, 0.5, 0.9, 0.99)


@pytest.mark.parametrize("episodes", [None, [0, 2]])
def test_vectors_are_exact_over_the_selection(tmp_path: Path, episodes: list[int] | None) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera=""), episodes=episodes)
    stats = dataset_stats(data)
    for key in ("observation.state", "action", "next.reward", "grid"):
        values = data.column(key).astype(np.float64)
        flat = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
        found = stats[key]
        assert list(found) == KEYS
        np.testing.assert_array_equal(found["min"], flat.min(0))
        np.testing.assert_array_equal(found["max"], flat.max(0))
        np.testing.assert_allclose(found["mean"], flat.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found["std"], flat.std(0), rtol=1e-12)
        assert found["count"].tolist() == [data.num_frames]
        for name, q in zip(KEYS[5:], LEVELS, strict=True):
            np.testing.assert_allclose(found[name], np.quantile(flat, q, axis=0), rtol=1e-12)
    assert stats["next.reward"]["mean"].shape == (1,)
    assert stats["grid"]["mean"].shape == (3,)


def camera_levels(data) -> np.ndarray:
    return np.array(
        [
            level(int(e), int(k))
            for e, k in zip(data.column("episode_index"), data.column("frame_index"), strict=True)
        ]
    )


@pytest.mark.parametrize("camera", ["image", "video"])
def test_camera_statistics_without_stored_ones_come_from_sampled_frames(
    tmp_path: Path, camera: str
) -> None:
    data = open_dataset("x/y", root=make(tmp_path, camera=camera), episodes=[1, 2])
    found, expected = dataset_stats(data)[CAMERA], camera_levels(data) / 255
    assert found["mean"].shape == (3, 1, 1)
    assert found["count"].tolist() == [11]
    tolerance = 1e-12 if camera == "image" else 0.01
    np.testing.assert_allclose(found["mean"].ravel(), expected.mean(), atol=tolerance)
    np.testing.assert_allclose(found["std"].ravel(), expected.std(), atol=tolerance)
    np.testing.assert_allclose(found["max"].ravel(), expected.max(), atol=tolerance)
    assert any("evenly spread" in note for note in data.notes)
    assert CAMERA not in dataset_stats(data, cameras=False)


def own(value: float, count: int) -> dict[str, list]:
    stats = {key: [[[value]]] * 3 for key in KEYS if key != "count"}
    return stats | {"count": [count]}


def test_a_whole_dataset_uses_its_own_camera_statistics(tmp_path: Path) -> None:
    write_json(make(tmp_path, camera="image") / "meta/stats.json", {CAMERA: own(0.25, 99)})
    whole = open_dataset("x/y", root=tmp_path)
    assert dataset_stats(whole)[CAMERA]["mean"].ravel().tolist() == [0.25] * 3
    assert whole.notes == []
    part = open_dataset("x/y", root=tmp_path, episodes=[0])
    assert dataset_stats(part)[CAMERA]["count"].tolist() == [5]


def test_stored_statistics_that_lack_figures_are_not_used(tmp_path: Path) -> None:
    stats = own(0.25, 99)
    del stats["q01"]
    write_json(make(tmp_path, camera="image") / "meta/stats.json", {CAMERA: stats})
    assert dataset_stats(open_dataset("x/y", root=tmp_path))[CAMERA]["count"].tolist() == [16]


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_a_subset_joins_the_statistics_of_its_episodes(tmp_path: Path, version: str) -> None:
    make(tmp_path, camera="image", version=version)
    stored = [own(0.2, 10), own(0.9, 20), own(0.5, 30)]
    if version == "v3.0":
        path = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
        columns = {f"stats/{CAMERA}/{name}": [one[name] for one in stored] for name in KEYS}
        change_table(path, lambda table: table.update(columns))
    else:
        lines = [
            json.dumps({"episode_index": e, "stats": {CAMERA: one}}) for e, one in enumerate(stored)
        ]
        (tmp_path / "meta/episodes_stats.jsonl").write_text("\n".join(lines))
    found = dataset_stats(open_dataset("x/y", root=tmp_path, episodes=[0, 2]))[CAMERA]
    mean = (0.2 * 10 + 0.5 * 30) / 40
    spread = (10 * (0.2**2 + (0.2 - mean) ** 2) + 30 * (0.5**2 + (0.5 - mean) ** 2)) / 40
    np.testing.assert_allclose(found["mean"].ravel(), mean)
    np.testing.assert_allclose(found["std"].ravel(), np.sqrt(spread))
    assert found["count"].tolist() == [40]


def test_statistics_of_some_episodes_only_are_not_used(tmp_path: Path) -> None:
    make(tmp_path, camera="image", version="v2.1")
    (tmp_path / "meta/episodes_stats.jsonl").write_text(
        json.dumps({"episode_index": 0, "stats": {CAMERA: own(0.2, 10)}})
    )
    assert dataset_stats(open_dataset("x/y", root=tmp_path, episodes=[0, 2]))[CAMERA][
        "count"
    ].tolist() == [9]
    assert dataset_stats(open_dataset("x/y", root=tmp_path, episodes=[0]))[CAMERA][
        "count"
    ].tolist() == [10]


def test_samples_are_spread_over_all_episodes_and_bounded() -> None:
    rows = sample_rows(np.array([300, 200]))
    assert (rows[0], rows[-1]) == (0, 499)
    assert len(sample_rows(np.full(100, 500))) == 500
    np.testing.assert_array_equal(sample_rows(np.array([5, 3])), np.arange(8))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is absent")
def test_pusht_statistics_equal_the_stored_ones() -> None:
    """LeRobot computes these episode by episode; quantiles are left out because its own are
    averages.
    """
    data = open_dataset("pusht", root=SHARED / "pusht-v30")
    stored, found = json.loads((data.root / "meta/stats.json").read_text()), dataset_stats(data)
    for key in ("observation.state", "action", "next.reward"):
        for name in ("min", "max", "mean", "std"):
            np.testing.assert_allclose(
                found[key][name], stored[key][name], rtol=1e-5, err_msg=f"{key} {name}"
            )
    np.testing.assert_array_equal(
        found["observation.image"]["mean"], stored["observation.image"]["mean"]
    )


def test_parquet_written_as_fixed_size_lists_reads_the_same(tmp_path: Path) -> None:
    expected = open_dataset("x/y", root=make(tmp_path, camera="")).column("observation.state")
    for path in tmp_path.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        fixed = table["observation.state"].cast(pa.list_(pa.float32(), 3))
        pq.write_table(table.set_column(0, "observation.state", fixed), path, row_group_size=3)
    np.testing.assert_array_equal(
        open_dataset("x/y", root=tmp_path).column("observation.state"), expected
    )

"""Converted, merged and split datasets hold every value and frame of their sources, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.data import open_dataset
from kata.data.edit import assemble
from kata.data.edit.assemble import Rules
from kata.data.edit.operations import convert, merge, split
from kata.data.edit.splits import by_fractions, by_task
from kata.data.edit.video_copy import Cuts, refreshes
from kata.data.format import v3
from kata.data.format.feature_stats import STATS, ImageCounts
from tests.data.dataset_maker import CAMERA, TASKS, change_info, change_table, make
from tests.data.edit.made import (
    RULES,
    assert_equal,
    assert_numbered,
    done,
    episode_rows,
    info,
    items,
    joined,
    noisy,
    part,
    videos,
)

CODINGS: list[dict[str, Any]] = [
    {"gop": 1},
    {"gop": 4},
    {"gop": 100},
    {"gop": 5, "b_frames": 2},
    {"gop": 3, "b_frames": 2, "open_gop": True},
    {"gop": 4, "first_pts": 3},
]


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
@pytest.mark.parametrize(
    ("camera", "b_frames"), [("video", 0), ("video", 2), ("image", 0), ("", 0)]
)
def test_a_converted_dataset_has_the_items_of_the_old_one(
    tmp_path: Path, version: str, camera: str, b_frames: int
) -> None:
    root, out = (
        make(tmp_path / "a", version=version, camera=camera, b_frames=b_frames),
        tmp_path / "b",
    )
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    convert(part(root), out, RULES, done, done)
    assert_equal(items(out), items(root))
    assert_numbered(out)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("a", "b")] == []
    assert open_dataset("local/x", root=out).tasks == TASKS


def test_episodes_share_a_file_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "a", version="v2.1", lengths=(6,) * 7)
    size = Cuts(next((root / "videos").rglob("*.mp4")), 10).index.size.sum()
    monkeypatch.setattr(v3, "_MB", 1)
    monkeypatch.setattr(assemble, "CHUNKS_SIZE", 2)
    rules = Rules(data_files_size_in_mb=1, video_files_size_in_mb=int(size * 3.2))
    convert(part(root), tmp_path / "b", rules, done, done)
    found = episode_rows(tmp_path / "b")
    places = [
        (row[f"videos/{CAMERA}/chunk_index"], row[f"videos/{CAMERA}/file_index"]) for row in found
    ]
    assert places == [(0, 0)] * 3 + [(0, 1)] * 3 + [(1, 0)]
    assert [row[f"videos/{CAMERA}/from_timestamp"] for row in found] == [
        0.0,
        0.6,
        1.2,
        0.0,
        0.6,
        1.2,
        0.0,
    ]
    assert [(row["data/chunk_index"], row["data/file_index"]) for row in found] == [
        divmod(e, 2) for e in range(7)
    ]
    assert_equal(items(tmp_path / "b"), items(root))


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("chosen", [[1], [0, 2], [1, 2]])
def test_a_cut_between_keyframes_keeps_every_bit(
    tmp_path: Path, coding: dict[str, Any], chosen: list[int]
) -> None:
    root = noisy(make(tmp_path / "a", per_file=3), per_file=3, **coding)
    split({"": [part(root, episodes=chosen)]}, tmp_path / "b", RULES, done, done)
    assert_equal(items(tmp_path / "b"), items(root, chosen))
    assert_numbered(tmp_path / "b")
    for path in videos(tmp_path / "b"):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert stream.average_rate == 10
            times = sorted(
                packet.pts * stream.time_base for packet in container.demux(stream) if packet.size
            )
        assert (
            times == [k / 10 for k in range(len(times))]
            or max(abs(float(t) - k / 10) for k, t in enumerate(times)) < 1e-4
        )


@pytest.mark.parametrize(
    ("codec", "kinds", "expected"),
    [
        ("h264", [0x67, 0x68, 0x65], True),  # parameters, IDR
        ("h264", [0x06, 0x41], False),  # recovery point, picture that is no IDR
        ("hevc", [19 << 1], True),  # IDR
        ("hevc", [39 << 1, 21 << 1], False),  # SEI, CRA: what leads it may need what was before
        ("libdav1d", [0], True),
    ],
)
def test_only_keyframes_that_reset_the_decoder_begin_a_stretch(
    codec: str, kinds: list[int], expected: bool
) -> None:
    units = [bytes([kind, 1, 2]) for kind in kinds]
    data = b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)
    assert refreshes(codec, b"\x01" + b"\xff" * 30, data) == expected


def test_an_aligned_cut_takes_along_nothing_else(tmp_path: Path) -> None:
    root = noisy(make(tmp_path / "a", per_file=3), per_file=3, gop=1)
    split({"": [part(root, episodes=[1])]}, tmp_path / "b", RULES, done, done)
    old, new = Cuts(videos(root)[0], 10).index, Cuts(videos(tmp_path / "b")[0], 10).index
    assert new.size.tolist() == old.size[5:12].tolist()
    assert episode_rows(tmp_path / "b")[0][f"videos/{CAMERA}/from_timestamp"] == 0.0


def test_merged_datasets_follow_each_other(tmp_path: Path) -> None:
    one, two = make(tmp_path / "a"), make(tmp_path / "b", version="v2.1", lengths=(3, 6))
    change_task(two, {"place": "throw"})
    merge([part(one), part(two)], tmp_path / "c", RULES, done, done)
    assert_equal(items(tmp_path / "c"), joined(items(one), items(two)))
    assert_numbered(tmp_path / "c")
    assert open_dataset("local/x", root=tmp_path / "c").tasks == ["pick", "place", "throw"]
    assert len(videos(tmp_path / "c")) == 1


def change_task(root: Path, names: dict[str, str]) -> None:
    for path in (root / "meta").glob("*.jsonl"):
        text = path.read_text()
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        path.write_text(text)


def test_videos_of_other_coding_get_files_of_their_own(tmp_path: Path) -> None:
    one, two = make(tmp_path / "a"), noisy(make(tmp_path / "b"), gop=4, b_frames=2)
    merge([part(one), part(two)], tmp_path / "c", RULES, done, done)
    assert_equal(items(tmp_path / "c"), joined(items(one), items(two)))
    assert len(videos(tmp_path / "c")) == 2


@pytest.mark.parametrize("camera", ["video", "image"])
def test_merged_splits_are_the_whole(tmp_path: Path, camera: str) -> None:
    root = make(tmp_path / "a", camera=camera, lengths=(5, 7, 4, 6, 3))
    whole = part(root)
    groups = by_fractions("train:0.6,val:0.4", 5, seed=3)
    split(
        {name: [whole.take(chosen)] for name, chosen in groups.items()},
        tmp_path / "b",
        RULES,
        done,
        done,
    )
    merge([part(tmp_path / "b" / name) for name in groups], tmp_path / "c", RULES, done, done)
    order = [position for chosen in groups.values() for position in chosen]
    assert sorted(order) == list(range(5))
    assert_equal(items(tmp_path / "c"), joined(*(items(root, [episode]) for episode in order)))
    assert_numbered(tmp_path / "c")
    merge([whole], tmp_path / "d", RULES, done, done)
    merged, direct = (
        json.loads((tmp_path / name / "meta/stats.json").read_text()) for name in ("c", "d")
    )
    for key in set(direct) - {"index", "episode_index", "task_index"}:
        for stat in STATS:
            np.testing.assert_allclose(
                merged[key][stat], direct[key][stat], rtol=1e-9, atol=1e-12, err_msg=key
            )


def test_statistics_are_those_of_all_values_and_frames(tmp_path: Path) -> None:
    one, two = make(tmp_path / "a"), make(tmp_path / "b", version="v2.0", lengths=(9,))
    merge([part(one), part(two)], tmp_path / "c", RULES, done, done)
    stats, data = json.loads((tmp_path / "c/meta/stats.json").read_text()), items(tmp_path / "c")
    values = data["action"].astype(np.float64)
    for name, q in (
        ("min", 0),
        ("q01", 0.01),
        ("q10", 0.1),
        ("q50", 0.5),
        ("q90", 0.9),
        ("q99", 0.99),
        ("max", 1),
    ):
        np.testing.assert_allclose(
            stats["action"][name], np.quantile(values, q, axis=0), rtol=1e-12
        )
    np.testing.assert_allclose(stats["action"]["std"], values.std(axis=0), rtol=1e-12)
    counts = ImageCounts(3)
    for frame in data[CAMERA]:
        counts.add(frame)
    exact = counts.summary()
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(stats[CAMERA][name], exact[name], rtol=1e-9)
    row = episode_rows(tmp_path / "c")[1]
    assert row["stats/next.done/mean"] == [1 / 7]
    assert row[f"stats/{CAMERA}/count"] == [7]


def test_stored_camera_statistics_are_taken_over(tmp_path: Path) -> None:
    merge([part(make(tmp_path / "a"))], tmp_path / "b", RULES, done, done)
    table = tmp_path / "b/meta/episodes/chunk-000/file-000.parquet"
    change_table(
        table, lambda columns: columns.update({f"stats/{CAMERA}/mean": [[[[0.25]]] * 3] * 3})
    )
    change_table(table, lambda columns: columns.update({f"stats/{CAMERA}/count": [[10**6]] * 3}))
    split({"": [part(tmp_path / "b", exclude=[1])]}, tmp_path / "c", RULES, done, done)
    rows = episode_rows(tmp_path / "c")
    assert [row[f"stats/{CAMERA}/mean"] for row in rows] == [[[[0.25]]] * 3] * 2
    assert [row[f"stats/{CAMERA}/count"] for row in rows] == [
        [5],
        [4],
    ]  # frames, where the source counts pixels


def test_kept_statistics_are_measured_only_where_there_are_none(tmp_path: Path) -> None:
    root, said = make(tmp_path / "a", version="v2.1"), list[str]()
    camera = {"min": 0.0, "max": 1.0, "mean": 0.5, "std": 0.1}
    stats: dict[str, Any] = {
        CAMERA: {name: [[[value]]] * 3 for name, value in camera.items()} | {"count": [4]}
    }
    lines = [json.dumps({"episode_index": e, "stats": stats}) for e in range(2)]
    (root / "meta/episodes_stats.jsonl").write_text("\n".join(lines))
    convert(part(root), tmp_path / "b", Rules(camera_stats="kept"), done, said.append)
    rows = episode_rows(tmp_path / "b")
    assert [row[f"stats/{CAMERA}/q50"] is None for row in rows] == [True, True, False]
    assert rows[0][f"stats/{CAMERA}/mean"] == [[[0.5]]] * 3
    assert any("measured over all frames" in line for line in said)
    convert(part(root), tmp_path / "c", RULES, done, done)
    assert all(row[f"stats/{CAMERA}/q50"] for row in episode_rows(tmp_path / "c"))


def test_each_task_gets_its_episodes(tmp_path: Path) -> None:
    root = make(tmp_path / "a", lengths=(5, 7, 4, 3))
    whole = part(root)
    groups = by_task(whole)
    assert groups == {"0-pick": [0, 2], "1-place": [1, 3]}
    split(
        {name: [whole.take(chosen)] for name, chosen in groups.items()},
        tmp_path / "b",
        RULES,
        done,
        done,
    )
    assert open_dataset("local/x", root=tmp_path / "b/1-place").tasks == ["place"]
    assert_equal(items(tmp_path / "b/1-place"), items(root, [1, 3]))
    assert_numbered(tmp_path / "b/1-place")


def test_shares_depend_on_the_seed_alone_and_cover_everything() -> None:
    first = by_fractions("train:0.8,val:0.1,test:0.1", 50, seed=0)
    assert [len(chosen) for chosen in first.values()] == [40, 5, 5]
    assert sorted(p for chosen in first.values() for p in chosen) == list(range(50))
    assert first == by_fractions("train:0.8,val:0.1,test:0.1", 50, seed=0)
    assert first != by_fractions("train:0.8,val:0.1,test:0.1", 50, seed=1)


def test_custom_columns_texts_and_depth_maps_are_carried_over(tmp_path: Path) -> None:
    depth = {"dtype": "video", "shape": [32, 48, 1], "names": None, "info": {"is_depth_map": True}}
    extra: dict[str, Any] = {
        "note": {"dtype": "string", "shape": [1], "names": None},
        "language_events": {"dtype": "language", "shape": [1], "names": None},
        "observation.depth": depth,
    }
    root = make(tmp_path / "a", extra=extra, per_file=3)
    said = pa.array([[{"role": "user", "content": f"at {k}"}] if k % 3 else [] for k in range(16)])
    data = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(data).append_column("note", pa.array([f"n{k}" for k in range(16)]))
    pq.write_table(table.append_column("language_events", said), data)
    video = videos(root)[0]
    target = root / "videos/observation.depth/chunk-000/file-000.mp4"
    target.parent.mkdir(parents=True)
    target.write_bytes(video.read_bytes())

    def places(columns: dict[str, Any]) -> None:
        for name in [name for name in columns if name.startswith("videos/")]:
            columns[name.replace(CAMERA, "observation.depth")] = columns[name]
        columns["success"] = [True, False, True]

    change_table(root / "meta/episodes/chunk-000/file-000.parquet", places)
    change_info(root, tools=[{"name": "grasp"}], total_frames=16)
    split({"": [part(root, episodes=[1, 2])]}, tmp_path / "b", RULES, done, done)
    out = pq.read_table(tmp_path / "b/data/chunk-000/file-000.parquet")
    assert out["language_events"].to_pylist() == said.to_pylist()[5:]
    assert out["note"].to_pylist() == [f"n{k}" for k in range(5, 16)]
    found = info(tmp_path / "b")
    assert found["tools"] == [{"name": "grasp"}]
    assert found["features"]["observation.depth"]["info"]["is_depth_map"]
    assert found["features"]["observation.depth"]["shape"] == [32, 48, 1]
    assert [row["success"] for row in episode_rows(tmp_path / "b")] == [False, True]
    assert (
        videos(tmp_path / "b", "observation.depth")[0].read_bytes()
        == videos(tmp_path / "b")[0].read_bytes()
    )


def test_times_that_are_off_the_grid_are_made_anew_and_said(tmp_path: Path) -> None:
    root, said = make(tmp_path / "a", version="v2.0"), list[str]()
    for path in sorted((root / "data").rglob("*.parquet")):
        change_table(
            path, lambda columns: columns.update(timestamp=[t + 0.05 for t in columns["timestamp"]])
        )
    convert(part(root), tmp_path / "b", RULES, done, said.append)
    assert_numbered(tmp_path / "b")
    assert any("time stamps" in line for line in said)

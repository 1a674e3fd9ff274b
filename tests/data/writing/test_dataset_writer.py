"""What it writes reads back equal, a kill loses no saved episode, what does not fit is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from kata.data import Reader, open_dataset
from kata.data.format.feature_stats import ImageCounts, merge_summaries, summarise
from kata.data.video.encoder import ENCODERS
from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.errors import DataError
from kata.spec import Column

TOP, WRIST = "observation.images.top", "observation.images.wrist"
FEATURES = {
    "observation.state": Column("float32", (3,), ("a", "b", "c")),
    TOP: Column("video", (32, 48, 3)),
    WRIST: Column("image", (8, 10, 3)),
    "action": Column("float32", (2,)),
    "matrix": Column("float64", (2, 3)),
    "count": Column("int64", (1,)),
    "next.done": Column("bool", (1,)),
    "note": Column("string", (1,)),
}
LENGTHS = (5, 1, 7)
CODECS = ("av1", "h264")  # hevc takes no frames as small as these
TASKS = ("push", "pull", "push")
SMALL = {"observation.state": Column("float32", (2,))}


def frame(episode: int, number: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng([episode, number])
    return {
        "observation.state": rng.normal(size=3).astype(np.float32),
        TOP: np.full((32, 48, 3), 20 + 60 * episode + 9 * number, np.uint8),
        WRIST: rng.integers(0, 256, (8, 10, 3), dtype=np.uint8),
        "action": rng.normal(size=2).astype(np.float32),
        "matrix": rng.normal(size=(2, 3)),
        "count": 10 * episode + number,
        "next.done": number == length - 1,
        "note": f"frame {number}",
    }


def all_frames() -> list[dict[str, Any]]:
    return [frame(e, k, n) for e, n in enumerate(LENGTHS) for k in range(n)]


def fill(writer: DatasetWriter, flush_after: int | None = None) -> None:
    for episode, length in enumerate(LENGTHS):
        for number in range(length):
            writer.add_frame(frame(episode, number, length), TASKS[episode])
        writer.save_episode()
        if episode == flush_after:
            writer.flush()


def new(root: Path, **options: Any) -> DatasetWriter:
    return DatasetWriter.create(
        root, **{"fps": 10, "features": FEATURES, "robot_type": "toy"} | options
    )


def add_small(writer: DatasetWriter, count: int) -> None:
    for episode in range(count):
        writer.add_frame({"observation.state": [episode, 1.5]}, "push")
        writer.save_episode()


def episode_rows(root: Path) -> list[dict[str, Any]]:
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    return [row for path in files for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("flush_after", [None, 1])
def test_what_was_written_reads_back_equal(
    tmp_path: Path, codec: str, flush_after: int | None
) -> None:
    with new(tmp_path / "set", video=VideoOptions(codec=codec)) as writer:
        fill(writer, flush_after)
    data = open_dataset("local/set", root=tmp_path / "set")
    assert data.episodes.length.tolist() == list(LENGTHS)
    assert [data.episodes.tasks[k] for k in range(3)] == [(task,) for task in TASKS]
    with Reader(data, {}) as reader:
        batch = reader.read(np.arange(sum(LENGTHS)))
    for key in ("observation.state", "action", "matrix", WRIST, "count", "next.done", "note"):
        expected = np.array([given[key] for given in all_frames()])
        np.testing.assert_array_equal(
            np.array(batch[key]), expected.astype(np.array(batch[key]).dtype)
        )
    shown = np.array([given[TOP] for given in all_frames()])
    assert np.abs(batch[TOP].astype(int) - shown).max() <= 4
    assert batch["frame_index"].tolist() == [k for n in LENGTHS for k in range(n)]
    assert batch["index"].tolist() == list(range(sum(LENGTHS)))
    assert batch["task"] == [task for task, n in zip(TASKS, LENGTHS, strict=True) for _ in range(n)]


@pytest.mark.parametrize("codec", CODECS)
def test_joined_videos_have_gapless_times_and_a_keyframe_at_every_episode(
    tmp_path: Path, codec: str
) -> None:
    with new(tmp_path / "set", video=VideoOptions(codec=codec, gop=3)) as writer:
        fill(writer)
    path = tmp_path / "set" / f"videos/{TOP}/chunk-000/file-000.mp4"
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        assert stream.average_rate == 10
    assert stream.time_base is not None
    assert [float(packet.pts * stream.time_base) for packet in packets] == [
        k / 10 for k in range(sum(LENGTHS))
    ]
    keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
    assert keys == [0, 3, 5, 6, 9, 12]
    head = path.read_bytes()
    assert head.index(b"moov") < head.index(b"mdat")


def test_info_and_tables_follow_the_format(tmp_path: Path) -> None:
    root = tmp_path / "set"
    with new(root) as writer:
        fill(writer)
    info = json.loads((root / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 13, 2)
    assert info["splits"] == {"train": "0:3"}
    assert list(info["features"])[-5:] == [
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    ]
    camera = info["features"][TOP]
    assert camera["names"] == ["height", "width", "channels"]
    assert {"video.fps": 10, "video.g": 2, "video.crf": 30, "video.codec": "av1"}.items() <= camera[
        "info"
    ].items()
    file = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    assert file.metadata.num_row_groups == 3
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
    viewer = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    assert viewer[WRIST] == {"_type": "Image"}
    assert TOP not in viewer
    tasks = pq.read_table(root / "meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    row = episode_rows(root)[2]
    assert (row["dataset_from_index"], row["dataset_to_index"], row["length"]) == (6, 13, 7)
    assert (row[f"videos/{TOP}/from_timestamp"], row[f"videos/{TOP}/to_timestamp"]) == (0.6, 1.3)
    assert np.shape(row[f"stats/{WRIST}/q50"]) == (3, 1, 1)
    assert not (root / ".recording").exists()


def test_statistics_equal_numpys_over_all_frames(tmp_path: Path) -> None:
    root = tmp_path / "set"
    with new(root) as writer:
        fill(writer, flush_after=1)
    stats = json.loads((root / "meta/stats.json").read_text())
    state = np.array([given["observation.state"] for given in all_frames()], np.float64)
    np.testing.assert_allclose(stats["observation.state"]["std"], state.std(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        stats["observation.state"]["q10"], np.quantile(state, 0.1, axis=0), rtol=1e-12
    )
    matrix = np.array([given["matrix"] for given in all_frames()]).reshape(-1, 3)
    np.testing.assert_allclose(stats["matrix"]["mean"], matrix.mean(axis=0), rtol=1e-12)
    assert stats["matrix"]["count"] == [13]
    pixels = np.array([given[WRIST] for given in all_frames()]).reshape(-1, 3) / 255
    np.testing.assert_allclose(np.ravel(stats[WRIST]["mean"]), pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(np.ravel(stats[WRIST]["std"]), pixels.std(axis=0), rtol=1e-12)
    assert "note" not in stats


def test_the_statistics_of_pictures_are_exact() -> None:
    frames = np.random.default_rng(0).integers(3, 250, (4, 6, 7, 3), dtype=np.uint8)
    counts = ImageCounts(3)
    for picture in frames:
        counts.add(picture)
    found, pixels = counts.summary(), frames.reshape(-1, 3) / 255
    for name, q in {"min": 0, "q01": 0.01, "q50": 0.5, "q99": 0.99, "max": 1}.items():
        np.testing.assert_allclose(found[name].ravel(), np.quantile(pixels, q, axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["std"].ravel(), pixels.std(axis=0), rtol=1e-12)
    assert found["count"].tolist() == [4]


def test_merged_statistics_equal_those_of_all_values_at_once() -> None:
    values = np.random.default_rng(1).normal(size=(20, 2)) + 1e3
    merged, whole = (
        merge_summaries([summarise(values[:3]), summarise(values[3:])]),
        summarise(values),
    )
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(merged[name], whole[name], rtol=1e-9)


def test_a_file_is_left_before_it_outgrows_its_limit(tmp_path: Path) -> None:
    root = tmp_path / "set"
    features = {TOP: Column("image", (320, 320, 3))}  # noise does not compress: 0.3 MB an episode
    rng = np.random.default_rng(0)
    with DatasetWriter.create(
        root, fps=5, features=features, data_files_size_in_mb=1, chunks_size=2
    ) as writer:
        for _ in range(7):
            writer.add_frame({TOP: rng.integers(0, 256, (320, 320, 3), dtype=np.uint8)}, "push")
            writer.save_episode()
    places = [(row["data/chunk_index"], row["data/file_index"]) for row in episode_rows(root)]
    assert places == [(0, 0)] * 3 + [(0, 1)] * 3 + [(1, 0)]
    assert open_dataset("local/set", root=root).column("index").tolist() == list(range(7))


def test_resume_appends_to_a_closed_dataset(tmp_path: Path) -> None:
    root = tmp_path / "set"
    with new(root) as writer:
        fill(writer)
    with DatasetWriter.resume(root) as writer:
        fill(writer)
    data = open_dataset("local/set", root=root)
    assert data.num_frames == 2 * sum(LENGTHS)
    with Reader(data, {}) as reader:
        batch = reader.read(np.arange(data.num_frames))
    np.testing.assert_array_equal(batch[TOP][:13], batch[TOP][13:])
    assert json.loads((root / "meta/stats.json").read_text())["count"]["count"] == [26]


def test_discarded_and_unfinished_episodes_leave_no_trace(tmp_path: Path) -> None:
    root = tmp_path / "set"

    def record() -> None:
        with DatasetWriter.create(root, fps=5, features=SMALL) as writer:
            add_small(writer, 2)
            writer.add_frame({"observation.state": [7, 7]}, "never")
            writer.discard_episode()
            writer.add_frame({"observation.state": [8, 8]}, "never")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record()
    data = open_dataset("local/set", root=root)
    assert data.column("observation.state")[:, 0].tolist() == [0, 1]
    assert data.tasks == ["push"]


def test_closing_over_an_open_episode_says_what_was_dropped(tmp_path: Path) -> None:
    writer = DatasetWriter.create(tmp_path / "set", fps=5, features=SMALL)
    add_small(writer, 1)
    writer.add_frame({"observation.state": [7, 7]}, "push")
    with pytest.raises(DataError, match=r"(?s)1 frames.*rule:.*remedy:"):
        writer.close()
    assert open_dataset("local/set", root=tmp_path / "set").num_frames == 1


CHILD = """
import sys
import numpy as np
from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.spec import Column
STATE, TOP = "observation.state", "observation.images.top"
features = {STATE: Column("float32", (1,)), TOP: Column("video", (16, 16, 3))}
with DatasetWriter.create(sys.argv[1], fps=10, features=features, video=VideoOptions(codec="h264")) as writer:
    for episode in range(10_000):
        for number in range(3):
            picture = np.full((16, 16, 3), episode % 25 * 10, np.uint8)
            writer.add_frame({STATE: episode, TOP: picture}, f"task {episode}")
        writer.save_episode()
        print(episode, flush=True)
        if episode % 4 == 3:
            writer.flush()
"""  # noqa: E501


@pytest.mark.parametrize("saved", [1, 4, 9])
def test_a_kill_at_any_moment_loses_no_saved_episode(tmp_path: Path, saved: int) -> None:
    root = tmp_path / "set"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    reported = 0
    while reported < saved:
        reported = int(child.stdout.readline()) + 1
    os.kill(child.pid, signal.SIGKILL)
    reported += len(child.stdout.read().split())
    child.wait()
    child.stdout.close()
    if json.loads((root / "meta/info.json").read_text())["total_episodes"]:
        assert open_dataset("local/set", root=root).num_frames % 12 == 0
    DatasetWriter.resume(root).close()
    data = open_dataset("local/set", root=root)
    found = len(data.episodes.index)
    assert reported <= found <= reported + 1
    with Reader(data, {}) as reader:
        batch = reader.read(np.arange(data.num_frames))
    episodes = np.repeat(np.arange(found), 3)
    np.testing.assert_array_equal(batch["observation.state"][..., 0], episodes)
    assert batch["task"] == [f"task {episode}" for episode in episodes]
    assert np.abs(batch[TOP][:, 8, 8, 0].astype(int) - episodes % 25 * 10).max() <= 4


class KilledError(Exception):
    """Stands for the end of the process."""


def test_a_flush_that_dies_between_any_two_moves_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace
    for moves in range(7):
        root = tmp_path / f"set{moves}"
        writer = new(root, video=VideoOptions(codec="h264"))
        fill(writer, flush_after=1)
        left = iter(range(moves))

        def dying(source: Path, target: Path, left: Any = left) -> None:
            if next(left, None) is None:
                raise KilledError
            replace(source, target)

        monkeypatch.setattr(os, "replace", dying)
        if moves < 6:
            with pytest.raises(KilledError):
                writer.flush()
        else:
            writer.flush()
        monkeypatch.setattr(os, "replace", replace)
        DatasetWriter.resume(root).close()
        data = open_dataset("local/set", root=root)
        assert data.column("count").tolist() == [given["count"] for given in all_frames()]
        assert len(list(root.glob("data/*/*"))) == len(list(root.glob(f"videos/{TOP}/*/*"))) == 2
        assert json.loads((root / "meta/stats.json").read_text())["count"]["count"] == [13]


def test_a_flush_that_dies_before_it_has_cleared_up_publishes_nothing_twice(tmp_path: Path) -> None:
    root = tmp_path / "set"
    writer = DatasetWriter.create(root, fps=5, features=SMALL)
    add_small(writer, 2)
    shutil.copytree(root / ".recording", tmp_path / "before")
    writer.flush()
    shutil.copytree(tmp_path / "before", root / ".recording", dirs_exist_ok=True)
    with DatasetWriter.resume(root) as writer:
        add_small(writer, 1)
    assert open_dataset("local/set", root=root).column("observation.state")[:, 0].tolist() == [
        0,
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"fps": 0}, "fps is 0"),
        ({"fps": 29.97}, "fps is 29.97"),
        ({"chunks_size": 0}, "chunks_size is 0"),
        ({"features": {}}, "no features"),
        ({"features": {"a/b": Column("float32", (1,))}}, "'a/b'"),
        ({"features": {"x": Column("flaot32", (1,))}}, "flaot32"),
        ({"features": {"index": Column("int64", (1,))}}, "'index'"),
        ({"features": {"x": Column("float32", (0,))}}, r"\(0,\)"),
        ({"features": {"x": Column("float32", ())}}, r"\(\)"),
        ({"features": {"x": Column("float32", (2,), ("a",))}}, "1 names"),
        ({"features": {TOP: Column("video", (3, 32, 48))}}, r"\(3, 32, 48\)"),
        ({"features": {TOP: Column("video", (31, 48, 3))}}, "31x48"),
        ({"features": {TOP: Column("video", (2, 2, 3))}}, "2x2"),
        ({"features": {TOP: Column("image", (32, 48, 3), ("c", "h", "w"))}}, "names"),
    ],
)
def test_a_dataset_that_cannot_be_written_is_refused(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    with pytest.raises(DataError, match=f"(?s){what}.*rule:.*remedy:"):
        new(tmp_path / "set", **change)
    assert not (tmp_path / "set").exists()


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keep").touch()
    with pytest.raises(DataError, match=r"(?s)not empty.*resume"):
        new(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("observation.state", [1.0, 2.0], r"\(2,\)"),
        ("observation.state", [1.0, float("nan"), 0.0], "nan"),
        ("observation.state", [1e300, 0.0, 0.0], "1.e"),
        ("observation.state", ["a", "b", "c"], "dtype"),
        ("count", 1.5, "1.5"),
        ("next.done", 1, "int64"),
        ("note", 3, "3"),
        (TOP, np.zeros((48, 32, 3), np.uint8), r"\(48, 32, 3\)"),
        (TOP, np.zeros((32, 48, 3), np.float32), "float32"),
        ("extra", 1, "extra"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_and_not_added(
    tmp_path: Path, key: str, value: Any, what: str
) -> None:
    with new(tmp_path / "set", video=VideoOptions(codec="h264")) as writer:
        writer.add_frame(frame(0, 0, 1), "push")
        with pytest.raises(DataError, match=f"(?s){what}.*rule:.*remedy:"):
            writer.add_frame(frame(0, 1, 1) | {key: value}, "push")
        writer.save_episode()
        assert writer.num_frames == 1


def test_an_episode_without_frames_cannot_be_saved(tmp_path: Path) -> None:
    with new(tmp_path / "set") as writer, pytest.raises(DataError, match="no frames"):
        writer.save_episode()


def test_codecs_and_presets_that_are_not_there_are_refused() -> None:
    with pytest.raises(DataError, match=r"(?s)'vp9'.*av1, h264"):
        VideoOptions(codec="vp9")
    with pytest.raises(DataError, match="gop is 0"):
        VideoOptions(gop=0)


def test_an_encoder_that_pyav_lacks_is_named_with_those_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODERS, "av1", "libnothing")
    with pytest.raises(DataError, match=r"(?s)libnothing.*encoders here: h264"):
        new(tmp_path / "set")


def test_resume_refuses_what_is_no_v3_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no meta/info\.json"):
        DatasetWriter.resume(tmp_path)
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text('{"codebase_version": "v2.1", "features": {}}')
    with pytest.raises(DataError, match=r"v2\.1"):
        DatasetWriter.resume(tmp_path)

"""A result appears whole or not at all; what a dead process left is cleared by the next; bad
input is named.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.cli import main
from kata.data.edit.assemble import Rules
from kata.data.edit.edit_source import open_part
from kata.data.edit.operations import merge
from kata.data.format.source import Source
from kata.errors import DataError
from tests import forked
from tests.data.dataset_maker import CAMERA, change_info, change_table, cut, make, write_video
from tests.data.edit.made import RULES, assert_equal, done, info, items, part, picture_of, videos


def merging(root: Path, out: Path, stop: int, how: int) -> None:
    """Merge, and send itself a signal after so many episodes."""
    # a background job starts with it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def progress(done: int, total: int) -> None:
        if done == stop:
            os.kill(os.getpid(), how)

    merge([open_part(Source("x/y", root))], out, Rules(), progress, print)


@pytest.mark.parametrize(
    ("how", "stop"), [(signal.SIGKILL, 3), (signal.SIGINT, 1)]
)  # before the metadata, in the middle
def test_an_ended_process_leaves_nothing_under_the_name(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, how: signal.Signals, stop: int
) -> None:
    root, out = make(tmp_path / "a"), tmp_path / "b"
    said_in = tmp_path_factory.mktemp("said") / "out.txt"
    team = forked.Team([forked.start(merging, [root, out, stop, how], said_in)], [said_in])
    assert team.ended() == [-how if how == signal.SIGKILL else forked.RAISED]
    assert ("KeyboardInterrupt" in team.said()) == (how == signal.SIGINT)
    assert not out.exists()
    assert (tmp_path / ".b.partial").exists() == (how == signal.SIGKILL)
    said: list[str] = []
    merge([part(root)], out, RULES, done, said.append)
    assert any("removed" in line and ".b.partial" in line for line in said) == (
        how == signal.SIGKILL
    )
    assert_equal(items(out), items(root))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_result_that_cannot_be_renamed_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "a")

    def dying(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", dying)
    with pytest.raises(KeyboardInterrupt):
        merge([part(root)], tmp_path / "new" / "b", RULES, done, done)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    root, hidden = make(tmp_path / "a"), tmp_path / ".b.partial"
    hidden.mkdir()
    with (hidden / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process"):
            merge([part(root)], tmp_path / "b", RULES, done, done)
    assert hidden.exists()


def test_a_full_disk_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "a")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(DataError, match=r"(?s)takes about .* free.*remedy"):
        merge([part(root)], tmp_path / "b", RULES, done, done)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a command says that fails for a reason the user can correct."""
    assert main(["data", *args]) == 2
    said = capsys.readouterr().err
    assert "rule:" in said
    assert "remedy:" in said
    return said


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["convert", "{a}"], "add --out="),
        (["convert", "{a}", "--out={o}"], "is v3.0 already"),
        (["split", "{a}", "--out={o}"], "nothing says which episodes"),
        (["split", "{a}", "--out={a}", "--episodes=[0]"], "exists"),
        (["split", "{a}", "--out={a}/x", "--episodes=[0]"], "lies in the dataset"),
        (["split", "{a}", "--out={o}", "--episodes=[0,9]"], "has no episode 9"),
        (
            ["split", "{a}", "--out={o}", "--exclude=[0,1,2]"],
            "check --dataset.episodes and --dataset.exclude_episodes",
        ),
        (["split", "{a}", "--out={o}", "--episodes=all"], "'available'"),
        (["split", "{a}", "--out={o}", "--fraction=a:1"], "did you mean --fractions?"),
        (["split", "{a}", "--out={o}", "--fractions=a:0.9,b:0.2"], "add up to 1.1"),
        (["split", "{a}", "--out={o}", "--fractions=a:0.99,b:0.01"], "'b' gets none of 3"),
        (["split", "{a}", "--out={o}", "--fractions=a:0.5,../b:0.5"], "'../b:0.5' is no share"),
        (["split", "{a}", "--out={o}", "--fractions=a:0.5,b"], "'b' is no share"),
        (["split", "{a}", "--out={o}", "--by=robot"], "by=robot"),
        (["split", "{a}", "--out={o}", "--by=task", "--fractions=a:1"], "one way"),
        (["split", "{a}", "--out={o}", "--exclude=[0]", "--drop=[grit]"], "did you mean 'grid'?"),
        (["split", "{a}", "--out={o}", "--exclude=[0]", "--drop=[index]"], "every dataset has"),
        (
            ["split", "{a}", "--out={o}", "--exclude=[0]", "--camera_stats=all"],
            "one of: exact, kept",
        ),
        (["split", "{a}", "--out={o}", "--episodes=[0,0]"], "0 stands there more than once"),
        (["split", "{a}", "--out={o}", "--episodes=1:3"], "dataset.episodes=1:3"),
        (["merge", "{a}", "--out={o}"], "1 datasets given"),
        (["merge", "{a}", "{a}", "--out={o}"], "named more than once"),
        (["transcode", "{a}", "--out={o}", "--codec=h265"], "one of: av1, h264, hevc"),
        (["transcode", "{a}", "--out={o}", "--size=64"], "height x width"),
        (["transcode", "{a}", "--out={o}", "--size=31x48"], "--size=30x48` resizes"),
        (["transcode", "{a}", "--out={o}", "--cameras=[observation.images.tip]"], "did you mean"),
        (["transcode", "{a}", "--out={o}", "--gop=0"], "gop=0"),
        (["transcode", "{a}", "--out={o}", "--codec=hevc"], "64 pixels or more"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], word: str
) -> None:
    root = make(tmp_path / "a")
    assert word in refused(capsys, *(arg.format(a=root, o=tmp_path / "o") for arg in args))
    assert not (tmp_path / "o").exists()
    assert not list(tmp_path.glob(".*"))


def test_datasets_that_differ_are_refused_with_every_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (
        make(tmp_path / "a"),
        make(tmp_path / "b", extra={"more": {"dtype": "int64", "shape": [1]}}),
    )
    for path in (two / "data").rglob("*.parquet"):
        change_table(path, lambda columns: columns.update(more=[1] * len(columns["index"])))
    entry = info(two)["features"]
    entry["next.reward"]["dtype"] = "float64"
    entry["observation.state"]["names"] = ["a", "b", "d"]
    change_info(two, robot_type="other", features=entry)
    said = refused(capsys, "merge", str(one), str(two), f"--out={tmp_path / 'c'}")
    for word in (
        "next.reward: float32 [1] and float64 [1]",
        "more: only in",
        "'made' and 'other'",
        "a, b, d",
    ):
        assert word in said
    entry["next.reward"]["dtype"] = "float32"
    entry["observation.state"]["names"] = ["a", "b", "c"]
    change_info(two, features=entry)
    args = [
        "merge",
        str(one),
        str(two),
        f"--out={tmp_path / 'c'}",
        "--drop=[more]",
        "--robot_type=both",
    ]
    assert "has no feature 'more'" in refused(capsys, *args)
    change_info(one, features=entry)
    for path in (one / "data").rglob("*.parquet"):
        change_table(path, lambda columns: columns.update(more=[2] * len(columns["index"])))
    assert main(["data", *args]) == 0
    assert info(tmp_path / "c")["robot_type"] == "both"
    assert "more" not in info(tmp_path / "c")["features"]


def undeclared(root: Path) -> None:
    path = root / "data/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(path).append_column("force", pa.array([1.0] * 12)), path)


def not_finite(root: Path) -> None:
    change_table(
        root / "data/chunk-000/file-001.parquet", lambda c: c["next.reward"].__setitem__(1, np.nan)
    )


def empty_image(root: Path) -> None:
    change_table(
        root / "data/chunk-000/file-001.parquet",
        lambda c: c[CAMERA].__setitem__(1, {"bytes": None}),
    )


def wrong_task(root: Path) -> None:
    change_table(
        root / "data/chunk-000/file-001.parquet", lambda c: c["task_index"].__setitem__(0, 7)
    )


def other_rate(root: Path) -> None:
    write_video(videos(root)[0], [picture_of(k) for k in range(12)], rate=5)


def other_size(root: Path) -> None:
    write_video(videos(root)[0], [np.zeros((16, 16, 3), np.uint8)] * 12)


def short_video(root: Path) -> None:
    write_video(videos(root)[0], [picture_of(k) for k in range(11)])


@pytest.mark.parametrize(
    ("harm", "camera", "words"),
    [
        (undeclared, "", ("does not declare: force", "--drop=[force]")),
        (not_finite, "", ("next.reward", "NaN", "--dataset.exclude_episodes=[2]")),
        (wrong_task, "", ("task_index 7", "2 tasks")),
        (empty_image, "image", ("1 empty cells", CAMERA)),
        (other_rate, "video", ("file-000.mp4", "10 fps")),
        (other_size, "video", ("16x16", "32x48")),
        (short_video, "video", ("11 frames", "needs 12")),
        (
            lambda root: cut(videos(root)[0], 0.7),
            "video",
            ("file-000.mp4", "--dataset.exclude_episodes"),
        ),
        (
            lambda root: videos(root)[0].unlink(),
            "video",
            ("lacks files", "--dataset.episodes=available"),
        ),
    ],
)
def test_damaged_sources_are_named_and_leave_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Any,
    camera: str,
    words: tuple[str, ...],
) -> None:
    root = make(tmp_path / "a", camera=camera)
    harm(root)
    said = refused(capsys, "split", str(root), f"--out={tmp_path / 'o'}", "--fractions=a:1")
    for word in words:
        assert word in said
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

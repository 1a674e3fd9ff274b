"""`kata data repair` solves what has one answer, leaves the rest, and never touches its input."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kata.cli import main
from kata.data.check import check_dataset
from kata.data.format.source import Source
from kata.data.format.text import fitting_encodings
from kata.data.repair import dataset
from kata.log import counting
from tests import forked
from tests.data.dataset_maker import CAMERA, change_info, make
from tests.data.edit.made import assert_equal, items
from tests.data.repair.broken import (
    EPISODES_V3,
    LENGTHS,
    TABLE_V2,
    TABLE_V3,
    VIDEO_V3,
    Fault,
    encoded,
    feature,
    filmed,
    gone,
    info,
    lines,
    marked,
    moved,
    plain_tasks,
    repair,
    shuffled,
    stats,
    table,
    tree_hash,
    undeclared,
    unfilmed,
    without_columns,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By version, a dataset of which check finds nothing: a repair has measured its statistics."""
    folder = tmp_path_factory.mktemp("good")
    found: dict[str, Path] = {}
    for version in ("v3.0", "v2.1"):
        found[version] = folder / version
        made = make(folder / f"made-{version}", version=version, lengths=LENGTHS)
        assert repair(made, found[version]) == 0
        (found[version] / "meta/repair.json").unlink()
        assert problems(found[version]) == []
    return found


def problems(root: Path) -> list[str]:
    report = check_dataset(Source("local/x", root), decode=True, counting=counting)
    return [f"{problem.kind}: {problem.what}" for problem in report.problems]


def tail(number: int) -> list[tuple[int, int]]:
    """The frames of the last episode."""
    return [(2, frame) for frame in range(number)]


SPOILT = [{"video.codec": "av1", "video.fps": 30}]
FAULTS_V3: dict[str, tuple[Fault, str]] = {
    "mark": (marked, "text"),
    "totals": (info(total_frames=17, total_episodes=4, splits={"train": "0:4"}), "totals"),
    "rate as text": (info(fps="10"), "rate"),
    "rate zero": (info(fps=0), "rate"),
    "rate other": (info(fps=20), "rate"),
    "no path": (info(data_path="d/{chunk_index}.parquet"), "paths"),
    "folder": (moved("videos", "video"), "paths"),
    "shape": (feature("action", shape="2"), "features"),
    "size": (feature(CAMERA, shape=[64, 96, 3]), "declared video"),
    "declared": (feature(CAMERA, info=SPOILT[0]), "declared video"),
    "length": (table(EPISODES_V3, length=[5, 7, 5]), "episode table"),
    "ranges": (
        table(EPISODES_V3, dataset_from_index=[0, 6, 13], dataset_to_index=[5, 13, 17]),
        "episode table",
    ),
    "short": (table(EPISODES_V3, length=[5, 7, 3], dataset_to_index=[5, 12, 15]), "episode table"),
    "order": (shuffled, "episode table"),
    "end time": (
        table(EPISODES_V3, **{f"videos/{CAMERA}/to_timestamp": [0.5, 1.2, 0.9]}),
        "video times",
    ),
    "overlap": (
        table(EPISODES_V3, **{f"videos/{CAMERA}/from_timestamp": [0.0, 0.3, 0.0]}),
        "video times",
    ),
    "between": (
        table(EPISODES_V3, **{f"videos/{CAMERA}/from_timestamp": [0.0, 0.5, 0.012]}),
        "video times",
    ),
    "lists of one": (
        table(TABLE_V3, **{"next.reward": [[200.0], [201.0], [202.0], [203.0]]}),
        "column layout",
    ),
    "index": (table(TABLE_V3, index=[112, 113, 114, 116]), "index"),
    "frame index": (table(TABLE_V3, frame_index=[0, 1, 1, 3]), "frame_index"),
    "episode index": (table(TABLE_V3, episode_index=[2, 2, 1, 2]), "episode_index"),
    "time": (table(TABLE_V3, timestamp=[0.05, 0.15, 0.25, 0.35]), "timestamp"),
    "no index": (without_columns(TABLE_V3, "index", "timestamp"), "index"),
    "task number": (table(TABLE_V3, task_index=[0, 0, 9, 0]), "task_index"),
    "tasks": (plain_tasks, "tasks"),
    "no tasks": (gone("meta/tasks.parquet"), "tasks"),
    "rate of video": (filmed(VIDEO_V3, tail(4), rate=11), "video times"),
    "delay": (filmed(VIDEO_V3, tail(4), first_pts=3), "video times"),
    "no statistics": (gone("meta/stats.json"), "statistics"),
    "stale": (stats(lambda s: s["action"]["std"].__setitem__(0, 9.0)), "statistics"),
    "partial": (stats(lambda s: [s[key].pop("q10") for key in s]), "statistics"),
    "no figures of episodes": (without_columns(EPISODES_V3, "stats/"), "statistics"),
    "some figures of episodes": (without_columns(EPISODES_V3, "stats/action/q01"), "statistics"),
}

FAULTS_V2: dict[str, tuple[Fault, str]] = {
    "template": (
        info(data_path="data/chunk-{chunk_index:03d}/episode_{episode_index:06d}.parquet"),
        "paths",
    ),
    "twice": (lines("meta/episodes.jsonl", lambda rows: rows.insert(1, rows[1])), "episode table"),
    "long": (lines("meta/episodes.jsonl", lambda rows: rows[0].update(length=9)), "episode table"),
    "short": (lines("meta/episodes.jsonl", lambda rows: rows[0].update(length=2)), "episode table"),
    "no tasks": (gone("meta/tasks.jsonl"), "tasks"),
    "unknown task": (lines("meta/tasks.jsonl", lambda rows: rows.pop()), "tasks"),
    "no statistics": (gone("meta/episodes_stats.jsonl"), "statistics"),
    "index": (table(TABLE_V2, index=[0, 1, 2, 3]), "index"),
    "episode index": (table(TABLE_V2, episode_index=[0, 0, 0, 0]), "episode_index"),
    "folder": (moved("videos", "Videos"), "paths"),
    "counts": (info(total_videos=None, total_chunks=7), "totals"),
}

CASES = [("v3.0", name) for name in FAULTS_V3] + [("v2.1", name) for name in FAULTS_V2]


@pytest.mark.parametrize(("version", "name"), CASES)
def test_a_problem_with_one_answer_is_solved(
    good: dict[str, Path],
    tmp_path: Path,
    version: str,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault, kind = (FAULTS_V3 if version == "v3.0" else FAULTS_V2)[name]
    root, out = Path(shutil.copytree(good[version], tmp_path / "a")), tmp_path / "b"
    fault(root)
    capsys.readouterr()
    assert repair(root, out) == 0, capsys.readouterr().out
    assert any(
        line.split("  ")[1] == kind
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ")
    )
    assert kind in {
        each["kind"] for each in json.loads((out / "meta/repair.json").read_text())["changes"]
    }
    (out / "meta/repair.json").unlink()
    assert problems(out) == []
    assert_equal(items(out), items(good[version]))


def test_the_statistics_are_those_of_a_dataset_that_was_never_broken(
    good: dict[str, Path], tmp_path: Path
) -> None:
    root, out = Path(shutil.copytree(good["v3.0"], tmp_path / "a")), tmp_path / "b"
    (root / "meta/stats.json").unlink()
    without_columns(EPISODES_V3, "stats/")(root)
    assert repair(root, out) == 0
    assert json.loads((out / "meta/stats.json").read_text()) == json.loads(
        (good["v3.0"] / "meta/stats.json").read_text()
    )
    assert pq.read_table(out / EPISODES_V3).equals(
        pq.read_table(good["v3.0"] / EPISODES_V3).select(
            pq.read_table(out / EPISODES_V3).column_names
        )
    )


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("why", ["absent", "empty"])
def test_episodes_without_files_or_frames_are_left_out(
    good: dict[str, Path],
    tmp_path: Path,
    version: str,
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = make(tmp_path / "a", version=version, lengths=LENGTHS, per_file=1)
    assert repair(root, tmp_path / "whole") == 0
    name = (
        "data/chunk-000/file-001.parquet"
        if version == "v3.0"
        else "data/chunk-000/episode_000001.parquet"
    )
    (root / name).unlink()
    if why == "empty" and version == "v2.1":
        lines("meta/episodes.jsonl", lambda rows: rows[1].update(length=0))(root)
    if why == "empty" and version == "v3.0":
        table(
            EPISODES_V3, length=[5, 0, 4], dataset_from_index=[0, 5, 5], dataset_to_index=[5, 5, 9]
        )(root)
    capsys.readouterr()
    assert repair(root, tmp_path / "b") == 0
    said = capsys.readouterr().out
    assert "left out 1 of 3" in said
    assert "the episodes 0, 2 are numbered 0-1 now" in said
    assert problems(tmp_path / "b") == []
    found, expected = items(tmp_path / "b"), items(tmp_path / "whole", [0, 2])
    assert_equal(found, expected)


def test_rows_of_an_episode_without_video_leave_the_shared_table(tmp_path: Path) -> None:
    root = make(tmp_path / "a", lengths=(3, 4, 2, 5), per_file=2)
    episodes = pq.read_table(root / EPISODES_V3).to_pydict()
    episodes[f"videos/{CAMERA}/file_index"] = [0, 5, 1, 1]
    table(EPISODES_V3, **episodes)(root)
    assert repair(root, tmp_path / "b") == 0
    assert pq.read_metadata(tmp_path / "b/data/chunk-000/file-000.parquet").num_rows == 3
    assert problems(tmp_path / "b") == [
        "unused frames: " + problem.partition(": ")[2] for problem in problems(tmp_path / "b")
    ]


# --- texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("拿起红色方块", "gbk"),
        ("Räume den Tisch auf", "latin-1"),
        ("the robot’s arm – slowly", "cp1252"),
        ("Übung", "utf-16"),
    ],
)
def test_texts_in_another_encoding_become_utf_8(
    good: dict[str, Path],
    tmp_path: Path,
    text: str,
    encoding: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = Path(shutil.copytree(good["v2.1"], tmp_path / "a"))
    for name in ("meta/tasks.jsonl", "meta/episodes.jsonl"):
        encoded(name, text, encoding)(root)
    assert main(["data", "check", str(root)]) == 1
    said = capsys.readouterr().out
    assert "is not UTF-8 in line 1" in said
    assert f"{encoding} fits" in said
    assert "kata data repair" in said
    assert repair(root, tmp_path / "b") == 0
    assert problems(tmp_path / "b") == []
    assert (
        json.loads((tmp_path / "b/meta/tasks.jsonl").read_text(encoding="utf-8").split("\n")[0])[
            "task"
        ]
        == text
    )


def test_an_encoding_that_cannot_be_told_is_asked_for(
    good: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(good["v2.1"], tmp_path / "a"))
    encoded("meta/tasks.jsonl", "Größe", "latin-1")(root)
    encoded("meta/episodes.jsonl", "Größe", "latin-1")(root)
    assert repair(root, tmp_path / "b") == 1
    said = capsys.readouterr().out
    assert "--encoding=gbk" in said
    assert "--encoding=latin-1" in said
    assert not (tmp_path / "b").exists()
    assert main(["data", "repair", str(root), f"--out={tmp_path / 'b'}", "--encoding=utf-7x"]) == 2
    assert repair(root, tmp_path / "b", "--encoding=latin-1") == 0
    assert problems(tmp_path / "b") == []


def test_an_encoding_fits_where_its_reading_is_made_of_letters() -> None:
    assert fitting_encodings(["拿起红色方块".encode("gbk"), "放下".encode("gbk")]) == ["gbk"]
    assert fitting_encodings(["Räume auf".encode("latin-1")]) == ["latin-1"]
    assert fitting_encodings([b"\xff\x00\x81\x03"]) == []


# --- more than one answer -----------------------------------------------------------------------

OPEN: dict[str, tuple[str, Fault, str, list[str], str]] = {
    "rate of the videos": (
        "v3.0",
        filmed(VIDEO_V3, tail(4), rate=30),
        "shows 30 frames per second",
        ["--fps=10", "--fps=30"],
        "--fps=10",
    ),
    "gap in a video": (
        "v3.0",
        filmed(VIDEO_V3, tail(4), gap_after=1),
        "has gaps",
        ["--fps=10"],
        "--fps=10",
    ),
    "time back": (
        "v3.0",
        table(TABLE_V3, timestamp=[0.0, 0.2, 0.1, 0.3]),
        "time runs back",
        ["--exclude=[2]"],
        "--fps=10",
    ),
    "time and frame": (
        "v3.0",
        table(TABLE_V3, timestamp=[0.0, 0.1, 0.1, 0.3], frame_index=[0, 1, 1, 3]),
        "frame_index",
        ["--exclude=[2]"],
        "--exclude=[2]",
    ),
    "nan": (
        "v3.0",
        table(TABLE_V3, **{"next.reward": [1.0, np.nan, 2.0, 3.0]}),
        "NaN",
        [],
        "--exclude=[2]",
    ),
    "undeclared": (
        "v3.0",
        undeclared,
        "'force'",
        ["--declare=[force]", "--drop=[force]"],
        "--drop=[force]",
    ),
    "no camera": ("v3.0", unfilmed, "no video of", [f"--drop=[{CAMERA}]"], f"--drop=[{CAMERA}]"),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_problem_with_several_answers_is_left_until_one_is_chosen(
    good: dict[str, Path], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    version, fault, words, choices, answer = OPEN[name]
    root = Path(shutil.copytree(good[version], tmp_path / "a"))
    fault(root)
    capsys.readouterr()
    repair(root, tmp_path / "b")
    said = capsys.readouterr().out
    assert words in said
    for choice in choices:
        assert choice in said
    assert repair(root, tmp_path / "c", answer) == 0, capsys.readouterr().out
    (tmp_path / "c/meta/repair.json").unlink()
    assert problems(tmp_path / "c") == [] or name == "undeclared"


def test_a_table_and_a_video_that_disagree_are_left(
    good: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(good["v2.1"], tmp_path / "a"))
    lines("meta/episodes.jsonl", lambda rows: rows[2].update(length=3))(root)
    filmed(f"videos/chunk-000/{CAMERA}/episode_000002.mp4", tail(5))(root)
    repair(root, tmp_path / "b")
    said = capsys.readouterr().out
    assert "its metadata say 3 frames, its table has 4 rows" in said
    assert "5 frames" in said
    assert "--exclude=[2]" in said


# --- the copy -----------------------------------------------------------------------------------


def test_unchanged_files_are_links_and_a_good_dataset_gets_no_copy(
    good: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(good["v3.0"], tmp_path / "a"))
    assert repair(root, tmp_path / "b") == 0
    assert "nothing to correct" in capsys.readouterr().out
    assert not (tmp_path / "b").exists()
    change_info(root, total_frames=1)
    assert repair(root, tmp_path / "b") == 0
    assert (root / VIDEO_V3).samefile(tmp_path / "b" / VIDEO_V3)
    assert (root / TABLE_V3).samefile(tmp_path / "b" / TABLE_V3)
    assert not (root / "meta/info.json").samefile(tmp_path / "b/meta/info.json")


def test_a_dry_run_writes_nothing_and_tells_the_same(
    good: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(good["v3.0"], tmp_path / "a"))
    table(TABLE_V3, index=[1, 2, 3, 4])(root)
    change_info(root, total_frames=1)
    before = tree_hash(tmp_path)
    capsys.readouterr()
    assert main(["data", "repair", str(root), "--dry_run", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)["changes"]
    assert tree_hash(tmp_path) == before
    assert main(["data", "repair", str(root), f"--out={tmp_path / 'b'}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == dry
    assert {each["kind"] for each in dry} >= {"index", "totals"}


def dying_repair(root: Path, out: Path, how: int) -> int:
    """Repair, and send itself a signal before the last step."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    steps = list(dataset._STEPS)
    steps.insert(len(steps) - 1, lambda *_: os.kill(os.getpid(), how))
    dataset._STEPS = tuple(steps)
    return main(["data", "repair", str(root), f"--out={out}"])


@pytest.mark.parametrize(("how", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_an_ended_process_leaves_nothing_half_written(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, how: signal.Signals, status: int
) -> None:
    root, out = make(tmp_path / "a"), tmp_path / "b"
    before = tree_hash(root)
    said_in = tmp_path_factory.mktemp("said") / "out.txt"
    team = forked.Team([forked.start(dying_repair, [root, out, how], said_in)], [said_in])
    assert team.ended() == [status], team.said()
    assert not out.exists()
    assert tree_hash(root) == before
    assert repair(root, out) == 0
    assert problems(out) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_files_are_copied_where_they_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "a")

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert repair(root, tmp_path / "b") == 0
    assert "files were copied" in capsys.readouterr().out
    assert_equal(items(tmp_path / "b"), items(root))


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["{a}"], "add --out=<folder>, or --dry_run"),
        (["{a}", "--out={a}"], "exists"),
        (["{a}", "--out={a}/x"], "lies in the dataset"),
        (["{a}/meta/info.json", "--out={o}"], "is a file"),
        (["{a}/none", "--out={o}"], "there is no dataset"),
        (["{a}", "--out={o}", "--fps=0"], "fps=0"),
        (["{a}", "--out={o}", "--drop=[grit]"], "did you mean 'grid'?"),
        (["{a}", "--out={o}", "--drop=[index]"], "drop: index"),
        (["{a}", "--out={o}", "--exclude=[9]"], "there is no episode 9"),
        (["{a}", "--out={o}", "--exclud=[9]"], "no such option of kata data repair"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, args: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "a", camera="")
    assert main(["data", "repair", *(arg.format(a=root, o=tmp_path / "o") for arg in args)]) == 2
    assert word in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

"""`kata data check` finds each fault that is put into a dataset, names it, and finds none in a
good one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.cli import main
from kata.data.storage.store import local_file
from kata.data.video.packet_index import build_index
from tests.data.dataset_maker import (
    CAMERA,
    FPS,
    GOLDEN,
    SHARED,
    change_info,
    change_table,
    cut,
    make,
    picture,
    png,
    rows,
    write_video,
)

VIDEO = f"videos/{CAMERA}/chunk-000/file-001.mp4"
TABLE = "data/chunk-000/file-001.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of which check says nothing; episodes 0 and 1 lie in the first files, 2 in the
    second.
    """
    return finished(make(tmp_path_factory.mktemp("check") / "made", lengths=(5, 7, 4)))


@pytest.fixture
def good(template: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(template, tmp_path / "made"))


def finished(root: Path) -> Path:
    """With statistics, and a task table as pandas writes it."""
    stats = root.parent / "stats.json"
    assert main(["data", "stats", str(root), "--images=all", f"--write={stats}"]) == 0
    stats.rename(root / "meta/stats.json")
    if (root / "meta/tasks.parquet").is_file():
        table = pq.read_table(root / "meta/tasks.parquet")
        note = {"pandas": json.dumps({"index_columns": ["task"]})}
        pq.write_table(table.replace_schema_metadata(note), root / "meta/tasks.parquet")
    return root


def check(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    status = main(["data", "check", str(root), "--json", *more])
    report = json.loads(capsys.readouterr().out)
    assert status == (1 if report["errors"] else 0)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    for problem in report["problems"]:
        assert problem["rule"]
        assert problem["remedy"]
    return report


def only(
    report: dict[str, Any], level: str, kind: str, *words: str, episodes: list[int] | None = None
) -> None:
    """The report has problems of this one kind alone, and the first says all the words."""
    assert {(each["level"], each["kind"]) for each in report["problems"]} == {(level, kind)}, (
        report["problems"]
    )
    first = report["problems"][0]
    for word in words:
        assert word in first["what"], f"'{word}' is not in: {first['what']}"
    if episodes is not None:
        assert sorted({e for each in report["problems"] for e in each["episodes"]}) == episodes


# --- nothing wrong
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v3.0", "v2.0"])
@pytest.mark.parametrize("camera", ["video", "image"])
def test_a_good_dataset_gives_nothing(
    tmp_path: Path, version: str, camera: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = finished(make(tmp_path / "made", version=version, camera=camera))
    report = check(root, capsys, "--decode")
    assert report["problems"] == []
    assert report["looked_at"]["episodes"] == 3
    assert report["looked_at"]["frames decoded"] == 16
    assert main(["data", "check", str(root)]) == 0
    assert "no problems" in capsys.readouterr().out


def test_what_lerobot_writes_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [path.parents[1] for path in GOLDEN.glob("**/meta/info.json")]
    assert folders
    for folder in folders:
        assert check(folder, capsys, "--decode")["errors"] == 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is absent")
def test_a_part_of_a_download_is_checked_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(SHARED / "g1-bottle", capsys)["errors"] == 180
    assert check(SHARED / "g1-bottle", capsys, "--episodes=available")["errors"] == 0


# --- faults
# -----------------------------------------------------------------------------------------------

Fault = Callable[[Path], Any]


def columns(**changes: Any) -> Fault:
    return lambda root: change_table(root / TABLE, lambda table: table.update(changes))


def episode_table(**changes: Any) -> Fault:
    return lambda root: change_table(root / EPISODES, lambda table: table.update(changes))


def pictures(*numbers: int) -> list[np.ndarray]:
    return [picture(2, number) for number in numbers]


def spoil_statistics(root: Path) -> None:
    path = root / "meta/stats.json"
    stats = json.loads(path.read_text())
    stats["action"]["std"][0] *= 1.5
    path.write_text(json.dumps(stats))


def swap_quantiles(root: Path) -> None:
    path = root / "meta/stats.json"
    stats = json.loads(path.read_text())
    stats["action"]["q10"], stats["action"]["q90"] = stats["action"]["q90"], stats["action"]["q10"]
    path.write_text(json.dumps(stats))


def still(root: Path) -> None:
    for path in sorted((root / "data").glob("*/*.parquet")):
        change_table(
            path, lambda table: table.update({"action": [[a, 0.5] for a, _ in table["action"]]})
        )
    (root / "meta/stats.json").unlink()


ACTION = [[b, -b] for b in 200.0 + np.arange(4)]
NAN = [*ACTION[:2], [202.0, float("nan")], ACTION[3]]
FAULTS: dict[str, tuple[Fault, str, tuple[str, ...], list[int] | None]] = {
    "no table": (lambda r: (r / TABLE).unlink(), "missing files", (TABLE, "episode 2"), [2]),
    "no video": (lambda r: (r / VIDEO).unlink(), "missing files", (VIDEO, "episode 2"), [2]),
    "cut table": (lambda r: cut(r / TABLE, 0.6), "data", (TABLE, "cannot be read"), [2]),
    "cut video": (lambda r: cut(r / VIDEO, 0.7), f"camera '{CAMERA}'", (VIDEO,), [2]),
    "nan": (columns(action=NAN), "data", ("'action'", "episode 2, frame 2"), [2]),
    "infinite": (columns(**{"next.reward": [1.0, np.inf, 2.0, 3.0]}), "data", ("'next.reward'", "frame 1"), [2]),  # noqa: E501
    "empty cell": (columns(**{"next.reward": [1.0, None, 2.0, 3.0]}), "data", ("'next.reward'", "1 empty"), [2]),  # noqa: E501
    "other shape": (columns(action=[[1.0], [2.0], [3.0], [4.0]]), "data", ("'action'", "4 values"), [2]),  # noqa: E501
    "other episode": (columns(episode_index=[2, 2, 1, 2]), "data", ("episode 2", "belong to episode 1"), [2]),  # noqa: E501
    "frame index": (columns(frame_index=[0, 1, 1, 3]), "frame_index", ("is 1 where 2 is due",), [2]),  # noqa: E501
    "index": (columns(index=[12, 13, 14, 16]), "index", ("is 16 where 15 is due", "first frame 3"), [2]),  # noqa: E501
    "task": (columns(task_index=[0, 0, 2, 0]), "task numbers", ("task_index 2", "2 tasks"), [2]),
    "time gap": (columns(timestamp=[0.0, 0.1, 0.4, 0.5]), "time gaps", ("0.3000 s", "frames 1 and 2"), [2]),  # noqa: E501
    "time back": (columns(timestamp=[0.0, 0.2, 0.1, 0.3]), "time order", ("from 0.2000 s to 0.1000 s",), [2]),  # noqa: E501
    "time twice": (columns(timestamp=[0.0, 0.1, 0.1, 0.3]), "time order", ("at frame 2",), [2]),
    "time nan": (columns(timestamp=[0.0, np.nan, 0.2, 0.3]), "time order", ("nan",), [2]),
    "short video": (lambda r: write_video(r / VIDEO, pictures(0, 1, 2)), f"camera '{CAMERA}'", ("3 frames",), [2]),  # noqa: E501
    "other rate": (
        lambda r: write_video(r / VIDEO, pictures(0, 1, 2, 3), rate=30),
        f"camera '{CAMERA}'",
        ("10 fps",),
        [2],
    ),
    "video gap": (
        lambda r: write_video(r / VIDEO, pictures(0, 1, 2, 3), gap_after=1),
        f"camera '{CAMERA}'",
        ("frame 2 at 0.300 s",),
        [2],
    ),
    "other size": (
        lambda r: write_video(r / VIDEO, [np.zeros((64, 48, 3), np.uint8)] * 4),
        f"camera '{CAMERA}'",
        ("(64, 48, 3)",),
        [2],
    ),
    "no video at all": (lambda r: (r / VIDEO).write_bytes(b"x" * 99), f"camera '{CAMERA}'", (VIDEO,), [2]),  # noqa: E501
    "statistics": (spoil_statistics, "statistics", ("std of 'action'", "meta/stats.json"), None),
    "quantiles": (swap_quantiles, "statistics", ("quantiles of 'action'",), None),
    "episodes": (lambda r: change_info(r, total_episodes=4), "totals", ("total_episodes = 4", "hold 3"), None),  # noqa: E501
    "frames": (lambda r: change_info(r, total_frames=17), "totals", ("total_frames = 17", "hold 16"), None),  # noqa: E501
    "length": (episode_table(length=[5, 7, 5]), "episode table", ("episode 2", "length is 5"), [2]),
    "info.json": (lambda r: (r / "meta/info.json").write_text("{"), "metadata", ("info.json", "JSON"), None),  # noqa: E501
    "episode table": (lambda r: cut(r / EPISODES, 0.5), "metadata", ("episode table",), None),
    "twice": (episode_table(episode_index=[0, 1, 1]), "metadata", ("episode 1 more than once",), None),  # noqa: E501
    "task order": (
        lambda r: pq.write_table(
            pq.read_table(r / "meta/tasks.parquet").take(pa.array([1, 0])), r / "meta/tasks.parquet"
        ),
        "tasks",
        ("1, 0",),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_and_named(
    good: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fault, kind, words, episodes = FAULTS[name]
    fault(good)
    report = check(good, capsys)
    only(report, "error", kind, *words, episodes=episodes)
    assert report["bad_episodes"] == (episodes or [])


WARNINGS: dict[str, tuple[Fault, str, tuple[str, ...]]] = {
    "time offset": (
        columns(timestamp=[0.05, 0.15, 0.25, 0.35]),
        "time offset",
        ("0.0500 s", "0.0000 s is due"),
    ),
    "long video": (
        lambda r: write_video(r / VIDEO, pictures(0, 1, 2, 3, 4)),
        "unused frames",
        ("5 frames", "claim 4"),
    ),
    "video time": (
        episode_table(**{f"videos/{CAMERA}/to_timestamp": [0.5, 1.2, 0.9]}),
        "video times",
        ("episode 2", "0.9000 s", "0.4000 s"),
    ),
    "unknown task": (episode_table(tasks=[["pick"], ["place"], ["fold"]]), "tasks", ("'fold'",)),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_what_is_only_worth_knowing_is_a_warning(
    good: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fault, kind, words = WARNINGS[name]
    fault(good)
    only(check(good, capsys), "warning", kind, *words)


def test_dimensions_that_never_change_and_absent_statistics(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    still(good)
    report = check(good, capsys)
    assert report["errors"] == 0
    assert {each["kind"] for each in report["problems"]} == {"constant dimensions", "statistics"}
    assert any(
        "'action'" in each["what"] and "y = 0.5" in each["what"] for each in report["problems"]
    )


def test_declared_video_properties_are_compared(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = json.loads((good / "meta/info.json").read_text())
    info["features"][CAMERA]["info"] = {
        "video.codec": "av1",
        "video.pix_fmt": "yuv420p",
        "video.fps": FPS,
    }
    (good / "meta/info.json").write_text(json.dumps(info))
    only(
        check(good, capsys),
        "warning",
        "declared video",
        "codec h264",
        "info.json says av1",
        episodes=[0, 1, 2],
    )


def test_episodes_that_share_frames(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode_table(**{f"videos/{CAMERA}/from_timestamp": [0.0, 0.3, 0.0]})(good)
    kinds = {each["kind"]: each for each in check(good, capsys)["problems"]}
    assert "share frames of" in kinds["overlap"]["what"]
    assert kinds["overlap"]["episodes"] == [0, 1]
    assert "3 to 4" in kinds["overlap"]["what"]


def test_the_bad_episodes_of_a_shared_file_are_told_from_the_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = finished(make(tmp_path / "made", lengths=[3] * 9, per_file=9))
    rewards = [float(number) for number in range(27)]
    rewards[4] = rewards[20] = float("nan")

    def spoil(table: dict[str, Any]) -> None:
        table["next.reward"] = rewards
        table["frame_index"][15] = 7

    change_table(root / "data/chunk-000/file-000.parquet", spoil)
    report = check(root, capsys)
    assert report["bad_episodes"] == [1, 5, 6]
    assert main(["data", "check", str(root)]) == 1
    said = capsys.readouterr().out
    assert "--dataset.exclude_episodes=[1,5,6]" in said
    assert "ERROR: data (2 times)" in said


def test_several_faults_are_told_in_one_go(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns(action=NAN, timestamp=[0.0, 0.1, 0.4, 0.5])(good)
    cut(good / f"videos/{CAMERA}/chunk-000/file-000.mp4", 0.9)
    change_info(good, total_frames=3)
    kinds = {each["kind"] for each in check(good, capsys)["problems"]}
    assert kinds == {"data", "time gaps", f"camera '{CAMERA}'", "totals"}


# --- decoding
# ---------------------------------------------------------------------------------------------


def test_a_frame_that_does_not_decode_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = finished(make(tmp_path / "made", lengths=(6, 12), per_file=2))
    path = root / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    index = build_index(local_file(path))
    data = bytearray(path.read_bytes())
    for frame in (2, 12):  # keyframe every 4
        begin, size = int(index.offset[index.packet[frame]]), int(index.size[index.packet[frame]])
        data[begin : begin + size] = b"\xff" * size
    path.write_bytes(bytes(data))
    assert check(root, capsys)["problems"] == []
    report = check(root, capsys, "--decode")
    only(
        report,
        "error",
        f"camera '{CAMERA}'",
        "episode 0, frame 2",
        path.name,
        CAMERA,
        episodes=[0, 1],
    )
    assert any("episode 1, frame 6" in each["what"] for each in report["problems"])


def test_an_image_of_another_size_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = finished(make(tmp_path / "made", camera="image"))
    small = png(np.zeros((8, 12, 3), np.uint8))
    change_table(root / TABLE, lambda table: table[CAMERA].__setitem__(2, small))
    words = [each["what"] for each in check(root, capsys, "--decode")["problems"]]
    assert any("episode 2, frame 2" in each and "(8, 12, 3)" in each for each in words)


@pytest.mark.parametrize("cell", [b"no image", None])
def test_an_image_that_does_not_decode_is_named(
    tmp_path: Path, cell: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    root = finished(make(tmp_path / "made", camera="image"))
    change_table(
        root / TABLE, lambda table: table[CAMERA].__setitem__(2, {"bytes": cell, "path": "x"})
    )
    quick = check(root, capsys)["problems"]
    assert len(quick) == (cell is None)
    words = [each["what"] for each in check(root, capsys, "--decode")["problems"]]
    assert any("episode 2, frame 2" in each and CAMERA in each for each in words)


# --- the command
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["nowhere"], "nowhere"),
        ([], "no dataset given"),
        (["{root}", "--decod"], "did you mean --decode?"),
        (["{root}", "--episodes=[7]"], "no episode 7"),
        (["{root}", "--threads=x"], "threads=x"),
        (["{root}", "--threads=0"], "threads=0"),
    ],
)
def test_wrong_input_is_one_message(
    tmp_path: Path, args: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "made", camera="")
    assert main(["data", "check", *(arg.format(root=root) for arg in args)]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "remedy:" in said


def test_rows_that_no_episode_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = finished(make(tmp_path / "made", camera=""))
    extra = pq.read_table(root / TABLE)
    more = pa.table(rows(2, 1, 16, "")).cast(extra.schema)
    pq.write_table(pa.concat_tables([extra, more]), root / TABLE)
    only(check(root, capsys), "warning", "unused rows", "5 rows", "claim 4")


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_an_index_that_files_lack_counts_the_frames_of_the_dataset(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = finished(make(tmp_path / "made", camera="", version=version))
    for path in root.glob("data/*/*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["index"]), path)
    report = check(root, capsys)
    only(report, "warning", "oddities", "'index' is not in the data files")
    assert report["errors"] == 0


@pytest.mark.parametrize("name", ["videos/*/*/file-000.mp4", "data/*/file-000.parquet"])
def test_a_file_that_may_not_be_read_is_one_finding_beside_the_others(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path)
    closed = next(root.glob(name))
    cut(next(root.glob("videos/*/*/file-001.mp4")), 0.5)
    _close(closed, monkeypatch)
    assert main(["data", "check", str(root), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    found = {tuple(each["episodes"]): each for each in problems if each["level"] == "error"}
    assert str(closed) in found[0, 1]["what"]
    assert "Permission denied" in found[0, 1]["what"]
    assert "permissions" in found[0, 1]["remedy"]
    assert "its parts need" in found[2,]["what"]


def test_metadata_that_may_not_be_read_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path, camera="")
    _close(root / "meta/info.json", monkeypatch)
    assert main(["data", "check", str(root)]) == 1
    said = capsys.readouterr().out
    assert "ERROR: metadata" in said
    assert "info.json: Permission denied" in said


def _close(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to open one file, as the system does for a user who may not read it."""

    def refuse(kept: Callable[..., Any]) -> Callable[..., Any]:
        def opened(name: Any, *args: Any, **kwargs: Any) -> Any:
            if str(name) == str(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return kept(name, *args, **kwargs)

        return opened

    monkeypatch.setattr("pathlib.Path.open", refuse(Path.open))
    monkeypatch.setattr("pyarrow.parquet.read_schema", refuse(pq.read_schema))

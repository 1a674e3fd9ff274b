"""Recordings as they are found: read as they are, or refused by name with a remedy that helps."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kata.cli import main
from kata.data import open_dataset
from kata.errors import DataError
from tests.data.dataset_maker import CAMERA, change_info, change_table, make, write_video
from tests.data.edit.made import assert_equal, items, picture_of

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
V2_DATA = "data/chunk-{chunk_index:03d}/episode_{episode_index:06d}.parquet"


def refused(root: Path, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        items_of(root, **options)
    return caught.value


def items_of(root: Path, **options: Any) -> Any:
    data = open_dataset("local/x", root=root, **options)
    return {key: data.column(key) for key in ("action", "index")}


def checked(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    main(["data", "check", str(root), "--json"])
    return json.loads(capsys.readouterr().out)


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(["data", *args]) == 2
    return capsys.readouterr().err


# --- read as they are -----------------------------------------------------------------------------


def test_chunk_index_in_a_template_of_v2(tmp_path: Path) -> None:
    root = make(tmp_path / "a", version="v2.1")
    expected = items(root)
    change_info(root, data_path=V2_DATA)
    assert_equal(items(root), expected)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_folder_that_is_spelled_otherwise_is_found_and_said(tmp_path: Path, version: str) -> None:
    root = make(tmp_path / "a", version=version)
    expected = items(root)
    (root / "videos").rename(root / "video")
    assert_equal(items(root), expected)
    notes = open_dataset("local/x", root=root).notes
    assert "files lie in 'video/', not in 'videos/' as info.json says" in notes


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    root = make(tmp_path / "a", version="v2.1")
    expected = items(root)
    for path in root.glob("meta/*"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert_equal(items(root), expected)


@pytest.mark.parametrize("dtype", ["binary", "complex"])
def test_unknown_dtypes_are_left_out_with_a_note(tmp_path: Path, dtype: str) -> None:
    root = make(tmp_path / "a", camera="", extra={"x": {"dtype": dtype, "shape": [1]}})
    data = open_dataset("local/x", root=root)
    assert "x" not in data.columns
    assert f"'x' is left out: columns of dtype '{dtype}' are not read" in data.notes


def test_a_line_separator_in_a_task_ends_no_line(tmp_path: Path) -> None:
    root = make(tmp_path / "a", version="v2.1", camera="")
    task = {"task_index": 0, "task": "pick\u2028place"}
    text = json.dumps(task, ensure_ascii=False) + "\n" + json.dumps({"task_index": 1, "task": "x"})
    (root / "meta/tasks.jsonl").write_text(text, encoding="utf-8")
    assert open_dataset("local/x", root=root).tasks == ["pick\u2028place", "x"]


def test_available_takes_the_tables_of_a_dataset_without_videos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "a")
    expected = items_of(root)
    shutil.rmtree(root / "videos")
    assert "--dataset.episodes=available" in said(capsys, "stats", str(root))
    assert "--dataset.episodes=available" in said(
        capsys, "view", str(root), f"--out={tmp_path / 'v.png'}"
    )
    assert main(["data", "stats", str(root), "--episodes=available"]) == 0
    assert (
        main(
            [
                "data",
                "view",
                str(root),
                f"--out={tmp_path / 'v.png'}",
                "--dataset.episodes=available",
            ]
        )
        == 0
    )
    found = items_of(root, episodes="available")
    assert all(np.array_equal(found[key], expected[key]) for key in expected)
    assert any(CAMERA in note for note in open_dataset("x", root=root, episodes="available").notes)


def test_an_empty_episode_can_be_left_out(tmp_path: Path) -> None:
    root = make(tmp_path / "a", version="v2.1", camera="")
    rows = [json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()]
    rows[1]["length"] = 0
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    error = refused(root)
    assert "gives episode 1 no frames" in error.what
    assert "--dataset.exclude_episodes=[1]" in error.remedy
    assert len(items_of(root, exclude_episodes=[1])["index"]) == 9


# --- refused by name ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "meta/info.json",
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet",
        f"videos/{CAMERA}/chunk-000/file-000.mp4",
    ],
)
def test_git_lfs_pointers_are_recognised_in_any_file(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "a")
    (root / name).write_bytes(POINTER)
    error = refused(root)
    assert "is a Git LFS pointer" in error.what
    assert "git lfs pull" in error.remedy
    if name != "meta/info.json":
        problems = checked(root, capsys)["problems"]
        assert any("git lfs pull" in problem["remedy"] for problem in problems)


def test_other_storage_formats_are_refused_by_name(tmp_path: Path) -> None:
    root = make(tmp_path / "a", camera="")
    change_info(root, storage_format="zarr")
    assert "storage_format 'zarr'" in refused(root).what


@pytest.mark.parametrize("name", ["", "meta/info.json"])
def test_a_file_in_the_place_of_the_folder(tmp_path: Path, name: str) -> None:
    root = make(tmp_path / "a", camera="")
    path = root / name if name else tmp_path / "x"
    if not name:
        path.write_text("")
    error = refused(path)
    assert "is a file" in error.what
    assert str(root) in error.remedy or not name


@pytest.mark.parametrize("name", ["meta/episodes.jsonl", "meta/tasks.jsonl"])
def test_texts_that_are_not_utf_8_name_line_and_encoding(tmp_path: Path, name: str) -> None:
    root = make(tmp_path / "a", version="v2.1", camera="")
    text = (root / name).read_text().replace("place", "放下红色方块")
    (root / name).write_bytes(text.encode("gbk"))
    error = refused(root)
    assert "is not UTF-8 in line 2" in error.what
    assert "gbk fits" in error.what
    assert "kata data repair" in error.remedy


def test_a_codec_that_ffmpeg_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "a")
    path = root / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    path.write_bytes(path.read_bytes().replace(b"avc1", b"qqzz").replace(b"avcC", b"qqzC"))
    problems = [problem["what"] for problem in checked(root, capsys)["problems"]]
    assert any("a codec that FFmpeg does not know" in what for what in problems)


def test_a_string_where_numbers_are_declared_is_named(tmp_path: Path) -> None:
    root = make(tmp_path / "a", camera="")
    path = root / "data/chunk-000/file-001.parquet"
    change_table(path, lambda columns: columns.update(action=["x"] * 4))
    error = refused(root)
    assert "holds string" in error.what
    assert "declares float64" in error.rule


def test_a_wrong_rate_names_the_rate_and_what_repairs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "a")
    path = root / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    write_video(path, [picture_of(frame) for frame in range(4)], rate=20)
    problems = checked(root, capsys)["problems"]
    (wrong,) = [problem for problem in problems if "most frames are" in problem["what"]]
    assert "1 / 20 s apart" in wrong["what"]
    assert "kata data repair" in wrong["remedy"]


def test_unknown_fields_are_named_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "a", camera="")
    change_info(root, total_frame=16)
    problems = checked(root, capsys)["problems"]
    (unknown,) = [problem for problem in problems if problem["kind"] == "unknown fields"]
    assert "'total_frame' in line 1" in unknown["what"]
    assert "did you mean 'total_frames'?" in unknown["remedy"]


def test_rows_that_the_metadata_do_not_count_get_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("kata"), "propagate", True)
    root = make(tmp_path / "a", version="v2.1", camera="")
    open_dataset("local/x", root=root).column("action")
    assert caplog.text == ""
    path = root / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 5', '"length": 3'))
    for _ in range(2):  # also where the columns come out of the cache
        caplog.clear()
        open_dataset("local/x", root=root).column("action")
        assert "2 rows that the metadata do not count, first in data/chunk-000/" in caplog.text
        assert f"kata data repair {root}" in caplog.text
    caplog.clear()
    open_dataset("local/x", root=root, episodes=[1]).column("action")
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["data/chunk-000/file-000", "meta/episodes/chunk-000/file-000"])
def test_names_in_a_table_that_are_no_text_are_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    root = make(tmp_path / "a", camera="")
    path = root / f"{name}.parquet"
    path.write_bytes(path.read_bytes().replace(b"episode_index", b"episode\xe5index"))
    assert "cannot be read" in refused(root).what
    assert checked(root, capsys)["errors"] > 0


def test_convert_drops_no_row_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path / "a", version="v2.1", camera="")
    path = root / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 5', '"length": 3'))
    words = said(capsys, "convert", str(root), f"--out={tmp_path / 'b'}")
    assert "has 5 rows, the metadata give episode 0 3" in words
    assert "kata data repair" in words
    assert not (tmp_path / "b").exists()

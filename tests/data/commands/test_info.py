"""`kata data info` says what the metadata declare and what the files are, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kata.cli import main
from tests.data.dataset_maker import CAMERA, change_info, change_table, cut, make


def info(root: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    assert main(["data", "info", str(root), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_facts_of_a_video_dataset(
    tmp_path: Path, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = info(make(tmp_path / "made", version=version, lengths=(5, 7, 4)), capsys)
    assert (found["name"], found["version"], found["robot_type"], found["fps"]) == (
        "made",
        version,
        "made",
        10,
    )
    assert found["episodes"] == {"total": 3, "here": 3, "declared": 3}
    assert found["frames"] == {"total": 16, "here": 16}
    assert found["duration_s"] == 1.6
    assert found["episode_frames"] == {"min": 4, "median": 5.0, "max": 7}
    camera = found["cameras"][CAMERA]
    assert camera["shape"] == [32, 48, 3]
    assert (camera["codec"], camera["pix_fmt"], camera["gop"]) == ("h264", "yuv420p", 4)
    assert camera["files"] == (2 if version == "v3.0" else 3)
    assert found["columns"]["action"] == {
        "dtype": "float64",
        "shape": [2],
        "names": ["x", "y"],
        "role": "ACTION",
    }
    assert found["tasks"] == ["pick", "place"]
    assert found["bytes"]["total"] == sum(
        p.stat().st_size for p in (tmp_path / "made").rglob("*") if p.is_file()
    )
    seen = found["training"]
    assert (seen["episodes"], seen["frames"]) == (3, 16)
    assert seen["features"][CAMERA] == {"role": "VISUAL", "shape": [3, 32, 48]}
    assert seen["features"]["observation.state"] == {"role": "STATE", "shape": [3]}


def test_images_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    camera = info(make(tmp_path, camera="image"), capsys)["cameras"][CAMERA]
    assert (camera["codec"], camera["pix_fmt"]) == ("png", "RGB")
    assert camera["bytes_per_frame"] > 0


def test_the_text_says_what_training_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path)
    (root / "data/chunk-000/file-001.parquet").unlink()
    assert main(["data", "info", f"--root={root}"]) == 0
    said = capsys.readouterr().out
    assert "2 of 3 episodes" in said
    assert "a training run would refuse it" in said
    assert "--dataset.episodes=available" in said
    cut(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", 0.5)
    assert main(["data", "info", f"--root={root}"]) == 0
    assert "damaged: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ([], "no dataset given"),
        (["nowhere"], "nowhere"),
        (["--rot=x"], "did you mean --dataset.root?"),
    ],
)
def test_wrong_input_is_one_message(
    args: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "info", *args]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "remedy:" in said


def test_damaged_metadata_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_info(make(tmp_path, camera=""), codebase_version="v9")
    assert main(["data", "info", str(tmp_path)]) == 2
    assert "v9" in capsys.readouterr().err


def test_a_video_of_unknown_pixels_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path)
    probe = {"video.codec": "h264", "video.pix_fmt": None}
    monkeypatch.setattr("kata.data.inspect.dataset_summary.probe_video", lambda path: probe)
    camera = info(root, capsys)["cameras"][CAMERA]
    assert (camera["codec"], camera["pix_fmt"]) == ("h264", "unknown")
    assert main(["data", "info", str(root)]) == 0
    assert "unknown" in capsys.readouterr().out


@pytest.mark.parametrize("cell", [None, {"bytes": b"no image", "path": "a.png"}])
def test_an_image_that_cannot_be_read_is_shown_as_damaged(
    tmp_path: Path, cell: dict[str, Any] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path, camera="image")
    table = min(root.glob("data/*/*.parquet"))

    def spoil(columns: dict[str, Any]) -> None:
        columns[CAMERA][0] = cell

    change_table(table, spoil)
    assert table.name in info(root, capsys)["cameras"][CAMERA]["damaged"]
    assert main(["data", "info", str(root)]) == 0
    assert table.name in capsys.readouterr().out


@pytest.mark.parametrize("place", ["read_schema", "ParquetFile.read", "ParquetFile.iter_batches"])
def test_a_table_of_a_type_that_arrow_does_not_implement_is_damaged(
    tmp_path: Path,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = make(tmp_path, version="v2.1", camera="image")

    def refuse(*_: object, **__: object) -> None:
        raise pa.ArrowNotImplementedError("no such type")

    monkeypatch.setattr(f"pyarrow.parquet.{place}", refuse)
    verb = "info" if place.endswith("iter_batches") else "check"
    assert main(["data", verb, str(root)]) == (0 if verb == "info" else 1)
    assert "no such type" in capsys.readouterr().out

"""Cameras encoded anew: codec, keyframes and size as asked, everything else as it was, and the
loss is told.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kata.cli import main
from kata.data.edit.transcode import Psnr
from kata.data.edit.video_copy import Cuts
from kata.data.format.feature_stats import ImageCounts
from kata.data.video.encoder import ENCODERS
from kata.data.writing.dataset_writer import DatasetWriter
from tests.data.dataset_maker import CAMERA, make, write_video
from tests.data.edit.made import assert_equal, assert_numbered, info, items, joined, videos


@pytest.mark.parametrize("codec", sorted(ENCODERS))
@pytest.mark.parametrize("camera", ["video", "image"])
def test_frames_come_back_in_the_new_coding(tmp_path: Path, codec: str, camera: str) -> None:
    root, out = make(tmp_path / "a", camera=camera, b_frames=2), tmp_path / "b"
    size = ["--size=64x96"] if codec == "hevc" else []
    assert (
        main(["data", "transcode", str(root), f"--out={out}", f"--codec={codec}", "--gop=3", *size])
        == 0
    )
    old, new = items(root), items(out)
    before, after = old.pop(CAMERA), new.pop(CAMERA)
    assert_equal(new, old)
    assert_numbered(out)
    if size:  # pictures of one level
        before = before.repeat(2, axis=1).repeat(2, axis=2)
    assert np.abs(before.astype(int) - after).max() <= 6
    found = info(out)["features"][CAMERA]
    assert found["dtype"] == "video"
    assert {"video.codec": codec, "video.g": 3, "video.fps": 10}.items() <= found["info"].items()
    (path,) = videos(out)
    assert Cuts(path, 10).keys.tolist() == [0, 3, 5, 8, 11, 12, 15]
    psnr = json.loads((out / "meta/transcode.json").read_text())["cameras"][CAMERA]
    expected = (
        10 * np.log10(255**2 / ((before.astype(float) - after) ** 2).mean())
        if (before != after).any()
        else 100
    )
    assert psnr["frames"] == 16
    np.testing.assert_allclose(psnr["psnr_mean_db"], min(expected, 100), atol=1e-3)
    worst = min(
        10 * np.log10(255**2 / max(((a.astype(float) - b) ** 2).mean(), 1e-9))
        for a, b in zip(before, after, strict=True)
    )
    np.testing.assert_allclose(psnr["psnr_worst_frame_db"], min(worst, 100), atol=1e-3)
    stats = json.loads((out / "meta/stats.json").read_text())[CAMERA]
    counts = ImageCounts(3)
    for frame in before:
        counts.add(frame)
    np.testing.assert_allclose(stats["mean"], counts.summary()["mean"], rtol=1e-9)


def test_another_size_and_a_low_quality_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = make(tmp_path / "a"), tmp_path / "b"
    rng = np.random.default_rng(0)
    for path, count in zip(videos(root), (12, 4), strict=True):
        write_video(path, [rng.integers(0, 256, (32, 48, 3), np.uint8) for _ in range(count)])
    args = [f"--out={out}", "--size=16x24", "--codec=h264", "--crf=51"]
    assert main(["data", "transcode", str(root), *args]) == 0
    assert items(out)[CAMERA].shape == (16, 16, 24, 3)
    assert info(out)["features"][CAMERA]["shape"] == [16, 24, 3]
    said = capsys.readouterr()
    assert "is low" in said.err
    assert "all 16 compared" in said.out


def test_a_camera_that_is_not_named_keeps_its_bits(tmp_path: Path) -> None:
    extra = {"observation.images.wrist": {"dtype": "video", "shape": [32, 48, 3], "names": None}}
    root, out = make(tmp_path / "a", extra=extra, version="v2.1"), tmp_path / "b"
    for path in sorted(root.rglob("*.mp4")):
        target = Path(str(path).replace(CAMERA, "observation.images.wrist"))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    assert (
        main(
            [
                "data",
                "transcode",
                str(root),
                f"--out={out}",
                f"--cameras=[{CAMERA}]",
                "--codec=h264",
            ]
        )
        == 0
    )
    old, new = items(root), items(out)
    np.testing.assert_array_equal(new["observation.images.wrist"], old["observation.images.wrist"])
    assert list(json.loads((out / "meta/transcode.json").read_text())["cameras"]) == [CAMERA]


def test_facts_that_hold_for_some_files_only_become_null(tmp_path: Path) -> None:
    root, av1, out = make(tmp_path / "a"), tmp_path / "b", tmp_path / "c"
    assert main(["data", "transcode", str(root), f"--out={av1}", "--codec=av1"]) == 0
    assert main(["data", "merge", str(root), str(av1), f"--out={out}"]) == 0
    found = info(out)["features"][CAMERA]["info"]
    assert len(videos(out)) == 2
    assert found["video.codec"] is found["video.g"] is None
    assert found["video.height"] == 32
    assert_equal(items(out), joined(items(root), items(av1)))
    with DatasetWriter.resume(out):  # such a dataset can be appended to
        pass


def test_psnr_by_hand() -> None:
    psnr, black = Psnr(), np.zeros((2, 2, 3), np.uint8)
    psnr.add(black, black)
    assert psnr.mean_db == psnr.worst_db == 100
    psnr.add(black, black + 10)
    assert psnr.worst_db == pytest.approx(10 * np.log10(255**2 / 100))
    assert psnr.mean_db == pytest.approx(10 * np.log10(255**2 / 50))

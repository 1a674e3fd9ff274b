"""`kata data check --recording`: the page, the ranges, and what training reads of them."""

import json
import re

import numpy as np
import pytest

from kata.cli import main
from kata.config.keep_ranges import read_keep_ranges
from kata.data import open_dataset
from kata.data.writing.dataset_writer import DatasetWriter
from kata.spec import ACTION, STATE, Column

CAMERA = "observation.images.<top>"
FPS, LENGTH, IDLE = 10, 40, 25


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Four episodes; the second begins with 2.6 s at rest, the third has a black second."""
    root = tmp_path_factory.mktemp("recorded") / "arm"
    features = {
        STATE: Column("float32", (2,), ("x", "y")),
        ACTION: Column("float32", (2,), ("x", "y")),
        CAMERA: Column("image", (24, 32, 3)),
    }
    rng = np.random.default_rng(3)
    with DatasetWriter.create(root, fps=FPS, features=features) as writer:
        for episode in range(4):
            phase = rng.uniform(0, 6, 2)
            for frame in range(LENGTH):
                time = max(frame - IDLE, 0) if episode == 1 else frame
                pose = np.sin(time / 5 + phase).astype(np.float32)
                picture = rng.integers(90, 110, (24, 32, 3), dtype=np.uint8)
                x, y = ((pose + 1) * 8).astype(int)
                picture[y : y + 6, x : x + 6] = 250
                if episode == 2 and 10 <= frame < 20:
                    picture[:] = 0
                values = {STATE: pose, ACTION: pose, CAMERA: picture}
                writer.add_frame(values, task="wave")
            writer.save_episode()
    return root


def check(args):
    return main(["data", "check", *args])


def test_faults_are_found_shown_and_left_out(recorded, tmp_path, capsys):
    page, keep = tmp_path / "check.html", tmp_path / "keep.json"
    assert check([str(recorded), f"--report={page}", f"--write_ranges={keep}"]) == 0
    said = capsys.readouterr().out
    assert "episode 1 begins with 2.6 s (26 frames) at rest" in said
    assert f"episode 2: '{CAMERA}' is black in frames 6 to 19 (1.4 s)" in said
    assert "swapped cameras: not looked at: fewer than two cameras" in said
    assert read_keep_ranges(keep) == {"1": [[24, 40]], "2": [[20, 40]]}
    data = open_dataset("x/arm", root=recorded, keep_ranges=read_keep_ranges(keep))
    assert data.num_frames == 2 * LENGTH + 16 + 20
    html = page.read_text()
    assert "episode 1 begins with 2.6 s" in html
    assert "observation.images.&lt;top&gt;" in html
    assert "<top>" not in html
    assert html.count("data:image/jpeg;base64,") >= 4
    assert "<script" not in html
    assert not re.findall(r'(?:src|href)="(?!data:)', html)


def test_json_has_the_cuts(recorded, capsys):
    assert check([str(recorded), "--recording", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recording"]
    assert [fault["cuts"] for fault in found["faults"]] == [[[1, 0, 24]], [[2, 6, 20]]]
    assert found["keep_ranges"] == {"1": [[24, 40]], "2": [[20, 40]]}


def test_without_the_option_no_frame_is_read_and_nothing_is_said(recorded, capsys):
    assert check([str(recorded)]) == 0
    said = capsys.readouterr().out
    assert "at rest" not in said
    assert "frames sampled" not in said


def test_a_budget_bounds_the_frames_and_is_said(recorded, capsys):
    assert check([str(recorded), "--recording", "--sampled_frames=16"]) == 0
    assert f"16 frames of 2 episodes of '{CAMERA}'" in capsys.readouterr().out


def test_a_clean_recording_gives_a_file_that_keeps_everything(recorded, tmp_path):
    keep = tmp_path / "keep.json"
    assert check([str(recorded), "--episodes=[0,3]", f"--write_ranges={keep}"]) == 0
    assert read_keep_ranges(keep) == {}


def test_what_does_not_open_is_said_on_the_page(recorded, tmp_path, capsys):
    broken = tmp_path / "broken"
    (broken / "meta").mkdir(parents=True)
    for path in (recorded / "meta").rglob("*"):
        if path.is_file():
            (broken / path.relative_to(recorded)).parent.mkdir(parents=True, exist_ok=True)
            (broken / path.relative_to(recorded)).write_bytes(path.read_bytes())
    page = tmp_path / "check.html"
    assert check([str(broken), f"--report={page}"]) == 1
    assert "not looked at: no episode opens" in capsys.readouterr().out
    assert "missing files" in page.read_text()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--report=check.txt", "ends in .html"),
        ("--write_ranges=keep.html", "ends in .json"),
        ("--sampled_frames=0", "at least 1"),
    ],
)
def test_impossible_options_are_refused_before_the_work(recorded, capsys, option, said):
    assert check([str(recorded), option]) == 2
    assert said in capsys.readouterr().err


def test_existing_files_are_kept_unless_asked(recorded, tmp_path, capsys):
    page = tmp_path / "check.html"
    page.write_text("mine")
    assert check([str(recorded), f"--report={page}"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert check([str(recorded), f"--report={page}", "--overwrite"]) == 0
    assert page.read_text().startswith("<!doctype html>")

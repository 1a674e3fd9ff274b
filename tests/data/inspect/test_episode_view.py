"""`kata data view` shows the right frames and values, writes a whole file or none, and changes
nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kata.cli import main
from kata.data import open_dataset
from kata.data.commands.output import write_whole
from kata.data.inspect.episode_view import SECOND, page, read_sheet
from tests.data.dataset_maker import CAMERA, TASKS, change_info, change_table, level, make


def test_a_sheet_holds_the_frames_and_values_of_its_episode(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path), episodes=[1])
    sheet = read_sheet(data, 4)
    assert sheet.title == "x/y, episode 1"
    assert sheet.task == TASKS[1]
    assert sheet.shown.tolist() == [0, 2, 4, 6]
    for number, frame in zip(sheet.shown, sheet.frames[CAMERA], strict=True):
        assert abs(int(frame[0, 0, 0]) - level(1, int(number))) <= 3
    lines = {panel.name: dict(panel.lines) for panel in sheet.panels}
    np.testing.assert_array_equal(lines["state a"]["state"], 100.0 + np.arange(7))
    np.testing.assert_array_equal(lines["action y"]["action"], -100.0 - np.arange(7))
    assert len(lines) == 3 + 2 + 1 + 1 + 6
    np.testing.assert_allclose(sheet.time_s, np.arange(7) / 10)


def test_state_and_action_of_the_same_joints_share_panels(tmp_path: Path) -> None:
    state = {"dtype": "float64", "shape": [2], "names": ["x", "y"]}
    root = make(tmp_path, camera="", extra={"observation.state": state})
    for path in root.glob("data/*/*.parquet"):
        change_table(path, lambda table: table.update({"observation.state": table["action"]}))
    panels = read_sheet(open_dataset("x/y", root=root, episodes=[0]), 3).panels
    assert [[word for word, _ in panel.lines] for panel in panels[:2]] == [["state", "action"]] * 2
    assert [panel.name for panel in panels[:2]] == ["x", "y"]


def test_columns_of_other_names_are_shown_in_their_roles(tmp_path: Path) -> None:
    root = make(tmp_path, camera="")
    _rename(root, {"observation.state": "qpos", "action": "actions", "grid": "observation.effort"})
    sheet = read_sheet(open_dataset("x/y", root=root, episodes=[0]), 3)
    words = {panel.name: [word for word, _ in panel.lines] for panel in sheet.panels}
    assert words["state a"] == ["state"]
    assert words["action x"] == ["action"]
    assert words["observation.effort 0"] == ["state"]
    assert words["next.reward"] == ["next.reward"]
    text = page(sheet).decode()
    assert "— state" in text
    assert "— action" in text
    assert text.count(SECOND) > text.count("— action")


def _rename(root: Path, names: dict[str, str]) -> None:
    features = json.loads((root / "meta/info.json").read_text())["features"]
    change_info(root, features={names.get(key, key): each for key, each in features.items()})
    for path in root.glob("data/*/*.parquet"):
        for old, new in names.items():
            change_table(path, lambda table, old=old, new=new: table.update({new: table.pop(old)}))


@pytest.mark.parametrize(("camera", "episode"), [("video", 1), ("", 0)])
def test_a_page_has_every_frame_and_every_value(tmp_path: Path, camera: str, episode: int) -> None:
    root = make(tmp_path, camera=camera, lengths=(1, 5))
    sheet = read_sheet(open_dataset("x/y", root=root, episodes=[episode]), 8)
    text = page(sheet).decode()
    assert text.count("data:image/jpeg;base64,") == (5 if camera else 0)
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "grid 5" in text


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    names = ["<b>$x^", "100%_$"]
    root = make(
        tmp_path, camera="", extra={"action": {"dtype": "float64", "shape": [2], "names": names}}
    )
    sheet = read_sheet(open_dataset("<i>$a/y", root=root, episodes=[0]), 2)
    text = page(sheet).decode()
    assert "<b>" not in text
    assert "&lt;i&gt;" in text
    assert "$x^" in text


def test_the_command_writes_the_file_and_leaves_the_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, out = make(tmp_path / "a", camera="image"), tmp_path / "new/e.png"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert main(["data", "view", str(root), "--episode=2", f"--out={out}", "--frames=3"]) == 0
    assert "episode 2" in capsys.readouterr().out
    with Image.open(out) as image:
        assert (image.format, image.width > 1000) == ("PNG", True)
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 10
    assert [path.name for path in out.parent.iterdir()] == ["e.png"]
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert main(["data", "view", str(root), f"--out={out}"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "new/e.html", b"page")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ([], "out: not given"),
        (["--out=x.jpg"], "--out=episode.png"),
        (["--out=x"], "--out=episode.png"),
        (["--out=x.png", "--episode=9"], "no episode 9"),
        (["--out=x.png", "--frames=0"], "frames=0"),
        (["--out=x.png", "--epsiode=1"], "did you mean --episode?"),
        (["--out={root}/x.png"], "inside the dataset"),
        (["--out=/proc/none/x.png"], "cannot be written"),
    ],
)
def test_wrong_input_is_one_message(
    tmp_path: Path,
    args: list[str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    root = make(tmp_path / "a", camera="")
    assert main(["data", "view", str(root), *(arg.format(root=root) for arg in args)]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "remedy:" in said
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

"""`kata data stats` computes what numpy computes, says where the stored figures are others, and
changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kata.cli import main
from kata.data import open_dataset
from kata.data.stats.dataset_stats import differences, episode_sample_rows
from tests.data.dataset_maker import CAMERA, make, write_json

KEYS = ["min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"]


def run(root: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["data", "stats", str(root), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out.partition("\nwritten")[0])


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def exact(values: np.ndarray) -> dict[str, list[float]]:
    flat = values.reshape(len(values), -1).astype(np.float64)
    figures = [flat.min(0), flat.max(0), flat.mean(0), flat.std(0), np.array([len(flat)])]
    figures += [np.quantile(flat, q, axis=0) for q in (0.01, 0.1, 0.5, 0.9, 0.99)]
    return dict(zip(KEYS, [figure.tolist() for figure in figures], strict=True))


@pytest.mark.parametrize("episodes", [None, [0, 2]])
def test_figures_are_those_of_numpy_and_no_frame_is_decoded(
    tmp_path: Path, episodes: list[int] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path)
    data = open_dataset("x", root=root, episodes=episodes)
    found = run(root, capsys, *([f"--episodes={episodes}"] if episodes else []))["statistics"]
    assert CAMERA not in found
    for key in ("observation.state", "action", "next.reward", "next.done"):
        for name, values in exact(data.column(key)).items():
            np.testing.assert_allclose(
                found[key][name], values, rtol=1e-12, atol=1e-12, err_msg=f"{key} {name}"
            )


def test_what_is_written_is_then_found_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, target = make(tmp_path / "a", camera="image"), tmp_path / "out/stats.json"
    before = snapshot(root)
    found = run(root, capsys, "--images=all", f"--write={target}")
    assert found["compared_with"] is None
    written = json.loads(target.read_text())
    assert written == found["statistics"]
    assert np.shape(written[CAMERA]["mean"]) == (3, 1, 1)
    assert snapshot(root) == before
    (root / "meta/stats.json").write_text(target.read_text())
    again = run(root, capsys, "--images")
    assert (again["compared_with"], again["differences"]) == ("meta/stats.json", [])


def test_a_camera_that_was_not_decoded_keeps_its_stored_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, target = make(tmp_path / "a"), tmp_path / "stats.json"
    own = {key: [[[0.5]]] * 3 for key in KEYS} | {"count": [16]}
    write_json(root / "meta/stats.json", {CAMERA: own})
    run(root, capsys, f"--write={target}")
    assert json.loads(target.read_text())[CAMERA]["q90"] == own["q90"]


def test_differences_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make(tmp_path)
    stats = run(root, capsys)["statistics"]
    stats["action"]["mean"][1] += 1.0
    stats["observation.state"]["count"] = [15]
    stats["grid"]["q99"] = [1.0, 2.0]
    write_json(root / "meta/stats.json", stats)
    off = run(root, capsys)["differences"]
    assert [(row["feature"], row["figure"]) for row in off] == [
        ("observation.state", "count"),
        ("action", "mean"),
        ("grid", "q99"),
    ]
    assert main(["data", "stats", str(root)]) == 0
    said = capsys.readouterr().out
    assert "of the range" in said
    assert "15 stored" in said
    assert "3 values computed" in said


def test_rounding_is_no_difference() -> None:
    stats = {key: np.array([1.0, 2.0]) for key in KEYS} | {"count": np.array([7])}
    stats |= {"min": np.zeros(2), "max": np.full(2, 3.0)}
    near = {key: values * (1 + 1e-6) for key, values in stats.items()}
    assert differences({"action": stats}, {"action": near}) == []
    for name, values in (("std", [1.0, 2.1]), ("max", [3.0, np.nan])):
        other = stats | {name: np.array(values)}
        assert [each.stat for each in differences({"action": stats}, {"action": other})] == [name]


def test_frames_are_sampled_as_lerobot_samples_them() -> None:
    lengths = np.array([5, 1000])
    rows = episode_sample_rows(lengths)
    assert rows[:5].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(rows[5:], 5 + np.linspace(0, 999, int(1000**0.75)).round())


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--images=sample"], "did you mean 'sampled'?"),
        (["--write=stats.txt"], ".json"),
        (["--write={root}/meta/stats.json", "--overwrite"], "inside the dataset"),
        (["--write={there}"], "exists already"),
        (["--epsiodes=[0]"], "did you mean --dataset.episodes?"),
        (["--episodes=[9]"], "no episode 9"),
    ],
)
def test_wrong_input_is_one_message(
    tmp_path: Path, args: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root, there = make(tmp_path / "a", camera=""), tmp_path / "there.json"
    there.write_text("{}")
    assert (
        main(["data", "stats", str(root), *(arg.format(root=root, there=there) for arg in args)])
        == 2
    )
    said = capsys.readouterr().err
    assert word in said
    assert "remedy:" in said
    assert there.read_text() == "{}"


def test_overwriting_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "there.json"
    target.write_text("{}")
    run(make(tmp_path / "a", camera=""), capsys, f"--write={target}", "--overwrite")
    assert "action" in json.loads(target.read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "there.json"]

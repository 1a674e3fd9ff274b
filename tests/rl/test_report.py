"""The page of a run: success over minutes with interventions beneath, over all its processes."""

import json
import re

import numpy as np
import pytest

from kata.rl.report import _minutes, _share, write_rl_report


def episode(run_s, **more):
    line = {"kind": "episode", "step": 1, "episode": 0, "return": 1.0, "length": 10}
    more = {"success": True, "human_steps": 0, "own_success": 0.5, **more}
    return {**line, **more, "run_s": run_s, "time": run_s}


def page(folder, lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return write_rl_report(folder, "a <run>", 20, "kata rl train x").read_text()


def texts(svg_page):
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg_page)


def test_success_stands_above_the_interventions_over_minutes(tmp_path):
    lines = [episode(60.0 * n, human_steps=10 * (n < 5)) for n in range(10)]
    lines.append({"kind": "evaluation", "step": 9, "success": 0.9, "return": 3.0, "run_s": 600.0})
    lines.append({"kind": "train", "step": 9, "updates": 70, "loss_critic": 0.5, "run_s": 600.0})
    made = page(tmp_path, lines)
    assert "last 20 without help" in made
    shown = texts(made)
    assert shown.index("Success") < shown.index("Steps of a human, share")
    assert {"minutes", "100 %"} <= {*shown}
    assert "a &lt;run&gt;" in made
    for said in (
        "<b>90%</b>evaluated success",
        "<b>50</b>human steps<span>50% of all",
        "70 updates",
    ):
        assert said in made, said


def test_without_success_the_return_is_drawn(tmp_path):
    made = page(tmp_path, [episode(60.0 * n, success=None, own_success=None) for n in range(3)])
    assert "Return" in texts(made)
    assert "Success" not in texts(made)
    assert "No episode was played yet" in page(tmp_path, [])


def test_minutes_go_on_where_another_process_continued():
    lines = [{"run_s": seconds} for seconds in (60, 120, 30, 90)]
    assert _minutes(lines) == pytest.approx([1, 2, 2.5, 3.5])


def test_shares_are_of_the_last_episodes():
    taken, length = np.array([4.0, 0, 2, 0]), np.array([4.0, 4, 4, 2])
    assert _share(taken, length, 2).tolist() == pytest.approx([1, 0.5, 0.25, 1 / 3])
    assert _share(taken, length, 9)[-1] == pytest.approx(6 / 14)

"""The laboratory compares with LeRobot, judges by targets, and keeps every figure."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.lab import lerobot_env
from benchmarks.lab.__main__ import LAB
from benchmarks.lab.lerobot_env import Peer
from benchmarks.lab.targets import missed, summarise_case
from kata.bench.cases import Case
from kata.bench.table import text
from kata.cli import answer
from kata.errors import ConfigError
from tests.data import dataset_maker

QUICK = ("--rounds=1", "--seconds=0.05", "--floor_seconds=0.05", "--epoch_seconds=0.5")


def figures(cpu_ms: float, **more: float) -> dict[str, float]:
    return {"cpu_ms": cpu_ms, "first_batch_s": 0.5, "peak_bytes": 2e8, **more}


def test_ratios_pair_the_rounds_and_targets_are_judged():
    found = {
        "floor": [figures(4.0), figures(8.0), figures(4.0)],
        "full": [figures(10.0), figures(20.0), figures(10.0)],
        "peer": [figures(30.0), figures(60.0), figures(20.0)],
    }
    summary = summarise_case(Case("a", "act"), found)
    assert summary["full"]["peer_ratio"] == 3.0, (
        "a round in which everything took twice as long changes nothing"
    )
    assert summary["full"]["floor_share"] == 0.4
    assert summary["full"]["targets"]["times less CPU than the peer"] == {
        "wanted": 2.4, "measured": 3.0, "reached": True,
    }  # fmt: skip
    slow = {
        **found,
        "full": [figures(10.0, peak_bytes=3e9), figures(10.0), figures(60.0, peak_bytes=2e9)],
    }
    targets = summarise_case(Case("a", "act"), slow)["full"]["targets"]
    assert not targets["bytes resident"]["reached"]
    lines = missed({"a:act": summarise_case(Case("a", "act"), slow)})
    assert lines[-2].startswith("not reached: a:act full: bytes resident")
    assert lines[-1].endswith("of 3 targets reached")


def test_a_peer_that_fails_is_a_result():
    found = {
        "floor": [figures(4.0)],
        "full": [figures(10.0)],
        "peer": [{"error": "IndexError: 150"}],
    }
    summary = summarise_case(Case("multi", "act"), found)
    assert summary["peer"] == {"error": "IndexError: 150"}
    assert "peer_ratio" not in summary["full"]
    lines = text({"settings": {"rounds": 1}, "summary": {"multi:act": summary}})
    assert "failed: multi:act peer: IndexError: 150" in lines


def test_floor_and_clips_are_measured_by_turns(tmp_path, capsys):
    root = dataset_maker.make(tmp_path / "set", lengths=(20, 15, 12))
    args = [str(root), *QUICK, "--batch_size=2", "--ways=[clips]", f"--out={tmp_path}"]
    assert answer(LAB, args, "python -m benchmarks.lab") == 0
    (path,) = tmp_path.glob("data_*.json")
    record = json.loads(path.read_text())
    assert record["command"].startswith("python -m benchmarks.lab --root=")
    assert record["versions"]["peer"] == {}
    figures = record["summary"]["act"]["clips"]
    assert figures["samples"] % 46 == 0, "whole epochs"
    assert figures["floor_share"] == pytest.approx(
        record["rounds"]["act"]["floor"][0]["cpu_ms"] / figures["cpu_ms"]
    )
    assert "seconds to the first batch" in figures["targets"]
    assert "of 3 targets reached" in capsys.readouterr().out


def test_a_python_without_lerobot_is_named(tmp_path):
    args = [str(tmp_path), "--make", f"--peer_python={tmp_path}/python"]
    assert answer(LAB, args, "python -m benchmarks.lab") == 2
    # Its own message is passed on.
    with pytest.raises(ConfigError, match="No module named 'lerobot'"):
        Peer(Path(sys.executable))


def test_the_peer_is_given_ffmpeg_where_the_system_has_none(tmp_path, monkeypatch):
    libs, links = tmp_path / "lib/python3.12/site-packages/av.libs", tmp_path / "links"
    links.mkdir()
    libs.mkdir(parents=True)
    for name in (
        "libavutil-a63ffd27.so.59.39.100",
        "libswscale-5efb2ca5.so.8.3.100",
        "libdav1d-f1894f21.so.7.0.0",
    ):
        (libs / name).touch()
    monkeypatch.setattr(lerobot_env, "find_library", lambda name: None)
    found = lerobot_env.ffmpeg_for(tmp_path / "bin/python", links)
    assert found["LD_LIBRARY_PATH"].split(":")[:2] == [str(links), str(libs)]
    assert {link.name: link.readlink().name for link in links.iterdir()} == {
        "libavutil.so.59": "libavutil-a63ffd27.so.59.39.100",
        "libswscale.so.8": "libswscale-5efb2ca5.so.8.3.100",
    }
    monkeypatch.setattr(lerobot_env, "find_library", lambda name: "libavutil.so.57")
    assert lerobot_env.ffmpeg_for(tmp_path / "bin/python", links) == {}

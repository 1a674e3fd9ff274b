"""`kata bench data` measures what it says, and keeps every figure."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from kata.bench.cases import Case, windows_of
from kata.bench.course import Course, ProcessPauses
from kata.bench.decode_floor import decode_floors, open_tracks
from kata.bench.options import chosen_cases
from kata.bench.read_worker import AHEAD, Reading, measure
from kata.bench.rounds import measure_alone
from kata.cli import BENCH, main
from kata.config.verb import read_options
from kata.data import open_dataset
from kata.errors import ConfigError, DataError
from tests.data import dataset_maker

QUICK = (
    "--rounds=1",
    "--seconds=0.05",
    "--floor_seconds=0.05",
    "--epoch_seconds=0.5",
    "--batch_size=2",
)
NUMBERS = (
    "cpu_ms",
    "samples_s",
    "samples",
    "first_batch_s",
    "open_s",
    "peak_bytes",
    "episodes_per_batch",
)


def bench_run(args):
    return read_options(BENCH.verbs["data"], args, "kata bench data")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return dataset_maker.make(tmp_path_factory.mktemp("bench") / "set", lengths=(20, 15, 12))


@pytest.fixture(scope="module")
def result(root):
    out = root.parent / "results"
    assert main(["bench", "data", f"--root={root}", *QUICK, f"--out={out}"]) == 0
    (path,) = out.glob("data_*.json")
    return json.loads(path.read_text())


def test_the_record_says_what_was_measured_where_and_how(result, root):
    assert result["command"].startswith("kata bench data --root=")
    assert result["machine"]["cores"] >= 1
    assert {"kata", "python", "av", "numpy"} <= result["versions"]["kata"].keys()
    assert result["settings"]["batch_size"] == 2
    facts = result["datasets"]["."]
    assert (facts["episodes"], facts["frames"], facts["fps"]) == (3, 47, dataset_maker.FPS)
    assert facts["bytes"] == sum(
        p.stat().st_size for p in root.rglob("*") if p.suffix in (".mp4", ".parquet")
    ) - sum(p.stat().st_size for p in (root / "meta").rglob("*.parquet"))


def test_the_frame_cache_is_measured_once_it_is_full(result):
    (one,) = result["rounds"]["act"]["cache"]
    assert one["work"]["frames_held"] == one["work"]["frames_asked"]
    assert one["fill_cpu_s"] > 0
    frames, frame_bytes = 20 + 15, dataset_maker.HEIGHT * dataset_maker.WIDTH * 3
    batches, tenth = (AHEAD + 1) * 2 * frame_bytes, frames * frame_bytes // 20  # held as 4:2:0
    assert one["budget_bytes"] == frames * frame_bytes + tenth + batches


def test_every_round_and_the_medians_are_kept(result):
    rounds, summary = result["rounds"]["act"], result["summary"]["act"]
    for way in result["settings"]["ways"]:
        (one,) = rounds[way]
        for name in NUMBERS:
            assert one[name] > 0
            assert summary[way][name] == one[name]
        assert one["bytes_per_sample"] >= 0
        assert one["work"]["frames_asked"] > 0
        assert summary[way]["floor_share"] == pytest.approx(
            rounds["floor"][0]["cpu_ms"] / one["cpu_ms"]
        )
        assert "peer_ratio" not in summary[way], "nothing to compare with"


def test_the_floor_counts_decoding_and_colour(root):
    tracks = open_tracks(open_dataset("t/t", root=root), [dataset_maker.CAMERA], 2)
    (floor,) = decode_floors(tracks, 0.1, ProcessPauses).values()
    assert 0 < floor.decode_ms < floor.rgb_ms < 1e3
    assert floor.frames_s > 10


def test_the_floor_takes_its_cameras_by_stretches_until_it_is_told_to_end(root):
    dataset, key = open_dataset("t/t", root=root), dataset_maker.CAMERA
    (each,) = open_tracks(dataset, [key], 1)
    tracks, stood = (
        [{"one": each[key], "two": open_tracks(dataset, [key], 1)[0][key]}],
        list[tuple[float, float]](),
    )

    def told() -> ProcessPauses:
        began_s = time.perf_counter()
        while len(each[key].spans) < 4:
            time.sleep(0.01)
        stood.append((began_s, time.perf_counter()))
        return ProcessPauses(stood)

    floors = decode_floors(tracks, 0.01, told)
    one, two = (list(tracks[0][name].spans) for name in ("one", "two"))
    assert len(one) == len(two) >= 4
    assert [begin for pair in zip(one, two, strict=True) for begin, _ in pair] == sorted(
        a for a, _ in one + two
    )
    assert floors["one"].decode_ms == pytest.approx(1e3 * each[key].decode_s / each[key].count)
    stopped_s = sum(max(0.0, min(b, stood[0][1]) - max(a, stood[0][0])) for a, b in one)
    assert floors["one"].frames_s == pytest.approx(
        each[key].count / (sum(b - a for a, b in one) - stopped_s)
    )


def test_the_floor_of_images(tmp_path):
    made = dataset_maker.make(tmp_path / "set", camera="image")
    tracks = open_tracks(open_dataset("t/t", root=made), [dataset_maker.CAMERA], 1)
    (floor,) = decode_floors(tracks, 0.05, ProcessPauses).values()
    assert 0 < floor.decode_ms < floor.rgb_ms


@pytest.mark.parametrize(
    ("pattern", "camera", "action"),
    [
        ("act", None, 100),
        ("diffusion", (-1, 0), 16),
        ("sarm", tuple(range(-70, 1, 10)), 1),
        ("single", None, None),
    ],
)
def test_patterns_are_the_policies_windows(root, pattern, camera, action):
    windows, keys = windows_of(pattern, open_dataset("t/t", root=root))
    assert windows.get(dataset_maker.CAMERA) == camera
    assert (len(windows["action"]) if "action" in windows else None) == action
    assert dataset_maker.CAMERA in keys


def test_a_soak_says_how_memory_grew(root, capsys, tmp_path):
    command = [
        "bench",
        "data",
        f"--root={root}",
        "--soak=200",
        "--batch_size=2",
        f"--out={tmp_path}",
    ]
    assert main([*command, "--ways=[clips,cache]", "--cache_episodes=3"]) == 0
    assert "clips: 200 batches; resident" in capsys.readouterr().out
    (path,) = tmp_path.glob("soak_*.json")
    record = json.loads(path.read_text())
    assert list(record["ways"]) == ["clips", "cache"]
    for figures in record["ways"].values():
        assert figures["epochs"] == pytest.approx(400 / 47)
        assert len(figures["resident_bytes"]) == 100
        assert figures["resident_bytes"][-1] == figures["after_bytes"]
    assert record["machine"]["cores"] >= 1


def test_a_folder_of_datasets_gives_a_case_for_each(root, tmp_path):
    for name in ("b", "new"):
        (tmp_path / name).symlink_to(root)
    (tmp_path / "no dataset").mkdir()
    found = chosen_cases(bench_run([f"--root={tmp_path}"]))
    assert found == [Case("b", "act"), Case("new", "act")]
    usual = (Case("a", "act"), Case("b", "sarm"))
    assert chosen_cases(bench_run([f"--root={tmp_path}"]), usual=usual) == [Case("b", "sarm")]
    asked = bench_run([f"--root={tmp_path}", "--cases=[b:sarm]"])
    assert chosen_cases(asked) == [Case("b", "sarm")]


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ([], "root"),
        (["--root=x", "--rounds=0"], "rounds=0"),
        (["--root=x", "--cases=[a:atc]"], "a:atc"),
        (["--root=x", "--ways=[ful]"], "ful"),
        (["--root=x", "--frame_memory=much"], "frame_memory=much"),
        (["--root=x", "--secnds=1"], "secnds"),
    ],
)
def test_wrong_options_are_refused(flags, what):
    with pytest.raises(ConfigError, match=what) as caught:
        bench_run(flags)
    assert caught.value.remedy


def test_what_is_no_dataset_is_named(tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        chosen_cases(bench_run([f"--root={tmp_path}"]))
    assert main(["bench", "dat"]) == 2


def test_a_measurement_that_fails_says_why(root):
    run = bench_run([f"--root={root}", "--frame_memory=1", "--pixels=yuv"])
    with pytest.raises(ConfigError, match="no_such_way"):
        measure_alone(run, Case(".", "act"), "no_such_way", 0)


def test_an_order_in_clips_is_measured_over_whole_epochs(result):
    clips = result["rounds"]["act"]["clips"][0]
    assert clips["samples"] % 46 == 0, "23 batches of 2 are an epoch of 47"
    assert clips["samples"] > 46, "whole epochs until the time has passed"
    assert 1 <= clips["clips_per_batch"] <= 2
    assert clips["uniform_distinct_clips"] > 1


def test_a_long_first_epoch_is_cut_at_its_limit(root):
    asked = Reading(
        root=str(root), pattern="act", way="clips", batch_size=2, threads=1, seconds=0.0, epoch_seconds=1e-6, seed=0,  # noqa: E501
        frame_memory=0,
    )  # fmt: skip
    assert measure(asked, Course())["samples"] == 2, "one batch at least"
    whole = measure(replace(asked, epoch_seconds=0.5), Course())["samples"]
    assert whole % 46 == 0
    assert whole > 0


def test_episodes_per_batch_are_counted(result):
    assert 1 <= result["summary"]["act"]["full"]["episodes_per_batch"] <= 2
    assert np.isfinite(result["summary"]["act"]["full"]["other_cores"])

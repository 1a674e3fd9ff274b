"""A frame that cannot be decoded stops the run and is named, or its sample is substituted,
listed and counted.
"""

import json
import shutil

import pytest

from kata.cli import main
from kata.data.loader.substitutes import COUNT_MIN
from kata.errors import DataError, FrameError
from kata.run import resolve_run
from kata.train import train
from kata.train.metrics.meter import read_metrics
from kata.train.summary import run_summary
from tests.conftest import TINY_ACT, narrow_backbones, undrawn_charts
from tests.data.loader.test_substitutes import corrupt
from tests.train.test_kill import saved
from tests.train.test_train import numbers

WRIST = "observation.images.wrist"
SUBSTITUTE = "--on_bad_frame=substitute"
SMALL = (
    f'--policy.input_features={{"{WRIST}": {{"type": "VISUAL", "shape": [3, 32, 32]}}, '
    '"observation.state": {"type": "STATE", "shape": [3]}}'
)
PACKETS = (10, 83, 40)
"""Frames that are met in steps 4 and 7, and one that is held out."""


def damage(whole, root, packets):
    """A copy of a dataset in which these packets of one camera are overwritten."""
    shutil.copytree(whole, root)
    for packet in packets:
        corrupt(next(root.glob(f"videos/{WRIST}/**/*.mp4")), packet)
    return root


@pytest.fixture(autouse=True, scope="module")
def quick_cameras():
    """Replace the function's fixture: all tests here compare with one run."""
    with pytest.MonkeyPatch.context() as patch:
        narrow_backbones(patch)
        yield


@pytest.fixture(autouse=True, scope="module")
def quick_reports():
    """Replace the function's fixture too."""
    with pytest.MonkeyPatch.context() as patch:
        undrawn_charts(patch)
        yield


@pytest.fixture(scope="module")
def run(tiny_dataset, tmp_path_factory):
    """A run over such a copy: run('folder', '--steps=3')."""
    home = tmp_path_factory.mktemp("bad")
    root = damage(tiny_dataset, home / "damaged", PACKETS)
    args = [
        f"--dataset.root={root}",
        "--dataset.repo_id=x/y",
        *TINY_ACT,
        SMALL,
        "--save_freq=3",
        "--steps=8",
    ]
    args += ["--dataset.eval_split=0.34", "--eval_steps=4"]
    return lambda folder, *more: resolve_run([*args, f"--output_dir={home / folder}", *more])[0]


@pytest.fixture(scope="module")
def straight(run):
    return train(run("straight", SUBSTITUTE, "--num_workers=4"))


def listed(folder):
    return [json.loads(line) for line in (folder / "bad_frames.jsonl").read_text().splitlines()]


def check_same(resumed, straight):
    for name in ("bad_frames.jsonl", "losses.f32"):
        assert (resumed.folder / name).read_bytes() == (straight.folder / name).read_bytes()
    for step in ("000006", "000008"):
        assert saved(resumed.folder / "checkpoints" / step) == saved(
            straight.folder / "checkpoints" / step
        )
    assert numbers(resumed) == numbers(straight)
    assert [text.partition(";")[0] for text in resumed.remarks] == [
        t.partition(";")[0] for t in straight.remarks
    ]


def test_substituted_samples_are_listed_and_told(run, straight):
    lines = listed(straight.folder)
    assert [(line["used_to"], line["step"], line["episode"], line["frame"]) for line in lines] == [
        ("train", 4, 0, 10),
        ("validate", 4, 3, 1),
        ("train", 7, 5, 13),
    ]
    for line in lines:
        assert line["camera"] == WRIST
        assert line["file"] == f"videos/{WRIST}/chunk-000/file-000.mp4"
        assert "cannot be decoded" in line["why"]
        assert set(line["substitute"]) == {"episode", "frame"}
        assert line["used_to"] == "validate" or line["step"] == line["position"] // 4 + 1
        assert (line["substitute"]["episode"] in (2, 3)) == (line["used_to"] == "validate"), (
            "held-out ones stay apart"
        )
    notes = [
        line
        for line in read_metrics(straight.folder / "metrics.jsonl")
        if line["kind"] == "bad_frame"
    ]
    assert [(note["step"], note["position"]) for note in notes] == [
        (line["step"], line["position"]) for line in lines
    ]
    told = "3 samples have frames that cannot be decoded"
    assert told in run_summary(run("straight"), straight)
    assert told in straight.report.read_text()


def test_a_run_resumed_after_a_bad_frame_equals_a_straight_one(run, straight, tmp_path):
    part = tmp_path / "part"
    shutil.copytree(straight.folder, part, symlinks=True)
    shutil.rmtree(part / "checkpoints" / "000008")
    how = (f"--output_dir={part}", "--resume=true", "--num_workers=1", "--prefetch_factor=1")
    check_same(train(run("", SUBSTITUTE, *how)), straight)


def test_a_run_that_stopped_at_a_bad_frame_goes_on_with_substitutes(run, straight):
    """Without validation up to there: it would meet the held-out frame first."""
    with pytest.raises(FrameError) as stopped:
        train(run("stopped", "--eval_steps=8"))
    error = stopped.value
    assert (error.camera, error.frame) == (WRIST, 10)
    for word in (error.file, "frame 10 of", f"camera '{WRIST}'", "episode 0, frame 10"):
        assert word in error.what
    assert SUBSTITUTE in error.remedy
    resumed = train(run("stopped", SUBSTITUTE, "--resume=true"))
    assert [line for line in listed(resumed.folder) if line["used_to"] == "train"] == [
        line for line in listed(straight.folder) if line["used_to"] == "train"
    ]
    for step in ("000006", "000008"):
        assert saved(resumed.folder / "checkpoints" / step) == saved(
            straight.folder / "checkpoints" / step
        )


def test_too_many_stop_the_run_and_name_the_files(run, tiny_dataset, tmp_path):
    root = damage(tiny_dataset, tmp_path / "worse", range(0, 80, 4))
    with pytest.raises(DataError, match=f"{COUNT_MIN + 1} of \\d+ samples") as stopped:
        train(
            run(
                "worse",
                SUBSTITUTE,
                f"--dataset.root={root}",
                "--steps=60",
                "--save_freq=60",
                "--eval_steps=60",
            )
        )
    assert f"videos/{WRIST}/chunk-000/file-000.mp4" in stopped.value.what
    assert "kata data check <folder> --decode" in stopped.value.remedy


def test_other_choices_are_refused(capsys, tiny_args):
    assert main(["train", *tiny_args, "--on_bad_frame=substitude"]) == 2
    assert "did you mean 'substitute'" in capsys.readouterr().err

"""A run that was killed and started again ends with the same bytes as one that nobody touched."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest

from kata.train import train
from tests import forked
from tests.train.test_train import numbers

KILL = Path(__file__).parents[2] / "tools" / "kill" / "run.py"
FOURTHS = ("--batch_size=1", "--accelerator.gradient_accumulation.steps=4")
AVERAGED = ("--ema.enable=true",)
BF16 = ("--accelerator.mixed_precision=bf16",)
STEPS_PER_EPOCH = 3  # twelve frames are trained on, four at a step


def saved(folder: Path) -> dict[str, bytes]:
    """Every checkpoint's tensors and state."""
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*")}
    wanted = {
        name: p
        for name, p in found.items()
        if p.suffix == ".safetensors" or "training_state" in p.parts
    }
    return {name: p.read_bytes() for name, p in wanted.items() if p.is_file()}


@pytest.mark.parametrize(
    "options",
    [(), (*FOURTHS, *AVERAGED, *BF16)],
    ids=["fp32", "accumulated, averaged, bf16"],
)
def test_resumed_around_an_epochs_end_equals_straight(vector_run, tmp_path, options):
    steps = STEPS_PER_EPOCH + 2
    asked = (
        "--dataset.eval_split=0.25",
        "--eval_steps=2",
        "--save_freq=1",
        "--log_freq=2",
        f"--steps={steps}",
        *options,
    )
    straight = train(vector_run(*asked))
    assert straight.last["epoch"] == pytest.approx(steps / STEPS_PER_EPOCH)
    for step in (STEPS_PER_EPOCH - 1, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 1):
        part = tmp_path / f"from-{step}"
        shutil.copytree(straight.folder, part, symlinks=True)
        for later in range(step + 1, steps + 1):
            shutil.rmtree(part / "checkpoints" / f"{later:06d}")
        resumed = train(vector_run(*asked, f"--output_dir={part}", "--resume=true"))
        assert saved(part) == saved(straight.folder)
        assert numbers(resumed) == numbers(straight)
        assert resumed.best["action_error"] == straight.best["action_error"]


@pytest.mark.parametrize("step", [3, 7])
def test_a_run_killed_between_a_checkpoint_and_its_record(vector_run, tmp_path, step):
    """The folder has its name already; `last` still points at the one before, and metrics.jsonl
    has no line of it.
    """
    asked = (
        "--dataset.eval_split=0.25",
        "--eval_steps=2",
        "--save_freq=1",
        "--log_freq=2",
        "--steps=7",
    )
    straight = train(vector_run(*asked))
    part = tmp_path / "part"
    shutil.copytree(straight.folder, part, symlinks=True)
    for later in range(step + 1, 8):
        shutil.rmtree(part / "checkpoints" / f"{later:06d}")
    (part / "checkpoints" / "last").unlink()
    (part / "checkpoints" / "last").symlink_to(f"{step - 1:06d}")
    lines = (part / "metrics.jsonl").read_text().splitlines(keepends=True)
    cut = next(i for i, x in enumerate(lines) if '"checkpoint"' in x and f'"step": {step},' in x)
    (part / "metrics.jsonl").write_text("".join(lines[:cut]))
    resumed = train(vector_run(*asked, f"--output_dir={part}", "--resume=true"))
    assert saved(part) == saved(straight.folder)
    assert numbers(resumed) == numbers(straight)
    assert (part / "checkpoints" / "last").readlink().name == "000007"


def test_with_pictures_too(tiny_run, tmp_path):
    asked = ("--dataset.eval_split=0.3", "--eval_steps=2", "--save_freq=2", "--steps=4", *AVERAGED)
    straight = train(tiny_run(*asked))
    part = tmp_path / "part"
    shutil.copytree(straight.folder, part, symlinks=True)
    shutil.rmtree(part / "checkpoints" / "000004")
    resumed = train(tiny_run(*asked, f"--output_dir={part}", "--resume=true"))
    assert saved(part) == saved(straight.folder)
    assert numbers(resumed) == numbers(straight)


def killing(options: list[str]) -> None:
    sys.argv = [str(KILL), *options]
    runpy.run_path(str(KILL), run_name="__main__")


@pytest.mark.skipif(sys.platform == "win32", reason="forks and kills")
def test_killed_runs_end_as_the_straight_one(tmp_path):
    options = ["--kills=4", "--seed=3", "--only=vectors, EMA, accumulation 4"]
    said = tmp_path / "said.txt"
    team = forked.Team([forked.start(killing, [options], said)], [said])
    assert team.ended(300) == [0], team.said()
    assert "4 kills in" in team.said()

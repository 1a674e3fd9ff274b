"""`--fit`: the least intrusive changes with which a step fits; nothing is computed."""

import dataclasses
import logging

import pytest

from kata.config import assign, decode, encode, parse_flags
from kata.config.flags import overlay
from kata.errors import ConfigError
from kata.launch.planning import fit
from kata.launch.planning.fit import fitted, with_fit
from kata.plan.catalogue import gpu_named
from kata.plan.forecast import memory_of
from kata.plan.trace_store import step_trace_of
from kata.run import Run, given_names, memory_to_fit
from tests.plan.small import small_run

BASE = small_run(
    options={"dim_model": 256, "dim_feedforward": 1024, "pretrained_path": "base"}, batch_size=8
)
SIZES = ("batch_size", "accelerator.gradient_accumulation.steps", "fit")


def subject(args):
    """Return the run of these flags over a small ACT that has a base."""
    given = {}
    for name, value in parse_flags([*args]).items():
        assign(given, name, value)
    if "type" in given.get("optimizer", {}):
        given["optimizer"] = {**encode(BASE.optimizer), "type": "adamw8bit"}
    return decode(Run, overlay(encode(BASE), given))


@pytest.fixture
def card(monkeypatch):
    """Return a GPU with so many MiB beside what a process takes before its first tensor."""
    monkeypatch.setattr(fit, "find_spec", lambda name: None)  # no extra is installed
    gpu = gpu_named("rtx4090")
    beside = gpu.overheads.context_bytes + gpu.overheads.workspace_bytes

    def make(mib):
        return dataclasses.replace(gpu, memory_bytes=int((beside + mib * 2**20) / 0.92))

    return make


def needs(gpu, batch, *flags):
    run = subject(flags)
    found = memory_of(run, step_trace_of(run), gpu, batch)
    return (found.total_bytes - found.context_bytes - found.workspace_bytes) / 2**20


def test_smaller_micro_batches_come_first_and_the_global_batch_stays(card):
    most, least = needs(card(1), 8), needs(card(1), 1)
    assert least < most
    roomy = fitted([], card(most + 8), subject)
    assert (roomy.changes, roomy.batch_size, roomy.accumulation) == ((), 8, 1)
    small = fitted([], card((most + least) / 2), subject)
    assert small.changes == ()
    assert small.batch_size < 8
    assert small.batch_size * small.accumulation == 8


def test_what_is_given_stays_and_what_fits_nowhere_is_a_table(card):
    with pytest.raises(ConfigError, match="nothing fits") as caught:
        fitted([], card(1), subject)
    for text in ("as asked", "--gradient_checkpointing=true", "mixed_precision=bf16"):
        assert text in str(caught.value)
    with pytest.raises(ConfigError, match="nothing fits") as caught:
        fitted(["--gradient_checkpointing=false"], card(1), subject)
    assert "--gradient_checkpointing=true" not in str(caught.value)
    with pytest.raises(ConfigError, match="keeps the batch"):
        with_fit(["--fit=24GB", "--batch_size=auto"], subject)


def test_a_change_that_saves_nothing_or_is_not_needed_is_left_out(card, monkeypatch):
    """Of this ACT the weights take most: bf16 adds a copy, and 8 bits save half of the state."""
    monkeypatch.setattr(fit, "find_spec", lambda name: True if name == "bitsandbytes" else None)
    asked, narrow = needs(card(1), 1), needs(card(1), 1, "--optimizer.type=adamw8bit")
    assert narrow < asked - 4
    found = fitted([], card(narrow + 2), subject)
    assert [each.text for each in found.changes] == ["--optimizer.type=adamw8bit"]
    names = [row[0] for row in found.rows]
    assert names[:3] == [
        "as asked",
        "--gradient_checkpointing=true",
        "--accelerator.mixed_precision=bf16",
    ]


def test_the_line_that_trains_is_complete_and_a_resumed_one_is_left_alone(
    card, caplog, monkeypatch
):
    monkeypatch.setattr(fit, "gpu_here", lambda: None)
    with caplog.at_level(logging.WARNING):
        args = with_fit(["--fit=24GB", "--steps=5", "--batch_size=8"], subject)
    assert args == [
        "--steps=5", "--batch_size=8", "--accelerator.gradient_accumulation.steps=1", "--fit=24GB",
    ]  # fmt: skip
    assert "fits with micro-batches of 8" in caplog.text
    again = ["--resume=true", "--output_dir=x", "--fit=24GB"]
    assert with_fit(again, subject) == again


def test_a_config_file_asks_as_a_flag_does(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("fit: 24GB\n")
    assert memory_to_fit([f"--config={file}"]) == "24GB"
    assert memory_to_fit([f"--config={file}", "--fit=8GB"]) == "8GB"
    assert memory_to_fit(["--steps=3"]) is None


def test_what_a_config_file_says_stays(card, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("gradient_checkpointing: false\npeft: {r: 8}\nfrozen_bits: null\n")
    assert given_names([f"--config={file}", "--steps=3"]) == {
        "gradient_checkpointing", "peft.r", "steps",
    }  # fmt: skip

    def of_file(args):
        return subject([each for each in args if not each.startswith("--config")])

    with pytest.raises(ConfigError, match="nothing fits") as caught:
        fitted([f"--config={file}"], card(1), of_file)
    assert "--accelerator.mixed_precision=bf16" in str(caught.value)
    assert "--gradient_checkpointing=true" not in str(caught.value)


@pytest.mark.parametrize(("flag", "shown"), [("--fit=24XB", "fit=24XB"), ("--fit", "--fit")])
def test_what_is_no_memory_is_refused_with_the_form(flag, shown):
    with pytest.raises(ConfigError, match="bytes, or a number with KB") as caught:
        memory_to_fit([flag])
    assert shown in str(caught.value)

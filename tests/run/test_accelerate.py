"""What accelerate launch says in the environment becomes kata's options, or is refused by name."""

import pytest

from kata.errors import ConfigError
from kata.run import resolve_run

BASE = ["--policy.type=act", "--dataset.repo_id=x/y"]
PLAIN = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_USE_CPU": "False"}
STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"


def resolved(*args, **environment):
    return resolve_run([*BASE, *args], 2, {**PLAIN, **environment})


def test_precision_accumulation_and_device_are_taken_and_said():
    run, notes = resolved(ACCELERATE_MIXED_PRECISION="bf16", ACCELERATE_USE_CPU="True", **{STEPS: "4"})
    assert (run.precision, run.accumulation, run.policy.device, run.effective_batch) == ("bf16", 4, "cpu", 64)
    assert "accelerator.mixed_precision=bf16, from accelerate launch (ACCELERATE_MIXED_PRECISION)" in notes
    assert len(notes) == 3
    run, notes = resolved("--accelerator.mixed_precision=bf16", ACCELERATE_MIXED_PRECISION="bf16")
    assert run.precision == "bf16"


def test_nothing_asked_changes_nothing():
    assert resolved() == resolve_run(BASE, 2)
    assert resolved("--accelerator.mixed_precision=bf16")[0].precision == "bf16"


def test_use_amp_counts_only_where_accelerate_does_not_set_the_precision():
    assert resolve_run([*BASE, "--policy.use_amp=true"], 2)[0].precision == "bf16"
    run, notes = resolved("--policy.use_amp=true")
    assert run.precision == "no"
    assert notes == ["policy.use_amp does not count: accelerate launch sets the precision (no)"]


@pytest.mark.parametrize(
    ("args", "environment", "named"),
    [
        (["--accelerator.mixed_precision=fp16"], {"ACCELERATE_MIXED_PRECISION": "bf16"}, "mixed_precision=fp16"),
        (["--accelerator.gradient_accumulation.steps=2"], {STEPS: "4"}, f"{STEPS}=4"),
        (["--policy.device=cuda"], {"ACCELERATE_USE_CPU": "True"}, "policy.device=cuda"),
        ([], {"ACCELERATE_MIXED_PRECISION": "fp8"}, "mixed_precision=fp8"),
        ([], {"ACCELERATE_USE_FSDP": "true"}, "ACCELERATE_USE_FSDP=true"),
        ([], {"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed was asked"),
        ([], {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "ACCELERATE_DYNAMO_BACKEND=INDUCTOR"),
    ],
)  # fmt: skip
def test_contradictions_and_what_kata_cannot_do_are_refused_by_name(args, environment, named):
    with pytest.raises(ConfigError) as caught:
        resolved(*args, **environment)
    assert named in caught.value.what
    assert caught.value.remedy

"""A run that does not fit its device ends with what would need less."""

import pytest
import torch

from kata.errors import ConfigError
from kata.train import train
from kata.train.model.oom import explain_out_of_memory

SAID = "CUDA out of memory. Tried to allocate 2.00 GiB."


def test_it_names_the_options_that_are_not_in_use(vector_run, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.setattr("kata.train.loop.update", full)
    with pytest.raises(ConfigError) as caught:
        train(vector_run("--batch_size=9"))
    assert caught.value.what == f"batch_size=9: cpu is out of memory ({SAID})"
    assert caught.value.remedy == (
        "--batch_size=3 --accelerator.gradient_accumulation.steps=3 for the same batch; "
        "--gradient_checkpointing=true; "
        "--accelerator.mixed_precision=bf16"
    )


def test_what_is_in_use_is_not_named(vector_run):
    run = vector_run(
        "--batch_size=1", "--gradient_checkpointing=true", "--accelerator.mixed_precision=bf16"
    )
    with (
        pytest.raises(ConfigError, match="smaller policy"),
        explain_out_of_memory(run, torch.device("cpu")),
    ):
        raise torch.OutOfMemoryError(SAID)


def test_a_cpu_without_memory_says_the_same(vector_run):
    run = vector_run()
    with (
        pytest.raises(ConfigError, match="cpu is out of memory"),
        explain_out_of_memory(run, torch.device("cpu")),
    ):
        torch.empty(1 << 60, dtype=torch.uint8)
    with (
        pytest.raises(RuntimeError, match="shapes"),
        explain_out_of_memory(run, torch.device("cpu")),
    ):
        raise RuntimeError("shapes cannot be multiplied")

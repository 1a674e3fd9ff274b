"""A run that does not fit its device ends with what would need less."""

import pytest
import torch

from kata.errors import ConfigError
from kata.train import train
from kata.train.model.oom import cut_micro_batches, explain_out_of_memory
from kata.update import step as step_module
from kata.update.step_batch import StepBatch

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


def weights_after(run):
    state = train(run).state
    return state.step, [p.detach().clone() for p in state.policy.parameters()]


def test_a_full_memory_halves_micro_batches_and_loses_no_step(vector_run, monkeypatch, tmp_path):
    sgd = ("--use_policy_training_preset=false", "--optimizer.type=sgd", "--optimizer.lr=0.01")
    options = ("--batch_size=8", "--steps=4", "--policy.dropout=0", *sgd)
    steps, plain = weights_after(vector_run(*options))
    real = step_module.weighted
    seen = []

    def crowded(loss, weights):
        size = len(next(iter(loss.detail.values())))
        seen.append(size)
        # Memory is full in the second step, and then after half of its gradients.
        if seen in ([8, 8], [8, 8, 4, 4]):
            raise torch.OutOfMemoryError(SAID)
        return real(loss, weights)

    monkeypatch.setattr(step_module, "weighted", crowded)
    taken, cut = weights_after(vector_run(*options, f"--output_dir={tmp_path}/other"))
    assert taken == steps == 4
    assert seen == [8, 8, 4, 4, *[2] * 12]
    for one, other in zip(plain, cut, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    log = (tmp_path / "other/log.txt").read_text()
    assert "--batch_size=2 --accelerator.gradient_accumulation.steps=4" in log


def test_a_sample_that_does_not_fit_ends_the_run(vector_run, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.setattr(step_module, "weighted", full)
    with pytest.raises(ConfigError, match="out of memory"):
        train(vector_run("--batch_size=4"))


def test_pieces_of_a_micro_batch_are_its_samples_in_order():
    micro = {"state": torch.arange(10).reshape(5, 2), "task": list("abcde")}
    batch = StepBatch([micro, micro], [{"noise": torch.arange(5)}] * 2, {}, None, 0, 0, 6)
    cut = cut_micro_batches(batch, 2)
    assert len(cut.micros) == len(cut.draws) == 4
    assert cut.first_micro == 12
    assert torch.equal(torch.cat([m["state"] for m in cut.micros[:2]]), micro["state"])
    assert cut.micros[0]["task"] + cut.micros[1]["task"] == list("abcde")
    assert torch.equal(torch.cat([d["noise"] for d in cut.draws[2:]]), torch.arange(5))
    assert cut_micro_batches(batch, 1) is batch

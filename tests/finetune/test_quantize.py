"""Frozen weights in 8 and 4 bits: how near, how small, and gradients that pass through them."""

import pytest
import torch
from torch import nn

from kata.errors import ConfigError, PolicyError
from kata.finetune.quantize import QuantizedLinear
from kata.run import resolve_run
from kata.train import train
from kata.train.stopping import StopSignal

peft = pytest.importorskip("peft")


def held_bytes(module):
    return sum(t.numel() * t.element_size() for t in module.state_dict().values())


@pytest.mark.parametrize(("bits", "error", "per_number"), [(8, 0.01, 1.02), (4, 0.1, 0.57)])
def test_a_weight_is_near_the_whole_one_and_gradients_are_those_of_it(bits, error, per_number):
    if bits == 4:
        pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    linear = nn.Linear(256, 128)
    held = QuantizedLinear(linear, bits)
    weight = held.whole_weight()
    assert (weight - linear.weight).abs().mean() < error * linear.weight.abs().mean()
    assert held_bytes(held) - 128 * 4 <= per_number * 256 * 128
    x = torch.randn(3, 5, 256, requires_grad=True)
    nn.functional.linear(x, weight, linear.bias).square().sum().backward()
    wanted, x.grad = x.grad, None
    held(x).square().sum().backward()
    torch.testing.assert_close(x.grad, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert held(x).dtype is torch.bfloat16


@pytest.mark.parametrize("bits", [8, 4])
def test_a_run_on_a_base_in_few_bits_saves_the_adapter_and_continues_exactly(
    tuned, bits, tmp_path, monkeypatch
):
    if bits == 4:
        pytest.importorskip("bitsandbytes")
    options = ("--peft.r=2", f"--frozen_bits={bits}", "--ema.enable=true")
    straight = train(tuned("straight", *options)).state
    answers = iter([False, False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        assert train(tuned("half", *options)).state.step == 2
    again = [f"--config={tmp_path}/half/train_config.json", "--resume=true"]
    resumed = train(resolve_run(again)[0]).state
    codes = [m for m in resumed.policy.modules() if isinstance(m, QuantizedLinear)]
    assert len(codes) > 5
    for before, after in ((straight.policy, resumed.policy), (straight.ema, resumed.ema)):
        for key, tensor in before.state_dict().items():
            assert torch.equal(after.state_dict()[key], tensor), key


def test_bits_without_a_base_or_a_frozen_part_or_the_package_are_refused(
    tuned, tiny_run, state_of, monkeypatch
):
    with pytest.raises(ConfigError, match="without a base"):
        tiny_run("--frozen_bits=8")
    for bits in (0, 2, 7, 16):
        with pytest.raises(ConfigError, match="one of: null, 8, 4"):
            tuned("a", "--peft.r=2", f"--frozen_bits={bits}")
    with pytest.raises(PolicyError, match="nothing is frozen"):
        state_of(tuned("a", "--frozen_bits=8"))
    shards = ("--peft.r=2", "--parallelism.dp_shard=2", "--engine=native")
    for held in ("--optimizer.type=adamw8bit", "--frozen_bits=8"):
        with pytest.raises(ConfigError, match="in shards"):
            tuned("b", held, *shards)

    def missing():
        raise ConfigError("numbers in 8 or 4 bits need the package bitsandbytes")

    monkeypatch.setattr("kata.finetune.quantize.bitsandbytes", missing)
    state_of(tuned("c", "--peft.r=2", "--frozen_bits=8"))
    with pytest.raises(ConfigError, match="need the package bitsandbytes"):
        state_of(tuned("d", "--peft.r=2", "--frozen_bits=4"))

"""AdamW in 8 bits: as good as AdamW, a quarter of its state, and continued exactly."""

import pytest
import torch
from torch import nn

from kata.dist.skip_step import step_unless
from kata.errors import ConfigError
from kata.optim import eight_bit
from kata.optim.build import build_optimizer
from kata.optim.config import AdamW8bitConfig, AdamWConfig
from kata.policies.base import ParamGroup
from kata.train.checkpoint.saver import _state_bytes_8bit
from kata.train.checkpoint.sharded import load_optimizer_state
from kata.train.checkpoint.snapshot import optimizer_tensors

GOOD = torch.tensor(False)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def trained(config, steps, net=None, optimizer=None, begin=0):
    net = net or network()
    optimizer = optimizer or optimizer_of(net, config)
    mixing = torch.randn(64, 64, generator=torch.Generator().manual_seed(9))
    losses = []
    for step in range(begin, begin + steps):
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(step))
        loss = (net(x) - x @ mixing).square().mean()
        optimizer.zero_grad()
        loss.backward()
        step_unless(optimizer, GOOD)
        losses.append(loss.item())
    return net, optimizer, losses


def optimizer_of(net, config):
    return build_optimizer([ParamGroup("main", list(net.parameters()))], config)


def state_bytes(optimizer):
    found = optimizer_tensors(optimizer.state_dict())
    return sum(t.numel() * t.element_size() for n, t in found.items() if not n.endswith("/step"))


def test_a_missing_package_is_one_message(monkeypatch):
    monkeypatch.setattr(eight_bit.importlib, "import_module", missing)
    with pytest.raises(ConfigError, match="need the package bitsandbytes") as caught:
        optimizer_of(network(), AdamW8bitConfig())
    assert "uv pip install 'kata[8bit]'" in str(caught.value)


def missing(name):
    raise ImportError(f"No module named {name}")


def test_the_loss_falls_as_with_32_bits_and_the_state_is_as_counted():
    pytest.importorskip("bitsandbytes")
    _, wide, expected = trained(AdamWConfig(lr=1e-2), 150)
    net, narrow, losses = trained(AdamW8bitConfig(lr=1e-2), 150)
    assert losses[0] == expected[0]
    assert losses[-1] == pytest.approx(expected[-1], rel=0.05)
    assert losses[-1] < 0.2 * losses[0]
    assert state_bytes(narrow) == sum(map(_state_bytes_8bit, net.parameters()))
    assert state_bytes(narrow) < 0.28 * state_bytes(wide)


def test_continued_from_a_file_it_is_the_same_bit_for_bit():
    pytest.importorskip("bitsandbytes")
    config = AdamW8bitConfig(lr=1e-2)
    straight, _, _ = trained(config, 8)
    half, before, _ = trained(config, 4)
    kept = {}
    for key, tensor in optimizer_tensors(before.state_dict()).items():
        number, _, name = key.partition("/")
        kept.setdefault(int(number), {})[name] = tensor.clone()
    again = network()
    again.load_state_dict(half.state_dict())
    optimizer = optimizer_of(again, config)
    load_optimizer_state(optimizer, kept)
    trained(config, 4, again, optimizer, begin=4)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_bad_step_changes_nothing():
    pytest.importorskip("bitsandbytes")
    net, optimizer, _ = trained(AdamW8bitConfig(lr=1e-2), 2)
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = {name: t.clone() for name, t in optimizer_tensors(optimizer.state_dict()).items()}
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    step_unless(optimizer, torch.tensor(True))
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in weights.items())
    after = optimizer_tensors(optimizer.state_dict())
    assert all(torch.equal(after[name], tensor) for name, tensor in state.items())

import pytest
import torch

from kata.optim.build import build_optimizer, set_lr
from kata.optim.config import AdamConfig, AdamWConfig, SGDConfig
from kata.optim.ema import ema_copy, ema_update
from kata.policies.base import ParamGroup


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )


@pytest.mark.parametrize(
    ("config", "reference"),
    [
        (
            AdamWConfig(lr=1e-2, weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
        ),
        (
            AdamConfig(lr=1e-2, betas=(0.95, 0.999)),
            lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.95, 0.999)),
        ),
        (SGDConfig(lr=1e-2, momentum=0.9), lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9)),
    ],
)
def test_updates_are_torchs_own(config, reference):
    # Without batch norm: behind it gradients are near zero, and Adam turns rounding into whole
    # steps.
    ours, theirs = (torch.nn.Sequential(model()[0], torch.nn.Tanh(), model()[2]) for _ in range(2))
    optimizers = [
        build_optimizer([ParamGroup("all", list(ours.parameters()))], config),
        reference(theirs.parameters()),
    ]
    for step in range(5):
        for net, optimizer in zip((ours, theirs), optimizers, strict=True):
            net((torch.arange(18.0).view(6, 3) + step).sin()).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_groups_keep_their_own_rates_under_the_schedule():
    net = model()
    groups = [
        ParamGroup("a", list(net[0].parameters())),
        ParamGroup("b", list(net[2].parameters()), lr=1e-5),
    ]
    optimizer = build_optimizer(groups, AdamWConfig(lr=1e-2))
    assert set_lr(optimizer, 0.5) == pytest.approx(5e-3)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([5e-3, 5e-6])
    assert set_lr(optimizer, 1.0) == pytest.approx(1e-2)


def test_frozen_parameters_are_left_out():
    net = model()
    net[0].requires_grad_(False)
    optimizer = build_optimizer([ParamGroup("all", list(net.parameters()))], AdamWConfig())
    assert len(optimizer.param_groups[0]["params"]) == 4


def test_the_average_moves_by_its_decay_and_copies_counters():
    net = model()
    average = ema_copy(net)
    before = average[0].weight.clone()
    with torch.no_grad():
        net[0].weight.add_(1.0)
    net(torch.randn(6, 3))  # moves the batch norm's statistics
    ema_update(average, net, 0.75, torch.tensor(False))
    torch.testing.assert_close(average[0].weight, before + 0.25)
    assert average[1].num_batches_tracked.item() == 1
    assert not any(p.requires_grad for p in average.parameters())

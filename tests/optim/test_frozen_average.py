"""The EMA of a model with frozen modules: they are shared, and the rest is averaged as before."""

import torch
from torch import nn

from kata.optim.ema import ema_copy, ema_update, share_constants


def test_constant_weights_are_shared_and_the_others_averaged():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    constant = {"0.weight", "0.bias"}
    average, alone = ema_copy(model), ema_copy(model)
    share_constants(average, model, constant)
    with torch.no_grad():
        model[1].weight.add_(1.0)
    never = torch.tensor(False)
    ema_update(average, model, 0.9, never, constant)
    ema_update(alone, model, 0.9, never)
    assert average[0].weight.data_ptr() == model[0].weight.data_ptr()
    assert average[1].weight.data_ptr() != model[1].weight.data_ptr()
    for shared, copied in zip(average.parameters(), alone.parameters(), strict=True):
        assert torch.equal(shared, copied)

"""The step that all ranks take together."""

import pytest
import torch

from kata.dist.skip_step import clip_gradients


def test_clipping_returns_the_norm_before_it_and_zero_only_measures():
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([param], 0).item() == pytest.approx(5)
    assert param.grad.tolist() == [3.0, 4.0]
    assert clip_gradients([param], 1.0).item() == pytest.approx(5)
    assert param.grad.norm().item() == pytest.approx(1, rel=1e-4)

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


@pytest.mark.parametrize("max_norm", [0.7, 5.0, 5.0 + 1e-6, 5.1, 1e9])
def test_a_host_that_asks_for_the_norm_clips_to_the_same_bits(max_norm):
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    for param, gradient in zip(params, ([3.0, 4.0], [3.0, 4.0], [3.0, 4.0]), strict=True):
        param.grad = torch.tensor(gradient)
    norms = (
        torch.nn.utils.clip_grad_norm_([params[0]], max_norm),
        clip_gradients([params[1]], max_norm),
        clip_gradients([params[2]], max_norm, may_ask=True),
    )
    assert norms[0] == norms[1] == norms[2]
    assert torch.equal(params[1].grad, params[0].grad)
    assert torch.equal(params[2].grad, params[0].grad)


def test_small_gradients_are_left_alone_where_the_host_may_ask(monkeypatch):
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([3.0, 4.0])
    clipped = []
    monkeypatch.setattr(
        "kata.dist.skip_step.clip_grads_with_norm_", lambda *given: clipped.append(given)
    )
    clip_gradients([param], 10.0, may_ask=True)
    assert not clipped
    clip_gradients([param], 10.0)
    clip_gradients([param], 1.0, may_ask=True)
    assert len(clipped) == 2


def test_gradients_that_are_not_finite_give_such_a_norm():
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([float("nan"), 4.0])
    assert clip_gradients([param], 1.0, may_ask=True).isnan()

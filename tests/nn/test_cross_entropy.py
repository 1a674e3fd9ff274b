"""Cross-entropy in blocks: equal to that of all scores at once, without holding them."""

import pytest
import torch
from torch.nn import functional as F

from kata.nn import cross_entropy
from kata.nn.cross_entropy import VocabularyHead


@pytest.fixture
def head(monkeypatch):
    monkeypatch.setattr(cross_entropy, "PLACES", 4)
    torch.manual_seed(0)
    return VocabularyHead(6, 50)


def results(head, x, target, upstream):
    x, losses = x.clone().requires_grad_(), []
    for in_blocks in (True, False):
        head.weight.grad = x.grad = None
        loss = (
            head(x, target)
            if in_blocks
            else F.cross_entropy(
                head(x).flatten(0, 1).float(), target.flatten(), reduction="none"
            ).view(target.shape)
        )
        (loss * upstream).sum().backward()
        losses.append((loss.detach(), x.grad.clone(), head.weight.grad.clone()))
    return losses


@pytest.mark.parametrize("count", [1, 4, 10])
def test_losses_and_gradients_are_those_of_all_scores(head, count):
    x, target = torch.randn(3, count, 6), torch.randint(0, 50, (3, count))
    blocks, whole = results(head, x, target, torch.rand(3, count))
    for one, other in zip(blocks, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_frozen_inputs_or_weights_have_no_gradient(head):
    x, target = torch.randn(1, 5, 6), torch.randint(0, 50, (1, 5))
    head(x, target).sum().backward()
    assert head.weight.grad is not None
    head.weight.requires_grad_(False)
    x.requires_grad_()
    head.weight.grad = None
    head(x, target).sum().backward()
    assert head.weight.grad is None
    assert x.grad is not None


def test_narrow_weights_and_autocast_compute_in_bfloat16(head):
    x, target = torch.randn(2, 5, 6), torch.randint(0, 50, (2, 5))
    exact = head(x, target)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = head(x, target)
    narrow = head.bfloat16()(x.bfloat16(), target)
    for other in (mixed, narrow):
        assert other.dtype is torch.float32
        assert not torch.equal(other, exact)
        torch.testing.assert_close(other, exact, rtol=2e-2, atol=2e-2)


def test_the_scores_of_all_tokens_are_never_kept(head):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        head(torch.randn(4, 8, 6, requires_grad=True), torch.randint(0, 50, (4, 8)))
    assert max(kept) == 50 * 6  # the weights; the scores are 32 * 50

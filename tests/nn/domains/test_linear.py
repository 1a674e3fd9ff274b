"""Linear maps per domain: both layouts give each sample the map of its own domain."""

import pytest
import torch

from kata.nn.domains.linear import DomainLinear, DomainLinearRows

DOMAIN = torch.tensor([2, 0, 2])


@pytest.fixture
def maps():
    """Both layouts with the same numbers."""
    torch.manual_seed(0)
    rows, table = DomainLinearRows(4, 3, 5), DomainLinear(4, 3, 5)
    with torch.no_grad():
        rows.bias.weight.normal_()
        table.W.copy_(rows.fc.weight.view(5, 4, 3))
        table.b.copy_(rows.bias.weight)
    return rows, table


def test_each_sample_is_mapped_by_its_own_domain(maps):
    x = torch.randn(3, 2, 4)
    for layer in maps:
        found = layer(x, DOMAIN)
        assert found.shape == (3, 2, 3)
        for i, domain in enumerate(DOMAIN.tolist()):
            expected = x[i] @ maps[1].W[domain] + maps[1].b[domain]
            torch.testing.assert_close(found[i], expected)


def test_other_domains_get_a_gradient_of_zero(maps):
    x = torch.randn(3, 2, 4)
    for layer in maps:
        layer(x, DOMAIN).square().sum().backward()
    rows, table = maps
    torch.testing.assert_close(rows.fc.weight.grad.view(5, 4, 3), table.W.grad)
    torch.testing.assert_close(rows.bias.weight.grad, table.b.grad)
    used = table.W.grad.abs().amax((1, 2)) > 0
    assert used.tolist() == [True, False, True, False, False]


def test_names_in_checkpoints_are_lerobots():
    assert list(DomainLinearRows(2, 3, 1).state_dict()) == ["fc.weight", "bias.weight"]
    assert list(DomainLinear(2, 3, 1).state_dict()) == ["W", "b"]

"""Linear maps with weights for each domain, in the two layouts of published checkpoints.

Each sample reads the weights of one domain, so that all others get a gradient of zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

INITIAL_STD = 0.02


class DomainLinear(nn.Module):
    """A linear map per domain. `W` is (domains, inputs, outputs), `b` (domains, outputs)."""

    def __init__(self, inputs: int, outputs: int, domains: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(domains, inputs, outputs))
        self.b = nn.Parameter(torch.zeros(domains, outputs))
        nn.init.normal_(self.W, std=INITIAL_STD)

    def forward(self, x: Tensor, domain: Tensor) -> Tensor:
        """Map x (B, T, inputs) by each sample's domain, int64 (B,): (B, T, outputs)."""
        return mapped(x, self.W[domain], self.b[domain])


class DomainLinearRows(nn.Module):
    """A linear map per domain, whose numbers are rows of two tables of embeddings.

    A row of `fc` holds inputs x outputs numbers, a row of `bias` those that are added.
    """

    def __init__(self, inputs: int, outputs: int, domains: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.fc = nn.Embedding(domains, inputs * outputs)
        self.bias = nn.Embedding(domains, outputs)
        nn.init.xavier_uniform_(self.fc.weight)
        nn.init.zeros_(self.bias.weight)

    def forward(self, x: Tensor, domain: Tensor) -> Tensor:
        """Map x (B, T, inputs) by each sample's domain, int64 (B,): (B, T, outputs)."""
        return mapped(x, self.fc(domain).unflatten(1, (self.inputs, -1)), self.bias(domain))


def mapped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x @ weight + bias for each sample.

    Args:
        x: (B, T, inputs).
        weight: (B, inputs, outputs).
        bias: (B, outputs).

    Returns:
        (B, T, outputs).
    """
    return torch.baddbmm(bias[:, None], x, weight)

"""Residual vector quantisation: a vector as a sum of one entry of each codebook.

van den Oord et al., "Neural discrete representation learning", arXiv 1711.00937; residual layers as
in arXiv
2107.03312.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

DECAY, EPS = 0.8, 1e-5
UNUSED = 1e-3
"""Codes that fewer vectors than this are near, in the moving average, are unused."""


class Codebook(nn.Module):
    """A codebook of `size` vectors. Each follows the mean of its nearest inputs as a moving
    average.

    There are no gradients (arXiv 1711.00937, appendix A.1). `count` collects the sums of a batch
    and `update` applies them, so the update does not depend on the split into micro-batches. With
    `keep_unused`, a vector without inputs keeps its value. Otherwise, as in LeRobot, it is divided
    by a count near zero at first, and shrinks to zero later.
    """

    embed: Tensor
    embed_avg: Tensor
    cluster_size: Tensor

    def __init__(self, size: int, width: int, *, keep_unused: bool) -> None:
        super().__init__()
        self.keep_unused = keep_unused
        embed = nn.init.kaiming_uniform_(torch.empty(1, size, width))
        self.register_buffer("cluster_size", torch.zeros(1, size))
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("embed", embed)
        self.sums: list[Tensor] = []  # per code: how many vectors, and their sum

    def nearest(self, x: Tensor) -> Tensor:
        """The code of each vector: (N, D) -> (N,)."""
        entries = self.embed[0]
        return (entries.square().sum(1) - 2 * x @ entries.T).argmin(1)

    @torch.no_grad()
    def count(self, x: Tensor, codes: Tensor, valid: Tensor | None) -> None:
        """Add vectors (N, D) to the sums of their codes; only those that are `valid` (N,)."""
        near = codes[:, None] == torch.arange(self.embed.shape[1], device=codes.device)
        near = (near if valid is None else near & valid[:, None]).float()
        found = [near.sum(0), near.T @ x]
        self.sums = (
            [old + new for old, new in zip(self.sums, found, strict=True)] if self.sums else found
        )

    @torch.no_grad()
    def update(self, bad: Tensor) -> Tensor:
        """Move the codes by what was counted, unless it is `bad` (bool scalar), and return how
        many codes it was.
        """
        counts, sums = self.sums
        self.sums = []
        size = self.cluster_size[0].lerp(counts, 1 - DECAY)
        average = self.embed_avg[0].lerp(sums, 1 - DECAY)
        smooth = (size + EPS) / (size.sum() + len(size) * EPS) * size.sum()
        moved = average / smooth[:, None]
        if self.keep_unused:
            moved = torch.where(size[:, None] < UNUSED, self.embed[0], moved)
        for buffer, new in (
            (self.cluster_size, size),
            (self.embed_avg, average),
            (self.embed, moved),
        ):
            buffer[0] = torch.where(bad, buffer[0], new)
        return (counts > 0).sum()


class Quantized(NamedTuple):
    """value: (N, D), the sum of entries, with gradients straight through to what was quantised.
    codes: (N, layers).
    distance: (N, D), squared, from each layer's entry to what it stands for, summed over layers.
    """

    value: Tensor
    codes: Tensor
    distance: Tensor


class ResidualQuantizer(nn.Module):
    """Codebooks of which each quantises what the ones before it left.

    `freeze_codebook` is there for LeRobot.
    """

    freeze_codebook: Tensor

    def __init__(self, layers: int, size: int, width: int, *, keep_unused: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Codebook(size, width, keep_unused=keep_unused) for _ in range(layers)
        )
        self.register_buffer("freeze_codebook", torch.tensor(False))

    def books(self) -> list[Codebook]:
        """The codebooks in order."""
        return [layer for layer in self.layers if isinstance(layer, Codebook)]

    def forward(self, x: Tensor, *, learn: bool = False, valid: Tensor | None = None) -> Quantized:
        """Quantise (N, D) in fp32; `learn` counts what is `valid` (N,) for the codebooks' next
        update.
        """
        with _full_precision(x.device):
            residual = x.float()
            value, distance = torch.zeros_like(residual), torch.zeros_like(residual)
            codes: list[Tensor] = []
            for book in self.books():
                code = book.nearest(residual.detach())
                if learn:
                    book.count(residual.detach(), code, valid)
                entry = book.embed[0][code]
                distance = distance + (entry - residual).square()
                # Both layers pass the gradient on, so that it comes out doubled, as in LeRobot.
                through = residual + (entry - residual).detach()
                value, residual = value + through, residual - through.detach()
                codes.append(code)
        return Quantized(value, torch.stack(codes, 1), distance)

    def entries(self, codes: Tensor) -> Tensor:
        """The vectors of codes: (..., layers) -> (..., D)."""
        return torch.stack(
            [book.embed[0][codes[..., n]] for n, book in enumerate(self.books())]
        ).sum(0)


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Outside autocast; the meta device, which computes shapes alone, knows none."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)

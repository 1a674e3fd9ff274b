"""The gradients that DDP sends together."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

FIRST_BUCKET_BYTES = 2**20
"""DDP's first bucket, with the gradients that are there first, is smaller than the others."""


def gradient_buckets(backwards: Sequence[Tensor], bucket_mb: int) -> list[list[int]]:
    """Buckets of indices into the trained parameters, given in the order in which their
    gradients come.
    """
    limits = [FIRST_BUCKET_BYTES, bucket_mb * 2**20]
    return dist._compute_bucket_assignment_by_size(backwards, limits)[0]  # pyright: ignore

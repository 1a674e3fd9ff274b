"""Denoising in closed form."""

from __future__ import annotations

import numpy as np
import torch

from kata.nn.denoising import NoiseProcess


def test_coefficients_are_rounded_to_float32():
    """Where a step adds little noise float32 loses digits of its share, and so do the numbers of
    LeRobot.
    """
    one, seen = np.float32(1), []
    process = NoiseProcess(2, "linear", 1e-4, 1.2e-4, "sample", None)

    def ones(x, step):
        seen.append(x)
        return torch.ones_like(x)

    process.sample(ones, torch.zeros(1, 1), 2, ddim=False, later=torch.zeros(1, 1, 1))
    before, kept = process.kept.numpy()
    share = one - kept / before
    assert abs(float(share) / (1 - float(kept) / float(before)) - 1) > 1e-5
    assert seen[1].item() == np.sqrt(before) * share / (one - kept)

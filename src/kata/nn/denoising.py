"""Denoising diffusion: DDPM (arXiv 2006.11239) and DDIM without added noise (arXiv 2010.02502).

kept(t) is the share of the signal's variance left after noising step t (alpha bar in the papers).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

SCHEDULES = ("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid")
"""Noise schedules by the names that diffusion configs use."""


class NoiseProcess(nn.Module):
    """Adds noise to clean samples, and takes it away again step by step.

    Args:
        steps: noising steps T.
        schedule: one of SCHEDULES; squaredcos_cap_v2 (arXiv 2102.09672) ignores `beta_start` and
            `beta_end`.
        predicts: the network's output: 'epsilon', the noise, or 'sample', the clean sample.
        clip: denoising clamps clean samples to [-clip, clip]; None does not clamp.
    """

    kept: Tensor

    def __init__(
        self,
        steps: int,
        schedule: str,
        beta_start: float,
        beta_end: float,
        predicts: str,
        clip: float | None,
    ) -> None:
        super().__init__()
        self.steps = steps
        self.predicts = predicts
        self.clip = clip
        betas = _betas(steps, schedule, beta_start, beta_end)
        self.register_buffer("kept", torch.cumprod(1.0 - betas, 0), persistent=False)

    def add(self, clean: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        """Return samples (B, ...) after noising steps `step` (B,), numbered from 0."""
        kept = self.kept[step].reshape(-1, *(1,) * (clean.ndim - 1))
        return kept.sqrt() * clean + (1.0 - kept).sqrt() * noise

    def target(self, clean: Tensor, noise: Tensor) -> Tensor:
        """Return the target that the network should predict."""
        return noise if self.predicts == "epsilon" else clean

    def sample(
        self,
        predict: Callable[[Tensor, Tensor], Tensor],
        noise: Tensor,
        steps: int,
        *,
        ddim: bool,
        later: Tensor | None = None,
    ) -> Tensor:
        """Return clean samples from pure noise (B, ...), in `steps` of the T steps, evenly spaced.

        Args:
            predict: the network, called with samples and step (B,) int64.
            noise: (B, ...), standard normal.
            steps: denoising steps.
            ddim: use DDIM instead of DDPM.
            later: the noise (B, steps - 1, ...) that DDPM adds after each step but the last; None
                takes it from torch's generator.
        """
        # The factors stay on the CPU: reading one from a GPU would wait for it at every step.
        stride = self.steps // steps
        # float32 loses digits of 1 - kept / before, as diffusers does, which LeRobot uses.
        kept, whole = self.kept.cpu(), torch.ones(())
        x = noise
        for t in range((steps - 1) * stride, -1, -stride):
            before = kept[t - stride] if t >= stride else whole
            # 1. The mean of the sample one stride earlier.
            given = predict(x, torch.full((len(x),), t, device=x.device))
            x = self._step(x, given, kept[t], before, ddim=ddim)
            # 2. DDPM adds noise of the posterior's variance; the last step is the mean itself.
            if t > 0 and not ddim:
                variance = (1.0 - before) / (1.0 - kept[t]) * (1.0 - kept[t] / before)
                fresh = torch.randn_like(x) if later is None else later[:, steps - 1 - t // stride]
                x = x + variance.clamp(min=1e-20).sqrt() * fresh
        return x

    def _step(
        self, x: Tensor, given: Tensor, kept: Tensor, before: Tensor, *, ddim: bool
    ) -> Tensor:
        """Return the mean of the sample one step earlier."""
        # 1. Both views of the prediction: x = signal * clean + spread * noise.
        signal, spread = kept.sqrt(), (1.0 - kept).sqrt()
        if self.predicts == "epsilon":
            noise, clean = given, (x - spread * given) / signal
        else:
            noise, clean = (x - signal * given) / spread, given
        if self.clip is not None:
            clean = clean.clamp(-self.clip, self.clip)
        # 2. DDIM (its equation 12) follows the noise; a clamped sample keeps the same noise.
        if ddim:
            return before.sqrt() * clean + (1.0 - before).sqrt() * noise
        # 3. DDPM's mean of the posterior (its equation 7), between the clean sample and x.
        ratio = kept / before
        return (
            before.sqrt() * (1.0 - ratio) / (1.0 - kept) * clean
            + ratio.sqrt() * (1.0 - before) / (1.0 - kept) * x
        )


def _betas(steps: int, schedule: str, start: float, end: float) -> Tensor:
    """Return the variance that each step adds, (T,)."""
    if schedule == "linear":
        return torch.linspace(start, end, steps)
    if schedule == "scaled_linear":
        return torch.linspace(start**0.5, end**0.5, steps) ** 2
    if schedule == "sigmoid":
        return torch.sigmoid(torch.linspace(-6, 6, steps)) * (end - start) + start

    def share(t: float) -> float:
        return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    return torch.tensor(
        [min(1 - share((i + 1) / steps) / share(i / steps), 0.999) for i in range(steps)]
    )

"""The augmentations that LeRobot defines itself, with the same parameters: run by LeRobot's Python,
kata importable.

One line per transform with the largest difference of a pixel in [0, 1].
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from lerobot.transforms import transforms as theirs

from kata.processors.augment import KINDS
from kata.processors.augment.ranges import whole

LIMIT = 1e-5
SAMPLES = 6


def params(kind: str, u: np.ndarray, ours) -> dict:
    """LeRobot's parameters for the uniform numbers of one sample."""
    v = [float(x) for x in u.astype(np.float64)]
    if kind == "SharpnessJitter":
        return {"sharpness_factor": 0.5 + v[0]}
    if kind == "MotionBlur":
        return {"kernel_size": 2 * int(whole(ours.radius, u[:1])[0]) + 1, "angle": 360 * v[1]}
    if kind == "JPEGCompression":
        return {"quality": int(whole(ours.range, u[:1])[0])}
    if kind == "GaussianPatchBrightness":
        count = int(whole(ours.count, u[:1])[0])
        cy, cx, sigma, factor = (part[:count] for part in np.split(np.array(v[1:]), 4))
        return {
            "centers": list(zip(cy, cx, strict=True)),
            "sigmas": list(0.05 + 0.2 * sigma),
            "factors": list(0.4 + 1.2 * factor),
        }
    if kind == "RandomShadow":
        return {
            "opacity": 0.3 + 0.3 * v[0],
            "start": v[1],
            "width": (1 + v[2]) / 3,
            "direction": -1 if v[3] < 0.5 else 1,
        }
    if kind == "CoarseDropout":
        holes = [v[1 + 4 * n : 5 + 4 * n] for n in range(int(whole((1, ours.holes), u[:1])[0]))]
        return {
            "sizes": [(h * 0.07, w * 0.07) for h, w, _, _ in holes],
            "positions": [(y, x) for _, _, y, x in holes],
        }
    if kind == "GammaCorrection":
        return {"gamma": math.exp((2 * v[0] - 1) * math.log(2))}
    assert kind == "PlanckianJitter", kind
    return {"temperature": int(whole(ours.range, u[:1])[0])}


def main() -> int:
    worst_of_all = 0.0
    frames = torch.rand(SAMPLES, 2, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    kinds = ["SharpnessJitter", "MotionBlur", "JPEGCompression", "GaussianPatchBrightness", "RandomShadow",  # noqa: E501
             "CoarseDropout", "GammaCorrection", "PlanckianJitter"]  # fmt: skip
    for kind in kinds:
        kwargs = {"sharpness": (0.5, 1.5)} if kind == "SharpnessJitter" else {}
        ours, peer = KINDS[kind](**kwargs), getattr(theirs, kind)(**kwargs)
        u = (
            np.random.default_rng(1)
            .uniform(1e-6, 1 - 1e-6, (SAMPLES, ours.uniforms))
            .astype(np.float32)
        )
        wanted = torch.stack(
            [
                peer.transform(one, params(kind, row, ours))
                for one, row in zip(frames, u, strict=True)
            ]
        )
        worst = (ours(frames, u) - wanted).abs().max().item()
        print(
            f"{'PASS' if worst <= LIMIT else 'FAIL'} augment {kind}: {worst:.1e} at most",
            flush=True,
        )
        worst_of_all = max(worst_of_all, worst)
    return int(worst_of_all > LIMIT)


if __name__ == "__main__":
    sys.exit(main())

"""Measures how far frames that the reader fits are from those that a policy fits on the device, in
dB: `python benchmarks/fitted_frames.py DATASET`, a folder such as a copy of ALOHA recordings.

The median over twelve frames of the first camera, for the sizes of SmolVLA and of the π family.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.nn import functional as F

from kata.data.dataset.dataset import open_dataset
from kata.data.frames.frame_format import FrameFormat
from kata.data.loader.reader import Reader
from kata.spec import size_within

FRAMES = 12
ROOMS = {"smolvla": (512, 512), "pi": (224, 224)}


def main() -> None:
    data = open_dataset("measured/frames", root=sys.argv[1])
    camera = next(iter(data.cameras))
    height, width, _ = data.cameras[camera].shape
    rows = np.linspace(0, data.num_frames - 1, FRAMES).astype(int)
    for name, room in ROOMS.items():
        size = size_within((height, width), room)
        fitted = FrameFormat({camera: size})
        with Reader(data, {}) as whole, Reader(data, {}, frame_format=fitted) as small:
            frames, found = whole.read(rows)[camera], small.read(rows)[camera]
        pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
        wanted = F.interpolate(pixels, size, mode="bilinear", align_corners=False)
        errors = found.astype(float) - wanted.permute(0, 2, 3, 1).numpy()
        psnr_db = 10 * np.log10(255**2 / np.square(errors).mean((1, 2, 3)))
        print(f"{name}: {height}x{width} in {size[0]}x{size[1]}: {np.median(psnr_db):.1f} dB")


if __name__ == "__main__":
    main()

"""Frames on their way to this machine's device as RGB, and as planes that it converts: the same
pixels, at what cost.

    python benchmarks/planes_time.py [--frames=16] [--height=480] [--width=640] [--rounds=20]
                                     [--out=benchmarks/results/planes_time.json]

First the device's conversion is compared with the formula in numpy, for every Y beside 64 values
each of U and V. Then a batch is copied (on CUDA from pinned memory) and made float in both ways, in
turn. Needs torch and numpy alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kata.processors import frames_to_float, planes_to_rgb
from kata.spec import Colours

KEY = "observation.images.top"
COLOURS = Colours(9539, 128, 13075, -3209, -6660, 16525)
"""BT.601, 16 to 235."""


def every_value() -> np.ndarray:
    """Planes (1536, 1024, 1) with each Y beside each of 64 x 64 values of U and V."""
    chroma = np.round(np.linspace(0, 255, 64)).astype(np.uint8)
    u, v = (np.kron(part, np.ones((8, 8), np.uint8)) for part in np.meshgrid(chroma, chroma))
    luma = np.kron(np.ones((64, 64), np.uint8), np.arange(256, dtype=np.uint8).reshape(16, 16))
    return np.concatenate([luma, u.reshape(-1, 1024), v.reshape(-1, 1024)])[..., None]


def by_formula(planes: np.ndarray) -> np.ndarray:
    """Return RGB (1024, 1024, 3) as `Colours` defines it."""
    whole = planes[..., 0].astype(np.int64)
    y = ((whole[:1024] << 3) - COLOURS.offset) * COLOURS.luma >> 16
    u, v = (
        (part.reshape(512, 512).repeat(2, 0).repeat(2, 1) << 3) - 1024
        for part in np.split(whole[1024:], 2)
    )
    green = (u * COLOURS.green_u >> 16) + (v * COLOURS.green_v >> 16)
    return np.stack(
        [y + (v * COLOURS.red >> 16), y + green, y + (u * COLOURS.blue >> 16)], -1
    ).clip(0, 255)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if on_cuda else "cpu")
    checked = every_value()
    found = planes_to_rgb(torch.from_numpy(checked).to(device), COLOURS).cpu().numpy()
    batches = {
        "rgb": torch.randint(
            0, 256, (options.frames, options.height, options.width, 3), dtype=torch.uint8
        ),
        "yuv": torch.randint(
            0, 256, (options.frames, options.height * 3 // 2, options.width, 1), dtype=torch.uint8
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in batches}
    peaks = dict.fromkeys(batches, 0)
    if on_cuda:
        batches = {name: batch.pin_memory() for name, batch in batches.items()}
    for number in range(options.rounds + 2):
        for name, batch in batches.items():
            if on_cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            began_s = time.perf_counter()
            frames = batch.to(device, non_blocking=True)
            frames_to_float(
                {KEY: planes_to_rgb(frames, COLOURS) if name == "yuv" else frames}, [KEY]
            )
            if on_cuda:
                torch.cuda.synchronize()
                peaks[name] = max(peaks[name], torch.cuda.max_memory_allocated())
            if number >= 2:
                seconds[name].append(time.perf_counter() - began_s)
    return {
        "options": {name: value for name, value in vars(options).items() if name != "out"},
        "device": torch.cuda.get_device_name()
        if on_cuda
        else f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "equal": bool(np.array_equal(found, by_formula(checked))),
        "copied_bytes": {name: batch.nbytes for name, batch in batches.items()},
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "peak_bytes": peaks if on_cuda else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("frames", 16), ("height", 480), ("width", 640), ("rounds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    text = json.dumps(measure(options), indent=4)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

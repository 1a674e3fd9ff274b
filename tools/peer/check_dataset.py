"""Reads every item of a v3.0 dataset with LeRobot and keeps what it saw, for comparison with
another reader.

Runs where LeRobot is installed (kata is not needed):

    python tools/peer/check_dataset.py ROOT [--out seen.npz]

Every frame is read twice: alone, and with a window of three frames around it for cameras and of ten
for actions. The output holds per key an array over all frames; cameras as one SHA-256 per frame of
the uint8 (H, W, 3) picture.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def picture_hash(chw: torch.Tensor) -> str:
    hwc = (chw * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    return hashlib.sha256(hwc.numpy().tobytes()).hexdigest()


def kept(value: object) -> object:
    """What is written down of one item: hashes of pictures (each of a window), plain values of
    the rest.
    """
    if isinstance(value, torch.Tensor) and value.ndim == 3:
        return picture_hash(value)
    if isinstance(value, torch.Tensor) and value.ndim == 4:
        return [picture_hash(frame) for frame in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value


def read_all(
    root: Path, deltas: dict[str, list[float]] | None, backend: str
) -> dict[str, np.ndarray]:
    data = LeRobotDataset("local/check", root=root, delta_timestamps=deltas, video_backend=backend)
    seen: dict[str, list[object]] = {}
    for position in range(len(data)):
        item = data[position]
        for key, value in item.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                assert torch.isfinite(value).all(), f"{key} of frame {position} is not finite"
            seen.setdefault(key, []).append(kept(value))
    print(
        f"{root}: {len(data)} frames, {data.num_episodes} episodes, {len(seen)} keys",
        file=sys.stderr,
    )
    return {key: np.array(values) for key, values in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--backend", default="pyav", help="LeRobot's video decoder: pyav or torchcodec"
    )
    arguments = parser.parse_args()
    plain = LeRobotDataset("local/check", root=arguments.root)
    step_s = 1 / plain.fps
    deltas = {key: [-step_s, 0.0, step_s] for key in plain.meta.camera_keys}
    deltas |= {
        key: [step_s * k for k in range(10)] for key in plain.features if key.startswith("action")
    }
    assert plain.meta.stats, "stats.json is absent"
    seen = read_all(arguments.root, None, arguments.backend)
    windowed = read_all(arguments.root, deltas, arguments.backend)
    seen |= {f"window/{key}": value for key, value in windowed.items()}
    if arguments.out:
        np.savez_compressed(arguments.out, **seen)


if __name__ == "__main__":
    main()

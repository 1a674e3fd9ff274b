"""The speed at which this machine decodes frames of a video that are read at random."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from kata.data import Column, DatasetWriter, Reader, open_dataset
from kata.data.arrays import Pixels

CAMERA = "observation.images.camera"
FRAMES = 48
HEIGHT = 480
WIDTH = 640
BATCH = 8


def decode_s_per_pixel(frames: int = FRAMES, height: int = HEIGHT, width: int = WIDTH) -> float:
    """Return the time of a core for one pixel of a frame that is read at random.

    The video is made up and has LeRobot's defaults: AV1 with a keyframe every second frame.

    Args:
        frames: of the video, at least 16.
        height: of a frame.
        width: of a frame.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "video"
        _record(root, frames, height, width)
        rows = np.random.default_rng(0).permutation(frames).astype(np.int64)
        with Reader(open_dataset("made/up", root=root), {}, threads=1, keys=[CAMERA]) as reader:
            reader.read(rows[:BATCH])  # opens files and decoders
            began_s = time.process_time()
            for first in range(BATCH, frames, BATCH):
                reader.read(rows[first : first + BATCH])
            taken_s = time.process_time() - began_s
    return taken_s / ((frames - BATCH) * height * width)


def _record(root: Path, frames: int, height: int, width: int) -> None:
    """Write a dataset of one episode: a scene that moves, with the noise of a camera."""
    random = np.random.default_rng(0)
    scene = _scene(random, height, width)
    features = {
        CAMERA: Column("video", (height, width, 3)),
        "action": Column("float32", (1,), ("x",)),
    }
    with DatasetWriter.create(root, fps=30, features=features) as writer:
        for number in range(frames):
            moved = np.roll(scene, 3 * number, axis=1).astype(np.int16)
            noisy = moved + random.integers(-4, 5, moved.shape, dtype=np.int16)
            frame = {
                CAMERA: noisy.clip(0, 255).astype(np.uint8),
                "action": np.zeros(1, np.float32),
            }
            writer.add_frame(frame, task="calibrate")
        writer.save_episode()


def _scene(random: np.random.Generator, height: int, width: int) -> Pixels:
    """Return a picture of blocks, (height, width, 3)."""
    blocks = random.integers(0, 256, (-(-height // 32), -(-width // 32), 3), dtype=np.uint8)
    return blocks.repeat(32, axis=0).repeat(32, axis=1)[:height, :width]

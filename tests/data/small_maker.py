"""Datasets without videos, whose sizes a test chooses: quick to write, and a policy trains on
them in milliseconds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kata.data.writing.dataset_writer import DatasetWriter
from kata.spec import ACTION, ENV_STATE, STATE, Column

CAMERA = "observation.images.top"


def small(
    root: Path,
    *,
    seed: int = 0,
    fps: int = 10,
    state: int = 3,
    action: int = 2,
    lengths: tuple[int, ...] = (9, 11, 8, 10),
    camera: tuple[str, int] | None = None,
    names: tuple[str, ...] | None = None,
) -> Path:
    """State and action of these sizes, a world state of four, and perhaps a camera (its key, its
    side in pixels).
    """
    features = {
        ENV_STATE: Column("float32", (4,)),
        STATE: Column("float32", (state,)),
        ACTION: Column("float32", (action,), names),
    }
    if camera is not None:
        features[camera[0]] = Column("image", (camera[1], camera[1], 3))
    rng = np.random.default_rng(seed)
    with DatasetWriter.create(root, fps=fps, features=features) as writer:
        for episode, length in enumerate(lengths):
            for _ in range(length):
                frame = {
                    ENV_STATE: rng.normal(size=4).astype(np.float32),
                    STATE: rng.normal(seed, 1 + seed, state).astype(np.float32),
                    ACTION: rng.normal(-seed, 2, action).astype(np.float32),
                }
                if camera is not None:
                    frame[camera[0]] = rng.integers(
                        1, 256, (camera[1], camera[1], 3), dtype=np.uint8
                    )
                writer.add_frame(frame, task=f"task {episode % 2} of {seed}")
            writer.save_episode()
    return root

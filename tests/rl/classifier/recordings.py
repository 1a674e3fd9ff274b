"""Recordings in which the picture turns bright at success."""

import numpy as np

from kata.data.writing.dataset_writer import DatasetWriter
from kata.spec import REWARD, Column

TOP = "observation.images.top"
SIZE = 40


def picture(bright, stream):
    frame = stream.integers(0, 90, (SIZE, SIZE, 3), dtype=np.uint8)
    frame[10:30, 10:30] += 120 * bright
    return frame


def write(root, rewards, *, reward=True):
    """Write an episode per list of rewards; each frame shows what the reward before it says."""
    features = {TOP: Column("image", (SIZE, SIZE, 3)), "action": Column("float32", (1,))}
    if reward:
        features[REWARD] = Column("float32", (1,))
    stream = np.random.default_rng(0)
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for earned in rewards:
            for before, now in zip([0, *earned], earned, strict=False):
                frame = {TOP: picture(before > 0, stream), "action": np.zeros(1, np.float32)}
                writer.add_frame(frame | ({REWARD: float(now)} if reward else {}), "shine")
            writer.save_episode()
    return root


MIXED = [[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]]

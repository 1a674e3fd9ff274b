"""One recording three times: dotted parts, one vector each, and these under other names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kata.data import Column, DatasetWriter
from kata.spec import ACTION, ENV_STATE, STATE

JOINED = {
    ACTION: ["action.joints", "action.gripper_close"],
    STATE: ["state.gripper_width", "state.joints"],
}
PARTS = {
    "action.joints": Column("float32", (3,), ("a", "b", "c")),
    "action.gripper_close": Column("int64", (1,)),
    "state.joints": Column("float32", (3,), ("a", "b", "c")),
    "state.gripper_width": Column("float32", (1,)),
}
WHOLE = {
    ACTION: Column("float32", (4,), ("a", "b", "c", "gripper_close")),
    STATE: Column("float32", (4,), ("gripper_width", "a", "b", "c")),
}


def in_parts(root: Path, lengths: tuple[int, ...] = (9, 11, 8, 10)) -> Path:
    """Write the recording with a column per part."""
    return _write(root, PARTS, lengths)


def in_one(root: Path, lengths: tuple[int, ...] = (9, 11, 8, 10)) -> Path:
    """Write the recording with the parts joined."""
    return _write(root, WHOLE, lengths)


def in_words(root: Path, lengths: tuple[int, ...] = (9, 11, 8, 10)) -> Path:
    """Write the recording with the vectors called `actions` and `state`."""
    return _write(root, {"actions": WHOLE[ACTION], "state": WHOLE[STATE]}, lengths)


def _write(root: Path, vectors: dict[str, Column], lengths: tuple[int, ...]) -> Path:
    rng = np.random.default_rng(7)
    features = {ENV_STATE: Column("float32", (2,)), **vectors}
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for length in lengths:
            for _ in range(length):
                writer.add_frame(_frame(rng, vectors), task="pick")
            writer.save_episode()
    return root


def _frame(rng: np.random.Generator, vectors: dict[str, Column]) -> dict[str, np.ndarray]:
    parts = {
        ENV_STATE: rng.normal(size=2).astype(np.float32),
        "action.joints": rng.normal(1, 2, 3).astype(np.float32),
        "action.gripper_close": rng.integers(0, 2, 1),
        "state.joints": rng.normal(-1, 1, 3).astype(np.float32),
        "state.gripper_width": rng.normal(0, 3, 1).astype(np.float32),
    }
    for key, names in JOINED.items():
        parts[key] = np.concatenate([parts[name] for name in names]).astype(np.float32)
    parts |= {"actions": parts[ACTION], "state": parts[STATE]}
    return {key: parts[key] for key in (ENV_STATE, *vectors)}

"""kata's side of the writer check: `make ROOT` records demonstrations, `compare ROOT SEEN.npz` reads them again.

SEEN.npz is what check_dataset.py kept of LeRobot reading the same files.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from kata.data import Reader, open_dataset
from kata.eval.demo import record

EPISODES = 5


def picture_hash(hwc: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(hwc).tobytes()).hexdigest()


def compare(root: Path, seen: Path) -> int:
    """Every value and frame that LeRobot saw, alone and in windows, against kata's reader; 1 where one differs."""
    data = open_dataset("local/check", root=root)
    rows = np.arange(data.num_frames)
    windows = {**dict.fromkeys(data.cameras, (-1, 0, 1)), "action": tuple(range(10))}
    with Reader(data, {}) as alone, Reader(data, windows) as windowed:
        mine = {**alone.read(rows), **{f"window/{k}": v for k, v in windowed.read(rows).items()}}
    compared = wrong = 0
    with np.load(seen, allow_pickle=True) as theirs:
        for key in theirs.files:
            bare = key.removeprefix("window/")
            if key.startswith("window/") and bare not in windows and not bare.endswith("_is_pad"):
                continue
            own = np.asarray(mine[key])
            if bare in data.cameras:
                frames = own.reshape(-1, *own.shape[-3:])
                own = np.array([picture_hash(frame) for frame in frames]).reshape(theirs[key].shape)
            compared += own.size
            wrong += int((own != theirs[key].reshape(own.shape)).sum())
    print(f"{compared} values and frames of {len(rows)} items compared, {wrong} differ")
    return int(wrong > 0 or compared == 0)


if __name__ == "__main__":
    verb, folder = sys.argv[1], Path(sys.argv[2])
    if verb == "make":
        record(folder, num_episodes=EPISODES, codec=sys.argv[3], workers=1)
    else:
        sys.exit(compare(folder, Path(sys.argv[3])))

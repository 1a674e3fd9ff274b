"""kata's side of the writer check: `make ROOT` records demonstrations, `compare ROOT SEEN.npz`
reads them again.

SEEN.npz is what check_dataset.py kept of LeRobot reading the same files.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from kata.cli import main
from kata.data import Reader, open_dataset
from kata.eval.record.demonstrations import record

EPISODES = 5


def picture_hash(hwc: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(hwc).tobytes()).hexdigest()


def compare(root: Path, seen: Path) -> int:
    """Every value and frame that LeRobot saw, alone and in windows, against kata's reader; 1
    where one differs.
    """
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


def edit(folder: Path) -> None:
    """Datasets that `kata data` makes out of others: reordered frames, cuts between keyframes,
    several codings.
    """
    from tests.data.dataset_maker import make

    lengths = (12, 9, 15)
    old = make(folder / "old", version="v2.1", lengths=lengths, b_frames=2)
    one = make(folder / "one", lengths=lengths, per_file=3, b_frames=2)
    two = make(folder / "two", lengths=lengths)
    images = make(folder / "images", lengths=lengths, camera="image")
    jobs = {
        "convert": [old],
        "split": [one, "--exclude=[0]"],
        "transcode": [images, "--codec=av1", "--gop=30"],
        "merge": [one, two, folder / "transcode"],
    }
    for verb, arguments in jobs.items():
        if status := main(["data", verb, *map(str, arguments), f"--out={folder / verb}"]):
            sys.exit(status)


if __name__ == "__main__":
    verb, folder = sys.argv[1], Path(sys.argv[2])
    if verb == "make":
        record(folder, num_episodes=EPISODES, codec=sys.argv[3], workers=1)
    elif verb == "edit":
        edit(folder)
    else:
        sys.exit(compare(folder, Path(sys.argv[3])))

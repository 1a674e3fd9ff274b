"""Makes the golden dataset folder with LeRobot 0.6.1: two tiny datasets and the items that LeRobot
reads.

Run in an environment with LeRobot: `python golden_data.py OUT_DIR [--backend pyav]`. OUT_DIR then
holds `video` and `image` (datasets of format v3.0, the first with several mp4 files per camera) and
`items.npz`, in which frames are kept at every fourth pixel of both axes.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
from lerobot.datasets import LeRobotDataset

FPS, HEIGHT, WIDTH = 10, 64, 96
LENGTHS = (9, 13, 8)
CAMERAS = ("observation.images.top", "observation.images.wrist")
TASKS = ("pick the cube", "open the drawer")
WINDOWS = {
    "observation.state": (-1, 0),
    CAMERAS[0]: (-2, 0, 1),
    "action": (0, 1, 2, 3, 4),
    "next.reward": (0, 2),
}
SUBSET = [2, 0]
STRIDE = 4


def features(kind: str) -> dict:
    """Two cameras, a state, an action and a scalar."""
    camera = {"dtype": kind, "shape": (HEIGHT, WIDTH, 3), "names": ["height", "width", "channels"]}
    return {
        **{key: dict(camera) for key in CAMERAS},
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["dx", "dy"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    }


def picture(episode: int, frame: int, camera: int) -> np.ndarray:
    """A gradient with a bar whose place tells episode, frame and camera."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    base = np.stack([x * 2, y * 3, (x + y) + 40 * camera], axis=-1) % 256
    base[:, (7 * frame + 11 * episode) % WIDTH :][:, :8] = (
        250,
        40 + 60 * episode,
        20 + 90 * camera,
    )
    return base.astype(np.uint8)


def write(root: Path, kind: str) -> None:
    """Record one dataset through LeRobot's own writer."""
    video = kind == "video"
    streaming = {"streaming_encoding": True, "encoder_queue_maxsize": 64} if video else {}
    dataset = LeRobotDataset.create(
        repo_id=f"golden/{kind}",
        fps=FPS,
        features=features(kind),
        root=root,
        robot_type="golden",
        use_videos=video,
        **streaming,
    )
    # A limit below one episode's bytes, so that every camera gets several files.
    dataset.meta.info.video_files_size_in_mb = 0.001
    random = np.random.default_rng(7)
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            values = {key: picture(episode, frame, number) for number, key in enumerate(CAMERAS)}
            values["observation.state"] = random.normal(size=3).astype(np.float32)
            values["action"] = random.normal(size=2).astype(np.float32)
            values["next.reward"] = np.array([frame / 10], dtype=np.float32)
            dataset.add_frame({**values, "task": TASKS[episode % 2]})
        dataset.save_episode()
    dataset.finalize()


def items(root: Path, kind: str, episodes: list[int] | None, backend: str) -> dict[str, np.ndarray]:
    """Every item of a dataset, stacked per key; frames as uint8 (N, [T,] H / 4, W / 4, C)."""
    dataset = LeRobotDataset(
        f"golden/{kind}",
        root=root,
        episodes=episodes,
        delta_timestamps={
            key: [offset / FPS for offset in offsets] for key, offsets in WINDOWS.items()
        },
        video_backend=backend,
    )
    read = [dataset[number] for number in range(len(dataset))]
    stacked: dict[str, np.ndarray] = {}
    for key in read[0]:
        if key == "task":
            stacked[key] = np.array([item[key] for item in read])
            continue
        values = np.stack([item[key].numpy() for item in read])
        if key in CAMERAS:
            values = np.moveaxis(np.rint(values * 255).astype(np.uint8), -3, -1)[
                ..., ::STRIDE, ::STRIDE, :
            ]
        stacked[key] = values
    return stacked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--backend", default="pyav", choices=("pyav", "torchcodec"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    stored: dict[str, np.ndarray] = {}
    for kind in ("video", "image"):
        root = arguments.out / kind
        shutil.rmtree(root, ignore_errors=True)
        write(root, kind)
        for name, episodes in (("all", None), ("subset", SUBSET)):
            found = items(root, kind, episodes, arguments.backend)
            stored |= {f"{kind}/{name}/{key}": values for key, values in found.items()}
    np.savez_compressed(arguments.out / "items.npz", **stored)


if __name__ == "__main__":
    main()

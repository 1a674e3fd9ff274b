"""Benchmark datasets by LeRobot's writer: `lerobot_writes.py FOLDER_NAME ROOT [EPISODES FRAMES]`.

a: LeRobot's default coding (AV1, g=2, crf 30), 20 episodes of 300 frames. b: h264, g=30, crf 23, 10
episodes. c: AV1, g=160, 10 episodes. d: PNG in parquet, 3 episodes of 150. multi: as a, one file
per episode, 4 episodes of 150. Two cameras 640x480 at 30 fps, state and action of 14 dimensions. A
scene is a cluttered picture that pans, an arm and things that move before it, and sensor noise,
since noise is what makes real recordings hard to code. Runs in the peer's environment and imports
no kata.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SVT_LOG", "1")

import cv2
import numpy as np
from lerobot.configs import RGBEncoderConfig
from lerobot.datasets import LeRobotDataset

HEIGHT, WIDTH = 480, 640
FPS = 30
JOINTS = 14
MARGIN = 64
NOISE_STD = 2.5
SIZES = {"a": (20, 300), "b": (10, 300), "c": (10, 300), "d": (3, 150), "multi": (4, 150)}
CAMERAS = ("observation.images.top", "observation.images.wrist")
OPTIONS = {
    "b": {"rgb_encoder": ("h264", 30, 23, "veryfast")},
    "c": {"rgb_encoder": ("libsvtav1", 160, 30, None)},
    "multi": {"video_files_size_in_mb": 1, "data_files_size_in_mb": 1},
}


def clutter(rng: np.random.Generator) -> np.ndarray:
    """A picture with detail at every scale, larger than a frame by MARGIN on each side."""
    shape = (HEIGHT + 2 * MARGIN, WIDTH + 2 * MARGIN)
    picture = np.full((*shape, 3), 125, np.float32)
    for cells, strength in ((5, 40), (20, 24), (80, 14), (280, 7)):
        coarse = rng.standard_normal((cells, cells * 4 // 3, 3), dtype=np.float32)
        picture += strength * cv2.resize(coarse, shape[::-1], interpolation=cv2.INTER_CUBIC)
    for _ in range(24):
        x, y = (int(rng.integers(0, size)) for size in shape[::-1])
        across = int(rng.integers(12, 80))
        cv2.rectangle(
            picture, (x, y), (x + across, y + across // 2), rng.uniform(30, 225, 3).tolist(), -1
        )
    return np.clip(picture, 0, 255).astype(np.uint8)


class Scene:
    """One camera in one episode."""

    def __init__(self, episode: int, camera: int) -> None:
        self.rng = np.random.default_rng((episode, camera))
        self.follows_arm = camera == 1
        self.behind = clutter(np.random.default_rng((episode % 5, camera)))
        self.things = [
            (*self.rng.uniform(0, 6, 2), int(self.rng.integers(14, 44))) for _ in range(4)
        ]
        self.colours = self.rng.uniform(0, 255, (4, 3)).tolist()
        grain = np.random.default_rng(camera).normal(0, NOISE_STD, (16, HEIGHT, WIDTH, 3))
        self.grain = grain.round().astype(np.int8)

    def frame(self, time_s: float, joints: np.ndarray) -> np.ndarray:
        """RGB uint8 (H, W, C)."""
        swing = (
            0.9 * MARGIN * np.sin(joints[:2])
            if self.follows_arm
            else np.sin([9 * time_s, 7 * time_s]) / 2
        )
        shift = np.array([[1, 0, -MARGIN - swing[0]], [0, 1, -MARGIN - swing[1]]], np.float32)
        picture = cv2.warpAffine(self.behind, shift, (WIDTH, HEIGHT))
        for (phase, speed, radius), colour in zip(self.things, self.colours, strict=True):
            angle = phase + speed * time_s / 5
            at = (
                int(WIDTH * (0.5 + 0.38 * np.cos(angle))),
                int(HEIGHT * (0.5 + 0.36 * np.sin(1.6 * angle))),
            )
            cv2.circle(picture, at, radius, colour, -1, cv2.LINE_AA)
        end, angle = np.array([WIDTH / 2, HEIGHT]), -np.pi / 2
        for joint, length in zip(joints, (170, 140, 90), strict=False):
            start, angle = end, angle + 0.8 * float(joint)
            end = start + length * np.array([np.cos(angle), np.sin(angle)])
            cv2.line(
                picture,
                start.astype(int).tolist(),
                end.astype(int).tolist(),
                (60, 60, 70),
                24,
                cv2.LINE_AA,
            )
        grain = np.roll(
            self.grain[self.rng.integers(len(self.grain))], int(self.rng.integers(WIDTH)), axis=1
        )
        return cv2.add(picture, grain, dtype=cv2.CV_8U)


def joint_path(episode: int, frames: int) -> np.ndarray:
    """Smooth joint angles (frames, JOINTS), radians."""
    rng = np.random.default_rng((7, episode))
    speed, phase, reach = (
        rng.uniform(*limits, JOINTS) for limits in ((0.6, 4), (0, 6.3), (0.3, 1))
    )
    return (reach * np.sin(np.arange(frames)[:, None] / FPS * speed + phase)).astype(np.float32)


def create(name: str, root: str, frames: int) -> LeRobotDataset:
    """An empty dataset with LeRobot's writer for this coding."""
    options = dict(OPTIONS.get(name, {}))
    if "rgb_encoder" in options:
        codec, gop, crf, preset = options["rgb_encoder"]
        options["rgb_encoder"] = RGBEncoderConfig(
            vcodec=codec, g=gop, crf=crf, **({"preset": preset} if preset else {})
        )
    video = name != "d"
    options |= (
        {"streaming_encoding": True, "encoder_queue_maxsize": frames + 5}
        if video
        else {"image_writer_threads": 4}
    )
    kind = {"dtype": "video" if video else "image", "shape": (HEIGHT, WIDTH, 3)}
    numbers = {
        "dtype": "float32",
        "shape": (JOINTS,),
        "names": [f"joint_{number}" for number in range(JOINTS)],
    }
    features = {camera: {**kind, "names": ["height", "width", "channels"]} for camera in CAMERAS}
    features |= {"observation.state": numbers, "action": numbers}
    return LeRobotDataset.create(
        repo_id=f"bench/{name}", fps=FPS, features=features, root=root, use_videos=video, **options
    )


def main(name: str, root: str, episodes: int = 0, frames: int = 0) -> None:
    """Write one dataset."""
    cv2.setNumThreads(1)
    episodes, frames = episodes or SIZES[name][0], frames or SIZES[name][1]
    dataset = create(name, root, frames)
    for episode in range(episodes):
        path = joint_path(episode, frames + 1)
        scenes = [Scene(episode, camera) for camera in range(len(CAMERAS))]
        for number in range(frames):
            pictures = [scene.frame(number / FPS, path[number]) for scene in scenes]
            row = {
                "observation.state": path[number],
                "action": path[number + 1],
                "task": f"task {episode % 2}",
            }
            dataset.add_frame({**dict(zip(CAMERAS, pictures, strict=True)), **row})
        dataset.save_episode()
        print(f"{name}: {episode + 1} of {episodes} episodes", flush=True)
    dataset.finalize()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]))

"""Plants faults of recording into copies of real sets, and counts which the check finds.

    python tools/recording/plant.py --data=../shared/data --out=<file>.json
        [--sets=pusht-v30,g1-bottle] [--faults="frozen video"] [--episodes=40] [--seed=0]
        [--folder=<scratch>]

Each set is first checked as it is, in full: nothing may be found. Then each fault is planted at
three strengths into a copy of up to `--episodes` episodes. It must be found in every episode that
has it, and nothing else anywhere. Faults of numbers alone are planted into copies without cameras.
Frames of the others are at most 160 pixels wide: that averages camera noise away, so still and live
pictures are harder to tell apart.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kata.config import parse_flags, plain
from kata.data import Dataset, DatasetWriter, Reader, open_dataset
from kata.data.check import check_dataset
from kata.data.check.recording.clipping import judged_dimensions
from kata.data.check.recording.signals import episodes_of, read_signal, runs
from kata.data.format.source import locate
from kata.data.video.encoder import VideoOptions
from kata.spec import ACTION, STATE, Column

SETS = (
    "pusht-v30",
    "aloha-scripted-cube-v30",
    "g1-bottle",
    "gr00t-sim-picknplace",
    "octo-bridge-debug-v30",
)
WIDTH = 160
WEAK, MEDIUM, STRONG = range(3)
STRENGTHS = ("weak", "medium", "strong")


@dataclass
class Plan:
    """One planted fault: its kind as the check names it, and the episodes that must be named.

    numbers: replaces state and action of an episode. pictures: what an episode shows per camera, as
    (episode, frame, camera) of the clean set; episode -1 is a black frame.
    """

    kind: str
    episodes: list[int]
    numbers: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    pictures: dict[int, dict[str, list[tuple[int, int, str]]]] = field(default_factory=dict)
    with_cameras: bool = False


class Copy:
    """A clean dataset in memory, with small frames."""

    def __init__(self, data: Dataset) -> None:
        self.data, self.fps = data, data.fps
        self.rng = np.random.default_rng(0)
        keys = [key for key in (STATE, ACTION) if key in data.columns]
        self.episodes = episodes_of(data)
        self.numbers = {
            key: [data.column(key)[e.start : e.end].astype(np.float32) for e in self.episodes]
            for key in keys
        }
        self.signals = {key: signal for key in keys if (signal := read_signal(data, key))}
        self.cameras = list(data.cameras)
        self.pictures = {key: list[np.ndarray]() for key in self.cameras}
        with Reader(data, {}, keys=self.cameras, threads=2) as reader:
            for episode in self.episodes:
                self._read(reader, np.arange(episode.start, episode.end))

    def _read(self, reader: Reader, rows: np.ndarray) -> None:
        found = {key: list[np.ndarray]() for key in self.cameras}
        for part in np.array_split(rows, -(-len(rows) // 16)):
            batch = reader.read(part)
            for key in self.cameras:
                found[key] += [small(frame) for frame in batch[key]]
        for key, frames in found.items():
            self.pictures[key].append(np.stack(frames))

    def pick(self, count: int, least_s: float = 0.0) -> list[int]:
        long = [n for n, e in enumerate(self.episodes) if e.length >= least_s * self.fps]
        chosen = self.rng.choice(long, min(count, len(long)), replace=False)
        return sorted(chosen.tolist())

    def frames(self, seconds: float) -> int:
        return max(1, round(seconds * self.fps))


def small(frame: np.ndarray) -> np.ndarray:
    """A frame of at most 160 pixels, of even sizes as yuv420p wants them."""
    factor = min(1.0, WIDTH / max(frame.shape[:2]))
    height, width = (round(side * factor) // 2 * 2 for side in frame.shape[:2])
    full = np.ascontiguousarray(np.broadcast_to(frame, (*frame.shape[:2], 3)))
    return np.asarray(Image.fromarray(full).resize((width, height), Image.Resampling.BOX))


def late(values: np.ndarray, frames: int) -> np.ndarray:
    """The same values, so many frames later."""
    return np.concatenate([np.repeat(values[:1], frames, axis=0), values])[: len(values)]


def lag(copy: Copy, strength: int) -> Plan | None:
    shift = copy.frames((0.6, 0.8, 1.0)[strength])
    numbers = {n: {STATE: late(copy.numbers[STATE][n], shift)} for n in range(len(copy.episodes))}
    return Plan("lag", [], numbers)


def lead(copy: Copy, strength: int) -> Plan | None:
    """Actions that are stored after what they cause."""
    shift = copy.frames(0.25 + (0.1, 0.2, 0.4)[strength])
    numbers = {n: {ACTION: late(copy.numbers[ACTION][n], shift)} for n in range(len(copy.episodes))}
    return Plan("lag", [], numbers)


def lag_of_episode(copy: Copy, strength: int) -> Plan | None:
    shift = max(2, copy.frames((0.2, 0.3, 0.5)[strength]))
    found = copy.pick(1, 3.0)
    numbers = {n: {STATE: late(copy.numbers[STATE][n], shift)} for n in found}
    return Plan("lag of episodes", found, numbers)


def clipped(copy: Copy, strength: int) -> Plan | None:
    """One joint of state or action that ends at a bound which lies too low."""
    share = (0.05, 0.1, 0.2)[strength]
    key = (STATE, ACTION)[strength % 2]
    signal = copy.signals[key]
    found: list[tuple[int, np.float32]] = []
    for joint in judged_dimensions(signal):
        values = signal.values[:, joint]
        bound = np.float32(np.quantile(values, 1 - share))
        stays = [end - first for first, end in runs(values > bound)]
        # A joint that is hardly cut, or that meets the bound once or twice, is not judged.
        if values.max() - bound > 0.05 * signal.span[joint] and sum(n > 3 for n in stays) >= 5:
            found.append((joint, bound))
    if not found:
        return None
    joint, bound = found[int(copy.rng.integers(len(found)))]
    numbers: dict[int, dict[str, np.ndarray]] = {}
    for n, values in enumerate(copy.numbers[key]):
        cut = values.copy()
        cut[:, joint] = np.minimum(cut[:, joint], bound)
        numbers[n] = {key: cut}
    return Plan("clipped joint", [], numbers)


def idle(copy: Copy, strength: int, *, tail: bool = False) -> Plan | None:
    """A pause before or after the motion: the command stands, the encoders are noisy."""
    pause = copy.frames((2, 4, 8)[strength])
    (number,) = copy.pick(1)
    length = copy.episodes[number].length
    edge = length - 1 if tail else 0
    shown = [0] * pause + list(range(length))
    if tail:
        shown = [*range(length), *[edge] * pause]
    numbers: dict[str, np.ndarray] = {}
    for key, parts in copy.numbers.items():
        numbers[key] = parts[number][shown]
        if key == STATE:
            noise = copy.rng.normal(0, 1, numbers[key].shape) * copy.signals[key].noise / 2
            still = np.array(shown) == edge
            numbers[key][still] += noise[still].astype(np.float32)
    pictures = {key: [(number, frame, key) for frame in shown] for key in copy.cameras}
    return Plan("idle head or tail", [number], {number: numbers}, {number: pictures}, True)


def idle_tail(copy: Copy, strength: int) -> Plan | None:
    return idle(copy, strength, tail=True)


def duplicated(copy: Copy, strength: int) -> Plan | None:
    """An episode of which a part was recorded once already."""
    share = (0.6, 0.8, 1.0)[strength]
    source, target = copy.rng.choice(len(copy.episodes), 2, replace=False).tolist()
    count = round(share * copy.episodes[source].length)
    numbers: dict[str, np.ndarray] = {}
    for key, parts in copy.numbers.items():
        rest = parts[target][: copy.episodes[source].length - count]
        numbers[key] = np.concatenate([parts[source][:count], rest])
    return Plan("duplicated episode", [target], {target: numbers})


def _busiest(copy: Copy, number: int, frames: int) -> int:
    """Where in an episode the robot moves most for so many frames."""
    signal = copy.signals.get(STATE) or copy.signals[ACTION]
    part = copy.numbers[signal.key][number][:, signal.moves] / signal.span[signal.moves]
    spans = [np.ptp(part[at : at + frames], axis=0).max() for at in range(len(part) - frames + 1)]
    return int(np.argmax(spans))


def _straight(copy: Copy, number: int) -> dict[str, list[tuple[int, int, str]]]:
    frames = range(copy.episodes[number].length)
    return {key: [(number, frame, key) for frame in frames] for key in copy.cameras}


def frozen(copy: Copy, strength: int) -> Plan | None:
    (number,) = copy.pick(1, 1.6)
    length = copy.episodes[number].length
    frames = min(copy.frames((1.5, 3, 6)[strength]), length)
    first = _busiest(copy, number, frames)
    camera = str(copy.rng.choice(copy.cameras))
    pictures = _straight(copy, number)
    for frame in range(first, first + frames):
        pictures[camera][frame] = (number, first, camera)
    return Plan("frozen video", [number], {}, {number: pictures}, True)


def black(copy: Copy, strength: int) -> Plan | None:
    (number,) = copy.pick(1, 1.6)
    length = copy.episodes[number].length
    frames = min((copy.frames(0.5), copy.frames(1.5), length)[strength], length)
    first = int(copy.rng.integers(length - frames + 1))
    camera = str(copy.rng.choice(copy.cameras))
    pictures = _straight(copy, number)
    for frame in range(first, first + frames):
        pictures[camera][frame] = (-1, 0, camera)
    return Plan("black video", [number], {}, {number: pictures}, True)


def same_video(copy: Copy, strength: int) -> Plan | None:
    """Video of another episode, for four fifths of one, for one, or for three."""
    apart = _furthest(copy)
    targets = copy.pick((1, 1, 3)[strength]) if apart is None else [apart[1]]
    sources = [n for n in range(len(copy.episodes)) if n not in targets]
    camera = str(copy.rng.choice(copy.cameras))
    plan = Plan("duplicated video", [], {}, {}, True)
    for target in targets:
        source = int(copy.rng.choice(sources)) if apart is None else apart[0]
        length, other = copy.episodes[target].length, copy.episodes[source].length
        share = 0.8 if strength == WEAK else 1.0
        pictures = _straight(copy, target)
        for frame in range(round(share * min(length, other))):
            pictures[camera][frame] = (source, frame, camera)
        plan.pictures[target] = pictures
        plan.episodes.append(target)
    return plan


def _furthest(copy: Copy) -> tuple[int, int] | None:
    """In a small set of much alike episodes, the two whose poses differ most."""
    if len(copy.episodes) > 8:
        return None
    signal = copy.signals[STATE]
    span = np.where(signal.moves, signal.span, np.inf)
    best, pair = -1.0, (0, 1)
    for one in range(len(copy.episodes)):
        for other in range(one + 1, len(copy.episodes)):
            a, b = copy.numbers[STATE][one], copy.numbers[STATE][other]
            count = min(len(a), len(b))
            off = float(np.mean((np.abs(a[:count] - b[:count]) / span).max(axis=1)))
            if off > best:
                best, pair = off, (one, other)
    return pair


def same_cameras(copy: Copy, strength: int) -> Plan | None:
    """One camera's pictures under two names, in one episode, a third, or all."""
    if len(copy.cameras) < 2:
        return None
    one, other = copy.rng.choice(copy.cameras, 2, replace=False).tolist()
    count = (1, max(2, len(copy.episodes) // 3), len(copy.episodes))[strength]
    found = copy.pick(count)
    plan = Plan("duplicated video", found, {}, {}, True)
    for number in found:
        plan.pictures[number] = _straight(copy, number)
        plan.pictures[number][one] = [
            (number, frame, other) for _, frame, _ in plan.pictures[number][one]
        ]
    return plan


def swapped(copy: Copy, strength: int) -> Plan | None:
    """Two cameras that change places for half an episode, for one, or for an eighth of them."""
    if len(copy.cameras) < 2:
        return None
    one, other = copy.rng.choice(copy.cameras, 2, replace=False).tolist()
    found = copy.pick((1, 1, max(2, len(copy.episodes) // 8))[strength])
    plan = Plan("swapped cameras", found, {}, {}, True)
    for number in found:
        pictures = _straight(copy, number)
        first = copy.episodes[number].length // 2 if strength == WEAK else 0
        for frame in range(first, copy.episodes[number].length):
            pictures[one][frame] = (number, frame, other)
            pictures[other][frame] = (number, frame, one)
        plan.pictures[number] = pictures
    return plan


FAULTS = {
    "lag: state late": lag,
    "lag: action late": lead,
    "lag of episodes": lag_of_episode,
    "clipped joint": clipped,
    "idle head": idle,
    "idle tail": idle_tail,
    "duplicated episode": duplicated,
    "frozen video": frozen,
    "black video": black,
    "duplicated video": same_video,
    "duplicated video: two cameras": same_cameras,
    "swapped cameras": swapped,
}


def write(copy: Copy, plan: Plan, root: Path) -> None:
    """Write the set with the fault planted."""
    data = copy.data
    features = {key: data.columns[key] for key in copy.numbers}
    for key in copy.cameras if plan.with_cameras else ():
        features[key] = Column(data.columns[key].dtype, copy.pictures[key][0].shape[1:])
    options = VideoOptions(codec="h264", gop=10)
    with DatasetWriter.create(root, fps=data.fps, features=features, video=options) as writer:
        for number in range(len(copy.episodes)):
            values = {key: parts[number] for key, parts in copy.numbers.items()}
            values |= plan.numbers.get(number, {})
            pictures = plan.pictures.get(number) or _straight(copy, number)
            task = data.episodes.tasks[number][0] if data.episodes.tasks[number] else ""
            for place in range(len(next(iter(values.values())))):
                frame = {key: each[place] for key, each in values.items()}
                for key in copy.cameras if plan.with_cameras else ():
                    frame[key] = _picture(copy, *pictures[key][place])
                writer.add_frame(frame, task=task)
            writer.save_episode()


def _picture(copy: Copy, episode: int, frame: int, camera: str) -> np.ndarray:
    """A frame of the clean set, or a black one with a little noise."""
    if episode >= 0:
        return copy.pictures[camera][episode][frame]
    shape = copy.pictures[camera][0].shape[1:]
    return copy.rng.integers(0, 8, shape, dtype=np.uint8)


@contextmanager
def silent(title: str) -> Iterator[Any]:
    del title
    yield lambda done, total: None


def check(root: Path, name: str) -> dict[str, Any]:
    began_s = time.perf_counter()
    report = check_dataset(
        locate(name, root, None),
        episodes="available",
        sampled_frames=3000,
        threads=2,
        counting=silent,
    )
    assert report.recording is not None
    found = [fault.plain() for fault in report.recording.faults]
    wall_s = round(time.perf_counter() - began_s, 1)
    return {"found": found, "looked_at": report.recording.looked, "wall_s": wall_s}


def outcome(plan: Plan, faults: list[dict[str, Any]]) -> dict[str, Any]:
    """Which of the episodes with the fault were found, and what else was."""
    mine = [fault for fault in faults if fault["kind"] == plan.kind]
    # Of two episodes that are alike, the check cannot know which is the copy.
    named = {episode for fault in mine for episode in fault["episodes"]}
    missed = sorted(set(plan.episodes) - named)
    others = [fault["what"] for fault in faults if fault["kind"] != plan.kind]
    planted = set(plan.episodes)
    others += [f["what"] for f in mine if f["episodes"] and not planted & set(f["episodes"])]
    found = bool(mine) and not missed
    return {
        "found": found,
        "missed": missed,
        "others": others,
        "said": [fault["what"] for fault in mine][:3],
    }


def main() -> None:
    options: dict[str, Any] = {
        "data": "../shared/data", "out": None, "sets": ",".join(SETS), "faults": ",".join(FAULTS),
        "episodes": 40, "seed": 0, "folder": None,
    }  # fmt: skip
    options |= plain(parse_flags(sys.argv[1:]))
    rows: list[dict[str, Any]] = []
    clean: dict[str, Any] = {}
    for name in options["sets"].split(","):
        root = Path(options["data"]) / name
        clean[name] = check(root, name)
        print(
            name,
            "clean:",
            [fault["what"] for fault in clean[name]["found"]] or "nothing found",
            flush=True,
        )
        data = open_dataset(name, root=root, episodes="available")
        data = data.subset(range(min(options["episodes"], len(data.episodes.index))))
        copy = Copy(data)
        for fault in options["faults"].split(","):
            for strength, word in enumerate(STRENGTHS):
                row = {"set": name, "fault": fault, "strength": word}
                rows.append(row | one(copy, fault, strength, options))
                print(rows[-1], flush=True)
    looked = [row for row in rows if row["found"] is not None]
    summary = {
        "planted": len(looked),
        "found": sum(row["found"] for row in looked),
        "other findings": sum(len(row["others"]) for row in looked),
        "found in clean sets": sum(len(each["found"]) for each in clean.values()),
        "cannot be planted or judged": [row for row in rows if row["found"] is None],
    }
    print(json.dumps(summary, indent=1))
    if options["out"]:
        machine = {"python": platform.python_version(), "system": platform.platform()}
        result = {
            "command": sys.argv,
            "machine": machine,
            "summary": summary,
            "clean": clean,
            "planted": rows,
        }
        Path(options["out"]).write_text(json.dumps(result, indent=1) + "\n")


def one(copy: Copy, fault: str, strength: int, options: dict[str, Any]) -> dict[str, Any]:
    """Plant one fault, check, and compare."""
    seed = [options["seed"], strength, *fault.encode(), *copy.data.repo_id.encode()]
    copy.rng = np.random.default_rng(seed)
    plan = FAULTS[fault](copy, strength)
    if plan is None:
        return {
            "found": None,
            "why": "it takes two cameras, or a joint that moves beyond the bound in five stays",
        }
    with tempfile.TemporaryDirectory(dir=options["folder"]) as scratch:
        root = Path(scratch) / "planted"
        write(copy, plan, root)
        result = check(root, "planted")
    looked = result["looked_at"][plan.kind]
    if looked.startswith("not looked at"):
        return {"found": None, "why": looked}
    return outcome(plan, result["found"]) | {"wall_s": result["wall_s"]}


if __name__ == "__main__":
    main()

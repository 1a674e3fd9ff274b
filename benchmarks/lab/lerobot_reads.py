"""LeRobot's own reader on a local dataset, measured as kata's is. Runs in the peer's environment
and imports no kata.

One JSON object per line comes in, one goes out: {"root": ..., "pattern": "act", "mode": "map",
"item" or "stream", "batch_size": 8, "workers": 2, "seconds": 3,
 "batches": 16, "seed": 0}
map: shuffled DataLoader of the map-style dataset, frames as uint8. item: single samples without a
DataLoader, where one takes seconds. stream: a DataLoader of the streaming dataset, measured while
its buffer is full; with an "address" its videos come from there. CPU time is that of this process
and its workers; peak_bytes is their memory at the end, shared pages divided among them.
"""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false

import itertools
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import lerobot.datasets.video_utils as video_utils
import psutil
import torch
from lerobot.datasets import LeRobotDataset, LeRobotDatasetMetadata, StreamingLeRobotDataset

_TICKS = os.sysconf("SC_CLK_TCK")
PREFETCH = 2
"""Batches that each worker reads in advance: a DataLoader's default."""
_OPEN: dict[tuple[str, str], LeRobotDataset] = {}


def machine_busy_s() -> float:
    """Return the CPU seconds of the whole machine since it started."""
    user, nice, system, _, _, irq, softirq = (
        int(word) for word in Path("/proc/stat").read_text().split()[1:8]
    )
    return (user + nice + system + irq + softirq) / _TICKS


def family() -> list[psutil.Process]:
    """This process and its workers."""
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def family_cpu_s() -> float:
    """Return the CPU seconds of this process, its workers, and the workers that have ended."""
    total = 0.0
    for process in family():
        times = process.cpu_times()
        total += times.user + times.system
        if process.pid == os.getpid():
            total += times.children_user + times.children_system
    return total


def family_peak_bytes() -> int:
    """Return the most resident bytes of this process and its workers, shared pages counted in full.

    kata's `peak_bytes` counts so.
    """
    total = 0
    for process in family():
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return total


def windows_s(pattern: str, cameras: list[str], fps: int) -> dict[str, list[float]] | None:
    """LeRobot's delta_timestamps of kata.bench.cases.windows_of."""
    if pattern == "act":
        return {"action": [step / fps for step in range(100)]}
    if pattern == "diffusion":
        two = [-1 / fps, 0.0]
        return {
            **dict.fromkeys([*cameras, "observation.state"], two),
            "action": [n / fps for n in range(-1, 15)],
        }
    if pattern == "sarm":
        return {cameras[0]: [float(second) for second in range(-7, 1)], "action": [0.0]}
    return None


def opened(root: str, pattern: str) -> LeRobotDataset:
    """The dataset with the pattern's windows; opened once."""
    if (root, pattern) not in _OPEN:
        name = "bench/" + Path(root).name
        meta = LeRobotDatasetMetadata(name, root=root)
        windows = windows_s(pattern, meta.camera_keys, meta.fps)
        _OPEN[root, pattern] = LeRobotDataset(
            name, root=root, delta_timestamps=windows, return_uint8=True
        )
    return _OPEN[root, pattern]


def by_loader(dataset: LeRobotDataset, spec: dict) -> dict:
    """Batches of a shuffled DataLoader."""
    # a decoder that was open before a fork breaks the workers
    video_utils._default_decoder_cache.clear()
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=spec["batch_size"],
        num_workers=spec["workers"],
        prefetch_factor=PREFETCH,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(spec["seed"]),
    )
    began_s = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first_s = time.perf_counter() - began_s
    for _ in range(spec["workers"] * PREFETCH):
        next(batches)  # as many are on their way now as will be at the end
    return {
        "first_batch_s": first_s,
        **steady(batches, spec["batch_size"], spec["seconds"], spec["batches"]),
    }


def by_item(dataset: LeRobotDataset, spec: dict) -> dict:
    """Single samples of a random permutation."""
    order = torch.randperm(
        len(dataset), generator=torch.Generator().manual_seed(spec["seed"])
    ).tolist()
    began_s = time.perf_counter()
    dataset[order[0]]
    first_s = time.perf_counter() - began_s
    return {
        "first_batch_s": first_s,
        **steady((dataset[row] for row in order[1:]), 1, spec["seconds"], 1),
    }


def by_stream(spec: dict) -> dict:
    """Batches of the streaming dataset. The first one comes when the buffer is full."""
    name = "bench/" + Path(spec["root"]).name
    began_s = time.perf_counter()
    meta = LeRobotDatasetMetadata(name, root=spec["root"])
    dataset = StreamingLeRobotDataset(
        name,
        root=spec["root"],
        delta_timestamps=windows_s(spec["pattern"], meta.camera_keys, meta.fps),
        return_uint8=True,
        seed=spec["seed"],
    )
    if spec["address"]:
        # The reader opens its videos below this address, as it does below one of the Hub.
        type(dataset.meta).url_root = property(lambda _: spec["address"])
        dataset.streaming_from_local = False
    size = spec["batch_size"]
    batches = iter(torch.utils.data.DataLoader(dataset, size, num_workers=spec["workers"]))
    episodes = [len(set(next(batches)["episode_index"].tolist()))]
    first_s = time.perf_counter() - began_s
    # Beyond this batch the buffer is emptied, without decoding.
    end = (meta.total_frames - dataset.buffer_size) // size - 1

    def counted():
        for batch in itertools.islice(batches, end):
            episodes.append(len(set(batch["episode_index"].tolist())))
            yield batch

    figures = steady(counted(), size, spec["seconds"], spec["batches"])
    mean = sum(episodes) / len(episodes)
    return {"first_batch_s": first_s, "episodes_per_batch": mean, **figures}


def steady(batches, size: int, seconds: float, least: int) -> dict:
    """Return figures from now on, over `seconds` and at least `least` batches.

    They end with the epoch at the latest.
    """
    busy, own = machine_busy_s(), family_cpu_s()
    began_s = time.perf_counter()
    count = 0
    for _ in batches:
        count += 1
        if count >= least and time.perf_counter() - began_s >= seconds:
            break
    wall_s, own = time.perf_counter() - began_s, family_cpu_s() - own
    return {
        "cpu_ms": 1e3 * own / (count * size),
        "samples_s": count * size / wall_s,
        "samples": count * size,
        "other_cores": max(0.0, machine_busy_s() - busy - own) / wall_s,
        "peak_bytes": sum(process.memory_full_info().pss for process in family()),
        "peak_resident_bytes": family_peak_bytes(),
    }


def main() -> None:
    """Answer requests until the input ends.

    A request that fails is answered with its error: a result, too.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed goes to stderr
    versions = {name: version(name) for name in ("lerobot", "torch", "torchcodec", "av")}
    decoder = video_utils.get_safe_default_video_backend()
    print(
        json.dumps({"python": sys.version.split()[0], **versions, "decoder": decoder}), file=answers
    )
    for line in sys.stdin:
        spec = json.loads(line)
        try:
            if spec["mode"] == "stream":
                figures = by_stream(spec)
            else:
                dataset = opened(spec["root"], spec["pattern"])
                figures = (by_item if spec["mode"] == "item" else by_loader)(dataset, spec)
        except (RuntimeError, ValueError, OSError, IndexError, KeyError) as error:
            figures = {"error": f"{type(error).__name__}: {str(error)[-300:]}"}
        print(json.dumps(figures), file=answers)


if __name__ == "__main__":
    main()

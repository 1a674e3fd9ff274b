"""Bytes of an episode of `kata rl` on its way to the learner, and resident memory of a buffer
against what its schema says: `python benchmarks/rl_buffers.py FILE.json`.

Two cameras of 128 x 128, a state of 18 numbers and actions of four; Linux.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.rl.episodes.ring import Ring

CAMERAS = ("observation.images.front", "observation.images.wrist")
SCHEMA = Schema(
    {**dict.fromkeys(CAMERAS, (128, 128, 3)), "observation.state": (18,)}, CAMERAS, action_size=4
)
STEPS, CAPACITY = 100, 5000


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def episode() -> PlayedEpisode:
    """Return an episode of noise, which nothing compresses."""
    stream = np.random.default_rng(0)
    seen: dict[str, Any] = {"observation.state": np.zeros((STEPS + 1, 18), np.float32)}
    for key in CAMERAS:
        seen[key] = stream.integers(0, 256, (STEPS + 1, 128, 128, 3), np.uint8)
    zeros = np.zeros(STEPS, np.float32)
    action = np.zeros((STEPS, 4), np.float32)
    return PlayedEpisode(seen, action, zeros, zeros, np.zeros(STEPS, np.bool_), terminated=False)


def main() -> None:
    played = episode()
    sent = len(played.to_bytes())
    before = resident_bytes()
    ring = Ring(SCHEMA, CAPACITY, "policy.online_buffer_capacity")
    for _ in range(2 * CAPACITY // STEPS):
        ring.add(played)
    said, grown = CAPACITY * SCHEMA.row_bytes, resident_bytes() - before
    found = {
        "command": "python benchmarks/rl_buffers.py",
        "episode": {"steps": STEPS, "bytes": sent},
        "buffer": {"said_bytes": said, "resident_bytes": grown, "share": round(grown / said, 5)},
    }
    print(json.dumps(found, indent=1))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

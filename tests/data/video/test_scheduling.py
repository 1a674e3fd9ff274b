"""An encoder leaves the threads of the process in the scheduling class in which they were."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LINUX_ROOT = sys.platform == "linux" and os.geteuid() == 0

WRITES = """
import os
from pathlib import Path
import numpy as np
from kata.data.video.encoder import VideoEncoder, VideoOptions, require_encoder
options = VideoOptions(codec="av1")
def classes():
    return sorted({os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")})
require_encoder(options, fps=10, height=64, width=64)
print(classes())
with VideoEncoder(Path("a.mp4"), fps=10, height=64, width=64, options=options) as encoder:
    for _ in range(3):
        encoder.add(np.zeros((64, 64, 3), np.uint8))
    print(classes())
print(classes())
"""


@pytest.mark.skipif(not LINUX_ROOT, reason="the encoder changes it for root on Linux only")
def test_an_encoder_of_root_stays_out_of_the_real_time_class(tmp_path):
    # Before and after each other encoder in this process, so a process of its own is asked.
    done = subprocess.run(
        [sys.executable, "-c", WRITES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [f"[{os.SCHED_OTHER}]"] * 3

"""What a film shows. The files of equal pictures may differ: x264 reads memory that it has not
written, and where another video's remains are in it, it may choose other codes for the same frames.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from kata.eval.video import read_strip


def decoded(path: Path) -> list[str]:
    """Return a digest of each decoded frame of a video."""
    frames = read_strip(path, count=100_000)
    return [hashlib.sha256(frame.tobytes()).hexdigest() for frame in frames]

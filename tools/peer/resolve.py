"""Resolves kata and LeRobot 0.6.1 into one environment: `python tools/peer/resolve.py`.

Nothing is installed. It takes seconds, with the package index that uv is configured for, and ends
with 1 where the two do not fit together.
"""

from __future__ import annotations

import re
import subprocess
import sys

from setup import ROOT, find_uv

PYTHON_VERSION = "3.12"
LEROBOT = ("lerobot[training,dataset]==0.6.1", "lerobot[training,dataset,smolvla,pi]==0.6.1")
SHOWN = ("av", "torch", "transformers", "huggingface-hub")


def resolve(uv: str, lerobot: str) -> subprocess.CompletedProcess[str]:
    """Resolve kata's own requirements together with LeRobot's."""
    command = [
        uv,
        "pip",
        "compile",
        "--quiet",
        "--no-annotate",
        "--no-header",
        "--python-version",
        PYTHON_VERSION,
    ]
    return subprocess.run(
        [*command, "pyproject.toml", "-"],
        input=lerobot,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> int:
    uv = find_uv()
    for lerobot in LEROBOT:
        done = resolve(uv, lerobot)
        if done.returncode:
            print(
                f"kata and {lerobot} do not resolve for Python {PYTHON_VERSION}:\n"
                f"{done.stderr.strip()}"
            )
            return 1
        found = dict(re.findall(r"^([\w.-]+)==(\S+)", done.stdout, re.MULTILINE))
        versions = ", ".join(f"{name} {found[name]}" for name in SHOWN)
        print(f"kata and {lerobot} resolve for Python {PYTHON_VERSION}: {versions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

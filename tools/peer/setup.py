"""The environment of the peer, LeRobot 0.6.1, in `.peer/` of the repository: `python
tools/peer/setup.py`.

It holds kata and what its tests need, too, in the versions that LeRobot allows. LeRobot wants
Python 3.12 or newer, so kata's own environment stays apart. A second call finds it ready.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEER = ROOT / ".peer"
PYTHON = PEER / "bin/python"
STAMP = PEER / "kata-peer.txt"
REQUIREMENTS = (
    "lerobot[training,dataset,diffusion,multi_task_dit,smolvla,pi,peft,wallx]==0.6.1",
    "torch==2.11.*",
    "dm-tree",  # of LeRobot's extra groot, whose other packages are not needed
    "psutil",
)
PROJECT = ROOT / "pyproject.toml"
PROBE = "import sys, venv; sys.exit(sys.version_info < (3, 12))"


def candidates() -> list[str]:
    """Return where a Python of 3.12 or newer may be, in order of preference."""
    named = os.environ.get("PEER_PYTHON")
    if named:
        return [named]
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
    on_path = [shutil.which(name) for name in ("python3.12", "python3.13", "python3")]
    return [*map(str, pyenv), *(path for path in on_path if path)]


def works(python: str) -> bool:
    """True when the interpreter runs and is new enough."""
    try:
        return (
            subprocess.run([python, "-c", PROBE], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def missing(what: str) -> SystemExit:
    """Say what is missing and leave with 2."""
    print(f"peer environment: {what}", file=sys.stderr)
    return SystemExit(2)


def find_python() -> str:
    tried = candidates()
    for python in tried:
        if works(python):
            return python
    raise missing(
        f"no Python 3.12 or newer (tried: {', '.join(tried) or 'nothing found'}).\n"
        "Install one and name it: PEER_PYTHON=/path/to/python3.12 make peer"
    )


def find_uv() -> str:
    for place in (ROOT / ".venv/bin/uv", Path(sys.prefix) / "bin/uv"):
        if place.is_file():
            return str(place)
    found = shutil.which("uv")
    if found is None:
        raise missing(
            "no uv in .venv/bin or on PATH.\nInstall it: .venv/bin/python -m pip install uv"
        )
    return found


def set_up() -> Path:
    """The peer's interpreter, after building its environment where the stamp does not say it is
    there.
    """
    wanted = "\n".join([*REQUIREMENTS, PROJECT.read_text()])
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return PYTHON
    if PEER.is_symlink():
        raise missing(f"{PEER} is a link, and what it points to would be cleared; remove it")
    uv, python = find_uv(), find_python()
    print(f"building {PEER} with {python} (about 6 GB)", flush=True)
    for arguments in (
        ["venv", "--clear", "--python", python, str(PEER)],
        [
            "pip",
            "install",
            "--python",
            str(PYTHON),
            *REQUIREMENTS,
            "--editable",
            f"{ROOT}[dev]",
        ],
    ):
        if subprocess.run([uv, *arguments], check=False).returncode:
            raise missing(
                f"failed: uv {' '.join(arguments)}\nIt needs the network and 6 GB of disk."
            )
    STAMP.write_text(wanted)
    return PYTHON


if __name__ == "__main__":
    print(set_up())

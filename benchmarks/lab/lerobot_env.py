"""LeRobot 0.6.1 as a process with its own Python, which answers one JSON object per line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from typing import IO, Any

from kata.closing import Closing
from kata.errors import ConfigError

_SCRIPTS = Path(__file__).parent
MADE = ("a", "b", "c", "d", "multi")
"""The folders that lerobot_writes.py makes; it says how they differ."""


def peer_python(named: str | None) -> Path:
    """Return the interpreter of the peer's environment: the named one, or that of `make peer`.

    Raises:
        ConfigError: There is none.
    """
    python = Path(named or ".peer/bin/python").expanduser().absolute()
    if not python.is_file():
        raise ConfigError(
            f"peer_python={python}: no such file",
            rule="the Python of an environment with lerobot 0.6.1 and psutil",
            remedy="`python tools/peer/setup.py` builds it in .peer of the repository",
        )
    return python


def make_datasets(python: Path, root: Path) -> None:
    """Write the benchmark datasets that root lacks, with LeRobot's writer; it takes minutes.

    Raises:
        ConfigError: The writer fails.
    """
    root.mkdir(parents=True, exist_ok=True)
    for folder in MADE:
        if (root / folder).exists():
            continue
        partial = root / f"{folder}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        command = [str(python), str(_SCRIPTS / "lerobot_writes.py"), folder, str(partial)]
        if subprocess.run(command, check=False).returncode:
            raise ConfigError(
                f"{root / folder}: not written",
                rule="LeRobot's writer ends well",
                remedy="see its message above",
            )
        partial.rename(root / folder)


def ffmpeg_for(python: Path, folder: Path) -> dict[str, str]:
    """Return the variables with which the peer's torchcodec finds FFmpeg's shared libraries.

    Where the system has none, those of the peer's own PyAV are linked in `folder` under the names
    that torchcodec looks for. Without them LeRobot falls back to a reader that takes up to ten
    times as long, and a comparison would flatter kata.
    """
    if find_library("avutil") is not None:
        return {}
    carried = [*python.parent.parent.glob("lib/python3*/site-packages/av.libs/lib*.so.*")]
    for library in carried:
        named = re.fullmatch(r"(lib(?:av|sw)[a-z]+)-[0-9a-f]+(\.so\.\d+)[\d.]*", library.name)
        if named is not None:
            (folder / "".join(named.groups())).symlink_to(library)
    places = [
        str(folder),
        *{str(library.parent) for library in carried},
        os.environ.get("LD_LIBRARY_PATH", ""),
    ]
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, places))}


class Peer(Closing):
    """The process of the peer; it ends with its context."""

    def __init__(self, python: Path) -> None:
        self._links = tempfile.TemporaryDirectory()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        command = [str(python), str(_SCRIPTS / "lerobot_reads.py")]
        pipe, env = subprocess.PIPE, {**os.environ, **ffmpeg_for(python, Path(self._links.name))}
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._said, text=True, env=env
        )
        try:
            self.versions: dict[str, str] = self._answer()
            if self.versions["decoder"] != "torchcodec":
                raise ConfigError(
                    f"the peer reads with {self.versions['decoder']}",
                    rule="with torchcodec, its default and several times faster",
                    remedy="install FFmpeg's shared libraries (versions 4 to 8), or PyAV's wheel "
                    "in its environment",
                )
        except ConfigError:
            self.close()
            raise

    def measure(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the figures of one request, or its `error`.

        Raises:
            ConfigError: The process has died.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            self._process.stdin.write(json.dumps(spec) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._said.seek(0)
            last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise ConfigError(
                f"the peer ended with {self._process.returncode}: {''.join(last)}",
                rule="an environment with lerobot 0.6.1 and psutil",
                remedy="`python tools/peer/setup.py` builds it, or leave out --peer",
            )
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()
        self._links.cleanup()

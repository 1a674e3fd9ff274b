"""Machines made of network namespaces: each has its own interface and address, joined by a switch
that is one too.

Nothing of this machine's own network is touched. A host is cut off by taking down its port of the
switch: what it sends is lost without a word, as behind a broken cable, while its processes go on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import Any, Self

NETWORK = "10.77.0"


def why_not() -> str | None:
    """Why no namespace can be made here, or None where one can."""
    if shutil.which("ip") is None:
        return "no `ip` (Debian's iproute2)"
    name = f"kata-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces may not be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


@dataclass
class Hosts:
    """So many hosts with addresses 10.77.0.1 and on.

    Use as a context manager; what runs on them ends with it.
    """

    count: int
    processes: dict[int, list[subprocess.Popen[Any]]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._ip("netns", "add", self._switch)
        self._ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        self._ip("-n", self._switch, "link", "set", "bridge", "up")
        for host in range(self.count):
            name, port = self.name(host), f"port{host}"
            self._ip("netns", "add", name)
            self._ip(
                "-n",
                name,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                self._switch,
            )
            self._ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                self._ip("-n", name, "link", "set", link, "up")
            self._ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for host in self.processes:
            self.kill(host)
        for name in [*(self.name(host) for host in range(self.count)), self._switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def start(self, host: int, command: list[str], **named: Any) -> subprocess.Popen[Any]:
        """Start a command on a host, in a session of its own."""
        inside = ["ip", "netns", "exec", self.name(host), *command]
        process = subprocess.Popen(inside, start_new_session=True, **named)
        self.processes.setdefault(host, []).append(process)
        return process

    def cut_off(self, host: int) -> None:
        """Nothing reaches the host or comes from it."""
        self._ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def plug_in(self, host: int) -> None:
        """The host is reached again."""
        self._ip("-n", self._switch, "link", "set", f"port{host}", "up")

    def kill(self, host: int) -> None:
        """End everything that runs on the host, as a power cut does."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.name(host)], capture_output=True, text=True, check=False
        )
        for pid in found.stdout.split():
            subprocess.run(["kill", "-KILL", pid], capture_output=True, check=False)
        for process in self.processes.get(host, []):
            process.wait()

    def name(self, host: int) -> str:
        return f"kata-{os.getpid()}-{host}"

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    @property
    def _switch(self) -> str:
        return f"kata-{os.getpid()}-switch"

    def _ip(self, *args: str) -> None:
        subprocess.run(["ip", *args], check=True, capture_output=True)

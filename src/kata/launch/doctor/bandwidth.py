"""Speeds of the disk and of the loopback network, measured in about a second each."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

DISK_BYTES = 64 << 20
LOOPBACK_BYTES = 256 << 20
BLOCK = 1 << 20
LIMIT_S = 1.0
"""Longest duration of a measurement."""


def disk(folder: Path) -> dict[str, Any]:
    """Measure the disk: free bytes, and bytes per second written (to the device) and read back.

    The measured folder is the first existing one at or above `folder`. Reads avoid the page cache
    where the system permits. Speeds are null if the folder is not writable.
    """
    while not folder.is_dir():
        folder = folder.parent
    found: dict[str, Any] = {"folder": str(folder), "free_bytes": shutil.disk_usage(folder).free}
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".kata-doctor-") as file:
            return {**found, **_write_and_read(file.fileno())}
    except OSError as error:
        return {**found, "write_bytes_per_s": None, "read_bytes_per_s": None, "error": str(error)}


def _write_and_read(descriptor: int) -> dict[str, float]:
    block = os.urandom(BLOCK)
    began_s, written = time.perf_counter(), 0
    while written < DISK_BYTES and time.perf_counter() - began_s < LIMIT_S:
        written += os.write(descriptor, block)
    os.fsync(descriptor)
    write_s = time.perf_counter() - began_s
    if "posix_fadvise" in os.__dict__:  # macOS has none: what is read there may come from memory
        os.posix_fadvise(descriptor, 0, written, os.POSIX_FADV_DONTNEED)
    os.lseek(descriptor, 0, os.SEEK_SET)
    began_s, read = time.perf_counter(), 0
    while time.perf_counter() - began_s < LIMIT_S and (block := os.read(descriptor, BLOCK)):
        read += len(block)
    read_s = time.perf_counter() - began_s
    return {"write_bytes_per_s": written / write_s, "read_bytes_per_s": read / read_s}


def loopback() -> dict[str, float | None]:
    """Bytes per second through TCP on this machine: the ceiling of ranks that talk by sockets
    (gloo).
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        sender = threading.Thread(target=_send, args=(server.getsockname(),), daemon=True)
        sender.start()
        connection, _ = server.accept()
        received = 0
        began_s = time.perf_counter()
        with connection:
            while chunk := connection.recv(BLOCK):
                received += len(chunk)
        sender.join()
    return {"loopback_bytes_per_s": received / (time.perf_counter() - began_s)}


def _send(address: tuple[str, int]) -> None:
    block = bytes(BLOCK)
    began_s = time.perf_counter()
    with socket.create_connection(address) as connection:
        for _ in range(LOOPBACK_BYTES // BLOCK):
            connection.sendall(block)
            if time.perf_counter() - began_s > LIMIT_S:
                return

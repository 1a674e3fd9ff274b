"""The packet indexes of all videos of a dataset in one file, which is stored beside them.

A run that finds it opens no video: otherwise each of them costs a few requests when it is first
read on a machine. An entry counts only for a video with the size, and in the store for which the
file was made also the version, that it had then.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kata.data.storage.array_file import ArrayFile, Note, Put, load, save
from kata.data.storage.file_stamp import Stamp

PACKED_NAME = "meta/kata/packets.bin"
_FORMAT = 1
_BLOCKS = "blocks"


class PackedFile:
    """Blocks of bytes by the name of a video.

    Args:
        stored: the content of the file.
    """

    def __init__(self, stored: ArrayFile) -> None:
        self._blocks = stored.arrays[_BLOCKS]
        self._place: str = stored.note["place"]
        self._entries: dict[str, list[Any]] = stored.note["files"]

    def block(self, name: str, stamp: Stamp, place: str) -> bytes | None:
        """Return the block of a video, or None if there is none for this content of it.

        Args:
            name: of the video.
            stamp: that it has now.
            place: address of the store that has it.
        """
        entry = self._entries.get(name)
        if entry is None or not self._fits(entry, stamp, place):
            return None
        begin, end, check = entry[2:]
        found = self._blocks[begin:end].tobytes()
        return found if zlib.crc32(found) == check else None

    def outdated(self, stamps: Mapping[str, Stamp], place: str) -> list[str]:
        """Return the videos that have another content than when they were indexed."""
        found: list[str] = []
        for name, entry in self._entries.items():
            if name in stamps and not self._fits(entry, stamps[name], place):
                found.append(name)
        return found

    def _fits(self, entry: list[Any], stamp: Stamp, place: str) -> bool:
        size, version = entry[:2]
        return size == stamp.size and (self._place != place or version == stamp.version)


def open_packed(path: Path) -> PackedFile | None:
    """Return the blocks in a file; None if it is absent, damaged or of another format."""
    stored = load(path)
    if stored is None or stored.note.get("format") != _FORMAT:
        return None
    return PackedFile(stored)


def write_packed(path: Path, place: str, blocks: Mapping[str, tuple[Stamp, bytes]]) -> None:
    """Write a file of blocks, atomically.

    Args:
        path: of the file; missing folders are created.
        place: address of the store that has the videos, or their folder.
        blocks: stamp and block of each video.
    """
    files: dict[str, list[Any]] = {}
    end = 0
    for name, (stamp, block) in blocks.items():
        files[name] = [*stamp.identity, end, end + len(block), zlib.crc32(block)]
        end += len(block)

    def fill(put: Put) -> Note:
        for name, (_, block) in blocks.items():
            put(_BLOCKS, files[name][2], np.frombuffer(block, np.uint8))
        return {"format": _FORMAT, "place": place, "files": files}

    save(path, {_BLOCKS: (np.uint8, (end,))}, fill)

"""The local copy of what a dataset in a store is opened with: metadata, and columns of tables.

Each file is brought once, and kept in the cache folder by its size and version. A folder of links,
one per state of the dataset, gives the files their names; it looks like a dataset without videos.
A file that changes in the store gets another copy, so a run that reads the old one is not
disturbed. States that no process reads any more are removed, with the copies that only they had.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from kata.data.remote.old_states import hold, remove_old
from kata.data.remote.packed_file import PACKED_NAME, open_packed
from kata.data.remote.remote_store import RemoteStore
from kata.data.remote.table_file import Range, footer_range, needed_ranges
from kata.data.storage.array_file import alone, cache_folder
from kata.data.storage.file_stamp import Stamp
from kata.errors import DataError
from kata.files import FULL, fsync
from kata.units import counted

_INFO = "meta/info.json"
_NAMES = (
    _INFO,
    "meta/stats.json",
    "meta/tasks.parquet",
    "meta/tasks.jsonl",
    "meta/episodes.jsonl",
    "meta/episodes_stats.jsonl",
    PACKED_NAME,
)
"""Metadata of all format versions, for stores without listings."""

_EPISODES = "meta/episodes/chunk-{chunk:03d}/file-{file:03d}.parquet"
_AHEAD = 16
"""Numbered files that a store without listings is asked for at a time."""

_PART_BYTES = 8 * 1024**2
_AT_ONCE = 8
"""Requests in flight for the parts of a file."""

_FILES_AT_ONCE = 8
"""Files that are brought at a time."""


class Mirror:
    """The local copy of a remote dataset's metadata and tables; processes share it.

    Args:
        store: the dataset.

    Attributes:
        root: the folder that stands for the dataset's, once the metadata is brought.
    """

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        key = hashlib.sha256(store.url.encode()).hexdigest()[:16]
        self._folder = cache_folder() / "streamed" / key
        self.root = self._folder / "snapshots"

    def bring_metadata(self) -> list[str]:
        """Bring meta/** and say what has changed since the last time.

        Returns:
            Messages for the user.

        Raises:
            DataError: There is no dataset, the store does not answer, or the disk is full.
        """
        listed = self._store.listing()
        if listed is None:
            listed = self._probed()
        names = sorted(name for name in listed if name.startswith("meta/"))
        if _INFO not in names:
            raise DataError(
                f"{self._store.location(_INFO)} does not exist, or may not be read",
                rule="a LeRobot dataset has this file",
                remedy="check --dataset.root; credentials come from the environment, as "
                "docs/streaming.md says",
            )
        facts = json.dumps(sorted((name, *stamp.identity) for name, stamp in listed.items()))
        state = hashlib.sha256(facts.encode()).hexdigest()[:16]
        self.root = self._folder / "snapshots" / state
        with self._alone():
            hold(self.root)
        count = self.bring(names)
        with self._alone():
            changes = self._changes(state, count)
            remove_old(self._folder)
        return [*changes, *self._open_packed(listed)]

    def bring(self, names: Iterable[str], skipped: Sequence[str] = ()) -> int:
        """Bring those files that exist and are not here yet, under a lock.

        Args:
            names: of files.
            skipped: columns of table files that stay in the store; holes take their place.

        Returns:
            The number of files that were brought.
        """
        stamps = self._store.stamps(names)
        with self._alone():
            self._clean()
            blobs = {name: self._blob(name, stamp, skipped) for name, stamp in stamps.items()}
            absent = [name for name, blob in blobs.items() if not blob.is_file()]
            # One after another, each file would take a few times the latency of the store.
            with ThreadPoolExecutor(_FILES_AT_ONCE, "kata-files") as pool:
                fetched = [
                    pool.submit(self._download, name, stamps[name], blobs[name], skipped)
                    for name in absent
                ]
                for each in fetched:
                    each.result()
            for name, blob in blobs.items():
                self._link(name, blob)
        return len(absent)

    def kept_bytes(self) -> int:
        """Return the bytes that this state of the dataset takes on the disk."""
        total = 0
        for path in self.root.rglob("*"):
            if path.is_file():
                total += path.stat().st_blocks * 512
        return total

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keep other processes and threads from writing to this copy.

        Raises:
            DataError: The disk is full or takes nothing.
        """
        try:
            with alone(self._folder / "files"):
                yield
        except OSError as error:
            if error.errno in (*FULL, errno.EROFS):
                what = f"the list of {self._store.url}"
                raise _no_room(what, self._folder, error) from error
            raise

    def _probed(self) -> dict[str, Stamp]:
        """Return the stamps of the metadata of a store without listings."""
        # The first episode tables are asked for beside the others: their answers are kept.
        first = [_EPISODES.format(chunk=0, file=file) for file in range(_AHEAD)]
        found = self._store.stamps([*_NAMES, *first])
        chunk = 0
        while files := self._numbered(chunk):
            found |= files
            chunk += 1
        return found

    def _numbered(self, chunk: int) -> dict[str, Stamp]:
        """Return the stamps of the episode tables of one chunk; they are numbered from 0 on."""
        found: dict[str, Stamp] = {}
        while True:
            first = len(found)
            names = [_EPISODES.format(chunk=chunk, file=first + n) for n in range(_AHEAD)]
            more = self._store.stamps(names)
            found |= more
            if len(more) < len(names):
                return found

    def _changes(self, state: str, count: int) -> list[str]:
        """Remember the state of the dataset, and say whether it differs from the one before."""
        path = self._folder / "state"
        before = path.read_text() if path.is_file() else state
        if before != state or not path.is_file():
            beside = path.with_name("state.part")
            beside.write_text(state)
            os.replace(beside, path)
        if before == state:
            return []
        return [
            f"{self._store.url} has changed since it was last read here: "
            f"{counted(count, 'file')} of its metadata brought again"
        ]

    def _open_packed(self, listed: Mapping[str, Stamp]) -> list[str]:
        """Give the store the packet indexes beside the dataset; say which of them do not fit."""
        if PACKED_NAME not in listed:
            return []
        packed = open_packed(self.root / PACKED_NAME)
        place = self._store.location(PACKED_NAME)
        remedy = f"`kata data index --dataset.root={self._store.url} --upload` renews it"
        if packed is None:
            return [f"{place} is damaged or of another version, and is not used; {remedy}"]
        self._store.packed = packed
        outdated = packed.outdated(listed, self._store.url)
        if not outdated:
            return []
        return [
            f"{place} does not fit {counted(len(outdated), 'video')}, first {outdated[0]}, which "
            f"will be indexed again; {remedy}"
        ]

    def _blob(self, name: str, stamp: Stamp, skipped: Sequence[str]) -> Path:
        # With the name, since a store without versions has only sizes.
        facts = json.dumps([name, *stamp.identity, *sorted(skipped)])
        return self._folder / "blobs" / hashlib.sha256(facts.encode()).hexdigest()[:32]

    def _clean(self) -> None:
        """Remove parts of downloads that were interrupted; the lock says that nobody writes."""
        for part in (self._folder / "blobs").glob("*.part"):
            part.unlink(missing_ok=True)

    def _link(self, name: str, blob: Path) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(blob, path.parent)
        with suppress(OSError):
            if path.readlink() == Path(target):
                return
        beside = path.with_name(f"{path.name}.part")
        beside.unlink(missing_ok=True)
        beside.symlink_to(target)
        os.replace(beside, path)

    def _download(self, name: str, stamp: Stamp, blob: Path, skipped: Sequence[str]) -> None:
        """Bring a file under a temporary name, sync it to the disk, then rename it."""
        blob.parent.mkdir(parents=True, exist_ok=True)
        part = blob.with_name(f"{blob.name}.part")
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.truncate(handle, stamp.size)
            self._fill(name, stamp, part, handle, skipped)
            os.fsync(handle)
            os.replace(part, blob)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in (*FULL, errno.EROFS):
                raise _no_room(self._store.location(name), blob.parent, error) from error
            raise
        finally:
            os.close(handle)
        fsync(blob.parent)

    def _fill(
        self, name: str, stamp: Stamp, path: Path, handle: int, skipped: Sequence[str]
    ) -> None:
        """Write the bytes of a file that are wanted; the others stay holes."""

        def bring(wanted: Range) -> bytearray:
            data = bytearray(wanted.size)
            self._store.read_into(name, wanted.begin, [memoryview(data)], stamp)
            os.pwrite(handle, data, wanted.begin)
            return data

        if not skipped:
            _in_parallel(bring, [Range(0, stamp.size)])
            return
        location = self._store.location(name)
        footer = footer_range(stamp.size, bring, location)
        bring(footer)
        _in_parallel(bring, needed_ranges(path, skipped, location))


def _in_parallel(bring: Callable[[Range], object], ranges: Sequence[Range]) -> None:
    """Bring ranges in parts of bounded size, several at a time."""
    parts: list[Range] = []
    for each in ranges:
        for begin in range(each.begin, each.begin + each.size, _PART_BYTES):
            parts.append(Range(begin, min(_PART_BYTES, each.begin + each.size - begin)))
    if len(parts) < 2:
        for part in parts:
            bring(part)
        return
    with ThreadPoolExecutor(_AT_ONCE, "kata-bring") as pool:
        for _ in pool.map(bring, parts):
            pass


def _no_room(what: str, folder: Path, error: OSError) -> DataError:
    return DataError(
        f"{what} cannot be kept in {folder}: {error.strerror}",
        rule="metadata and tables of a streamed dataset are kept on a disk of this machine",
        remedy="make room, or set KATA_CACHE to a folder on another disk",
    )

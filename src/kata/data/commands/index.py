"""`kata data index`: the packet indexes of all videos in one file, stored beside the dataset."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kata.data.commands.options import IndexOptions, source_of
from kata.data.dataset.dataset import Dataset, open_source
from kata.data.format.source import Source
from kata.data.remote.packed_file import PACKED_NAME, write_packed
from kata.data.remote.remote_store import RemoteStore
from kata.data.storage.array_file import cache_folder
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import StoredFile
from kata.data.video.packet_index import open_index, packed_bytes
from kata.errors import ConfigError
from kata.log import counting
from kata.units import bytes_text, counted


def main(options: IndexOptions) -> int:
    """Index every video, then write the file where it belongs."""
    source = source_of(options.dataset)
    _check_target(source, upload=options.upload)
    blocks = _blocks(open_source(source), options.threads)
    size = bytes_text(sum(len(block) for _, block in blocks.values()))
    said = f"{counted(len(blocks), 'video')} indexed, {size}"
    if source.far is None:
        path = source.root / PACKED_NAME
        write_packed(path, source.place, blocks)
        print(f"{said}: {path}; upload it with the dataset")
    elif options.upload:
        print(f"{said}: {_upload(source, blocks)}")
    else:
        print(f"{said}, kept in {cache_folder()}; --upload stores it for other machines")
    return 0


def _check_target(source: Source, *, upload: bool) -> None:
    """Refuse an upload of a folder, and a file in the cache of the Hub."""
    if upload and source.far is None:
        raise ConfigError(
            f"upload: {source.place} is a folder",
            rule="a file is uploaded to a store, which an address names",
            remedy="leave --upload out: the file is written into the folder",
        )
    if source.revision is not None:
        raise ConfigError(
            f"{source.place} is a download of the Hub",
            rule="the cache of the Hub holds what the Hub has",
            remedy=f"--dataset.root=hf://datasets/{source.repo_id} --upload",
        )


def _blocks(data: Dataset, threads: int) -> dict[str, tuple[Stamp, bytes]]:
    """Return stamp and packed index of every video of the dataset."""
    names: list[str] = []
    for span in data.layout.videos.values():
        names += span.used()

    def index(name: str) -> tuple[Stamp, bytes]:
        file = StoredFile(data.store, name)
        return file.stamp(), packed_bytes(open_index(file))

    blocks: dict[str, tuple[Stamp, bytes]] = {}
    with ThreadPoolExecutor(threads, "kata-index") as pool, counting("videos indexed") as progress:
        for name, block in zip(names, pool.map(index, names), strict=True):
            blocks[name] = block
            progress(len(blocks), len(names))
    return blocks


def _upload(source: Source, blocks: dict[str, tuple[Stamp, bytes]]) -> str:
    """Store the file beside the dataset; return its address."""
    store = source.far
    assert isinstance(store, RemoteStore)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "packets.bin"
        write_packed(path, store.url, blocks)
        store.write(PACKED_NAME, path.read_bytes())
    return store.location(PACKED_NAME)

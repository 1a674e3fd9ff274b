"""Images of a page far away, found by reading their lengths: the places of the whole chain, and no
other bytes than pyarrow's, whatever was guessed and however the page is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.data.counters import CounterCollector
from kata.data.parquet.image_column import EncodedImages, open_column
from kata.data.parquet.page_body import InBlocks, OpenFile, UnevenError
from kata.data.parquet.pages import Chunk, find_pages
from kata.data.parquet.string_walk import walk
from kata.data.storage.store import StoredFile, local_file
from tests.data.far_store import FarStore

KEY = "observation.images.top"
PNG = b"\x89PNG\r\n\x1a\n"
BLOCK = 2**16


def images(rng: np.random.Generator, count: int, least: int, most: int) -> list[bytes]:
    """What does not get smaller, and begins as images do."""
    sizes = rng.integers(least, most, count).tolist()
    return [PNG + rng.bytes(size - len(PNG)) for size in sizes]


def chain(strings: Sequence[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in strings)


def walked(page: bytes, begin: int, count: int) -> tuple[list[int] | None, int]:
    """The places that are found, and how often was asked for spans."""
    rounds = 0

    def gather(spans: Sequence[tuple[int, int]]) -> list[bytes]:
        nonlocal rounds
        rounds += 1
        assert all(0 <= first < last <= len(page) for first, last in spans)
        return [page[first:last] for first, last in spans]

    found = walk(gather, begin, len(page), count)
    return (None if found is None else found.tolist()), rounds


@pytest.mark.parametrize("seed", range(6))
def test_the_places_are_those_of_the_whole_chain(seed: int) -> None:
    rng = np.random.default_rng(seed)
    strings = images(rng, int(rng.integers(1, 90)), 70_000, 70_001 + 20_000 * seed)
    if seed % 2:
        # Inside an image something looks like the next one, and leads anywhere.
        fake = (80_000).to_bytes(4, "little") + PNG
        strings = [
            each[:9000] + fake + each[9000:] if k % 3 else each for k, each in enumerate(strings)
        ]
    head = bytes(11)
    page = head + chain(strings)
    want = np.cumsum([11] + [4 + len(each) for each in strings]).tolist()
    found, rounds = walked(page, 11, len(strings))
    assert found == want
    if not seed % 2:
        assert rounds <= max(len(strings) // 16 + 8, 10)


def test_lengths_that_lead_elsewhere_are_no_chain() -> None:
    rng = np.random.default_rng(0)
    strings = images(rng, 20, 70_000, 90_000)
    page = bytearray(chain(strings))
    assert walked(bytes(page), 0, 21)[0] is None
    assert walked(bytes(page), 0, 19)[0] is None
    assert walked(bytes(page[:-1]), 0, 20)[0] is None
    for length in (0, 5, 2**31):
        at = 4 + len(strings[0])
        page[at : at + 4] = length.to_bytes(4, "little")
        assert walked(bytes(page), 0, 20)[0] is None


def literal(data: bytes) -> bytes:
    if len(data) <= 60:
        return bytes([len(data) - 1 << 2]) + data
    if len(data) <= 256:
        return bytes([60 << 2, len(data) - 1]) + data
    return bytes([61 << 2]) + (len(data) - 1).to_bytes(2, "little") + data


def in_snappy(plain: bytes, shrunk: int | None = None) -> bytes:
    """A snappy stream of whole blocks. Block `shrunk` has a copy, and the size of the others."""
    head, rest = bytearray(), len(plain)
    while rest > 127:
        head.append(rest & 127 | 128)
        rest >>= 7
    packed = bytes([*head, rest])
    for number, at in enumerate(range(0, len(plain), BLOCK)):
        block = plain[at : at + BLOCK]
        if number == shrunk:
            assert block[5000:5006] == block[4000:4006]
            copy = bytes([5 << 2 | 2]) + (1000).to_bytes(2, "little")
            packed += literal(block[:5000]) + copy + literal(block[5006:])
        else:
            packed += literal(block)
    assert pa.decompress(packed, len(plain), "snappy", asbytes=True) == plain
    return packed


@pytest.mark.parametrize("rest", [0, 1, 60, 61, 256, 257, 65535])
def test_places_in_blocks_follow_from_numbers(tmp_path: Path, rest: int) -> None:
    rng, path = np.random.default_rng(rest), tmp_path / "a"
    plain = rng.bytes(3 * BLOCK + rest)
    packed = in_snappy(plain)
    path.write_bytes(b"before" + packed + b"behind")
    for _ in range(20):
        body = InBlocks.of(6, len(packed), len(plain))
        assert body is not None
        file = OpenFile(local_file(path), local_file(path).stamp())
        for begin, end in np.sort(rng.integers(0, len(plain) + 1, (4, 2))).tolist():
            assert body.read(file, begin, end) == plain[begin:end]
            if begin < end:
                assert body.peek(file, begin, end) == plain[begin:end]
                # Its tags were compared: from now on nothing but the bytes is read.
                first, last = body.place(begin, end)
                assert path.read_bytes()[first : first + 1] == plain[begin : begin + 1]
                assert last - first <= end - begin + 3 * 5
    assert InBlocks.of(6, len(packed) - 1, len(plain)) is None


def test_a_block_that_only_has_the_size_of_others_is_noticed(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "a"
    plain = bytearray(rng.bytes(4 * BLOCK))
    plain[BLOCK + 5000 : BLOCK + 5006] = plain[BLOCK + 4000 : BLOCK + 4006]
    packed = in_snappy(bytes(plain), shrunk=1)
    path.write_bytes(packed)
    file = OpenFile(local_file(path), local_file(path).stamp())
    body = InBlocks.of(0, len(packed), len(plain))
    assert body is not None
    assert body.read(file, 3 * BLOCK + 9, 4 * BLOCK) == plain[3 * BLOCK + 9 :]
    for begin in (BLOCK - 1, BLOCK, BLOCK + 7000):
        with pytest.raises(UnevenError):
            body.read(file, begin, begin + 90)


class Far:
    """An image column whose file is far, and what was read of it."""

    def __init__(self, path: Path) -> None:
        self.store = FarStore(path.parent)
        self.column = open_column(StoredFile(self.store, path.name), KEY)
        self.images = EncodedImages(CounterCollector())

    def find(self, row: int) -> None:
        with ThreadPoolExecutor(8) as threads:
            self.images.find(self.column, row, threads.map)

    def get(self, row: int) -> bytes | None:
        found = self.images.get(self.column, row)
        return None if found is None else bytes(found)


def write(path: Path, cells: list[Any], **how: Any) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({KEY: pa.array(cells, kind)}), path, **how)


@pytest.mark.parametrize("codec", ["none", "snappy"])
@pytest.mark.parametrize("with_dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_images_are_found_without_their_page(
    tmp_path: Path, codec: str, with_dictionary: bool, version: str
) -> None:
    rng, path = np.random.default_rng(3), tmp_path / "a.parquet"
    some = images(rng, 40, 190_000, 210_000)
    cells: list[Any] = [{"bytes": each, "path": ""} for each in some]
    cells[5] = None
    cells[7] = cells[8]
    write(path, cells, compression=codec, use_dictionary=with_dictionary, data_page_version=version)
    far = Far(path)
    opened = far.store.bytes_read
    assert not far.images.is_found(far.column, 11)
    far.find(11)
    assert far.images.is_found(far.column, 30)
    assert far.store.bytes_read - opened < 0.25 * path.stat().st_size
    for row in rng.permutation(40).tolist():
        want = None if cells[row] is None else cells[row]["bytes"]
        place = far.images.byte_range(far.column, row)
        far.store.read.clear()
        assert far.get(row) == want
        if place is None:
            assert want is None
            assert not far.store.read
        else:
            assert far.store.read == [(path.name, *place)]
            assert far.store.bytes_read < len(want or b"") + BLOCK + 20


@pytest.mark.parametrize(
    "how",
    [{"compression": "zstd"}, {"compression": "snappy", "sizes": (1000, 3000)}, {"alike": True}],
)
def test_other_pages_are_left_to_be_read_whole(tmp_path: Path, how: dict[str, Any]) -> None:
    rng, path = np.random.default_rng(3), tmp_path / "a.parquet"
    some = images(rng, 40, *how.pop("sizes", (90_000, 99_000)))
    if how.pop("alike", False):
        some = [each[:50_000] + bytes(40_000) for each in some]
    write(path, [{"bytes": each, "path": ""} for each in some], **how)
    far = Far(path)
    opened = far.store.bytes_read
    far.find(11)
    assert far.images.is_found(far.column, 11)
    assert far.store.bytes_read - opened < 20_000
    assert [far.get(row) for row in range(40)] == some


def test_an_uneven_block_is_found_out_and_the_page_is_read_whole(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "a.parquet"
    some = images(rng, 12, 150_000, 160_000)
    plain = bytearray(chain(some))
    plain[4 * BLOCK + 5000 : 4 * BLOCK + 5006] = plain[4 * BLOCK + 4000 : 4 * BLOCK + 4006]
    sizes = np.cumsum([0] + [4 + len(each) for each in some]).tolist()
    some = [bytes(plain[a + 4 : b]) for a, b in pairwise(sizes)]
    write(path, [{"bytes": each, "path": ""} for each in some], compression="snappy")
    far = Far(path)
    (chunk,) = far.column.chunks
    assert isinstance(chunk, Chunk)
    page = find_pages(OpenFile(far.column.file, far.column.stamp), chunk).dictionary
    assert page is not None
    packed = in_snappy(bytes(plain), shrunk=4)
    assert len(packed) == page.size
    data = bytearray(path.read_bytes())
    data[page.begin : page.begin + page.size] = packed
    path.write_bytes(data)
    far = Far(path)
    far.find(0)
    assert [far.get(row) for row in (11, 0)] == [some[11], some[0]]
    held = far.images.held_bytes
    assert [far.get(row) for row in range(12)] == some
    assert far.images.held_bytes > 0 != held
    assert far.images.is_found(far.column, 3)

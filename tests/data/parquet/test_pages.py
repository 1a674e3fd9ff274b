"""Single images out of table files: equal to what pyarrow reads, whatever the pages are like;
clear when damaged.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.data.counters import CounterCollector
from kata.data.dataset.dataset import open_dataset
from kata.data.loader.reader import Reader
from kata.data.parquet import image_column, page_body
from kata.data.parquet.image_column import EncodedImages, ImageColumn, open_column
from kata.data.parquet.page_body import InFile, InMemory, OpenFile, PageError, open_body
from kata.data.parquet.pages import Chunk, Strings, find_pages, hybrid
from kata.data.storage.store import local_file
from kata.errors import DataError, FrameError
from tests.data.dataset_maker import CAMERA, SHARED, make

KEY = "observation.images.top"
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")


def opened(path: Path) -> OpenFile:
    return OpenFile(local_file(path), local_file(path).stamp())


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No test falls back to row groups without saying so."""
    caplog.set_level(logging.INFO, logger="kata.data.parquet.image_column")
    yield
    assert not caplog.records


def cells(rng: np.random.Generator, count: int, longest: int = 3000) -> list[Any]:
    """Of many sizes, random and repetitive, some the same, some null in either way."""
    some: list[Any] = [rng.bytes(int(rng.integers(0, longest))) for _ in range(count // 2)]
    some += [rng.bytes(3) * int(rng.integers(1, longest)) for _ in range(count // 4)]
    some += [b"", rng.bytes(200_000), rng.bytes(40) + bytes(70_000) + rng.bytes(70_000)]
    picks = rng.integers(-2, len(some), count)
    return [
        None if k == -2 else {"bytes": None if k == -1 else some[k], "path": f"{k}.png"}
        for k in picks
    ]


def write(path: Path, groups: Sequence[list[Any]], kind: pa.DataType = IMAGE, **how: Any) -> None:
    schema = pa.schema([pa.field("index", pa.int64()), pa.field(KEY, kind)])
    with pq.ParquetWriter(path, schema, **how) as writer:
        for group in groups:
            writer.write_table(
                pa.table([list(range(len(group))), pa.array(group, kind)], schema=schema)
            )


def expected(path: Path) -> list[bytes | None]:
    """What pyarrow reads."""
    column = pq.read_table(path, columns=[KEY])[KEY].to_pylist()
    return [None if cell is None else cell["bytes"] for cell in column]


def get(images: EncodedImages, column: ImageColumn, row: int) -> bytes | None:
    found = images.get(column, row)
    return None if found is None else bytes(found)


def check_all(path: Path, budget_bytes: int = 2**30, times: int = 2) -> EncodedImages:
    """Read every cell so often, in random order."""
    want, column, images = (
        expected(path),
        open_column(local_file(path), KEY),
        EncodedImages(CounterCollector(), budget_bytes),
    )
    for row in (
        np.random.default_rng(0).permutation(np.repeat(np.arange(len(want)), times)).tolist()
    ):
        assert get(images, column, row) == want[row], row
    return images


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("with_dictionary", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_cells_equal_those_of_pyarrow(
    tmp_path: Path, codec: str, with_dictionary: bool, version: str
) -> None:
    """Small pages; dictionaries that fill up, so that plain pages follow."""
    rng = np.random.default_rng([CODECS.index(codec), with_dictionary, version == "2.0"])
    path = tmp_path / "a.parquet"
    write(
        path,
        [cells(rng, count) for count in (40, 1, 25)],
        compression=codec,
        use_dictionary=with_dictionary,
        data_page_version=version,
        data_page_size=5000,
        dictionary_pagesize_limit=30_000,
        write_batch_size=8,
    )
    column = open_column(local_file(path), KEY)
    file = opened(path)
    pages = [find_pages(file, chunk) for chunk in column.chunks if isinstance(chunk, Chunk)]
    assert [len(one.data) > 1 for one in pages] == [True, False, True]
    assert [one.dictionary is not None for one in pages] == [with_dictionary] * 3
    assert {page.refers for page in pages[0].data} == (
        {True, False} if with_dictionary else {False}
    )
    check_all(path)
    check_all(path, budget_bytes=1, times=1)


def test_cells_that_cannot_be_null_or_are_alike_or_all_null(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    sure = pa.struct([pa.field("bytes", pa.binary(), nullable=False)])
    write(path, [[{"bytes": rng.bytes(9)} for _ in range(20)]], sure)
    check_all(path)
    schema = pa.schema([pa.field(KEY, sure, nullable=False)])
    pq.write_table(pa.table([pa.array([{"bytes": rng.bytes(9)}] * 20, sure)], schema=schema), path)
    assert pq.read_metadata(path).schema.column(0).max_definition_level == 0
    check_all(path)
    for version in ("1.0", "2.0"):
        write(
            path, [[None, {"bytes": None}] * 9, [{"bytes": b"x"}] * 1500], data_page_version=version
        )
        check_all(path)


def test_long_headers(tmp_path: Path) -> None:
    """Statistics hold the least and the greatest cell whole."""
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    write(
        path,
        [[{"bytes": rng.bytes(3000)} for _ in range(30)]],
        use_dictionary=False,
        write_batch_size=4,
    )
    check_all(path)
    file = opened(path)
    (chunk,) = open_column(local_file(path), KEY).chunks
    assert isinstance(chunk, Chunk)
    assert find_pages(file, chunk).data[0].begin > chunk.begin + 6000


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is absent")
def test_real_images(tmp_path: Path) -> None:
    (path,) = (SHARED / "octo-bridge-debug-v30" / "data").rglob("*.parquet")
    for key in ("observation.images.image_0", "observation.images.image_2"):
        want, column, images = (
            pq.read_table(path, columns=[key])[key].to_pylist(),
            open_column(local_file(path), key),
            fresh(),
        )
        assert [get(images, column, row) for row in range(len(want))] == [
            cell["bytes"] for cell in want
        ]
        assert images.held_bytes < 30_000


def fresh() -> EncodedImages:
    return EncodedImages(CounterCollector())


def test_an_image_is_read_without_the_rest_of_its_page(tmp_path: Path) -> None:
    """LeRobot's files have one page, a dictionary, per episode."""
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    images = [rng.bytes(300_000) for _ in range(20)]
    write(path, [[{"bytes": image} for image in images]], compression="snappy")
    counters = CounterCollector()
    found, column = EncodedImages(counters), open_column(local_file(path), KEY)
    assert get(found, column, 7) == images[7]
    looked = counters.snapshot().bytes_read
    assert looked < path.stat().st_size + 400_000
    assert get(found, column, 12) == images[12]
    assert counters.snapshot().bytes_read - looked == 300_000
    assert found.held_bytes < 5000


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_the_budget_holds_and_is_counted_right(tmp_path: Path, codec: str) -> None:
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    groups = [[{"bytes": rng.bytes(3) * 20_000} for _ in range(5)] for _ in range(8)]
    write(path, groups, compression=codec, use_dictionary=False)
    images, column, budget = (
        EncodedImages(CounterCollector(), 1_000_000),
        open_column(local_file(path), KEY),
        1_000_000,
    )
    with ThreadPoolExecutor(8) as pool:
        want = expected(path)
        rows = np.random.default_rng(0).integers(0, 40, 400).tolist()
        assert [*pool.map(lambda row: get(images, column, row), rows)] == [
            want[row] for row in rows
        ]
    held = [entry.result().nbytes for entry in images._entries.values()]
    assert sum(held) == images.held_bytes <= budget
    assert 2 <= sum(one > 250_000 for one in held) <= 3


def test_who_wants_the_same_page_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made = tmp_path / "a.parquet", list[int]()
    write(path, [[{"bytes": b"x" * 1000} for _ in range(8)]], compression="zstd")
    read = image_column.read_cells

    def slow(file: OpenFile, pages: Any, number: int, requests: None) -> Any:
        made.append(number)
        time.sleep(0.2)  # the others come meanwhile
        return read(file, pages, number, requests)

    together = Barrier(8)
    monkeypatch.setattr(image_column, "read_cells", slow)
    images, column = EncodedImages(CounterCollector()), open_column(local_file(path), KEY)

    def ask(row: int) -> bytes | None:
        together.wait(60)
        return get(images, column, row)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(8))) == {b"x" * 1000}
    assert made == [0]


def test_what_only_pyarrow_reads_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    groups = [cells(rng, 10), cells(rng, 10)]
    write(
        path,
        groups,
        use_dictionary=False,
        column_encoding={f"{KEY}.bytes": "DELTA_LENGTH_BYTE_ARRAY"},
    )
    check_all(path)
    check_all(path, budget_bytes=1)
    assert [record.message.partition(" are read ")[2] for record in caplog.records] == [
        "a row group at a time, for its encoding is DELTA_LENGTH_BYTE_ARRAY; that takes more time "
        "and memory"
    ] * 2
    caplog.clear()


# --- snappy
# -----------------------------------------------------------------------------------------------


def stream(rng: np.random.Generator, elements: int) -> tuple[bytes, bytes]:
    """A snappy stream with elements of every kind, and what it stands for."""
    packed, plain = bytearray(), bytearray()
    for number in range(elements):
        kind = int(rng.integers(0, 4)) if number else 0
        if kind == 0:
            literal = rng.bytes(int(rng.choice([1, 60, 61, 256, 257, 3000, 70_000])))
            size, wide = (
                len(literal) - 1,
                (len(literal) > 60) + (len(literal) > 256) + (len(literal) > 65536),
            )
            packed += (
                bytes([(59 + wide if wide else size) << 2])
                + size.to_bytes(4, "little")[:wide]
                + literal
            )
            plain += literal
            continue
        length = int(rng.integers(4, 12) if kind == 1 else rng.integers(1, 65))
        back = int(
            min(
                rng.choice([1, 2, 7, 300, 2000, 65_000]), len(plain), (2047, 65535, 2**31)[kind - 1]
            )
        )
        tag = (length - 4) << 2 | back >> 8 << 5 if kind == 1 else (length - 1) << 2
        packed += bytes([tag | kind]) + back.to_bytes(4, "little")[: (1, 2, 4)[kind - 1]]
        for _ in range(length):
            plain.append(plain[-back])
    size, head = len(plain), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + bytes(packed), bytes(plain)


def test_runs_of_snappy_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_body, "_FREE_RUNS", 2**30)
    path, rng = tmp_path / "a", np.random.default_rng(0)
    for _ in range(60):
        packed, plain = stream(rng, 40)
        assert pa.decompress(packed, len(plain), "snappy", asbytes=True) == plain
        path.write_bytes(b"before" + packed + b"behind")
        file = opened(path)
        body = open_body(file, 6, len(packed), len(plain), "SNAPPY")
        assert isinstance(body, InFile)
        for begin, end in [
            (0, len(plain)),
            *np.sort(rng.integers(0, len(plain) + 1, (20, 2))).tolist(),
        ]:
            assert body.read(file, begin, end) == plain[begin:end]


def test_what_snappy_shortens_is_decompressed(tmp_path: Path) -> None:
    path, plain = tmp_path / "a", b"abcdefgh" * 100_000
    path.write_bytes(pa.compress(plain, "snappy", asbytes=True))
    file = opened(path)
    body = open_body(file, 0, path.stat().st_size, len(plain), "SNAPPY")
    assert isinstance(body, InMemory)
    assert file.bytes_read == 2 * path.stat().st_size
    assert body.read(file, 3, 900) == plain[3:900]


# --- damage
# -----------------------------------------------------------------------------------------------


def keeping_stamp(path: Path, change: Callable[[bytearray], Any]) -> None:
    """Change bytes of a file so that its stamp does not tell."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    change(data)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("with_dictionary", [True, False])
def test_changed_bytes_give_errors_or_other_bytes(
    tmp_path: Path, codec: str, with_dictionary: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path, rng = tmp_path / "a.parquet", np.random.default_rng(0)
    group: list[Any] = [None, *({"bytes": rng.bytes(300)} for _ in range(12))]
    write(path, [group], compression=codec, use_dictionary=with_dictionary, data_page_version="2.0")
    column, whole, errors = open_column(local_file(path), KEY), path.read_bytes(), 0
    (chunk,) = column.chunks
    assert isinstance(chunk, Chunk)
    begin, end = (
        chunk.begin,
        chunk.begin + pq.read_metadata(path).row_group(0).column(1).total_compressed_size,
    )
    places = [
        *range(begin, begin + 40),
        *range(end - 60, end),
        *rng.integers(begin, end, 40).tolist(),
    ]
    for place in places:

        def spoil(data: bytearray, place: int = place) -> None:
            data[:] = whole
            data[place] ^= int(rng.integers(1, 256))

        keeping_stamp(path, spoil)
        for row in (0, 5):
            try:
                get(EncodedImages(CounterCollector()), column, row)
            except (PageError, pa.ArrowInvalid, OSError):
                errors += 1
    caplog.clear()  # another encoding is left to pyarrow, which then finds the damage
    assert errors > len(places) / 3


def test_counts_beyond_the_bytes_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\x02\0\0\0ab\x01\0\0\0c")
    file = opened(path)
    body = open_body(file, 0, 11, 11, "UNCOMPRESSED")
    strings = Strings.of(file, body, 0, 2)
    assert [strings.read(file, number) for number in range(2)] == [b"ab", b"c"]
    for count in (3, 2**40):
        with pytest.raises(PageError, match="fewer"):
            Strings.of(file, body, 0, count)
    with pytest.raises(PageError, match="value 2 is wanted of 2"):
        strings.read(file, 2)
    with pytest.raises(PageError, match="and it has 11"):
        file.read(0, 12)
    assert hybrid(b"", 0, 2).tolist() == [0, 0]  # a dictionary of one
    assert hybrid(b"\x03\x88\xc6\xfa", 3, 8).tolist() == [*range(8)]  # the example of Encodings.md
    assert hybrid(b"\x06\x05\x03\x88\xc6\xfa", 3, 9).tolist() == [5, 5, 5, *range(6)]
    for data in (b"", b"\x03\x88\xc6", b"\x06", b"\x04\x01", b"\x00\x00" * 9):
        with pytest.raises(PageError, match="fewer than 9"):
            hybrid(data, 3, 9)


def test_pages_and_streams_that_say_another_length(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, [[{"bytes": b"abc"}] * 5])
    (chunk,) = open_column(local_file(path), KEY).chunks
    assert isinstance(chunk, Chunk)
    file = opened(path)
    with pytest.raises(PageError, match="pages have 5 rows, and its row group has 4"):
        find_pages(file, replace(chunk, rows=4))
    packed = pa.compress(np.random.default_rng(0).bytes(150), "snappy", asbytes=True)
    path.write_bytes(packed)
    for size, plain_size in ((len(packed), 149), (len(packed), 151), (len(packed) - 1, 150)):
        file = opened(path)
        with pytest.raises(PageError, match="its snappy stream"):
            open_body(file, 0, size, plain_size, "SNAPPY")


def test_pages_that_pyarrow_leaves_out_are_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.parquet"
    write(path, [[{"bytes": b"abc"}] * 5], use_dictionary=False)
    column = open_column(local_file(path), KEY)
    (chunk,) = column.chunks
    assert isinstance(chunk, Chunk)
    keeping_stamp(
        path, lambda data: data.__setitem__(chunk.begin + 1, 2)
    )  # a data page, now called an index
    with pytest.raises(PageError, match="0 of 5 rows"):
        get(fresh(), column, 3)
    assert "it has an index page" in caplog.text
    caplog.clear()


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, [[{"bytes": b"abc"}] * 5])
    column, images, whole = (
        open_column(local_file(path), KEY),
        EncodedImages(CounterCollector()),
        path.read_bytes(),
    )
    assert get(images, column, 0) == b"abc"
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match="has changed since the run began"):
        images.get(column, 0)
    path.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        images.get(column, 0)


def test_a_damaged_page_names_camera_file_and_frame(tmp_path: Path) -> None:
    make(tmp_path, camera="image")
    data = open_dataset("x/y", root=tmp_path)
    path = data.root / data.layout.data.files[1]
    chunk, *_ = open_column(local_file(path), CAMERA).chunks
    assert isinstance(chunk, Chunk)
    keeping_stamp(
        path, lambda data: data.__setitem__(slice(chunk.begin, chunk.begin + 8), b"\xff" * 8)
    )
    with Reader(data, {}) as reader, pytest.raises(FrameError) as caught:
        reader.read(np.array([13]))
    error = caught.value
    assert (error.camera, error.file, error.frame, error.row) == (CAMERA, str(path), 1, 13)
    assert "damage where row 1 lies" in error.what
    assert error.rule
    assert error.remedy

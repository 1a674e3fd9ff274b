"""Headers of parquet pages, in the part of Thrift's compact protocol that they use.

Formats: github.com/apache/parquet-format (src/main/thrift/parquet.thrift) and
github.com/apache/thrift (doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from kata.data.parquet.page_body import PLAIN, OpenFile, PageError, varint

LOOK_BYTES = 512
"""Bytes that are read of a header at first; nearly all headers are shorter."""

_LONGEST_BYTES = 16 * 2**20
"""Bytes of the longest header: old writers put whole cells into its statistics."""

# Kinds of pages (PageType in parquet.thrift).
_DATA = 0
_INDEX = 1
_DICTIONARY = 2
_DATA_V2 = 3

# Encodings of values and levels (Encoding in parquet.thrift), and names of the unknown ones.
_PLAIN = 0
_PLAIN_DICTIONARY = 2
_RLE = 3
_RLE_DICTIONARY = 8
_OTHERS = {
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
    9: "BYTE_STREAM_SPLIT",
}
_DEEPEST = 8
"""Largest depth of nested structures; page headers have three."""

Fields: TypeAlias = dict[int, Any]


class UnknownPageError(Exception):
    """A page of a kind that is not read here. pyarrow may be able to read it."""


@dataclass(frozen=True, slots=True)
class Page:
    """The position and the kind of a page's body.

    Attributes:
        begin: position of the body in the file.
        size: number of stored bytes.
        plain_size: number of bytes after decompression.
        rows: number of values, nulls included.
        codec: name of the compression.
        is_dictionary: True if the page holds the values that data pages refer to.
        refers: True if the page holds numbers of such values.
        level_size: bytes of definition levels directly before the body; None if they are its first
            part.
    """

    begin: int
    size: int
    plain_size: int
    rows: int
    codec: str
    is_dictionary: bool
    refers: bool
    level_size: int | None


def read_page(file: OpenFile, at: int, last: int, codec: str, *, has_levels: bool) -> Page:
    """Read the header of a page.

    Args:
        file: that holds the page.
        at: position of the header.
        last: bytes of the file.
        codec: name of the compression of the column.
        has_levels: True if cells may be null, so that data pages hold definition levels.

    Raises:
        UnknownPageError: The page is of a kind or in an encoding that is not read here.
        PageError: The header is damaged.
    """
    # The numbers of the fields are those of parquet.thrift: PageHeader here, and below
    # DictionaryPageHeader (7), DataPageHeader (5) and DataPageHeaderV2 (8).
    head, begin = _header(file, at, last)
    kind = _number(head, 1)
    plain_size = _number(head, 2)
    size = _number(head, 3)
    if min(plain_size, size) < 0:
        raise PageError(f"the page at {at} says that it takes {size} bytes")
    if kind == _DICTIONARY:
        return Page(begin, size, plain_size, _number(_fields(head, 7), 1), codec, True, False, None)
    if kind == _DATA:
        about = _fields(head, 5)
        if has_levels and _number(about, 3) != _RLE:
            raise UnknownPageError("its definition levels are not run-length encoded")
        return Page(
            begin,
            size,
            plain_size,
            _number(about, 1),
            codec,
            False,
            _refers(_number(about, 2)),
            None,
        )
    if kind == _DATA_V2:
        about = _fields(head, 8)
        levels = _number(about, 5)
        if not 0 <= levels <= min(size, plain_size) or _number(about, 6):
            raise PageError(f"the page at {at} has {levels} bytes of definition levels in {size}")
        # Version 2 keeps its levels uncompressed before the values, and may leave those so as well.
        codec = codec if about.get(7, True) else PLAIN
        refers = _refers(_number(about, 4))
        return Page(
            begin + levels,
            size - levels,
            plain_size - levels,
            _number(about, 1),
            codec,
            False,
            refers,
            levels,
        )
    if kind == _INDEX:
        raise UnknownPageError("it has an index page")
    raise PageError(f"the page at {at} is of kind {kind}")


def _refers(encoding: int) -> bool:
    """Return whether an encoding holds numbers of dictionary values."""
    if encoding not in (_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY):
        raise UnknownPageError(f"its encoding is {_OTHERS.get(encoding, encoding)}")
    return encoding != _PLAIN


def _number(fields: Fields, key: int) -> int:
    value = fields.get(key)
    if not isinstance(value, int):
        raise PageError(f"a page's header lacks field {key}")
    return value


def _fields(fields: Fields, key: int) -> Fields:
    value = fields.get(key)
    if not isinstance(value, dict):
        raise PageError(f"a page's header lacks field {key}")
    return value  # pyright: ignore[reportUnknownVariableType]


def _header(file: OpenFile, at: int, last: int) -> tuple[Fields, int]:
    """Return the fields of the header at `at`, and the position after it."""
    look = LOOK_BYTES
    while True:
        thrift = _Compact(file.read(at, max(min(look, last - at), 0)))
        try:
            return thrift.fields(), at + thrift.at
        except IndexError as error:
            if look >= min(last - at, _LONGEST_BYTES):
                raise PageError(f"the header of a page at {at} does not end") from error
            # The header goes beyond what was read: read it again with more.
            look *= 8


class _Compact:
    """A reader of one value after the other; values beyond the end of the data raise IndexError."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self.at = 0
        self._depth = 0

    def fields(self) -> Fields:
        """Read a structure, and return its values by field number."""
        found: Fields = {}
        number = 0
        # Damaged bytes may look like structures without end.
        self._depth += 1
        if self._depth > _DEEPEST:
            raise PageError("the header of a page is no header")
        # Upper half of the byte: difference to the last field's number, or 0 if the number itself
        # follows. Lower half: the type. A zero byte ends the structure.
        while (byte := self._byte()) != 0:
            number = number + (byte >> 4) if byte >> 4 else self._zigzag()
            found[number] = self._value(byte & 15)
        self._depth -= 1
        return found

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value, self.at = varint(self._data, self.at)
        return value

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise IndexError

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):  # true, false
            return kind == 1
        if kind == 3:  # byte
            return self._byte()
        if kind in (4, 5, 6):  # 16, 32 and 64 bits
            return self._zigzag()
        if kind == 7:  # double; page headers have none that matters
            return self._skip(8)
        if kind == 8:  # bytes, of statistics
            return self._skip(self._varint())
        if kind == 12:  # structure
            return self.fields()
        raise PageError(f"the header of a page has a value of kind {kind}")

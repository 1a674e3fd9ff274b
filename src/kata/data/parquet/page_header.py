"""Headers of parquet pages: Thrift's compact protocol, as much of it as they use.

Format: github.com/apache/parquet-format (src/main/thrift/parquet.thrift), github.com/apache/thrift
(doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from kata.data.parquet.page_body import PLAIN, OpenFile, PageError, varint

_LOOK_BYTES = 512
_LONGEST_BYTES = 16 * 2**20
"""Old writers put whole cells into the statistics of a header."""

_DATA, _INDEX, _DICTIONARY, _DATA_V2 = 0, 1, 2, 3
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_OTHERS = {
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
    9: "BYTE_STREAM_SPLIT",
}
_DEEPEST = 8
"""Structures within structures; page headers have three."""

Fields: TypeAlias = dict[int, Any]


class UnknownPageError(Exception):
    """A page of a kind that is not read here, though pyarrow may."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page's body: `size` bytes at `begin` of the file, `plain_size` once decompressed; `rows`
    values with nulls.

    is_dictionary: it holds the values that others refer to. refers: it holds numbers of such.
    level_size: bytes of definition levels right before the body; None where they are the body's
        first part.
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
    """The page whose header begins at `at`, in a file of `last` bytes.

    Raises: UnknownPageError; PageError for a damaged header.
    """
    head, begin = _header(file, at, last)
    kind, plain_size, size = _number(head, 1), _number(head, 2), _number(head, 3)
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
    """The fields of the header at `at`, and where it ends."""
    look = _LOOK_BYTES
    while True:
        thrift = _Compact(file.read(at, max(min(look, last - at), 0)))
        try:
            return thrift.fields(), at + thrift.at
        except IndexError as error:
            if look >= min(last - at, _LONGEST_BYTES):
                raise PageError(f"the header of a page at {at} does not end") from error
            look *= 8


class _Compact:
    """Reads values one after the other; what lies behind the bytes given raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at, self._depth = data, 0, 0

    def fields(self) -> Fields:
        """A structure: its values by field number."""
        found: Fields = {}
        number, self._depth = 0, self._depth + 1
        if self._depth > _DEEPEST:
            raise PageError("the header of a page is no header")
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
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind == 12:
            return self.fields()
        raise PageError(f"the header of a page has a value of kind {kind}")

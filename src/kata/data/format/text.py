"""Text files of a dataset, in UTF-8. Other encodings are recognised, and named in the error."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path

from kata.data.storage.lfs_pointer import refuse_pointer
from kata.errors import DataError

REPAIR = "`kata data repair <folder> --out=<folder>` writes a corrected copy"
"""The remedy where a problem has one mechanical answer."""

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Encodings by byte order mark. UTF-32 comes first: its mark begins like that of UTF-16."""

_LATIN_SIGNS = frozenset("°²³µ¡¿«»")
_WINDOWS_SIGNS = frozenset("\u20ac\u2026\u2018\u2019\u201c\u201d\u2013\u2014")


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without its byte order mark.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: The file is a Git LFS pointer, or has another encoding. The message names those
            that fit.
    """
    refuse_pointer(path)
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fits = fitting_encodings([data])
        said = f"{' or '.join(fits)} fits" if fits else "neither UTF-16, GBK nor Latin-1 fits"
        raise DataError(
            f"{path} is not UTF-8 in line {line} (byte 0x{data[error.start]:02x}); {said}",
            rule="metadata are text in UTF-8",
            remedy="kata data repair <folder> --out=<folder> writes a copy in UTF-8"
            + ("" if len(fits) == 1 else "; add --encoding=<name of the right one>"),
        ) from error


def byte_order_mark(path: Path) -> str:
    """Return the encoding that the byte order mark of a file declares, '' without a mark."""
    with path.open("rb") as file:
        head = file.read(4)
    return _encoding_by_mark(head)


def _encoding_by_mark(head: bytes) -> str:
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    return ""


def fitting_encodings(texts: Iterable[bytes]) -> list[str]:
    """Return the encodings that fit all of some texts that are not UTF-8.

    Every text can be read as Latin-1, and most of them as GBK: an encoding fits when its reading
    consists of characters that sentences are made of.

    Args:
        texts: The content of files that one program has written.

    Returns:
        Names that Python's codecs know. More than one when the bytes alone cannot tell.
    """
    data = list(texts)
    # 1. A byte order mark decides, if all texts have the same one and can be read that way.
    marks = {_encoding_by_mark(each) for each in data}
    if marks != {""}:
        is_one = len(marks) == 1 and all(_reads(each, *marks) for each in data)
        return sorted(marks - {""}) if is_one else []
    # 2. Without marks, the characters decide.
    found: list[str] = []
    for name, fits in (("gbk", _is_gbk), ("latin-1", _is_latin), ("cp1252", _is_windows)):
        if all(map(fits, data)):
            found.append(name)
    return found


def _reads(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_gbk(data: bytes) -> bool:
    """Return whether all is ASCII or pairs of two high bytes; a Latin-1 letter is followed by
    ASCII.
    """
    if not _reads(data, "gbk"):
        return False
    pairs = [char.encode("gbk") for char in data.decode("gbk")]
    return all(len(pair) == 1 or pair[1] >= 0x80 for pair in pairs)


def _is_latin(data: bytes) -> bool:
    return all(char.isascii() or _is_letter(char) for char in data.decode("latin-1"))


def _is_windows(data: bytes) -> bool:
    """Return whether the text needs a sign that Windows adds to Latin-1, and no unknown sign."""
    if not _reads(data, "cp1252"):
        return False
    text = data.decode("cp1252")
    known = all(char.isascii() or _is_letter(char) or char in _WINDOWS_SIGNS for char in text)
    return known and any(char in _WINDOWS_SIGNS for char in text)


def _is_letter(char: str) -> bool:
    return char in _LATIN_SIGNS or ("\u00c0" <= char <= "\u00ff" and char not in "×÷")

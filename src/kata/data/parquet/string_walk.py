"""The places of large strings in a page far away: their lengths are read, not their bytes.

Each string begins where the one before ends, so their lengths are a chain. Read one after the
other, each length would cost a request's latency. So the chain is walked from several places at
once, which are guessed: where an image begins, there are bytes that show it. A guess counts only if
the walk from the place before it arrives there. So the places are those of the whole chain,
whatever was guessed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
Gather: TypeAlias = Callable[[Sequence[Span]], Sequence[bytes]]
"""gather(spans) returns the bytes [begin, end) of a page for each span, read side by side."""

_PARTS = 16
"""Places from which the chain is walked at once."""

_LEAST = 4
"""Strings of such a part. Fewer are not worth the bytes that are read to guess its beginning."""

_NEAR_BYTES = 32 * 1024
"""Bytes read on either side of the place where a string should begin, by their mean length."""

_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
"""First bytes of PNG and JPEG."""


@dataclass
class _Part:
    """A part of the chain: the beginnings of strings from `at[0]` on."""

    at: array[int]

    @property
    def last(self) -> int:
        return self.at[-1]


def walk(gather: Gather, begin: int, end: int, count: int) -> array[int] | None:
    """Return where each of `count` strings begins, and the end of the last.

    Args:
        gather: reads the page.
        begin: of the first string's length in the page.
        end: of the last string.
        count: of the strings.

    Returns:
        None if the lengths lead elsewhere.
    """
    parts = [_Part(array("q", [at])) for at in (begin, *_guesses(gather, begin, end, count))]
    while True:
        # 1. A part is complete where the next one begins. A guess that was passed was wrong.
        here = 0
        while here + 1 < len(parts):
            if parts[here].last > parts[here + 1].at[0]:
                del parts[here + 1]
            else:
                here += 1
        # 2. The next length of all parts that are not complete, read side by side.
        ends = [part.at[0] for part in parts[1:]] + [end]
        active = [part for part, stop in zip(parts, ends, strict=True) if part.last < stop]
        if not active:
            break
        active = [part for part in active if part.last + 4 <= end]
        if not active or sum(len(part.at) for part in parts) > 2 * count + len(parts):
            return None
        found = gather([(part.last, part.last + 4) for part in active])
        for part, length in zip(active, found, strict=True):
            part.at.append(part.last + 4 + int.from_bytes(length, "little"))
    places = array("q")
    for part in parts:
        places += part.at[:-1]
    places.append(parts[-1].last)
    return places if len(places) == count + 1 and places[-1] == end else None


def _guesses(gather: Gather, begin: int, end: int, count: int) -> list[int]:
    """Return places where strings seem to begin, ascending."""
    parts = min(_PARTS, count // _LEAST)
    numbers = [count * part // parts for part in range(1, parts)]
    centres = [begin + (end - begin) * number // count for number in numbers]
    mean = (end - begin) // max(count, 1)
    found: set[int] = set()
    # Where strings are not nearly of one size, none may begin so near: then one does within a mean.
    for reach in (_NEAR_BYTES, mean * 5 // 8):
        spans = [(max(at - reach, begin), min(at + reach, end)) for at in centres]
        if not spans:
            break
        missed: list[int] = []
        for centre, span, data in zip(centres, spans, gather(spans), strict=True):
            at = _image_in(data, mean)
            if at is None:
                missed.append(centre)
            elif span[0] + at > begin:
                found.add(span[0] + at)
        centres = missed
    return sorted(found)


def _image_in(data: bytes, mean: int) -> int | None:
    """Return where an image's length and signature stand in some bytes, or None."""
    for signature in _SIGNATURES:
        at = data.find(signature, 4)
        while at >= 0:
            length = int.from_bytes(data[at - 4 : at], "little")
            if mean // 4 <= length <= 4 * mean:
                return at - 4
            at = data.find(signature, at + 1)
    return None

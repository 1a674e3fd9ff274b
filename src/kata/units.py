"""Numbers as people read and write them: bytes, seconds, counts."""

from __future__ import annotations

import re
from collections.abc import Iterable


def bytes_text(num_bytes: float) -> str:
    """Return bytes as text: 1536 -> '1.5 KiB'."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def seconds_text(duration_s: float) -> str:
    """Return a duration as text: 75 -> '1m15s'; 0.0123 -> '12 ms'."""
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def count_text(number: int) -> str:
    """Return a number with separators: 51613582 -> '51,613,582'."""
    return f"{number:,}"


def rate_text(per_s: float) -> str:
    """Return a rate as text: 1234.5 -> '1,234'; 0.375 -> '0.375'."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: (1, 'frame') -> '1 frame'; (2000, 'frame') -> '2,000
    frames'.
    """
    return f"{count_text(number)} {noun}{'s' * (number != 1)}"


def duration_s(text: str) -> float:
    """Parse a duration: '90s' -> 90.0; '1.5h' -> 5400.0; also '45m' and '2d'.

    A bare number is seconds. Anything else gives NaN.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _SECONDS else (text, "s")
    try:
        return float(number) * _SECONDS[unit]
    except ValueError:
        return float("nan")


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def num_bytes(text: str) -> float:
    """Parse a size: '4GB' -> 4e9; also '512MiB' and '1.5 TB'.

    A bare number is bytes. Anything else gives NaN.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None:
        return float("nan")
    number, unit, binary = match.groups()
    return float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " ")


def numbered(names: Iterable[str]) -> list[str]:
    """Return names that differ in one number as one text: 'layers.{0-3,7}.weight'."""
    found: dict[str, list[int]] = {}
    for name in names:
        number = re.search(r"(?<=\.)\d+(?=\.)", name)
        folded = name if number is None else f"{name[: number.start()]}{{}}{name[number.end() :]}"
        found.setdefault(folded, []).extend([] if number is None else [int(number[0])])
    return [name.replace("{}", f"{{{_ranges(each)}}}") for name, each in found.items()]


def _ranges(numbers: list[int]) -> str:
    """Return whole numbers as '0-3,7'."""
    texts: list[str] = []
    first = last = None
    for number in [*sorted(numbers), None]:
        if last is not None and number == last + 1:
            last = number
            continue
        if last is not None:
            texts.append(str(last) if first == last else f"{first}-{last}")
        first = last = number
    return ",".join(texts)

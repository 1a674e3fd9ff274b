"""Kept ranges: a JSON file that says which frames of an episode are read.

    {"7": [[12, 340]], "9": [], "12": [[0, 80], [110, 260]]}

Keys are episode indices, ranges are [first frame, end). An episode without a key is read whole; one
with an empty list is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kata.errors import ConfigError

KeepRanges: TypeAlias = Mapping[str, Sequence[Sequence[int]]]
"""Ranges [first, end) of frames by episode index, as text because JSON knows no other keys."""

_EXAMPLE = 'for example {"7": [[12, 340]], "9": []}'


def read_keep_ranges(path: Path) -> dict[str, list[list[int]]]:
    """Read a file of kept ranges.

    Raises:
        ConfigError: the file is absent, holds no JSON object, or a range is impossible.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise ConfigError(
            f"keep_ranges={path}: {error.strerror}",
            rule="a JSON file of ranges by episode",
            remedy="write one with kata data check <folder> --write_ranges=<file>",
        ) from error
    except ValueError as error:  # text that is no UTF-8, too
        raise _bad(f"keep_ranges={path}: {error}", "valid JSON with each episode once") from error
    check_keep_ranges(found, f"keep_ranges={path}")
    return found


def check_keep_ranges(found: Any, at: str) -> None:
    """Refuse ranges that no dataset can have.

    Args:
        found: what a file or an option holds.
        at: the option, for messages.

    Raises:
        ConfigError: the first episode or range that is impossible.
    """
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        raise _bad(f"{at}: holds a {kind}", "a JSON object of ranges by episode")
    for episode, ranges in found.items():
        if not str(episode).isdecimal():
            raise _bad(f"{at}: '{episode}' is no episode", "keys are episode numbers, from 0 on")
        before = 0
        for each in ranges if isinstance(ranges, Sequence) else [ranges]:
            if not _is_pair(each):
                what = f"{at}: episode {episode} has the range {each}"
                raise _bad(
                    what, "a range is [first frame, end], whole numbers of which the end is larger"
                )
            if each[0] < before:
                what = (
                    f"{at}: episode {episode} has the range {list(each)} after frame {before - 1}"
                )
                raise _bad(what, "the ranges of an episode ascend and do not overlap")
            before = each[1]


def _is_pair(found: Any) -> bool:
    if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != 2:
        return False
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in found)
    return whole and 0 <= found[0] < found[1]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; json itself would let the last of two equal keys win."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice}' stands there twice")
    return found


def _bad(what: str, rule: str) -> ConfigError:
    return ConfigError(what, rule=rule, remedy=_EXAMPLE)

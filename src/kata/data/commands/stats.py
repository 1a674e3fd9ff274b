"""`kata data stats`: the statistics computed anew, and where the stored ones are others."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kata.data.arrays import Int64
from kata.data.commands.info import aligned
from kata.data.commands.options import Place, option, resolve
from kata.data.commands.output import new_file, write_whole
from kata.data.dataset.dataset import Dataset, open_dataset
from kata.data.format.feature_stats import STATS, complete, is_quantile
from kata.data.stats.dataset_stats import (
    Difference,
    column_stats,
    differences,
    episode_sample_rows,
    frame_stats,
    stored_stats,
)
from kata.errors import ConfigError, did_you_mean
from kata.log import counting
from kata.spec import BOOKKEEPING, Column, Stats
from kata.units import count_text

_say = logging.getLogger(__name__).info
_IMAGES = ("none", "sampled", "all")
_SHOWN = 12  # differences in the text; --json has all


@dataclass(frozen=True)
class StatsOptions(Place):
    """Options of `kata data stats`."""

    episodes: list[int] | str | None = option(None, "episodes to take, or 'available'; null is all")
    exclude_episodes: list[int] | None = option(None, "episodes to leave out")
    images: bool | str = option(
        "none", "decode frames: sampled (as many as LeRobot; also --images alone), or all"
    )
    write: str | None = option(
        None, "write the statistics to this new .json file, in the form of meta/stats.json"
    )
    overwrite: bool = option(False, "the file of --write may exist")
    json: bool = option(False, "print everything as JSON")


def main(args: Sequence[str]) -> int:
    """Compute, compare, print, and write where asked to."""
    options = resolve(StatsOptions, args, "kata data stats <folder> [options]")
    if options is None:
        return 0
    images = _images(options.images)
    root = options.source().root
    target = None
    if options.write is not None:
        target = new_file(
            "write", options.write, dataset=root, overwrite=options.overwrite, endings=(".json",)
        )
    data = open_dataset(
        options.repo_id or root.name,
        root=options.root,
        episodes=options.episodes,
        exclude_episodes=options.exclude_episodes,
        revision=options.revision,
    )
    for note in data.notes:
        _say("%s", note)
    found = column_stats(data)
    if images != "none" and data.cameras:
        rows = _rows(data, images)
        with counting("frames decoded") as progress:
            found |= frame_stats(data, list(data.cameras), rows, progress)
    stored, place = stored_stats(data, list(data.columns))
    off = differences(found, stored, sampled=list(data.cameras))
    if options.json:
        print(json.dumps(_plain(found, place, off), indent=2))
    else:
        print("\n".join([*_table(data, found), "", *_compared(data, found, place, off)]))
    if target is not None:
        kept = {key: stats for key, stats in complete(stored).items() if key in data.cameras}
        write_whole(target, json.dumps(_lists(kept | found), indent=4).encode())
        said = "" if images != "none" or not kept else f"; {', '.join(kept)} as stored"
        print(f"{'' if options.json else chr(10)}written: {target}{said}", flush=True)
    return 0


def _images(given: bool | str) -> str:
    name = {True: "sampled", False: "none"}.get(given, given) if isinstance(given, bool) else given
    if name not in _IMAGES:
        raise ConfigError(
            f"images={given}",
            rule=f"one of: {', '.join(_IMAGES)}",
            remedy=did_you_mean(str(given), _IMAGES),
        )
    return str(name)


def _rows(data: Dataset, images: str) -> Int64:
    return (
        np.arange(data.num_frames) if images == "all" else episode_sample_rows(data.layout.length)
    )


def _table(data: Dataset, found: Stats) -> list[str]:
    names = [name for name in STATS if name != "count"]
    rows = [["", *names]]
    for key in (key for key in found if key not in BOOKKEEPING):
        stats = found[key]
        size = stats["min"].size
        count = int(stats["count"][0])
        rows.append([f"{key}  ({count_text(count)} frames)"])
        for place, dim in enumerate(dimension_names(data.columns[key], size)):
            rows.append([f"  {dim}", *(f"{stats[name].reshape(-1)[place]:.5g}" for name in names)])
    heads = [len(row) == 1 for row in rows]
    lines = aligned(
        [[""] if head else row for row, head in zip(rows, heads, strict=True)], indent=""
    )
    return [row[0] if head else line for row, head, line in zip(rows, heads, lines, strict=True)]


def dimension_names(column: Column, size: int) -> list[str]:
    """What the dimensions of a feature are called, `size` words."""
    if column.is_camera:
        return ["red", "green", "blue"] if size == 3 else [str(number) for number in range(size)]
    if column.names is not None and len(column.names) == size:
        return list(column.names)
    return [""] if size == 1 else [str(number) for number in range(size)]


def _compared(data: Dataset, found: Stats, place: str, off: list[Difference]) -> list[str]:
    if not place:
        return ["no statistics are stored: training computes them"]
    lines = [f"compared with {place}:"]
    plain = [each for each in off if not is_quantile(each.stat)]
    rows = [_difference(data, found, each) for each in plain]
    if not rows:
        lines.append("  min, max, mean, std and count are those of the data")
    lines += aligned(rows[:_SHOWN]) if rows else []
    lines += [f"  ... and {len(rows) - _SHOWN} more differences"] if len(rows) > _SHOWN else []
    worst: dict[str, Difference] = {}
    share = _share(found)
    for each in off:
        if is_quantile(each.stat) and each.key not in BOOKKEEPING:
            worst[each.key] = max(worst.get(each.key, each), each, key=share)
    if worst:
        lines.append(
            "  quantiles are not those of the whole (LeRobot averages the episodes'); furthest off:"
        )
        lines += aligned(
            [_difference(data, found, each) for each in worst.values()][:_SHOWN], indent="    "
        )
    return lines


def _share(found: Stats) -> Any:
    return lambda each: (
        each.off / max(float(np.max(found[each.key]["max"] - found[each.key]["min"])), 1e-12)
    )


def _difference(data: Dataset, found: Stats, each: Difference) -> list[str]:
    if each.found.shape != each.stored.shape:
        return [
            each.key,
            each.stat,
            f"{each.found.size} values computed",
            f"{each.stored.size} stored",
        ]
    worst = int(np.argmax(np.nan_to_num(np.abs(each.found - each.stored), nan=np.inf)))
    dim = (
        ""
        if each.stat == "count"
        else dimension_names(data.columns[each.key], each.found.size)[worst]
    )
    share = _share(found)(each)
    words = "" if each.stat == "count" or not np.isfinite(share) else f"{share:.2%} of the range"
    return [
        each.key,
        each.stat,
        dim,
        f"{each.found[worst]:.6g} computed",
        f"{each.stored[worst]:.6g} stored",
        words,
    ]


def _lists(stats: Stats) -> dict[str, dict[str, Any]]:
    return {
        key: {name: value.tolist() for name, value in each.items()} for key, each in stats.items()
    }


def _plain(found: Stats, place: str, off: list[Difference]) -> dict[str, Any]:
    rows = [
        {
            "feature": each.key,
            "figure": each.stat,
            "computed": each.found.tolist(),
            "stored": each.stored.tolist(),
        }
        for each in off
    ]
    return {"statistics": _lists(found), "compared_with": place or None, "differences": rows}

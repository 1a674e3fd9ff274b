"""`kata data stats`, which recomputes statistics and compares them with the stored ones."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from kata.config.keep_ranges import read_keep_ranges
from kata.data.arrays import Int64
from kata.data.commands.options import StatsOptions, source_of
from kata.data.commands.output import new_file, write_whole
from kata.data.dataset.dataset import Dataset, open_source
from kata.data.format.feature_stats import STATS, complete, is_quantile
from kata.data.stats.dataset_stats import (
    Difference,
    column_stats,
    differences,
    episode_sample_rows,
    frame_stats,
    stored_stats,
)
from kata.log import counting
from kata.spec import BOOKKEEPING, Column, Stats
from kata.tables import table_lines
from kata.units import count_text

_say = logging.getLogger(__name__).info
_SHOWN = 12  # differences in the text; --json has all


def main(options: StatsOptions) -> int:
    """Compute, compare, print, and write where asked to."""
    images = "sampled" if options.images is True else options.images or "none"
    dataset = options.dataset
    source = source_of(dataset)
    ranges = dataset.keep_ranges
    target = None
    if options.write is not None:
        target = new_file("write", options.write, dataset=source.root, overwrite=options.overwrite)
    data = open_source(
        source,
        episodes=dataset.episodes,
        exclude_episodes=dataset.exclude_episodes,
        keep_ranges=None if ranges is None else read_keep_ranges(Path(ranges).expanduser()),
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
    # A head stands above its columns and may be wider than the first of them.
    heads = {number: row[0] for number, row in enumerate(rows) if len(row) == 1}
    for number in heads:
        rows[number] = [""]
    return [heads.get(number, line) for number, line in enumerate(table_lines(rows))]


def dimension_names(column: Column, size: int) -> list[str]:
    """Return the names of the dimensions of a feature, `size` words."""
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
    lines += table_lines(rows[:_SHOWN], indent="  ")
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
        quantile_rows = [_difference(data, found, each) for each in worst.values()]
        lines += table_lines(quantile_rows[:_SHOWN], indent="    ")
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
    lists: dict[str, dict[str, Any]] = {}
    for key, each in stats.items():
        lists[key] = {name: value.tolist() for name, value in each.items()}
    return lists


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

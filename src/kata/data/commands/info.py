"""`kata data info`: what a dataset holds, and what a training run would see of it."""

from __future__ import annotations

import json
from typing import Any

from kata.data.commands.options import InfoOptions, source_of
from kata.data.dataset.roles import flags
from kata.data.format.feature_stats import STATS
from kata.data.inspect.dataset_summary import facts
from kata.tables import table_lines
from kata.units import bytes_text, count_text, seconds_text

_SHOWN = 8  # tasks in the text; --json has all
_NAMES_WIDTH = 60


def main(options: InfoOptions) -> int:
    """Print the facts of a dataset."""
    found = facts(source_of(options.dataset), options.dataset.concat)
    print(json.dumps(found, indent=2) if options.json else "\n".join(_lines(found)))
    return 0


def _lines(found: dict[str, Any]) -> list[str]:
    frames, episodes = found["frames"], found["episodes"]
    sizes = found["bytes"]
    length = found["episode_frames"]
    lines = [f"{found['name']}  ({found['root']})", ""]
    rows = [
        (
            "format",
            f"{found['version']}, robot {found['robot_type'] or 'not named'}, {found['fps']} "
            "frames per second",
        ),
        ("episodes", f"{count_text(episodes['total'])}, of {_span(length)} frames"),
        ("frames", f"{count_text(frames['total'])} ({seconds_text(found['duration_s'])})"),
        ("in the store" if "kept_bytes" in found else "on disk", _sizes(sizes)),
        (
            "statistics",
            _statistics(found["statistics"], len(found["columns"]) + len(found["cameras"])),
        ),
    ]
    if "kept_bytes" in found:
        kept = f"{bytes_text(found['kept_bytes'])} of metadata and numbers, in $KATA_CACHE"
        rows.insert(4, ("kept here", kept))
    if episodes["here"] < episodes["total"]:
        frames_here = count_text(frames["here"])
        here = f"{episodes['here']} of {episodes['total']} episodes, {frames_here} frames"
        rows.insert(3, ("files here", f"of {here}"))
    lines += table_lines(rows, indent="  ")
    if found["cameras"]:
        lines += ["", "cameras (height x width x channels)"]
        cameras = [_camera(key, camera) for key, camera in found["cameras"].items()]
        lines += table_lines(cameras, indent="  ")
    lines += ["", "columns"]
    columns = [_column(key, column) for key, column in found["columns"].items()]
    lines += table_lines(columns, indent="  ")
    tasks = found["tasks"]
    lines += ["", f"tasks ({len(tasks)})"]
    lines += [f"  {number}  {task or '(empty)'}" for number, task in enumerate(tasks[:_SHOWN])]
    lines += [f"  ... and {len(tasks) - _SHOWN} more"] if len(tasks) > _SHOWN else []
    return [*lines, "", *_training(found["training"])]


def _span(length: dict[str, Any]) -> str:
    low, high = length["min"], length["max"]
    return str(low) if low == high else f"{low} to {high}"


def _sizes(sizes: dict[str, int]) -> str:
    parts = [f"{name} {bytes_text(size)}" for name, size in sizes.items() if name != "total"]
    return f"{bytes_text(sizes['total'])} ({', '.join(parts)})"


def _statistics(found: dict[str, Any], features: int) -> str:
    if "damaged" in found:
        return f"damaged: {found['damaged']}"
    if not found["dataset"]:
        return "per episode" if found["per_episode"] else "none"
    groups: dict[str, int] = {}
    for stats in found["lacking"].values():
        words = "have none" if len(stats) == len(STATS) else f"lack {' '.join(stats)}"
        groups[words] = groups.get(words, 0) + 1
    parts = [f"{count} of {features} features {words}" for words, count in groups.items()] or [
        "complete"
    ]
    return ", ".join([*parts, "per episode too" if found["per_episode"] else "none per episode"])


def _camera(key: str, camera: dict[str, Any]) -> list[str]:
    words = [key, "x".join(map(str, camera["shape"]))]
    if "damaged" in camera:
        return [*words, f"damaged: {camera['damaged']}"]
    if not camera["files"]:
        return [*words, "no files here"]
    group = ""
    if "gop" in camera:
        group = f"keyframe every {camera['gop']}"
    cost = f"{bytes_text(camera['bytes_per_frame'])} a frame"
    kind = "video" if camera["dtype"] == "video" else "table"
    where = f"{camera['files']} {kind} file{'s' if camera['files'] > 1 else ''}"
    return [*words, camera["codec"], camera["pix_fmt"], group, cost, where]


def _column(key: str, column: dict[str, Any]) -> list[str]:
    shape = "x".join(map(str, column["shape"]))
    return [key, column["dtype"], shape, column["role"] or "", _names(column["names"] or [])]


def _names(names: list[str]) -> str:
    joined = " ".join(names)
    return joined if len(joined) <= _NAMES_WIDTH else f"{names[0]} {names[1]} ... {names[-1]}"


def _training(seen: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if "refused" in seen:
        lines += [
            "a training run would refuse it:",
            *(f"  {line}" for line in seen["refused"].splitlines()),
        ]
        if "with_episodes_available" not in seen:
            return lines
        seen = seen["with_episodes_available"]
        lines += ["", "with --dataset.episodes=available a training run would see"]
    else:
        lines.append("a training run would see")
    if "features" in seen:
        lines.append(
            f"  {count_text(seen['frames'])} frames of {count_text(seen['episodes'])} episodes"
        )
        rows = [_feature(key, feature) for key, feature in seen["features"].items()]
        lines += table_lines(rows, indent="  ")
        lines += [f"  {key} = {' + '.join(parts)}" for key, parts in seen["concat"].items()]
    lines += _unclear(seen.get("unclear", {}))
    return lines + [f"  note: {note}" for note in seen["notes"]]


def _feature(key: str, feature: dict[str, Any]) -> list[str]:
    taken = f"{key} -> {feature['found']} (found)" if "found" in feature else key
    return [feature["role"], taken, "x".join(map(str, feature["shape"]))]


def _unclear(unclear: dict[str, list[str]]) -> list[str]:
    """Return what a run would ask for, with the options that answer."""
    lines: list[str] = []
    for role, keys in unclear.items():
        lines.append(f"  {role}: several columns could be it: {', '.join(keys)}")
    options = [f"    {flag}" for flag in flags(unclear)]
    return [*lines, "  a run wants one of these options", *options] if options else []

"""`kata bench data`: measures reading, prints a table, and keeps every figure as JSON."""

from __future__ import annotations

import datetime
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kata.bench import process_stats
from kata.bench.cases import Case
from kata.bench.lerobot_env import make_datasets, peer_python
from kata.bench.options import BenchRun, chosen_cases
from kata.bench.rounds import by_kata, measure_rounds, threads_of
from kata.bench.table import text
from kata.bench.targets import summarise_all
from kata.config import encode, flags_of
from kata.data import open_dataset
from kata.log import counting
from kata.units import bytes_text


def data(run: BenchRun) -> int:
    """Measure reading and return the exit status; 0 also where a target is missed."""
    process_stats.require_linux()
    if run.make:
        make_datasets(peer_python(run.peer_python), Path(run.root).expanduser())
    command = shlex.join(["kata", "bench", "data", *flags_of(run)])
    return _soak(run, command) if run.soak else _compare(run, command)


def _compare(run: BenchRun, command: str) -> int:
    cases = chosen_cases(run)
    began = datetime.datetime.now(datetime.UTC)
    with counting("measurements") as told:
        rounds, peer = measure_rounds(run, cases, told)
    result: dict[str, Any] = {
        **_head(run, command, began, cases),
        "versions": {"kata": process_stats.versions(), "peer": peer},
        "summary": summarise_all(cases, rounds),
        "rounds": rounds,
    }
    print(text(result), end="")
    _keep(run, "data", began, result)
    return 0


def _head(
    run: BenchRun, command: str, began: datetime.datetime, cases: Sequence[Case]
) -> dict[str, Any]:
    """What a record begins with: what was measured, where and on what."""
    return {
        "command": command,
        "began": began.isoformat(timespec="seconds"),
        "machine": process_stats.machine(),
        "versions": {"kata": process_stats.versions()},
        "settings": {**encode(run), "threads": threads_of(run)},
        "datasets": {
            case.folder: facts(Path(run.root).expanduser() / case.folder) for case in cases
        },
    }


def _keep(run: BenchRun, kind: str, began: datetime.datetime, result: dict[str, Any]) -> None:
    """Write the record, unless there is to be none."""
    if run.out is None:
        return
    folder = Path(run.out).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}_{began:%Y%m%d_%H%M%S}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"all figures: {path}")


def facts(root: Path) -> dict[str, Any]:
    """Describe a dataset, so that one can tell whether two results are of the same files."""
    dataset = open_dataset("bench/" + root.resolve().name, root=root)
    features = json.loads((root / "meta" / "info.json").read_text(encoding="utf-8"))["features"]
    return {
        "fingerprint": dataset.fingerprint,
        "episodes": len(dataset.episodes.index),
        "frames": dataset.num_frames,
        "fps": dataset.fps,
        "bytes": sum(
            (root / name).stat().st_size for span in dataset.layout.spans() for name in span.used()
        ),
        "cameras": {
            key: {"shape": column.shape, **_coding(features, key)}
            for key, column in dataset.cameras.items()
        },
    }


def _coding(features: dict[str, Any], key: str) -> dict[str, Any]:
    """How a camera is coded, as far as info.json tells."""
    known = features.get(key, {}).get("info") or {}
    return {
        name.removeprefix("video."): value
        for name, value in known.items()
        if name.startswith("video.")
    }


def _soak(run: BenchRun, command: str) -> int:
    """Read for long in each way, and print how much memory grew after the first hundredth."""
    case, began = chosen_cases(run)[0], datetime.datetime.now(datetime.UTC)
    found: dict[str, dict[str, Any]] = {}
    for way in run.ways:
        found[way] = figures = by_kata(run, case, way, 0)
        grown = figures["after_bytes"] - figures["before_bytes"]
        print(
            f"{case} {way}: {figures['batches']} batches; resident "
            f"{bytes_text(figures['before_bytes'])} after the "
            f"first hundredth, {bytes_text(figures['after_bytes'])} at the end: "
            + (f"{bytes_text(grown)} grown" if grown > 0 else "nothing grown")
        )
    _keep(run, "soak", began, {**_head(run, command, began, [case]), "ways": found})
    return 0

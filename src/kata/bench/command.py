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
from kata.bench.options import BenchRun, chosen_cases
from kata.bench.rounds import measure_alone, measure_rounds, threads_of
from kata.bench.summary import summarise_rounds
from kata.bench.table import text
from kata.config import encode, flags_of
from kata.data import open_dataset
from kata.log import counting
from kata.units import bytes_text


def data(run: BenchRun) -> int:
    """Measure reading and return the exit status."""
    process_stats.require_linux()
    command = shlex.join(["kata", "bench", "data", *flags_of(run)])
    cases = chosen_cases(run)
    if run.soak:
        return soak(run, cases[0], command)
    began = datetime.datetime.now(datetime.UTC)
    with counting("measurements") as progress:
        rounds = measure_rounds(run, cases, progress)
    result: dict[str, Any] = {
        **record_head(run, command, began, cases),
        "summary": summarise_rounds(rounds),
        "rounds": rounds,
    }
    print("\n".join(text(result)))
    keep_record(run, "data", began, result)
    return 0


def record_head(
    run: BenchRun, command: str, began: datetime.datetime, cases: Sequence[Case]
) -> dict[str, Any]:
    """Return the beginning of a record: the command, the machine, the settings, the datasets."""
    return {
        "command": command,
        "began": began.isoformat(timespec="seconds"),
        "machine": process_stats.machine(),
        "versions": {"kata": process_stats.versions()},
        "settings": {**encode(run), "threads": threads_of(run)},
        "datasets": {
            case.folder: dataset_facts(Path(run.root).expanduser() / case.folder) for case in cases
        },
    }


def keep_record(run: BenchRun, kind: str, began: datetime.datetime, result: dict[str, Any]) -> None:
    """Write the record, unless there is to be none."""
    if run.out is None:
        return
    folder = Path(run.out).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}_{began:%Y%m%d_%H%M%S}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"all figures: {path}")


def dataset_facts(root: Path) -> dict[str, Any]:
    """Return what identifies a dataset, to see whether two results are of the same files."""
    dataset = open_dataset("bench/" + root.resolve().name, root=root)
    features = json.loads((root / "meta" / "info.json").read_text(encoding="utf-8"))["features"]
    num_bytes = 0
    for span in dataset.layout.spans():
        num_bytes += sum((root / name).stat().st_size for name in span.used())
    return {
        "fingerprint": dataset.fingerprint,
        "episodes": len(dataset.episodes.index),
        "frames": dataset.num_frames,
        "fps": dataset.fps,
        "bytes": num_bytes,
        "cameras": {
            key: {"shape": column.shape, **_coding(features, key)}
            for key, column in dataset.cameras.items()
        },
    }


def _coding(features: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the coding of a camera, as far as info.json has it."""
    known = features.get(key, {}).get("info") or {}
    return {
        name.removeprefix("video."): value
        for name, value in known.items()
        if name.startswith("video.")
    }


def soak(run: BenchRun, case: Case, command: str) -> int:
    """Read for long in each way, and print how much memory grew after the first hundredth."""
    began = datetime.datetime.now(datetime.UTC)
    found: dict[str, dict[str, Any]] = {}
    for way in run.ways:
        found[way] = figures = measure_alone(run, case, way, 0)
        grown = figures["after_bytes"] - figures["before_bytes"]
        print(
            f"{case} {way}: {figures['batches']} batches; resident "
            f"{bytes_text(figures['before_bytes'])} after the "
            f"first hundredth, {bytes_text(figures['after_bytes'])} at the end: "
            + (f"{bytes_text(grown)} grown" if grown > 0 else "nothing grown")
        )
    keep_record(run, "soak", began, {**record_head(run, command, began, [case]), "ways": found})
    return 0

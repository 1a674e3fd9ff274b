"""A comparison of kata's reading with the decode floor and LeRobot's, printed and kept as JSON."""

from __future__ import annotations

import datetime
import shlex
from pathlib import Path
from typing import Any

from benchmarks.lab.lerobot_env import make_datasets, peer_python
from benchmarks.lab.options import LabRun
from benchmarks.lab.rounds import compare_rounds
from benchmarks.lab.targets import TARGETS, missed, summarise_all
from kata.bench import process_stats
from kata.bench.command import keep_record, record_head, soak
from kata.bench.options import chosen_cases
from kata.bench.table import PEER_LEGEND, text
from kata.config import flags_of
from kata.log import counting


def compare(run: LabRun) -> int:
    """Measure reading and return the exit status; 0 also where a target is missed."""
    process_stats.require_linux()
    if run.make:
        make_datasets(peer_python(run.peer_python), Path(run.root).expanduser())
    command = shlex.join(["python", "-m", "benchmarks.lab", *flags_of(run)])
    cases = chosen_cases(run, usual=tuple(TARGETS))
    if run.soak:
        return soak(run, cases[0], command)
    began = datetime.datetime.now(datetime.UTC)
    with counting("measurements") as progress:
        rounds, peer = compare_rounds(run, cases, progress)
    result: dict[str, Any] = {
        **record_head(run, command, began, cases),
        "versions": {"kata": process_stats.versions(), "peer": peer},
        "summary": summarise_all(cases, rounds),
        "rounds": rounds,
    }
    print("\n".join([*text(result), PEER_LEGEND, *missed(result["summary"])]))
    keep_record(run, "data", began, result)
    return 0

"""Two children measure by turns: one runs while the other stands still, and none is left behind."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.lab.interleave import TURN_S, Child, take_turns, turn_s
from kata.bench.course import ProcessPauses
from kata.errors import ConfigError

ROOT = Path(__file__).parents[2]
COUNTS = """
import json, sys, time
from benchmarks.lab import interleave as turns

def run(goes_on):
    spans, began_s = [], time.perf_counter()
    while goes_on():
        begin_s, until_s = time.perf_counter(), time.thread_time() + 0.02
        while time.thread_time() < until_s: pass
        spans.append((begin_s, time.perf_counter()))
    return spans, began_s, time.perf_counter()

def tell(spans, began_s, ended_s, taken):
    print(json.dumps({
        "spans": spans, "wall_s": ended_s - began_s, "running_s": taken.running_s(began_s, ended_s),
        "stops": taken.stops, "cpu_s": time.process_time() - cpu_s, "partner_cpu_s": taken.partner_cpu_s,
    }))
"""  # noqa: E501
FIRST = """
turns.begin()
cpu_s = time.process_time()
spans = run(lambda: time.process_time() - cpu_s < {seconds})
tell(*spans, turns.end(is_first=True))
"""
OTHER = """
import threading
heard = []
waits = threading.Thread(target=lambda: heard.append(turns.end(is_first=False)))
turns.begin()
cpu_s = time.process_time()
waits.start()
spans = run(lambda: not heard)
tell(*spans, heard[0])
"""


def child(text: str, name: str = "one") -> Child:
    return Child(name, [sys.executable, "-c", COUNTS + text], folder=ROOT)


@contextmanager
def set_up(text: str, name: str = "one") -> Generator[Child]:
    with child(text, name) as ready:
        ready.set_up()
        yield ready


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waited for has too."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture(scope="module")
def measured():
    """Of several turns: on a busy machine one may take as long as all of them should."""
    for _ in range(4):
        with set_up(FIRST.format(seconds=1.6)) as first, set_up(OTHER) as other:
            found = take_turns(first, other)
        if len(found[0]["stops"]) > 3:
            return found
    return found


def test_only_one_runs_at_a_time(measured):
    first, other = measured
    for one in measured:
        assert len(one["spans"]) > 30
        inside = [
            span
            for span in one["spans"]
            for begin, end in one["stops"]
            if begin < span[0] and span[1] < end
        ]
        assert not inside, "20 ms of CPU were used while it stood still"
    turns = list(itertools.pairwise(edge for stop in first["stops"] for edge in stop))[1::2]
    assert turns
    for begin, end in turns:
        assert end - begin > 0.9 * TURN_S / 2, "no turn is cut short"
        assert any(a <= begin and end <= b for a, b in other["stops"]), (
            "the other stands still meanwhile"
        )
    assert other["partner_cpu_s"] == 0


def test_turns_are_uneven_and_as_long_as_said_on_average():
    lengths = [turn_s(pair) for pair in range(100)]
    assert sum(lengths) / 100 == pytest.approx(TURN_S, rel=0.02)
    assert min(lengths) < 0.6 * TURN_S
    assert max(lengths) > 1.4 * TURN_S


def test_what_stood_still_is_not_counted(measured):
    first, other = measured
    stopped_s = first["wall_s"] - first["running_s"]
    assert stopped_s > 0.1 * first["wall_s"]
    assert first["cpu_s"] <= first["running_s"] + 0.1
    assert other["cpu_s"] <= other["running_s"] + 0.1
    assert other["running_s"] < other["wall_s"]
    ended_s = first["spans"][-1][1]
    beside_s = sum(0.02 for _, end_s in other["spans"] if end_s <= ended_s)
    assert first["partner_cpu_s"] == pytest.approx(beside_s, rel=0.2, abs=0.15)


def test_a_span_is_counted_without_its_stops():
    taken = ProcessPauses([(0.0, 1.0), (2.0, 4.0), (9.0, 11.0)])
    assert taken.running_s(0.5, 10.0) == 9.5 - 0.5 - 2.0 - 1.0
    assert taken.running_s(4.0, 9.0) == 5.0
    assert ProcessPauses().running_s(1.0, 3.0) == 2.0


@pytest.mark.parametrize(
    ("first", "other", "limit_s", "said"),
    [
        (
            FIRST.format(seconds=60),
            "turns.begin()\nraise ValueError('no such frame')",
            60,
            "second: .*no such frame",
        ),
        ("turns.begin()\nsys.exit(3)", OTHER, 60, "one: ended with 3"),
        (
            "turns.begin()\nsys.exit('x lacks files\\n  rule:   whole\\n  remedy: fetch it')",
            OTHER,
            60,
            "one: x lacks files",
        ),
        (FIRST.format(seconds=60), OTHER, 0.5, "not done within 0.5 s"),
        (
            FIRST.format(seconds=0.1),
            "turns.begin()\nwhile True: time.sleep(0.1)",
            0.5,
            "not done within 0.5 s",
        ),
    ],
)
def test_both_are_ended_where_one_fails_or_hangs(first, other, limit_s, said):
    with (
        pytest.raises(ConfigError, match=said),
        set_up(first) as one,
        set_up(other, "second") as two,
    ):
        take_turns(one, two, limit_s)
    assert gone(one.pid)
    assert gone(two.pid)


def test_what_never_gets_ready_is_ended():
    with (
        pytest.raises(ConfigError, match=r"one: not done within 0.2 s"),
        child("time.sleep(60)") as one,
    ):
        one.set_up(0.2)
    with (
        pytest.raises(ConfigError, match=r"one: .*no_such_module"),
        child("import no_such_module") as one,
    ):
        one.set_up()
    assert gone(one.pid)


def test_an_interrupt_ends_a_stopped_child():
    with pytest.raises(KeyboardInterrupt), set_up(OTHER) as one:
        raise KeyboardInterrupt
    assert gone(one.pid)


def test_a_killed_parent_leaves_no_stopped_child(tmp_path):
    (tmp_path / "parent.py").write_text(
        "import sys\nfrom benchmarks.lab.interleave import Child\n"
        f"with Child('one', [sys.executable, '-c', {COUNTS + OTHER!r}]) as one:\n"
        "    one.set_up()\n    print(one.pid, flush=True)\n    sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")],
        stdin=pipe,
        stdout=pipe,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.send_signal(signal.SIGKILL)
    until_s = time.monotonic() + 30
    while not gone(pid) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert gone(pid)

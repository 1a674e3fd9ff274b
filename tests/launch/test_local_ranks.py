"""Ranks are started, shown and ended together, whatever ends the launcher."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kata.launch.local_ranks import GRACE_S, STOPPED, log_of, tail

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and process groups")
WAIT_S = 60.0

LAUNCHER = """
import os, sys
from pathlib import Path
from kata.launch.local_ranks import run_local_ranks
count, log_dir, script = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
after = float(sys.argv[4]) if len(sys.argv) > 4 else None
envs = [{**os.environ, "RANK": str(rank), "OUT": str(log_dir)} for rank in range(count)]
sys.exit(run_local_ranks([sys.executable, "-c", script], envs, log_dir, after))
"""
HEAD = (
    "import os, signal, subprocess, sys, time\nrank = int(os.environ['RANK'])\nout = "
    "os.environ['OUT']\n"
)
PIDS = (
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "for pid in (os.getpid(), child.pid): open(f'{out}/pid-{pid}', 'w')\n"
    "open(f'{out}/up-{rank}', 'w')\n"
)
"""Each rank starts a process of its own and notes both."""
TOGETHER = "while len([n for n in os.listdir(out) if n.startswith('up-')]) < {}: time.sleep(0.05)\n"


def launch(tmp_path, count: int, script: str, *after: str) -> subprocess.Popen:
    command = [sys.executable, "-c", LAUNCHER, str(count), str(tmp_path), HEAD + script, *after]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(tmp_path, count: int, script: str, *after: str) -> tuple[int, str, str]:
    process = launch(tmp_path, count, script, *after)
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


def until(condition, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def all_up(tmp_path, count: int):
    return lambda: len(list(tmp_path.glob("up-*"))) == count


def test_rank_0_is_shown_and_the_others_write_logs(tmp_path):
    status, out, err = run(
        tmp_path, 3, "print('I am', rank); print('to stderr', rank, file=sys.stderr)"
    )
    assert (status, out, err) == (0, "I am 0\n", "to stderr 0\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank1.log", "rank2.log"]
    assert set(log_of(tmp_path, 2).read_text().splitlines()) == {"I am 2", "to stderr 2"}


def test_a_failing_rank_is_shown_and_all_others_end(tmp_path):
    script = (
        PIDS
        + TOGETHER.format(3)
        + "if rank == 1:\n    raise ValueError('a bad sample')\ntime.sleep(600)"
    )
    began_s = time.monotonic()
    status, _, err = run(tmp_path, 3, script)
    assert status == 1
    assert "rank 1 left with exit status 1; all others were ended" in err
    assert "Traceback (most recent call last)" in err
    assert "ValueError: a bad sample" in err
    assert time.monotonic() - began_s < GRACE_S + 20
    assert len(pids(tmp_path)) == 6
    assert not [pid for pid in pids(tmp_path) if alive(pid)]


def test_one_that_minds_no_signal_is_killed(tmp_path, monkeypatch):
    script = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + PIDS
        + TOGETHER.format(2)
        + "if rank == 1: sys.exit(7)\ntime.sleep(600)"
    )
    quick = LAUNCHER.replace(
        "count, log_dir", "import kata.launch.local_ranks as r; r.GRACE_S = 0.2\ncount, log_dir", 1
    )
    monkeypatch.setattr(sys.modules[__name__], "LAUNCHER", quick)
    status, _, err = run(tmp_path, 2, script)
    assert status == 7
    assert "rank 1 left with exit status 7" in err
    assert not [pid for pid in pids(tmp_path) if alive(pid)]


@pytest.mark.parametrize(("code", "status"), [(STOPPED, STOPPED), (2, 2), (130, 130)])
def test_the_exit_status_is_the_ranks(tmp_path, code, status):
    assert run(tmp_path, 2, f"sys.exit({code})")[0] == status


def test_one_that_stopped_is_no_failure(tmp_path):
    """Rank 1 is still writing its last lines when rank 0 has left."""
    status, _, err = run(tmp_path, 2, "time.sleep(0.5 * rank)\nsys.exit(85)")
    assert (status, err) == (STOPPED, "")


def test_a_rank_that_a_signal_ended_is_named(tmp_path):
    status, _, err = run(
        tmp_path, 2, "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)"
    )
    assert status == 128 + signal.SIGKILL
    assert "rank 1 was ended by SIGKILL (often the kernel, out of memory: `dmesg` says so)" in err


SAVES = (
    "def leave(number, frame):\n    open(f'{out}/got-{rank}-{number}', 'w')\n    sys.exit(85)\n"
    "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1): signal.signal(number, leave)\n"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_reaches_every_rank_once_and_they_may_save(tmp_path, number):
    process = launch(tmp_path, 2, SAVES + PIDS + "time.sleep(600)")
    until(all_up(tmp_path, 2), "ranks start")
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (STOPPED, "")
    assert {p.name for p in tmp_path.glob("got-*")} == {
        f"got-{rank}-{int(number)}" for rank in (0, 1)
    }
    assert not [pid for pid in pids(tmp_path) if alive(pid)]


def test_ranks_that_a_signal_ends_before_they_mind_it_are_no_failure(tmp_path):
    process = launch(tmp_path, 2, PIDS + "time.sleep(600)")
    until(all_up(tmp_path, 2), "ranks start")
    process.terminate()
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (128 + signal.SIGTERM, "kata: ended by SIGTERM\n")
    assert not [pid for pid in pids(tmp_path) if alive(pid)]


def test_a_third_signal_kills(tmp_path):
    ignoring = "for n in (signal.SIGTERM, signal.SIGINT): signal.signal(n, signal.SIG_IGN)\n"
    process = launch(tmp_path, 2, ignoring + PIDS + "time.sleep(600)")
    until(all_up(tmp_path, 2), "ranks start")
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGKILL
    assert not [pid for pid in pids(tmp_path) if alive(pid)]


def test_nothing_runs_on_when_the_launcher_is_killed(tmp_path):
    process = launch(tmp_path, 2, PIDS + "time.sleep(600)")
    until(all_up(tmp_path, 2), "ranks start")
    process.kill()
    process.communicate(timeout=WAIT_S)
    until(
        lambda: not [pid for pid in pids(tmp_path) if alive(pid)], "ranks and what they started end"
    )


def test_after_the_given_time_ranks_are_asked_to_save(tmp_path):
    process = launch(tmp_path, 2, SAVES + PIDS + "time.sleep(600)", "3")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == STOPPED
    assert "3 s are over: asking the ranks to save and leave" in err
    assert {p.name for p in tmp_path.glob("got-*")} == {
        f"got-{rank}-{int(signal.SIGUSR1)}" for rank in (0, 1)
    }


def test_the_end_of_a_log_is_its_last_traceback_or_its_last_lines(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "\n".join(["first", "Traceback (most recent call last)", *(f"line {n}" for n in range(90))])
    )
    assert tail(log).startswith("Traceback")
    assert tail(log).endswith("line 89")
    log.write_text("\n".join(f"line {n}" for n in range(90)))
    assert len(tail(log).splitlines()) == 40
    log.write_bytes(b"\xff\n")
    assert tail(log) == "\ufffd"
    assert os.linesep == "\n"

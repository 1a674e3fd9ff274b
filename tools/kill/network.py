"""Kills `kata rl learn` and `kata rl act` with SIGKILL at random moments, and counts episodes.

    python tools/kill/network.py [--kills 30] [--seed 0] [--cut_off 4]

Both are started again with the same command after each kill. At the end: every episode that was
played is in the journal once, numbers have no gap, the spool is empty, and `kata rl replay` learns
the same weights from the journal. Leaves with 1 where one of these is wrong.

--cut_off: so often the network between both is cut for a while, too: a proxy on loopback closes all
connections and refuses new ones. (`make long` cuts network namespaces.)

The processes are forked from this one, which has imported what takes seconds to import. The actor
notes each episode's hash before and after it is in its spool, in a file of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in run.py

import torch

import kata.rl.network.act
import kata.rl.network.learn  # noqa: F401 - each forked process would import it
from kata.cli import main
from kata.rl.network.spool import Spool
from kata.rl.replay import learn_again

LAYERS = "{hidden_dims: [8, 8]}"
ENV = [
    "--env.type=gym", "--env.id=Pendulum-v1", "--env.max_steps=12", "--env.success_key=terminated",
]  # fmt: skip
LEARN = [
    "rl", "learn", *ENV, "--output_dir=run", "--resume=true", "--rl.reward=env",
    "--policy.device=cpu", "--policy.latent_dim=8", f"--policy.actor_network_kwargs={LAYERS}",
    f"--algorithm.critic_network_kwargs={LAYERS}", "--batch_size=8", "--log_freq=50",
    "--policy.online_buffer_capacity=500", "--save_freq=60", "--rl.utd_max=0.5",
    "--policy.online_step_before_learning=10", "--rl.publish_every=0.1s", "--report=false",
]  # fmt: skip
ACT = ["rl", "act", *ENV, "--device=cpu", "--output_dir=arm", "--rl.name=arm"]
PACE_S = 0.05
"""An episode of a robot takes its time; without it thousands would be played."""

GROWTH_S = 180.0
"""Longest time in which no episode arrives while nothing is killed."""


class Proxy:
    """A process on loopback that passes bytes on to the learner, and that can be cut: by SIGUSR1
    it closes all connections and refuses new ones, until SIGUSR2.

    It is forked first: processes forked later do not share its connections, which would stay open.
    """

    def __init__(self, port: int, target: int) -> None:
        self.child = os.fork()
        if not self.child:
            try:
                _pass_all(port, target)
            finally:
                os._exit(0)

    def cut(self, is_cut: bool) -> None:
        os.kill(self.child, signal.SIGUSR1 if is_cut else signal.SIGUSR2)


def _pass_all(port: int, target: int) -> None:
    opened: list[socket.socket] = []
    is_cut = threading.Event()

    def cut(*_: object) -> None:
        is_cut.set()
        while opened:
            _shut(opened.pop())

    signal.signal(signal.SIGUSR1, cut)
    signal.signal(signal.SIGUSR2, lambda *_: is_cut.clear())
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", target))
        except OSError:
            _shut(near)
            continue
        if is_cut.is_set():
            _shut(near)
            _shut(far)
            continue
        opened += [near, far]
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while part := source.recv(65536):
            sink.sendall(part)
    except OSError:
        pass
    _shut(source)
    _shut(sink)


def _shut(each: socket.socket) -> None:
    """Close a connection, also where another thread waits for its bytes."""
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


def start(folder: Path, args: list[str], log: str) -> int:
    """Fork a process that is this command of kata; its output goes to a file."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        os.chdir(folder)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        _note_episodes(folder / "played.jsonl")
        status = main(args)
        sys.stdout.flush()
    finally:
        os._exit(status)


def _note_episodes(file: Path) -> None:
    add = Spool.add

    def noted(self: Spool, episode: Any, schema: Any, sequence: int, weights: int) -> None:
        digest = hashlib.sha256(episode.to_bytes()).hexdigest()
        _write(file, {"when": "before", "sequence": sequence, "sha256": digest})
        add(self, episode, schema, sequence, weights)
        _write(file, {"when": "after", "sequence": sequence, "sha256": digest})
        time.sleep(PACE_S)

    Spool.add = noted  # type: ignore[method-assign]


def _write(file: Path, line: dict[str, Any]) -> None:
    with file.open("ab") as out:
        out.write((json.dumps(line) + "\n").encode())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def kill(child: int) -> bool:
    """SIGKILL a process; False if it had ended by itself."""
    if os.waitpid(child, os.WNOHANG)[0]:
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def campaign(folder: Path, kills: int, cuts: int, rng: random.Random) -> Counter[str]:
    port, outer = free_port(), free_port()
    proxy = Proxy(outer, port)
    learn = [*LEARN, f"--rl.port={port}"]
    act = [*ACT, f"--rl.learner=http://127.0.0.1:{outer}"]
    commands = {"learner": learn, "actor": act}
    running = {who: start(folder, args, f"{who}.txt") for who, args in commands.items()}
    done: Counter[str] = Counter()
    events = ["kill"] * kills + ["cut"] * cuts
    rng.shuffle(events)
    for number, event in enumerate(events):
        if number % 3 == 0:  # on a busy machine both would be killed before they have begun
            wait_for_growth(folder)
        time.sleep(rng.uniform(0.2, 2.5))
        if event == "cut":
            proxy.cut(True)
            time.sleep(rng.uniform(0.1, 2.0))
            proxy.cut(False)
            done["cut off"] += 1
            continue
        victims = rng.choice([["learner"], ["actor"], ["learner", "actor"]])
        for who in victims:
            if not kill(running[who]):
                raise SystemExit(f"{who} ended: {(folder / f'{who}.txt').read_text()[-3000:]}")
        done[" and ".join(victims)] += 1
        time.sleep(rng.uniform(0, 0.5))
        for who in victims:
            running[who] = start(folder, commands[who], f"{who}.txt")
    # The end: a learner that needs no more steps, which takes what its actor has left.
    time.sleep(1)
    kill(running["learner"])
    running["learner"] = start(folder, [*learn, "--policy.online_steps=10"], "learner.txt")
    for who, child in running.items():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            text = (folder / f"{who}.txt").read_text()[-3000:]
            raise SystemExit(f"{who} ended with status {status}: {text}")
    os.kill(proxy.child, signal.SIGKILL)
    return done


def wait_for_growth(folder: Path) -> None:
    """Wait until the journal has an episode more and both processes are at work."""
    journal = folder / "run/journal/journal.jsonl"
    before = len(lines(journal)) if journal.exists() else 0
    began_s = time.monotonic()
    while not journal.exists() or len(lines(journal)) == before:
        if time.monotonic() - began_s > GROWTH_S:
            both = ("learner", "actor")
            told = "".join((folder / f"{who}.txt").read_text()[-1500:] for who in both)
            raise SystemExit(f"no episode in {GROWTH_S:.0f} s: {told}")
        time.sleep(0.05)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def faults(folder: Path) -> list[str]:
    """Return what is wrong with what a campaign left."""
    journal = [(x["sequence"], x["sha256"]) for x in lines(folder / "run/journal/journal.jsonl")]
    noted = lines(folder / "played.jsonl")
    kept = {(x["sequence"], x["sha256"]) for x in noted if x["when"] == "after"}
    begun = {(x["sequence"], x["sha256"]) for x in noted}
    found: list[str] = []
    if [number for number, _ in journal] != list(range(len(journal))):
        found.append("numbers in the journal have a gap, or one is there twice")
    if lost := kept - set(journal):
        found.append(f"{len(lost)} episodes are lost")
    if strange := set(journal) - begun:
        found.append(f"{len(strange)} episodes of the journal were never played")
    if waiting := list((folder / "arm/spool").iterdir()):
        found.append(f"{len(waiting)} episodes are in the spool still")
    updates = [x["updates"] for x in lines(folder / "run/metrics.jsonl") if x["kind"] == "train"]
    if len(updates) != len(set(updates)):
        found.append("lines of metrics.jsonl are there twice")
    if different := learn_again(folder / "run"):
        found.append(f"the replay gives other weights: {', '.join(different[:3])}")
    return found


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--cut_off", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="kata-kill-") as made:
        folder = Path(made)
        done = campaign(folder, asked.kills, asked.cut_off, random.Random(asked.seed))
        found = faults(folder)
        journal = lines(folder / "run/journal/journal.jsonl")
        metrics = lines(folder / "run/metrics.jsonl")
    told = ", ".join(f"{what} {count}" for what, count in sorted(done.items()))
    updates = max((line.get("updates", 0) for line in metrics), default=0)
    print(f"killed or cut off: {told}; {len(journal)} episodes, {updates} updates")
    if not updates:
        found.append("nothing was learned: the campaign tells nothing about learning")
    print("\n".join(found) or "no episode lost, none twice; the replay gives the same weights")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(run())

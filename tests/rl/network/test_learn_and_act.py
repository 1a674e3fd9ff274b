"""Learner and actors on loopback: nothing is lost, nothing counts twice, all can be replayed."""

import hashlib
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from kata.errors import CheckpointError, PolicyError
from kata.eval.record.demonstrations import record
from kata.rl.learner import Learner
from kata.rl.network.spool import Spool
from kata.rl.network.wire import NetworkError
from kata.rl.replay import learn_again
from tests.rl.network.pendulum import act, answers, end, free_port, learn, running, wait_for

POSITION = {"observation.state": {"type": "STATE", "shape": [2]}}


class CutOffError(Exception):
    """Stands for a kill."""


@pytest.fixture
def played(monkeypatch):
    """Every episode that was put into a spool: (number, hash), by actor's folder."""
    found, add = {}, Spool.add

    def noted(self, episode, schema, sequence, weights):
        add(self, episode, schema, sequence, weights)
        digest = hashlib.sha256(episode.to_bytes()).hexdigest()
        found.setdefault(self._folder.parent.name, []).append((sequence, digest))
        threading.Event().wait(0.1)  # a robot takes its time

    monkeypatch.setattr(Spool, "add", noted)
    return found


def cut_off(monkeypatch, cls, name, call, *, after=False):
    """Let one call of a method raise, before or after its work."""
    calls, work = iter(range(10_000)), vars(cls)[name]

    def method(self, *args, **kwargs):
        is_it = next(calls) == call
        if is_it and not after:
            raise CutOffError
        found = work(self, *args, **kwargs)
        if is_it:
            raise CutOffError
        return found

    monkeypatch.setattr(cls, name, method)


def lines(run):
    return [json.loads(line) for line in (run / "journal/journal.jsonl").read_text().splitlines()]


def journal(run):
    """Every episode of the journal: (number, hash), by actor."""
    found = {}
    for line in lines(run):
        found.setdefault(line["actor"], []).append((line["sequence"], line["sha256"]))
    return found


def waiting(folder):
    return sorted(path.name for path in (folder / "spool").iterdir())


def test_two_actors_and_a_learner_reach_the_end_and_can_be_replayed(tmp_path, played):
    with running(tmp_path / "run") as (port, sessions), ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(act, tmp_path / name, port, name) for name in "ab"]
        wait_for(lambda: played.keys() == {*"ab"} and min(map(len, played.values())) > 3)
        end(sessions[0])
        acted = [each.result() for each in parts]
        wait_for(lambda: not answers(port))
    # 1. Whole: every episode that was played is there once, in order.
    learner = sessions[0].learner
    assert learner.steps == sum(each.steps for each in acted)
    assert learner.sac.updates == learner.steps - 10
    assert journal(tmp_path / "run") == played
    assert waiting(tmp_path / "a") == waiting(tmp_path / "b") == []
    # 2. The actors differ, and act with weights that have learned.
    assert not {*played["a"]} & {*played["b"]}
    # 3. The journal gives the same weights again; with one update moved, others.
    assert learn_again(tmp_path / "run") == []
    moved = lines(tmp_path / "run")
    moved[-1]["updates"] += 1
    text = "".join(json.dumps(line) + "\n" for line in moved)
    (tmp_path / "run/journal/journal.jsonl").write_text(text)
    assert len(learn_again(tmp_path / "run")) > 2


def test_actors_begin_with_what_was_cloned(tmp_path):
    demos = record(tmp_path / "demos", num_episodes=2, codec="h264")
    board = ["--env.type=kata", "--env.id=null", "--env.success_key=is_success"]
    args = [
        *board, f"--policy.input_features={json.dumps(POSITION)}", f"--dataset.root={demos}",
        "--policy.offline_buffer_capacity=200", "--rl.reward=success", "--policy.online_steps=24",
        "--algorithm.bc_pretrain_updates=300", "--rl.utd_max=0.5",
    ]  # fmt: skip
    run, port = tmp_path / "run", free_port()
    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(learn, run, port, *args)
        act(tmp_path / "a", port, "a", *board)
        counts = trained.result().counts
    assert counts.updates == 300 + (counts.step - 10) // 2
    assert lines(run)[0]["weights"] == 300
    assert learn_again(run) == []


def test_a_learner_that_is_killed_loses_nothing_while_its_actor_acts_on(
    tmp_path, played, monkeypatch
):
    port, run = free_port(), tmp_path / "run"
    args = ("--rl.utd_max=0.2", "--policy.online_steps=1000")
    with ThreadPoolExecutor(2) as pool:
        acted = pool.submit(act, tmp_path / "a", port, "a", "--rl.patience=60s")
        for cls, name, call in ((Learner, "update", 8), (Learner, "admit", 9)):
            with monkeypatch.context() as patched:
                cut_off(patched, cls, name, call)
                with pytest.raises(CutOffError):
                    learn(run, port, *args)
            before = len(played["a"])
            wait_for(lambda seen=before: len(played["a"]) > seen + 2)  # the actor continues alone
        sessions = []
        done = pool.submit(learn, run, port, *args, sessions=sessions)
        wait_for(lambda: sessions and sessions[0].learner.episodes > before)
        end(sessions[0])
        trained, acted = done.result(), acted.result()
    assert trained.counts.step == acted.steps
    assert journal(run) == played
    assert waiting(tmp_path / "a") == []
    assert learn_again(run) == []


@pytest.mark.parametrize(
    ("cls", "name", "after"),
    [(Spool, "remove", False), (Spool, "add", True)],
    ids=["sent, not removed", "kept, not sent"],
)
def test_an_actor_that_is_killed_continues_where_it_was(
    cls, name, after, tmp_path, played, monkeypatch
):
    with running(tmp_path / "run", "--policy.online_steps=60") as (port, _):
        with monkeypatch.context() as patched:
            cut_off(patched, cls, name, 1, after=after)
            with pytest.raises(CutOffError):
                act(tmp_path / "a", port, "a")
        act(tmp_path / "a", port, "a")
    assert journal(tmp_path / "run") == played
    assert waiting(tmp_path / "a") == []


def test_without_a_learner_nothing_moves_and_the_patience_ends(tmp_path, played):
    with pytest.raises(NetworkError, match=r"no answer for 200 ms"):
        act(tmp_path / "a", free_port(), "a", "--rl.patience=0.2s")
    assert played == {}


def test_an_actor_keeps_its_episodes_when_its_patience_is_over(tmp_path, played):
    with running(tmp_path / "run") as (port, sessions), ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act, tmp_path / "a", port, "a", "--rl.patience=4s")
        wait_for(lambda: sessions[0].learner.episodes > 2)
        sessions[0].stop.reason = "stopped"
        wait_for(lambda: not answers(port))
        with pytest.raises(NetworkError, match="episodes wait in the spool") as error:
            acted.result()
    there, kept = len(journal(tmp_path / "run")["a"]), waiting(tmp_path / "a")
    assert len(kept) == len(played["a"]) - there > 0
    assert f"{len(kept)} episodes wait" in error.value.rule
    # The same folder sends them to the learner that is back.
    with running(tmp_path / "run") as (port, sessions), ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act, tmp_path / "a", port, "a")
        wait_for(lambda: sessions[0].learner.episodes > there + len(kept))
        end(sessions[0])
        acted.result()
    assert journal(tmp_path / "run") == played


def test_updates_wait_for_steps(tmp_path):
    args = ("--rl.utd_max=0.25", "--policy.online_steps=48")
    with running(tmp_path / "run", *args) as (port, sessions):
        act(tmp_path / "a", port, "a")
        learner = sessions[0].learner
        wait_for(lambda: learner.sac.updates == (learner.steps - 10) // 4)
    assert learn_again(tmp_path / "run") == []


def test_names_and_folders_belong_to_one_actor(tmp_path):
    args = (tmp_path / "run", "--rl.max_actors=1")
    with running(*args) as (port, sessions), ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act, tmp_path / "a", port, "a")
        wait_for(lambda: sessions[0].journal.entries)
        with pytest.raises(NetworkError, match="another actor of this run has that name"):
            act(tmp_path / "b", port, "a")
        with pytest.raises(NetworkError, match="the run has 1 actors"):
            act(tmp_path / "c", port, "c")
        end(sessions[0])
        assert acted.result().stopped is None
    with running(tmp_path / "other") as (port, _):
        with pytest.raises(CheckpointError, match="its actor's name is a, not b"):
            act(tmp_path / "a", port, "b")
        with pytest.raises(CheckpointError, match="its actor's run is"):
            act(tmp_path / "a", port, "a")
        with pytest.raises(PolicyError, match="trained on 3"):
            act(tmp_path / "d", port, "d", "--env.id=MountainCarContinuous-v0")


def test_an_actor_in_another_environment_of_equal_shapes_is_refused(tmp_path):
    board = ["--env.type=kata", "--env.id=null", "--env.success_key=is_success"]
    args = [*board, f"--policy.input_features={json.dumps(POSITION)}", "--rl.reward=success"]
    args.append("--policy.online_steps=12")
    with running(tmp_path / "run", *args) as (port, sessions):
        for more, said in (
            ("--env.kwargs.relative=true", "action_names way.x, way.y (the learner's: "),
            ("--env.fps=30", "another environment: fps 30 (the learner's: 10)"),
        ):
            with pytest.raises(NetworkError, match=re.escape(said)):
                act(tmp_path / more, port, "a", *board, more)
        assert sessions[0].journal.entries == []
    # Options that change nothing of what is seen or done may differ.
    with running(tmp_path / "run", *args) as (port, _):
        act(tmp_path / "a", port, "a", *board, "--env.kwargs.render_mode=null")


def test_the_largest_body_is_the_longest_episode_of_the_environment(tmp_path):
    args = ("--env.max_steps=null", "--policy.online_buffer_capacity=5000")
    with running(tmp_path / "run", *args) as (port, sessions):
        facts = httpx.get(f"http://127.0.0.1:{port}/v1/run").json()
    assert facts["episode_bytes"] == 201 * sessions[0].journal.schema.row_bytes + 65_536


def test_a_learner_that_had_finished_takes_what_was_left_before_it_ends(
    tmp_path, played, monkeypatch
):
    run, args = tmp_path / "run", ("--policy.online_steps=24",)
    with running(run, *args) as (port, sessions):
        monkeypatch.setattr("kata.rl.network.courier.LONGEST_PAUSE_S", 0.2)
        with monkeypatch.context() as patched:
            # The actor is cut off with an episode that it could not send.
            cut_off(patched, Spool, "add", 1, after=True)
            patched.setattr("kata.rl.network.desk.SILENT_S", 0.5)
            with pytest.raises(CutOffError):
                act(tmp_path / "a", port, "a")
            wait_for(lambda: sessions[0].learner.episodes >= 1)
        end(sessions[0])
    kept = waiting(tmp_path / "a")
    # Both are started again; the learner has nothing left to learn, and waits for its actor.
    with ThreadPoolExecutor(2) as pool:
        done = pool.submit(learn, run, port, *args, "--policy.online_steps=12")
        wait_for(lambda: answers(port))
        if not kept:  # it was sent at the last moment: nothing to deliver
            played["a"] = played["a"]
        acted = pool.submit(act, tmp_path / "a", port, "a")
        acted.result()
        done.result()
    assert waiting(tmp_path / "a") == []
    assert journal(run) == played


def test_updates_after_the_last_checkpoint_are_not_logged_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("kata.rl.network.desk.SILENT_S", 0.5)
    run, args = tmp_path / "run", ("--policy.online_steps=24", "--log_freq=1")
    with running(run, *args) as (port, _):
        act(tmp_path / "a", port, "a")
    file = run / "metrics.jsonl"
    before = file.read_text()
    # A process that was killed after its last checkpoint had logged updates of the same step.
    last = [json.loads(line) for line in before.splitlines() if '"train"' in line][-1]
    file.write_text(before + json.dumps({**last, "updates": last["updates"] + 1}) + "\n")
    learn(run, free_port(), *args)
    told = [json.loads(line).get("updates") for line in file.read_text().splitlines()]
    trained = [updates for updates in told if updates is not None]
    assert len(trained) == len(set(trained)) > last["updates"]

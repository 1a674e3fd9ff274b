"""`train_rl`: actor and learner in one process, in turns, from options to a run's folder."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import math
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kata import log
from kata.config import decode, encode
from kata.config.changes import refuse_changes
from kata.errors import CheckpointError, DivergedError, KataError
from kata.eval.envs.registry import EnvSpec, Facts, register_env, resolve_env
from kata.eval.rollout_policy import Acting
from kata.eval.runner import play
from kata.eval.shares import sum_up
from kata.files import FULL, write_json
from kata.rl import checkpoint
from kata.rl.actor import EpisodeActor
from kata.rl.assembly import assemble_parts
from kata.rl.checkpoint import Counts
from kata.rl.demos import Demos, keep_to_demos, warn_of_other_rewards
from kata.rl.episodes.episode import PlayedEpisode
from kata.rl.episodes.full_disk import write_when_room
from kata.rl.episodes.journal import FOLDER, Journal
from kata.rl.episodes.progress import LOOK_BACK, RecentShares, recent_shares
from kata.rl.learner import Learner
from kata.rl.options import UNUSED, RlRun
from kata.rl.report import write_rl_report
from kata.rl.sac.algorithm import Sac, Tensors
from kata.rl.takeover import Scripted
from kata.train.checkpoint.folder import home_of, recover, resumable
from kata.train.checkpoint.run_lock import FolderLock
from kata.train.metrics.append_log import AppendLog
from kata.train.metrics.meter import drop_lines_after, read_metrics, to_json
from kata.train.stopping import StopSignal
from kata.units import seconds_text

CONFIG = "rl_config.json"
METRICS, LOG = "metrics.jsonl", "rl.log"
ACTORS = "actors.json"
"""In the folder of a run that `kata rl learn` has worked on."""

REPORT_S = 300.0
"""Least time between pages drawn at checkpoints."""
SHOWN = {"critic": "loss_critic", "actor": "loss_actor", "alpha": "alpha"}
"""Numbers of an update that the log names."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RlTrained:
    """The end of a run.

    Attributes:
        folder: of the run.
        counts: how far it is.
        stopped: why it stopped early, or None.
        progress: over the last episodes.
        total_reward: mean over the last episodes.
        command: that continues the run.
    """

    folder: Path
    counts: Counts
    stopped: str | None
    progress: RecentShares
    total_reward: float
    command: str


@dataclass
class RunSession:
    """A run at work.

    Attributes:
        run: its options.
        folder: of the run.
        spec: of its environment.
        facts: that the environment declares.
        acting: the policy that acts and learns.
        actor: plays episodes with it.
        learner: see `Learner`.
        journal: of its episodes.
        record: metrics.jsonl.
        stop: the request to stop.
        demos: its demonstrations, or None.
        began_s: clock at the start.
        saved_step: steps at the last checkpoint.
        evaluated_step: steps at the last evaluation.
        reported_s: clock at the last report.
    """

    run: RlRun
    folder: Path
    spec: EnvSpec
    facts: Facts
    acting: Acting
    actor: EpisodeActor
    learner: Learner
    journal: Journal
    record: AppendLog
    stop: StopSignal
    demos: Demos | None
    began_s: float = field(default_factory=time.perf_counter)
    saved_step: int = 0
    evaluated_step: int = 0
    reported_s: float = field(default_factory=time.perf_counter)

    @property
    def command(self) -> str:
        """Return the command that continues the run, with the verb that has worked on it."""
        verb = "learn" if (self.folder / ACTORS).exists() else "train"
        return shlex.join(["kata", "rl", verb, f"--config={self.folder / CONFIG}", "--resume=true"])

    def go(self) -> None:
        """Play and learn in turns until all steps are done, or somebody asks to stop."""
        learner = self.learner
        if learner.sac.updates < learner.cloning:
            # A wrong --env.success_key shows itself at a step, and cloning takes long. What was
            # demonstrated first can be done.
            self.actor.try_out(learner.buffers.offline[0].action[0])
        self.clone_first()
        while not self.stop.should_stop():
            if self._learns_first():
                self.learn()
                continue
            self.between_episodes()
            if learner.steps >= self.run.policy.online_steps:
                break
            self.take(self._next_episode())
        self.save()

    def _learns_first(self) -> bool:
        """Return True if an update is due before the next episode. One that is in the journal comes
        after as many as it came after before, perhaps in `kata rl learn`.
        """
        learner, entries = self.learner, self.journal.entries
        if learner.episodes < len(entries):
            return learner.sac.updates < entries[learner.episodes].updates
        return learner.is_behind

    def clone_first(self) -> None:
        """Learn from demonstrations alone, as long as that comes first, and save."""
        learner = self.learner
        if learner.sac.updates >= learner.cloning:
            return
        while learner.sac.updates < learner.cloning and not self.stop.should_stop():
            self.learn()
        self.save()

    def save(self) -> None:
        """Write a checkpoint; on a full disk, as soon as there is room."""
        learner = self.learner
        counts = Counts(learner.steps, learner.episodes, learner.sac.updates)
        run = encode(self.run)
        self._write(
            lambda: checkpoint.save_checkpoint(self.folder, self.acting, learner.sac, counts, run),
            f"the checkpoint of step {learner.steps}",
        )
        self.saved_step = learner.steps
        if self.run.report and time.perf_counter() - self.reported_s > REPORT_S:
            self.report()

    def report(self) -> None:
        """Draw the run's page."""
        self.reported_s = time.perf_counter()
        title = f"{self.spec.id}: {self.folder.name}"
        try:
            write_rl_report(self.folder, title, self.run.takeover.recent, self.command)
        except OSError as error:
            if error.errno not in FULL:
                raise
            _log.warning("%s: no report, the disk is full (%s)", self.folder, error.strerror)

    def _next_episode(self) -> PlayedEpisode:
        """Return the next episode: one that was played before the run was cut off, or a new one."""
        learner, journal = self.learner, self.journal
        number = learner.episodes
        if number < len(journal.entries):
            return journal.read(number)
        updates = learner.sac.updates
        own = self.progress().own_success
        episode = self.actor.episode(number, learner.steps, own or 0.0)
        self._write(
            lambda: journal.append(episode, weights=updates, updates=updates), f"episode {number}"
        )
        return episode

    def _write(self, write: Callable[[], object], what: str) -> None:
        write_when_room(write, f"{self.folder}: {what}", self.stop.should_stop)

    def take(self, episode: PlayedEpisode) -> None:
        """Let the learner take an episode of the journal, and note it."""
        if self.learner.episodes == 0 and self.demos is not None:
            warn_of_other_rewards(self.demos, episode)
        if episode.human_steps and self.learner.takeovers is None:
            _log.warning(
                "episode %d: info says that a human acted; without --takeover.human=true these "
                "steps are learned from as if they were the policy's own",
                self.learner.episodes,
            )
        entry = self.journal.entries[self.learner.episodes]
        self.learner.admit(episode)
        progress = self.progress()
        self.note(
            "episode",
            {
                "episode": entry.episode,
                "actor": entry.actor,
                "weights": entry.weights,
                "return": float(episode.reward.sum(dtype="float64")),
                "length": episode.steps,
                "success": episode.success,
                "human_steps": episode.human_steps,
                "recent_success": progress.success,
                "own_success": progress.own_success,
                "terminated": episode.terminated,
            },
        )

    def progress(self) -> RecentShares:
        """Return shares over the last episodes that the learner has taken."""
        entries, count = self.journal.entries, self.learner.episodes
        first = max(0, count - LOOK_BACK * self.run.takeover.recent)
        return recent_shares(entries[first:count], self.run.takeover.recent)

    def learn(self) -> None:
        """Do one update."""
        found = self.learner.update()
        if self.learner.sac.updates % self.run.log_freq == 0:
            self._log_update(found)

    def _log_update(self, found: Tensors) -> None:
        numbers = torch.stack([value.float() for value in found.values()]).tolist()
        values: dict[str, float] = dict(zip(found, numbers, strict=True))
        updates, step = self.learner.sac.updates, self.learner.steps
        wrong = [name for name, value in values.items() if not math.isfinite(value)]
        if wrong:
            raise DivergedError(
                f"update {updates}: {wrong[0]} is {values[wrong[0]]}",
                rule="losses and gradients are finite",
                remedy="lower --algorithm.critic_lr and --algorithm.actor_lr, and continue from "
                "the last checkpoint in a new folder",
            )
        self.note("train", {"updates": updates, **values})
        progress = self.progress()
        shares = {"success": progress.success, "own": progress.own_success}
        told = "".join(f"  {name} {x:.0%}" for name, x in shares.items() if x is not None)
        losses = "".join(f"  {x} {values[key]:.3g}" for x, key in SHOWN.items() if key in values)
        _log.info(
            "step %d/%d  updates %d%s  human %.0f%%%s  %s",
            step,
            self.run.policy.online_steps,
            updates,
            told,
            100 * progress.human,
            losses,
            seconds_text(time.perf_counter() - self.began_s),
        )

    def between_episodes(self) -> None:
        """Evaluate and save, where the steps so far make it due."""
        step, run = self.learner.steps, self.run
        is_over = step >= run.policy.online_steps
        if run.env_eval_freq and step:
            due = step // run.env_eval_freq > self.evaluated_step // run.env_eval_freq
            if due or (is_over and step > self.evaluated_step):
                self._evaluate()
        if step // run.save_freq > self.saved_step // run.save_freq:
            self.save()

    def _evaluate(self) -> None:
        """Evaluate with the mode action, on the same start states each time."""
        self.evaluated_step = self.learner.steps
        result = sum_up([play(self.acting, self.spec, self.run.eval)], self.folder)
        rewards = [each.sum_reward for each in result.episodes]
        values = {
            "success": sum(each.success for each in result.episodes) / len(rewards),
            "return": sum(rewards) / len(rewards),
            "episodes": len(rewards),
            "updates": self.learner.sac.updates,
        }
        self.note("evaluation", values)
        _log.info(
            "evaluation at step %d: success %.0f%%, return %.4g, %d episodes",
            self.learner.steps,
            100 * values["success"],
            values["return"],
            len(rewards),
        )

    def note(self, kind: str, values: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        line = {
            "kind": kind,
            "step": self.learner.steps,
            **values,
            "run_s": time.perf_counter() - self.began_s,
            "time": time.time(),
        }
        self.record.add((json.dumps(to_json(line), allow_nan=False) + "\n").encode())


def train_rl(run: RlRun, work: Callable[[RunSession], None] = RunSession.go) -> RlTrained:
    """Learn by acting, until `policy.online_steps` steps are done or a signal asks to stop.

    Args:
        run: its options.
        work: brings an opened run to its end and saves it.

    Raises:
        KataError: what the user can correct, before the first step where it can be known then.
    """
    spec = resolve_env(run.env)
    register_env(spec)
    folder = _folder(run)
    run = dataclasses.replace(run, output_dir=str(folder))
    is_new = not folder.exists()
    try:
        return _train(run, spec, folder, work)
    except KataError:
        begun = [*(folder / FOLDER).glob("*.safetensors"), *home_of(folder).glob("*")]
        if is_new and not begun:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _train(
    run: RlRun, spec: EnvSpec, folder: Path, work: Callable[[RunSession], None]
) -> RlTrained:
    with ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(FolderLock(folder))
        stack.enter_context(log.kept_in(folder / LOG))
        if (folder / CONFIG).exists():
            # Options that an older kata did not have count with their defaults.
            refuse_changes(
                read_run(folder),
                run,
                lambda declared: declared.may_change or declared.per_machine,
                rule="a run continues with the options that it began with: what it learned "
                "follows from them",
                remedy="leave out --{name}, or begin another run with another --output_dir",
            )
        session = _open(run, spec, folder, stack)
        write_json(folder / CONFIG, encode(run))
        work(session)
        if run.report:
            session.report()
        last = session.journal.entries[-run.takeover.recent :]
        mean = sum(entry.total_reward for entry in last) / max(1, len(last))
        learner = session.learner
        counts = Counts(learner.steps, learner.episodes, learner.sac.updates)
        return RlTrained(
            folder, counts, session.stop.reason, session.progress(), mean, session.command
        )


def read_run(folder: Path) -> RlRun:
    """Return the options of the run in a folder.

    Raises:
        CheckpointError: the folder holds no run.
    """
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw["policy"].pop("type")  # there is one kind
        for name in UNUSED:  # an older kata accepted them, without effect
            raw["policy"].pop(name, None)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error})",
            rule="the folder of a run of `kata rl train`",
            remedy="name the run's folder",
        ) from error
    return decode(RlRun, raw)


def _folder(run: RlRun) -> Path:
    now = datetime.datetime.now()
    default = f"outputs/rl/{now:%Y-%m-%d}/{now:%H-%M-%S}_{run.env.type}"
    folder = Path(run.output_dir or default).expanduser()
    if not run.resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(
            f"output_dir={folder}: exists already",
            rule="a new run gets its own folder",
            remedy="add --resume=true to continue the run in it, or choose another --output_dir",
        )
    return folder


def _open(run: RlRun, spec: EnvSpec, folder: Path, stack: ExitStack) -> RunSession:
    """Assemble a run, and bring it to where its folder is."""
    parts = assemble_parts(run, spec, stack)
    keep_to_demos(folder, parts.demos)
    acting, learner = parts.acting, parts.learner
    scripted = Scripted(run.takeover, run.seed) if run.takeover.rate else None
    actor = EpisodeActor(acting, parts.world, spec.instruction, run.seed, scripted)
    # What was there before: the checkpoint, and the episodes up to it.
    journal = Journal(folder / FOLDER, parts.schema)
    counts = _restored(folder, acting, learner.sac, journal)
    journal.recover()
    parts.take_demos()
    refill(learner, journal, counts)
    drop_lines_after(folder / METRICS, counts.step, counts.updates)
    record = AppendLog(folder / METRICS)
    stack.callback(record.close)
    stop = stack.enter_context(StopSignal(unit="episode or update"))
    session = RunSession(
        run,
        folder,
        spec,
        parts.facts,
        acting,
        actor,
        learner,
        journal,
        record,
        stop,
        parts.demos,
    )
    session.evaluated_step = _evaluated_step(folder / METRICS)
    session.saved_step = counts.step
    if counts.episodes and learner.is_behind:  # stopped between updates: a save is still due
        session.saved_step -= journal.entries[counts.episodes - 1].steps
    return session


def _evaluated_step(path: Path) -> int:
    """Return the step of the last evaluation, 0 without one."""
    lines = read_metrics(path) if path.exists() else []
    return max((line["step"] for line in lines if line["kind"] == "evaluation"), default=0)


def _restored(folder: Path, acting: Acting, sac: Sac, journal: Journal) -> Counts:
    """Fill policy and critics from the newest checkpoint; return how far it is."""
    home = home_of(folder)
    for note in recover(home) if home.exists() else []:
        _log.warning("%s", note)
    found = resumable(home)
    for note in found.notes:
        _log.warning("%s", note)
    if found.source is None:
        return Counts(0, 0, 0)
    counts = checkpoint.restore(found.source, acting, sac)
    journal.refuse_shorter(counts.episodes, found.source.name)
    _log.info("continued from %s: step %d, %d updates", found.source, counts.step, counts.updates)
    return counts


def refill(learner: Learner, journal: Journal, counts: Counts) -> None:
    """Fill a learner's buffers with the episodes that a checkpoint has learned from.

    Episodes that the buffer of own episodes has dropped by then are read only for their takeovers.
    """
    entries = journal.entries[: counts.episodes]
    room, first = learner.buffers.online.capacity, len(entries)
    while first and entries[first - 1].steps + 1 <= room:
        first -= 1
        room -= entries[first].steps + 1
    for entry in entries:
        if entry.episode >= first:
            learner.admit(journal.read(entry.episode))
            continue
        if entry.human_steps and learner.takeovers is not None:
            for segment in journal.read(entry.episode).segments():
                learner.takeovers.add(segment)
        learner.count(entry.steps)

"""`kata rl act`: an actor whose learner is elsewhere."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from kata import log
from kata.config import decode
from kata.errors import PolicyError
from kata.eval.env_check import fit
from kata.eval.envs.registry import EnvSpec, Facts, inspect, register_env, resolve_env
from kata.eval.rollout_policy import Acting
from kata.policies.base import Policy
from kata.policies.gaussian_actor.config import Config
from kata.rl.actor import EpisodeActor
from kata.rl.classifier.saved import classifier_digest, open_judge
from kata.rl.environment import EnvRules, Judge, RlEnv
from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.rl.episodes.full_disk import write_when_room
from kata.rl.network.courier import (
    EpisodeCourier,
    Fetched,
    Line,
    Patience,
    greet,
    meet,
    patience_of,
)
from kata.rl.network.env_record import env_record
from kata.rl.network.options import ActRun
from kata.rl.network.spool import Spool, identity
from kata.rl.network.wire import Greeting, RunFacts
from kata.rl.options import TakeoverConfig
from kata.rl.setup import episode_schema, new_policy, run_stats
from kata.rl.takeover import Scripted
from kata.train.checkpoint.run_lock import FolderLock
from kata.train.stopping import StopSignal
from kata.units import seconds_text

LOG = "act.log"

AHEAD = 4
"""Episodes that may wait while the learner is there: more would be of old weights."""

SAY_EVERY = 10
"""Episodes between lines of the log."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acted:
    """The end of an actor.

    Attributes:
        episodes: played by this process.
        steps: of these episodes.
        waiting: episodes that are in the spool still.
        stopped: the signal that ended it, or None.
    """

    episodes: int
    steps: int
    waiting: int
    stopped: str | None


@dataclass
class NetworkActor:
    """An actor that plays with the newest weights it has, whether the learner is there or not."""

    options: ActRun
    actor: EpisodeActor
    schema: Schema
    spool: Spool
    courier: EpisodeCourier
    patience: Patience
    stop: StopSignal
    sequence: int
    step: int
    recent: deque[bool]
    played: int = 0
    steps: int = 0
    weights: Fetched | None = None

    def go(self) -> None:
        """Play until the learner has enough, or somebody asks to stop. Nothing moves before the
        first weights are there.
        """
        while not self._is_over():
            self.courier.check()
            if self.patience.is_over:
                raise self.patience.error(self.options.rl.learner, len(self.spool.episodes))
            if self._has_weights() and self._has_room():
                self._play()
        self._send_rest()

    def _is_over(self) -> bool:
        return self.stop.should_stop() or self.courier.is_told_to_stop

    def _has_weights(self) -> bool:
        found = self.courier.newest(0.0 if self.weights else 0.2)
        if found is None:
            return False
        if self.weights is None or found.version != self.weights.version:
            fill_policy(self.actor.acting.policy, found.body, self.options.rl.learner)
            self.weights = found
        return True

    def _has_room(self) -> bool:
        if not self.patience.is_away and len(self.spool.episodes) >= AHEAD:
            self.spool.wait_for_fewer(self.spool.nbytes - 1, 0.2)
            return False
        limit = self.options.rl.spool_gb * 1e9
        if self.spool.nbytes <= limit:
            return True
        _log.warning("the spool is full (--rl.spool_gb=%g): waits", self.options.rl.spool_gb)
        return self.spool.wait_for_fewer(limit, 5.0)

    def _play(self) -> None:
        assert self.weights is not None
        share = sum(self.recent) / max(1, len(self.recent))
        episode = self.actor.episode(self.sequence, self.step, share)
        self._keep(episode, self.weights.updates)
        self.sequence += 1
        self.step += episode.steps
        self.played += 1
        self.steps += episode.steps
        if not episode.human_steps:
            self.recent.append(bool(episode.success))
        if self.played % SAY_EVERY == 1:
            _log.info(
                "episode %d: %d steps, return %.4g, weights of update %d; %d wait",
                self.sequence - 1,
                episode.steps,
                float(episode.reward.sum(dtype="float64")),
                self.weights.updates,
                len(self.spool.episodes),
            )

    def _keep(self, episode: PlayedEpisode, weights: int) -> None:
        """Put an episode into the spool; on a full disk, as soon as there is room.

        That may take longer than the patience: ending would lose the episode.
        """

        def wait(pause_s: float) -> None:
            self.courier.check()
            self.spool.wait_for_fewer(0, pause_s)

        write_when_room(
            lambda: self.spool.add(episode, self.schema, self.sequence, weights),
            f"{self.options.output_dir}: episode {self.sequence}",
            self.stop.should_stop,
            wait,
        )

    def _send_rest(self) -> None:
        """Wait until the learner has every episode, or is away."""
        while self.spool.episodes:
            self.courier.check()
            if self.patience.is_over or (self.stop.reason and self.patience.is_away):
                return
            self.spool.wait_for_fewer(0, 0.2)


def act_for_learner(options: ActRun) -> Acted:
    """Play for a learner, until it has enough or a signal asks to stop.

    Raises:
        KataError: what the user can correct.
    """
    spec = resolve_env(options.env)
    register_env(spec)
    folder = Path(options.output_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(FolderLock(folder))
        stack.enter_context(log.kept_in(folder / LOG))
        line = stack.enter_context(Line(options.rl))
        patience, learner = patience_of(options.rl), options.rl.learner
        # 1. The run, and what this side makes of it.
        facts = meet(line, patience, learner)
        config: Config = decode(Config, {**facts.policy, "device": options.device})
        mine = inspect(spec)
        rules = _rules(spec, config, mine, facts)
        schema = episode_schema(config, rules)
        takeover: TakeoverConfig = decode(TakeoverConfig, facts.takeover)
        world = RlEnv(rules, _judge(options, facts, schema))
        stack.callback(world.close)
        # 2. Who this is, and how far it has come.
        who = identity(folder, options.rl.name, facts.run_id)
        env = env_record(spec, mine, schema)
        hello = Greeting(facts.run_id, who.name, who.instance, schema.digest, env)
        welcome = greet(line, patience, learner, hello)
        spool = Spool(folder)
        unknown = [each for each in spool.episodes if each.sequence >= welcome.next_sequence]
        # 3. The policy, which acts once it has weights.
        acting = _without_weights(config, rules, world)
        seed = _seed(facts, who.name)
        scripted = Scripted(takeover, seed) if takeover.rate else None
        stop = stack.enter_context(StopSignal(saves=True))
        courier = stack.enter_context(
            EpisodeCourier(line, spool, who, facts.weights_bytes, patience)
        )
        work = NetworkActor(
            options=options,
            actor=EpisodeActor(acting, world, spec.instruction, seed, scripted),
            schema=schema,
            spool=spool,
            courier=courier,
            patience=patience,
            stop=stop,
            sequence=welcome.next_sequence + len(unknown),
            step=welcome.steps + sum(each.steps for each in unknown),
            recent=deque(maxlen=takeover.recent),
        )
        _log.info(
            "actor %s of %s: begins at episode %d; patience %s",
            who.name,
            learner,
            work.sequence,
            seconds_text(patience.limit_s),
        )
        work.go()
        return Acted(work.played, work.steps, len(spool.episodes), stop.reason)


def _rules(spec: EnvSpec, config: Config, mine: Facts, facts: RunFacts) -> EnvRules:
    """Return how this side's environment is read and paid."""
    how = fit(config, spec, mine, {})
    return EnvRules(spec, how, facts.reward, config.num_discrete_actions)


def _judge(options: ActRun, facts: RunFacts, schema: Schema) -> Judge | None:
    """Return the run's reward classifier, which this machine must have, too."""
    folder, wanted = options.rl.classifier, facts.judge
    mine = None if folder is None else classifier_digest(Path(folder).expanduser())
    if mine != wanted.get("digest"):
        raise PolicyError(
            f"rl.classifier={folder}: {mine or 'none'}, the learner's is "
            f"{wanted.get('digest', 'none')}",
            rule="actors tell success by the learner's reward classifier, or without one",
            remedy="copy the learner's folder of --rl.classifier here and name it"
            if wanted
            else "leave out --rl.classifier",
        )
    return open_judge(folder, wanted.get("threshold", 0.0), schema, options.device)


def _without_weights(config: Config, rules: EnvRules, world: RlEnv) -> Acting:
    stats = run_stats(config, rules, world, None)
    return new_policy(dataclasses.replace(config), stats, 0)


def _seed(facts: RunFacts, name: str) -> int:
    """Return a seed that differs between the actors of a run."""
    mixed = hashlib.sha256(f"{facts.seed} {name}".encode()).digest()
    return int.from_bytes(mixed[:7], "little")


def fill_policy(policy: Policy, body: bytes, source: str) -> None:
    """Fill a policy with the learner's weights.

    Raises:
        PolicyError: names, shapes or types are not the policy's, or a number is not finite.
    """
    own = policy.state_dict()
    try:
        found = load(body)
    except SafetensorError as error:
        raise _unfit(source, str(error)) from error
    if found.keys() != own.keys():
        raise _unfit(source, f"tensors that differ: {sorted(found.keys() ^ own.keys())[:3]}")
    for name, tensor in found.items():
        mine = own[name]
        if tensor.shape != mine.shape or tensor.dtype != mine.dtype:
            raise _unfit(source, f"{name} {tensor.dtype} {tuple(tensor.shape)}")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise _unfit(source, f"{name} with numbers that are not finite")
    policy.load_state_dict(found)


def _unfit(source: str, what: str) -> PolicyError:
    return PolicyError(
        f"{source}: weights with {what}",
        rule="the tensors of the run's policy, finite",
        remedy="use the same version of kata on both sides; a learner that diverged begins again "
        "from a checkpoint with lower learning rates",
    )

"""Rollouts: rounds of episodes that start together and go on in lockstep, one call of the policy
for all.

An episode's outcome depends on its seed alone: not on the batch it is in, nor on when the others
end.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kata.errors import ConfigError, PolicyError
from kata.eval.env_check import Fit, fit
from kata.eval.envs.registry import EnvSpec, Facts, inspect
from kata.eval.options import EvalConfig
from kata.eval.result import CrashedAt, Episode
from kata.eval.rollout_policy import Acting, episode_source
from kata.eval.shares import Tally, film_path
from kata.eval.vector_env import Crash, Envs, LocalEnvs, Moment, RemoteEnvs, Start
from kata.eval.video import TRIED_PER_KEPT, Film
from kata.policies.base import ActState, Source

Done = Callable[[int, int, int], None]
"""Called after each round with (episodes done, of how many, how many succeeded)."""


def play(
    acting: Acting,
    spec: EnvSpec,
    options: EvalConfig,
    *,
    seed: int = 1000,
    folder: Path | None = None,
    done: Done | None = None,
    share: range | None = None,
) -> Tally:
    """Let a policy act in an environment and judge it; `sum_up` makes the result of the tallies of
    all shares.

    Same seed, same result, whatever the batch size. An episode keeps its round and its place there,
    and the policy is asked for whole rounds, so that it computes bit for bit what it computes in
    one share.

    Args:
        acting: from `load_for_acting`, or `acting` for a policy in memory; left in the mode it was
            in.
        spec: from `resolve_env`.
        options: number of episodes, batch size, videos.
        seed: episode k starts from seed + k.
        folder: where `videos/` goes; None makes none. done: progress.
        share: the episodes to play; None for all of them.

    Raises: PolicyError or ConfigError before the first step for what does not fit. An environment
        that crashes
        costs its episode only.
    """
    began_s = time.perf_counter()
    acting.config.refuse_delay(options.inference_delay)
    facts = inspect(spec)
    how = fit(acting.config, spec, facts, acting.renamed)
    share = range(options.n_episodes) if share is None else share
    size = options.round_size
    processes = min(size, len(share), os.cpu_count() or 1)
    apart = options.use_async_envs and processes > 1
    envs: Envs = RemoteEnvs(spec, how.views, processes) if apart else LocalEnvs(spec, how.views)
    rollout = _Rollout(
        acting, spec, facts, how, envs, seed, folder, options.videos if folder else 0, share,
        delay=options.inference_delay,
    )  # fmt: skip
    training = acting.policy.training
    acting.policy.eval()
    try:
        for first in range(share.start // size * size, share.stop, size):
            rollout.round(range(first, min(first + size, options.n_episodes)))
            if done is not None:
                done(len(rollout.episodes), len(share), sum(e.success for e in rollout.episodes))
        filmed = rollout.finish_films()
    except BaseException:
        rollout.drop_films()
        raise
    finally:
        envs.close()
        acting.policy.train(training)
    return _tally(rollout, filmed, size, time.perf_counter() - began_s)


@dataclass
class _Log:
    """One episode as it goes."""

    start: Start
    film: Film | None
    rewards: list[float] = field(default_factory=list)
    success: bool | None = None
    ended: bool = False
    crash: CrashedAt | None = None

    def take(self, found: Moment | Crash, spec: EnvSpec, *, first: bool) -> None:
        if isinstance(found, Crash):
            self.crash, self.ended = CrashedAt(len(self.rewards), found.error), True
            return
        if not first:
            self.rewards.append(found.reward)
        if found.success is not None:
            self.success = bool(self.success) or found.success
        self.ended = found.ended
        if self.film is not None and found.picture is not None:
            self.film.add(found.picture)
        if self.ended and self.success is None:
            raise ConfigError(
                f"{spec.id}: an episode ended and its info never had '{spec.success_key}'",
                rule=f"info tells success; it has: {', '.join(found.info_keys) or 'nothing'}",
                remedy="name the key with --env.success_key, or 'terminated' where ending early is "
                "succeeding",
            )

    def episode(self, number: int) -> Episode:
        rewards = self.rewards or [0.0]
        return Episode(
            number,
            self.start.seed,
            self.start.options,
            bool(self.success) and self.crash is None,
            float(sum(rewards)),
            max(rewards),
            len(self.rewards),
            self.crash,
        )


@dataclass
class _Rollout:
    acting: Acting
    spec: EnvSpec
    facts: Facts
    how: Fit
    envs: Envs
    seed: int
    folder: Path | None
    videos: int
    share: range
    delay: int
    episodes: list[Episode] = field(default_factory=list)
    films: dict[int, Film] = field(default_factory=dict)
    call_s: list[float] = field(default_factory=list)
    env_s: float = 0.0
    steps: int = 0
    clipped: int = 0

    def round(self, numbers: Sequence[int]) -> None:
        """Episodes that start together. Those that end early see their last observation until all
        have ended, those of other shares see nothing.
        """
        logs = [self._begin(number) for number in numbers]
        found = self.envs.reset({slot: log.start for slot, log in enumerate(logs) if not log.ended})
        latest = [self._blank() for _ in logs]
        device = self.acting.device
        with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
            torch.manual_seed(
                logs[0].start.seed
            )  # for policies that do not take the numbers they are given
            state, first = self.acting.policy.init_state(len(logs)), True
            state.inference_delay = self.delay
            seeds, step = [log.start.seed for log in logs], 0
            while True:
                for slot, moment in found.items():
                    logs[slot].take(moment, self.spec, first=first)
                    if isinstance(moment, Moment):
                        latest[slot] = moment.observation
                live = [slot for slot, log in enumerate(logs) if not log.ended]
                if not live:
                    break
                actions, state = self._act(latest, state, episode_source(seeds, step, device))
                found = self._step(actions, live, logs)
                first = False
                step += 1
        played = zip(numbers, logs, strict=True)
        self.episodes += [log.episode(number) for number, log in played if number in self.share]

    def _begin(self, number: int) -> _Log:
        states = self.spec.options
        film, mine = None, number in self.share
        if mine and self.folder is not None and number < self.videos * TRIED_PER_KEPT:
            film = self.films[number] = Film(film_path(self.folder, number), self.facts.fps)
        start = Start(
            self.seed + number, states[number % len(states)] if states else None, film is not None
        )
        return _Log(start, film, ended=not mine)

    def _blank(self) -> dict[str, NDArray[Any]]:
        """Return black and zero inputs for an environment that crashed before its first
        observation.
        """
        views = self.how.views.items()
        return {key: np.zeros(v.shape, np.uint8 if v.is_camera else np.float32) for key, v in views}

    def _act(
        self, latest: list[dict[str, NDArray[Any]]], state: ActState, source: Source
    ) -> tuple[NDArray[np.float32], ActState]:
        began_s = time.perf_counter()
        batch: dict[str, NDArray[Any]] = {}
        for key in self.how.views:
            batch[key] = np.stack([seen[key] for seen in latest])
        actions, state = self.acting.act(batch, self.spec.instruction, state, source)
        self.call_s.append(time.perf_counter() - began_s)
        return actions, state

    def _step(
        self, actions: NDArray[np.float32], live: list[int], logs: list[_Log]
    ) -> dict[int, Moment | Crash]:
        for slot in live:
            if not np.isfinite(actions[slot]).all():
                raise PolicyError(
                    f"the policy's action is {actions[slot].tolist()}"
                    f" (seed {logs[slot].start.seed}, step {len(logs[slot].rewards)})",
                    rule="finite numbers",
                    remedy="the training has diverged: use an earlier checkpoint, or a lower "
                    "learning rate",
                )
        sent = {slot: np.clip(actions[slot], self.how.low, self.how.high) for slot in live}
        self.clipped += sum(int((sent[slot] != actions[slot]).sum()) for slot in live)
        began_s = time.perf_counter()
        found = self.envs.step(sent)
        self.env_s += time.perf_counter() - began_s
        self.steps += len(live)
        return found

    def finish_films(self) -> list[int]:
        """The numbers of the episodes that were filmed; without a picture there is no film."""
        return [number for number, film in self.films.items() if film.close()]

    def drop_films(self) -> None:
        """Delete the films: the evaluation broke off."""
        for film in self.films.values():
            film.close()
            film.path.unlink(missing_ok=True)


def _tally(rollout: _Rollout, filmed: list[int], size: int, total_s: float) -> Tally:
    spec = rollout.spec
    acting = rollout.acting
    facts = rollout.facts
    how = rollout.how
    env = dataclasses.asdict(spec)
    del env["options"]  # they stand with their episodes
    return Tally(
        policy={"type": acting.config.type, "path": acting.source, "device": str(acting.device)}
        | acting.config.told_of_delay(rollout.delay),
        env=env | {"observation_map": how.paths, "max_steps": facts.max_steps, "fps": facts.fps},
        seed=rollout.seed,
        batch_size=size,
        episodes=rollout.episodes,
        videos=rollout.videos,
        filmed=filmed,
        steps=rollout.steps,
        clipped=rollout.clipped,
        action_size=len(how.low),
        call_s=sum(rollout.call_s),
        longest_call_s=max(rollout.call_s, default=0.0),
        env_s=rollout.env_s,
        total_s=total_s,
        notes=list(acting.notes),
    )

"""The actor: plays whole episodes with the weights that it has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kata.data.sampling.philox import draw, draw_below
from kata.eval.rollout_policy import Acting
from kata.policies.base import ActState
from kata.policies.gaussian_actor.model import Policy
from kata.rl.environment import Outcome, RlEnv
from kata.rl.episodes.episode import PlayedEpisode
from kata.rl.takeover import Scripted
from kata.spec import Draw

Steps = list[Outcome]


@dataclass
class EpisodeActor:
    """A policy that draws its actions in an environment, and whoever may take over.

    Its noise follows from the seed and the step of the run, its start states from the seed and the
    episode.
    """

    acting: Acting
    world: RlEnv
    instruction: str
    seed: int
    takeovers: Scripted | None = None

    def episode(self, number: int, step: int, recent_success: float) -> PlayedEpisode:
        """Play an episode to its end. One that its human wants again is played again.

        Args:
            number: of the episode.
            step: steps of the run before it.
            recent_success: see `Scripted.begin`.
        """
        start = self._start(number)
        while True:
            seen = [self.world.reset(start)]
            steps: Steps = []
            if self.takeovers is not None:
                self.takeovers.begin(self.world.env, number, recent_success)
            while not steps or not steps[-1].ended:
                steps.append(self._step(seen[-1], step + len(steps)))
                seen.append(steps[-1].observation)
            if not steps[-1].dropped:
                break
        observations: dict[str, np.ndarray] = {}
        for key in seen[0]:
            observations[key] = np.stack([each[key] for each in seen])
        return PlayedEpisode(
            observations=observations,
            action=np.stack([each.action for each in steps]),
            reward=np.array([each.reward for each in steps], np.float32),
            penalty=np.array([each.penalty for each in steps], np.float32),
            intervention=np.array([each.intervention for each in steps], np.bool_),
            terminated=steps[-1].terminated,
            success=_any_success(steps),
            seed=start,
        )

    def try_out(self, action: NDArray[np.float32]) -> None:
        """Take one step of the first episode, which is played from its beginning later.

        Args:
            action: (A,), which is harmless there.

        Raises:
            ConfigError: as `RlEnv.step`.
        """
        self.world.reset(self._start(0))
        self.world.step(action)

    def _start(self, number: int) -> int:
        """Return the seed of an episode's start state."""
        return int(draw_below(self.seed, number, "rl start", (1,), 2**31)[0])

    def _step(self, seen: dict[str, np.ndarray], step: int) -> Outcome:
        expert = None if self.takeovers is None else self.takeovers.action(step)
        if expert is not None:
            return self.world.step(expert)._replace(intervention=True)

        def noise(name: str, wanted: Draw) -> torch.Tensor:
            drawn = draw(self.seed, np.array([step]), f"rl act {name}", wanted)
            return torch.from_numpy(drawn).to(self.acting.device)

        batch = {key: values[None] for key, values in seen.items()}
        action, _ = self.acting.act(batch, self.instruction, _sampling(self.acting), noise)
        return self.world.step(action[0])


def _sampling(acting: Acting) -> ActState:
    policy = acting.policy
    assert isinstance(policy, Policy)
    return policy.sampling_state()


def _any_success(steps: Steps) -> bool | None:
    found = [each.success for each in steps if each.success is not None]
    return any(found) if found else None

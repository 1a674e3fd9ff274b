"""The learner: takes episodes into its buffers and updates the policy as often as they allow."""

from __future__ import annotations

from dataclasses import dataclass

from kata.rl.batches import Buffers, TransitionBatches
from kata.rl.episodes.episode import PlayedEpisode
from kata.rl.episodes.ring import Ring
from kata.rl.sac.algorithm import Sac, Tensors


@dataclass
class Learner:
    """A policy that learns from episodes, one after the other.

    What it has learned follows from the episodes, their order and the seed: neither from when they
    came nor from where they were played.

    Attributes:
        sac: the policy and its critics.
        batches: draws from the buffers.
        buffers: of the run.
        takeovers: the buffer of segments in which a human acted, or None without takeovers.
        before: steps in the environment before the first update.
        update_every: steps in the environment for each update.
        episodes: taken so far.
        steps: of these episodes.
    """

    sac: Sac
    batches: TransitionBatches
    buffers: Buffers
    takeovers: Ring | None
    before: int
    update_every: int
    episodes: int = 0
    steps: int = 0

    @property
    def due(self) -> int:
        """Return the number of updates that the steps so far allow, those done included."""
        return self.cloning + max(0, self.steps - self.before) // self.update_every

    @property
    def cloning(self) -> int:
        """Return the number of updates by behavior cloning that come before the first step."""
        return self.sac.config.bc_pretrain_updates

    @property
    def is_behind(self) -> bool:
        """Return True if an update is due."""
        return self.sac.updates < self.due

    def admit(self, episode: PlayedEpisode) -> None:
        """Take an episode into the buffers. Segments in which a human acted go to both, and each
        keeps the observation after its last step.
        """
        self.buffers.online.add(episode)
        if self.takeovers is not None:
            for segment in episode.segments():
                self.takeovers.add(segment)
        self.count(episode.steps)

    def count(self, steps: int) -> None:
        """Count an episode that buffers need not hold any more."""
        self.episodes += 1
        self.steps += steps

    def update(self) -> Tensors:
        """Do one update; see `Sac.clone` and `Sac.update`."""
        update, batches = self.sac.updates, self.sac.config.utd_ratio
        if update < self.cloning:
            return self.sac.clone(self.batches.demonstrated(update))
        given = [self.batches.at(update * batches + number) for number in range(batches)]
        return self.sac.update(given, self.batches.draws(update))

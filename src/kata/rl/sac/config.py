"""Options of SAC, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kata.config import Options, option
from kata.errors import PolicyError
from kata.policies.gaussian_actor.config import CriticLayersConfig
from kata.policies.rules import Rule, refuse_broken_rules

DROPPED = 0.1
"""Share of the pooled image features that LeRobot's dropout sets to zero."""


@dataclass(frozen=True, kw_only=True)
class SacConfig(Options):
    """Soft actor-critic (arXiv 1812.05905). Options that LeRobot lacks have `is_own`."""

    at: ClassVar[str] = "algorithm."
    refused_with = PolicyError

    actor_lr: float = option(3e-4, "Learning rate of the actor.", least=0)
    critic_lr: float = option(3e-4, "Learning rate of the critics and of the encoder.", least=0)
    temperature_lr: float = option(3e-4, "Learning rate of the temperature.", least=0)
    lr_decay_updates: int = option(
        0,
        "Updates, those of cloning included, over which all learning rates fall evenly to the "
        "share lr_decay_to; 0 for constant rates.",
        least=0,
        is_own=True,
    )
    lr_decay_to: float = option(
        0.1,
        "Share of the learning rates that is left after lr_decay_updates.",
        least=0,
        most=1,
        is_own=True,
    )
    discount: float = option(0.99, "Discount of future rewards.", above=0, below=1, is_common=True)
    use_backup_entropy: bool = option(True, "Count the next action's entropy as a reward.")
    critic_target_update_weight: float = option(
        0.005, "Share of a critic that its target takes over in an update.", above=0, most=1
    )
    num_critics: int = option(2, "Critics in the ensemble.", least=1)
    num_subsample_critics: int | None = option(
        None, "Target critics that are drawn for each update; null takes all.", least=1
    )
    critic_network_kwargs: CriticLayersConfig = option(CriticLayersConfig, "")
    temperature_init: float = option(1.0, "First weight of the entropy.", above=0)
    target_entropy: float | None = option(
        None, "Entropy that the temperature aims at; null takes -actions / 2."
    )
    utd_ratio: int = option(1, "Updates of the critics for each of the actor.", least=1)
    policy_update_freq: int = option(
        1, "Updates after which the actor takes as many steps at once.", least=1
    )
    grad_clip_norm: float = option(40.0, "Largest norm of each network's gradient.", above=0)
    use_torch_compile: bool = option(
        False, "LeRobot's compilation, with which nothing is learned there.", choices=(False,)
    )
    actor_q: str = option(
        "min",
        "Value that the actor climbs: the least of the critics (LeRobot) or their mean (HIL-SERL).",
        choices=("min", "mean"),
        is_own=True,
    )
    discrete_penalty: str = option(
        "all",
        "Updates that read discrete_penalty: all, or as in LeRobot not the last of utd_ratio.",
        choices=("all", "not_last"),
        is_own=True,
    )
    target_encoder: str = option(
        "shared",
        "Encoder of the target critics: the critics' (LeRobot), or an average as in HIL-SERL.",
        choices=("shared", "own"),
        is_own=True,
    )
    normalize_actions: bool = option(
        True,
        "Normalize recorded actions for the critics; LeRobot (false) mixes both scales.",
        is_own=True,
    )
    bc_weight: float = option(
        0.0,
        "Weight of behavior cloning in the actor's loss: the squared error of its mode where a "
        "human acted, in demonstrations and takeovers. A shared encoder learns from it, too.",
        least=0,
        is_own=True,
    )
    bc_pretrain_updates: int = option(
        0,
        "Updates of the actor by behavior cloning of demonstrations alone, before it acts. Critics "
        "and a discrete action learn nothing from them.",
        least=0,
        is_own=True,
    )
    bc_successes: bool = option(
        False,
        "Behavior cloning follows the policy's own steps in episodes that succeeded, too.",
        is_own=True,
    )
    target_range: list[float] | None = option(
        None,
        "Least and largest value that critics are taught, such as [0, 1] where success pays 1 and "
        "ends the episode; null for no limits.",
        is_own=True,
    )
    dropout: float = option(
        DROPPED,
        "Share of the pooled image features that are set to zero in learning.",
        least=0,
        below=1,
        is_own=True,
    )
    random_shift: int = option(
        4, "Pixels by which pictures are moved at random in learning.", least=0, is_own=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_broken_rules(self._rules())

    def goal_entropy(self, actions: int) -> float:
        """Return the entropy that the temperature aims at, of this many numbers of an action."""
        return -actions / 2 if self.target_entropy is None else self.target_entropy

    def lr_factor(self, update: int) -> float:
        """Return what the learning rates are multiplied by in this update (0 is the first)."""
        if not self.lr_decay_updates:
            return 1.0
        progress = min(1.0, update / self.lr_decay_updates)
        return 1 - (1 - self.lr_decay_to) * progress

    def _rules(self) -> Iterator[Rule]:
        some = self.num_subsample_critics
        yield (
            some is not None and some > self.num_critics,
            f"algorithm.num_subsample_critics={some}",
            f"at most num_critics={self.num_critics}",
            f"--algorithm.num_subsample_critics={self.num_critics}, or null for all",
        )
        limits = self.target_range
        yield (
            limits is not None and (len(limits) != 2 or not limits[0] < limits[-1]),
            f"algorithm.target_range={limits}",
            "two numbers, the least value first",
            "for example --algorithm.target_range='[0, 1]', or null for no limits",
        )

"""The options of `kata rl`, with LeRobot's names. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kata.config import (
    REQUIRED,
    Options,
    assign,
    decode,
    encode,
    option,
    parse_flags,
    read_config,
)
from kata.config.dataset import DatasetChoice
from kata.config.option import shown
from kata.errors import ConfigError
from kata.policies.gaussian_actor.config import Config
from kata.policies.rules import Rule
from kata.rl.sac.config import SacConfig
from kata.run import EnvConfig, EvalConfig

SUCCESS, ENV = "success", "env"
CLASSIFIER = "classifier"
"""Rewards: 1 for success, the environment's own, or 1 where a reward classifier sees success."""

TYPES = ("gaussian_actor", "sac")

UNUSED = {
    "pretrained_path": "a run begins with new weights",
    "pretrained_revision": "a run begins with new weights",
    "use_amp": "SAC computes in float32",
    "use_peft": "the policy is learned as a whole, without an adapter",
}
"""Options of every policy that would change nothing here, and why."""


@dataclass(frozen=True, kw_only=True)
class TakeoverConfig(Options):
    """The scripted expert that takes over as a human would."""

    at: ClassVar[str] = "takeover."

    rate: float = option(
        0.0,
        "Chance per step that the expert takes over, times the share of recent failures. 0 for "
        "never; only the built-in task has an expert.",
        least=0,
        most=1,
        is_common=True,
    )
    human: bool = option(
        False,
        "A human acts through the environment, whose info then has is_intervention and "
        "teleop_action.",
        is_common=True,
    )
    least_steps: int = option(8, "Least steps of a takeover.", least=1)
    most_steps: int = option(20, "Most steps of a takeover.", least=1)
    alone_every: int = option(
        5,
        "Every so many episodes the expert leaves the policy alone, which shows its own success; 0 "
        "for never.",
        least=0,
    )
    recent: int = option(20, "Episodes over which recent success is counted.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least_steps > self.most_steps:
            raise ConfigError(
                f"takeover.least_steps={self.least_steps}",
                rule=f"at most takeover.most_steps={self.most_steps}",
                remedy=f"--takeover.most_steps={self.least_steps}",
            )


@dataclass(frozen=True, kw_only=True)
class RlConfig(Options):
    """Options of learning by acting."""

    at: ClassVar[str] = "rl."

    reward: str = option(
        SUCCESS,
        "Reward: success (1 at the step that succeeds, which ends the episode), env (the "
        "environment's own), or classifier (as success, which --rl.classifier sees).",
        choices=(SUCCESS, ENV, CLASSIFIER),
        is_common=True,
    )
    classifier: str | None = option(
        None, "Folder of a reward classifier, for rl.reward=classifier."
    )
    threshold: float = option(
        0.5, "Probability above which the classifier sees success.", above=0, below=1
    )
    update_every: int = option(1, "Steps in the environment for each update.", least=1)
    memory_gb: float | None = option(
        None,
        "Memory that buffers may take, in units of 10^9 bytes; null takes what is free.",
        above=0,
        may_change=True,
    )


@dataclass(frozen=True, kw_only=True)
class RlRun(Options):
    """One run of reinforcement learning."""

    beside: ClassVar[dict[str, str]] = {
        "config": "YAML or JSON file with any of these options; flags win over it."
    }

    output_dir: str | None = option(
        None,
        "Folder of the run; null makes one below outputs/rl.",
        is_common=True,
        may_change=True,
    )
    resume: bool = option(
        False,
        "Continue the run in output_dir, or begin it if nothing is there.",
        is_common=True,
        may_change=True,
    )
    seed: int = option(1000, "Seed of everything that is drawn.", least=0, most=2**63)
    batch_size: int = option(256, "Transitions of an update; LeRobot's is 8.", least=2)
    online_ratio: float | None = option(
        None,
        "Share of own transitions in a batch; null takes 0.5 with demonstrations or takeovers, "
        "else 1.",
        above=0,
        most=1,
    )
    log_freq: int = option(200, "Updates between lines of the log.", least=1, may_change=True)
    save_freq: int = option(
        5000,
        "Steps in the environment between checkpoints.",
        least=1,
        is_common=True,
        may_change=True,
    )
    report: bool = option(
        True,
        "Draw report.html at the end, and at checkpoints once in five minutes.",
        may_change=True,
    )
    env_eval_freq: int = option(
        0,
        "Steps in the environment between evaluations, and one at the end; 0 for none.",
        least=0,
        may_change=True,
    )
    env: EnvConfig = option(REQUIRED, "", section="environment")
    policy: Config = option(Config, "", section="policy")
    algorithm: SacConfig = option(SacConfig, "", section="SAC")
    rl: RlConfig = option(RlConfig, "", section="learning by acting")
    takeover: TakeoverConfig = option(TakeoverConfig, "", section="takeovers")
    dataset: DatasetChoice = option(DatasetChoice, "", section="demonstrations")
    eval: EvalConfig = option(EvalConfig, "", section="evaluation")

    @property
    def has_demos(self) -> bool:
        """Return True if demonstrations are given."""
        return self.dataset.root is not None or self.dataset.repo_id is not None

    @property
    def has_takeovers(self) -> bool:
        """Return True if somebody may take over: the expert, or an environment's own wrapper."""
        return self.takeover.rate > 0 or self.takeover.human

    @property
    def ratio(self) -> float:
        """Return the share of own transitions in a batch."""
        if self.online_ratio is not None:
            return self.online_ratio
        return 0.5 if self.has_demos or self.has_takeovers else 1.0

    @property
    def online_size(self) -> int:
        """Return the number of own transitions in a batch."""
        return max(1, int(self.batch_size * self.ratio))

    def __post_init__(self) -> None:
        super().__post_init__()
        for broken, what, rule, remedy in self._rules():
            if broken:
                raise ConfigError(what, rule=rule, remedy=remedy)

    def _rules(self) -> Iterator[Rule]:
        yield (
            self.ratio < 1 and not self.has_demos and not self.has_takeovers,
            f"online_ratio={self.online_ratio} without demonstrations and without takeovers",
            "the rest of a batch comes from demonstrations or takeovers",
            "--dataset.root=<folder>, --takeover.rate=0.06, or leave out --online_ratio",
        )
        weight = self.algorithm.bc_weight
        yield (
            weight > 0 and not self.has_demos and not self.has_takeovers,
            f"algorithm.bc_weight={weight:g} without demonstrations and without takeovers",
            "cloning begins with what humans did",
            "--dataset.root=<folder>, --takeover.rate=0.06, or leave out --algorithm.bc_weight",
        )
        first = self.algorithm.bc_pretrain_updates
        yield (
            first > 0 and not self.has_demos,
            f"algorithm.bc_pretrain_updates={first} without demonstrations",
            "what is cloned before the first step are demonstrations",
            "--dataset.root=<folder>, or leave out --algorithm.bc_pretrain_updates",
        )
        yield (
            self.takeover.rate > 0 and self.env.type != "kata",
            f"takeover.rate={self.takeover.rate} with env.type={self.env.type}",
            "the scripted expert knows the built-in task alone",
            "--takeover.human=true where info tells who acted, or --env.type=kata",
        )
        yield (
            (self.rl.reward == CLASSIFIER) != (self.rl.classifier is not None),
            f"rl.reward={self.rl.reward} with rl.classifier={self.rl.classifier}",
            "a classifier's reward needs a classifier, and no other reward has one",
            "--rl.reward=classifier --rl.classifier=<folder of `kata rl classify`>",
        )
        yield (
            self.policy.repo_id is not None,
            f"policy.repo_id={self.policy.repo_id}",
            "kata rl uploads nothing",
            "leave it out, and `kata checkpoint push <run> --repo_id=...` afterwards",
        )
        given = encode(self.policy)
        for name, rule in UNUSED.items():
            what = f"policy.{name}={shown(given[name])} with `kata rl`"
            yield bool(given[name]), what, rule, f"leave out --policy.{name}"


@dataclass(frozen=True, kw_only=True)
class ReplayRunOptions(Options):
    """Options of `kata rl replay`."""

    run: str = option(REQUIRED, "Folder of a run of `kata rl train`.")


IMAGES = "images"


@dataclass(frozen=True, kw_only=True)
class ExportRunOptions(Options):
    """Options of `kata rl export`."""

    run: str = option(REQUIRED, "Folder of a run of `kata rl train` or `kata rl learn`.")
    output_dir: str = option(REQUIRED, "Folder of the dataset, new.", is_common=True)
    frames: str = option(
        IMAGES,
        "Storage of pictures: images (every pixel as it was seen), or a video codec.",
        choices=(IMAGES, "av1", "h264"),
        is_common=True,
    )
    which: str = option(
        "all",
        "Episodes: all, successes, or human (those in which somebody took over).",
        choices=("all", "successes", "human"),
        is_common=True,
    )


def resolve_rl(args: Sequence[str]) -> RlRun:
    """Return the run that the arguments ask for: the file of `--config` with the flags over it.

    Raises:
        ConfigError: an unknown name, a wrong value, or no environment.
    """
    flags = parse_flags(args)
    paths = [flags.pop(name) for name in ("config", "config_path") if name in flags]
    given: dict[str, Any] = read_config(Path(str(paths[-1]))) if paths else {}
    for dotted, value in flags.items():
        assign(given, dotted, value)
    policy = given.get("policy")
    kind = policy.pop("type", TYPES[0]) if isinstance(policy, dict) else TYPES[0]
    if str(kind) not in TYPES:
        raise ConfigError(
            f"policy.type={kind} with `kata rl`",
            rule="the policy that learns by acting is gaussian_actor",
            remedy=f"leave it out, or `kata train --policy.type={kind}` on recordings",
        )
    if isinstance(policy, dict) and "path" in policy:
        raise ConfigError(
            f"policy.path={policy['path']} with `kata rl train`",
            rule="a run begins with new weights",
            remedy="leave it out; to continue a run: --output_dir=<run> --resume=true",
        )
    inner = given.get("env", {})
    if isinstance(inner, dict) and inner.get("type") is None:
        raise ConfigError(
            "env.type: not given",
            rule="a policy that learns by acting needs an environment",
            remedy="for example --env.type=kata, or --env.type=gym --env.id=Pendulum-v1",
        )
    return decode(RlRun, given, verb="kata rl train")

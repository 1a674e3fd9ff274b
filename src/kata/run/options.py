"""The options of `kata train`, named and meant as in LeRobot's trainer. Torch-free.

A step is one optimiser update (LeRobot counts micro-batches). Impossible values are refused here, before anything is
opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kata.errors import ConfigError, did_you_mean
from kata.optim.config import EmaConfig, OptimizerConfig, SchedulerConfig
from kata.policies.config import PolicyConfig
from kata.run.caching import check_cache
from kata.run.evaluation import EnvConfig, EvalConfig
from kata.run.transforms import ImageTransformsConfig
from kata.units import duration_s, num_bytes

PRECISIONS = ("no", "bf16", "fp16")
SHUFFLES = ("auto", "full", "clips")


def _refuse(name: str, value: object, rule: str, remedy: str) -> ConfigError:
    return ConfigError(f"{name}={value}", rule=rule, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Which data. `episodes` is a list of episode numbers, or 'available' for those whose files are all here.

    `eval_split` is the share of episodes held out per task, spread over the dataset.

    `shuffle` is 'full' (a permutation of all samples per epoch), 'clips' (samples from a pool of `clip_pool` clips of
    `clip_frames` frames, so that each frame is decoded about once) or 'auto'. Clips keep `clip_gop` consecutive frames
    together. Numbers left at 0 are derived, and written down when the run begins. `frame_memory` ('4GB') bounds what
    decoded frames take on the host.

    cache: keep decoded frames in memory ('frames') or on a disk ('disk', below `cache_dir` or else $KATA_CACHE), up to
    `cache_size` ('20GB', '512MiB') over all cameras; null takes a quarter of the memory, or 80 % of the disk, that is
    free.
    """

    repo_id: str
    root: str | None = None
    episodes: list[int] | str | None = None
    exclude_episodes: list[int] | None = None
    revision: str | None = None
    use_imagenet_stats: bool = True
    eval_split: float = 0.0
    image_transforms: ImageTransformsConfig = field(default_factory=ImageTransformsConfig)
    shuffle: str = "auto"
    clip_pool: int = 0
    clip_frames: int = 0
    clip_gop: int = 0
    frame_memory: str | None = None
    cache: str = "none"
    cache_dir: str | None = None
    cache_size: str | None = None

    def __post_init__(self) -> None:
        self._check_order()
        check_cache(self.cache, self.cache_dir, self.cache_size)
        if not 0.0 <= self.eval_split < 1.0:
            raise _refuse("dataset.eval_split", self.eval_split, "at least 0 and below 1", "for example 0.1")
        if isinstance(self.episodes, str) and self.episodes != "available":
            raise _refuse("dataset.episodes", self.episodes, "a list of episode numbers, or 'available'", "e.g. [0,3]")
        for name, chosen in (("episodes", self.episodes), ("exclude_episodes", self.exclude_episodes)):
            numbers = chosen if isinstance(chosen, list) else []
            doubled = sorted({n for n in numbers if numbers.count(n) > 1})
            if doubled or any(n < 0 for n in numbers):
                raise _refuse(
                    f"dataset.{name}",
                    numbers,
                    "episode numbers of at least 0, each once",
                    f"remove the doubled ones: {doubled}" if doubled else "remove the negative ones",
                )
        if self.episodes == []:
            raise _refuse("dataset.episodes", [], "at least one episode", "leave the option out to use all")

    def _check_order(self) -> None:
        if self.shuffle not in SHUFFLES:
            raise _refuse(
                "dataset.shuffle", self.shuffle, f"one of: {', '.join(SHUFFLES)}", did_you_mean(self.shuffle, SHUFFLES)
            )
        for name, value in (
            ("clip_pool", self.clip_pool),
            ("clip_frames", self.clip_frames),
            ("clip_gop", self.clip_gop),
        ):
            if value < 0 or (value and self.shuffle != "clips"):
                raise _refuse(
                    f"dataset.{name}",
                    value,
                    "a number from 1 on, with --dataset.shuffle=clips",
                    "add --dataset.shuffle=clips, or leave the option out",
                )
        if self.frame_memory is not None and not num_bytes(self.frame_memory) >= 1:
            raise _refuse(
                "dataset.frame_memory",
                self.frame_memory,
                "bytes, or a number with KB, MB, GB or GiB",
                "for example 4GB",
            )


@dataclass(frozen=True, kw_only=True)
class AccumulationConfig:
    """Micro-batches per step."""

    steps: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise _refuse("accelerator.gradient_accumulation.steps", self.steps, "at least 1", "use 1 for none")


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """Precision and accumulation; LeRobot's names."""

    mixed_precision: str = "no"
    gradient_accumulation: AccumulationConfig = field(default_factory=AccumulationConfig)

    def __post_init__(self) -> None:
        if self.mixed_precision not in PRECISIONS:
            raise _refuse(
                "accelerator.mixed_precision",
                self.mixed_precision,
                f"one of: {', '.join(PRECISIONS)}",
                did_you_mean(self.mixed_precision, PRECISIONS),
            )


@dataclass(frozen=True, kw_only=True)
class WandbConfig:
    """Weights & Biases; LeRobot's names. Needs the extra `wandb`."""

    enable: bool = False
    project: str = "lerobot"
    entity: str | None = None
    notes: str | None = None
    run_id: str | None = None
    mode: str | None = None
    add_tags: bool = True

    def __post_init__(self) -> None:
        modes = (None, "online", "offline", "disabled")
        if self.mode not in modes:
            raise _refuse("wandb.mode", self.mode, "online, offline, disabled or null", "leave it out")


@dataclass(frozen=True, kw_only=True)
class TensorboardConfig:
    """TensorBoard files in the run folder. Needs the extra `tensorboard`."""

    enable: bool = False


@dataclass(frozen=True, kw_only=True)
class TrackioConfig:
    """Trackio. Needs the extra `trackio`."""

    enable: bool = False
    project: str = "kata"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run. `batch_size` is what one rank puts through the model at once; see `effective_batch`.

    Every `env_eval_freq` steps (0: after the last alone) the policy is evaluated in `env`, in a process beside the
    training; `env_eval_at_start` evaluates the untrained policy too. `max_time` ('90s', '45m', '2h', '1d' or seconds)
    saves and stops the run when it is over.
    """

    dataset: DatasetConfig
    policy: PolicyConfig
    env: EnvConfig | None = None
    eval: EvalConfig = field(default_factory=EvalConfig)
    output_dir: str | None = None
    job_name: str | None = None
    resume: bool = False
    seed: int = 1000
    cudnn_deterministic: bool = False
    tf32: bool = True
    num_workers: int = 4
    prefetch_factor: int = 4
    batch_size: int = 8
    steps: int = 100_000
    max_time: str | None = None
    log_freq: int = 200
    env_eval_freq: int = 20_000
    env_eval_at_start: bool = False
    eval_steps: int = 0
    max_eval_samples: int = 0
    save_checkpoint: bool = True
    save_freq: int = 20_000
    use_policy_training_preset: bool = True
    optimizer: OptimizerConfig | None = None
    scheduler: SchedulerConfig | None = None
    ema: EmaConfig = field(default_factory=EmaConfig)
    accelerator: AcceleratorConfig = field(default_factory=AcceleratorConfig)
    rename_map: dict[str, str] = field(default_factory=dict)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    tensorboard: TensorboardConfig = field(default_factory=TensorboardConfig)
    trackio: TrackioConfig = field(default_factory=TrackioConfig)

    def __post_init__(self) -> None:
        at_least = {"steps": 1, "batch_size": 1, "num_workers": 1, "prefetch_factor": 1, "log_freq": 1}
        at_least |= {"seed": 0, "eval_steps": 0, "max_eval_samples": 0, "env_eval_freq": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value < least:
                raise _refuse(
                    name, value, f"a whole number of at least {least}", f"for example --{name}={max(1, least)}"
                )
        if self.max_time is not None and not duration_s(self.max_time) > 0:
            raise _refuse(
                "max_time", self.max_time, "seconds, or a number with s, m, h or d", "for example --max_time=2h"
            )
        if self.env is None and (self.env_eval_freq not in (0, 20_000) or self.env_eval_at_start):
            raise _refuse(
                "env_eval_at_start" if self.env_eval_at_start else "env_eval_freq",
                self.env_eval_at_start or self.env_eval_freq,
                "evaluating while training needs an environment",
                "add --env.type=kata (or pusht, aloha, gym with --env.id)",
            )
        if self.dataset.eval_split == 0 and (self.eval_steps or self.max_eval_samples):
            raise _refuse(
                "eval_steps" if self.eval_steps else "max_eval_samples",
                self.eval_steps or self.max_eval_samples,
                "validation needs held-out episodes",
                "add --dataset.eval_split=0.1",
            )

    @property
    def max_time_s(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else duration_s(self.max_time)

    @property
    def accumulation(self) -> int:
        """Micro-batches per step."""
        return self.accelerator.gradient_accumulation.steps

    @property
    def effective_batch(self) -> int:
        """Samples per step: batch x ranks x accumulation."""
        return self.batch_size * self.accumulation

    @property
    def precision(self) -> str:
        """'no', 'bf16' or 'fp16'. LeRobot's `policy.use_amp` asks for bf16 where nothing else is said."""
        stated = self.accelerator.mixed_precision
        return "bf16" if stated == "no" and self.policy.use_amp else stated

    @property
    def name(self) -> str:
        """The run's name in logs and trackers."""
        return self.job_name or self.policy.type

"""Where the figures of a run are shown beside its own folder."""

from __future__ import annotations

from dataclasses import dataclass

from kata.errors import ConfigError


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
            raise ConfigError(
                f"wandb.mode={self.mode}",
                rule="online, offline, disabled or null",
                remedy="leave it out",
            )


@dataclass(frozen=True, kw_only=True)
class TensorboardConfig:
    """TensorBoard files in the run folder. Needs the extra `tensorboard`."""

    enable: bool = False


@dataclass(frozen=True, kw_only=True)
class TrackioConfig:
    """Trackio. Needs the extra `trackio`."""

    enable: bool = False
    project: str = "kata"

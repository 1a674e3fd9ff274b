"""Options of the trackers that show a run's figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kata.config import Options, option


@dataclass(frozen=True, kw_only=True)
class WandbConfig(Options):
    """Weights & Biases; LeRobot's names. Needs the extra `wandb`."""

    at: ClassVar[str] = "wandb."

    enable: bool = option(False, "Log to Weights & Biases (extra wandb).", is_common=True)
    project: str = option("lerobot", "Project.")
    entity: str | None = option(None, "User or team; null takes the default of your login.")
    notes: str | None = option(None, "Notes on the run.")
    run_id: str | None = option(None, "Id of a run to continue.")
    mode: str | None = option(
        None, "Mode; null takes wandb's own default.", choices=("online", "offline", "disabled")
    )
    add_tags: bool = option(True, "Tag the run with policy, seed and dataset.")


@dataclass(frozen=True, kw_only=True)
class TensorboardConfig(Options):
    """TensorBoard files in the run folder. Needs the extra `tensorboard`."""

    at: ClassVar[str] = "tensorboard."

    enable: bool = option(False, "Write TensorBoard files to the run folder (extra tensorboard).")


@dataclass(frozen=True, kw_only=True)
class TrackioConfig(Options):
    """Trackio. Needs the extra `trackio`."""

    at: ClassVar[str] = "trackio."

    enable: bool = option(False, "Log to Trackio (extra trackio).")
    project: str = option("kata", "Project.")

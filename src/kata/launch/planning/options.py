"""The options of `kata plan` beside those of `kata train`. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kata.config import Form, Options, assign, decode, option, parse_flags
from kata.config.schema import entries
from kata.errors import ConfigError

CAMERAS = Form(
    "<number>x<height>x<width>, in pixels", "2x480x640", re.compile(r"\d+x\d+x\d+").fullmatch
)

PICTURE = Form(
    "a file's name that ends in .png", "plan.png", re.compile(r".+\.png", re.I).fullmatch
)


@dataclass(frozen=True, kw_only=True)
class DescribedDataset(Options):
    """A dataset that does not exist yet."""

    at: ClassVar[str] = "dataset."

    frames: int | None = option(
        None, "Frames of a dataset that does not exist yet, over all episodes.", least=1
    )
    cameras: str | None = option(
        None, "Its cameras: number, height and width, such as 2x480x640.", form=CAMERAS
    )
    state_dim: int | None = option(None, "Size of its state vector.", least=1)
    action_dim: int | None = option(None, "Size of its action vector.", least=1)
    fps: float | None = option(None, "Its frames per second.", above=0)
    episodes_count: int | None = option(None, "Its number of episodes.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        stated = [name for name in _DESCRIPTION if self.__dict__[name] is not None]
        if not stated:
            return
        missing = [name for name in _NEEDED if self.__dict__[name] is None]
        if missing:
            raise ConfigError(
                f"dataset.{stated[0]}={self.__dict__[stated[0]]} without dataset.{missing[0]}",
                rule="a dataset that does not exist yet is described by its frames and action",
                remedy="for example --dataset.frames=45000 --dataset.cameras=2x480x640 "
                "--dataset.state_dim=14 --dataset.action_dim=14 --dataset.fps=30",
            )
        if self.cameras is not None and min(self.camera_sizes) < 1:
            raise ConfigError(
                f"dataset.cameras={self.cameras}",
                rule="a camera has at least one pixel, and there is at least one camera",
                remedy="leave out --dataset.cameras for a dataset without cameras",
            )
        if (self.frames or 0) < (self.episodes_count or 0):
            raise ConfigError(
                f"dataset.frames={self.frames} with dataset.episodes_count={self.episodes_count}",
                rule="an episode has at least one frame",
                remedy=f"--dataset.episodes_count={self.frames} or less",
            )

    @property
    def is_stated(self) -> bool:
        """Return True if a dataset is described."""
        return self.frames is not None

    @property
    def camera_sizes(self) -> tuple[int, int, int]:
        """Return the number of cameras, their height and their width."""
        if self.cameras is None:
            return 0, 0, 0
        number, height, width = map(int, self.cameras.split("x"))
        return number, height, width


_DESCRIPTION = ("frames", "cameras", "state_dim", "action_dim", "fps", "episodes_count")
_NEEDED = ("frames", "action_dim")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Options):
    """The machine that a plan is for, and the form of its answer."""

    gpu: str | None = option(
        None,
        "GPU to plan for, such as rtx4090; auto takes the cheapest that fits, cpu this machine's "
        "processor. null takes the GPU of this machine, or of flavor.",
        section="plan",
        is_common=True,
    )
    gpus: int = option(1, "GPUs of a node.", least=1, is_common=True)
    nodes: int = option(1, "Nodes.", least=1, is_common=True)
    flavor: str | None = option(
        None,
        "Machine of Hugging Face Jobs (`kata launch flavors`): it gives GPU, number and price.",
        is_common=True,
    )
    compare: bool = option(
        False, "Compare GPUs, batch sizes, precisions and shardings in a table.", is_common=True
    )
    calibrate: bool = option(
        False, "Measure this machine's device first, and use the profile from then on."
    )
    verify: bool = option(False, "Run three steps here and print predicted beside measured.")
    json: bool = option(False, "Print one JSON object, whose keys carry units.", is_common=True)
    picture: str | None = option(
        None, "File for a picture of memory and time by part (.png).", form=PICTURE
    )
    dataset: DescribedDataset = option(DescribedDataset, "", section="a dataset yet to be recorded")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpu is not None and self.flavor is not None:
            raise ConfigError(
                f"gpu={self.gpu} and flavor={self.flavor}",
                rule="a flavor has its own GPU",
                remedy="leave out one of the two",
            )


def split_args(args: Sequence[str]) -> tuple[PlanOptions, list[str]]:
    """Return the options of the plan, and the arguments that are those of `kata train`.

    Raises:
        ConfigError: an option of the plan is wrong, or a described dataset has a folder too.
    """
    mine = {entry.name for entry in entries(PlanOptions)}
    flags = parse_flags(args)
    own: dict[str, Any] = {}
    rest: list[str] = []
    for name, value in flags.items():
        if name in mine:
            assign(own, name, value)
        else:
            rest.append(f"--{name}" if value is True else f"--{name}={value}")
    options: PlanOptions = decode(PlanOptions, own, verb="kata plan")
    if not options.dataset.is_stated:
        return options, rest
    real = [name for name in ("dataset.root", "dataset.mix") if name in flags]
    if real:
        raise ConfigError(
            f"{real[0]}={flags[real[0]]} with dataset.frames={options.dataset.frames}",
            rule="a dataset either exists or is described",
            remedy=f"leave out --{real[0]}, or --dataset.frames and what describes it",
        )
    if "dataset.repo_id" not in flags:
        rest.append("--dataset.repo_id=described/dataset")
    return options, rest

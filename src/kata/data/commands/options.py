"""The options of the `kata data` verbs. They import nothing of the data, so that help is quick."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kata.config import REQUIRED, Form, Options, option
from kata.config.dataset import (
    DatasetChoice,
    DatasetPlace,
    check_concat,
    is_address,
    root_name,
)
from kata.errors import ConfigError

if TYPE_CHECKING:
    from kata.data.format.source import Source

FRAMES_MAX = 40
SAMPLED_FRAMES = 3000
"""Frames of each camera that a check decodes: 25 minutes of video at two frames a second."""
SIZE = Form("height x width in pixels", "240x320", re.compile(r"[1-9]\d*x[1-9]\d*").fullmatch)
PNG_OR_HTML = Form(
    "a file name that ends in .png or .html",
    "episode.png",
    lambda text: Path(text).suffix.lower() in (".png", ".html"),
)
HTML_FILE = Form(
    "a file name that ends in .html", "check.html", lambda text: text.lower().endswith(".html")
)
JSON_FILE = Form(
    "a file name that ends in .json", "stats.json", lambda text: text.lower().endswith(".json")
)


def folder_source_of(dataset: DatasetPlace | DatasetChoice) -> Source:
    """Return where the files of a dataset are that is copied from; see `source_of`.

    Raises: ConfigError for an address, whose files are not on this machine.
    """
    if is_address(dataset.root):
        raise ConfigError(
            f"{dataset.root}: an address",
            rule="verbs that write a dataset copy the files of a folder",
            remedy="copy the dataset to a disk first (hf download, aws s3 sync, wget --mirror), "
            "and name that folder",
        )
    return source_of(dataset)


def source_of(dataset: DatasetPlace | DatasetChoice) -> Source:
    """Return where the dataset's files are; of one on the Hub only the metadata is fetched.

    Raises: ConfigError when no dataset is given, DataError when it is not found.
    """
    from kata.data.format.source import locate

    if dataset.root is None and dataset.repo_id is None:
        raise ConfigError(
            "no dataset given",
            rule="a folder or a repo_id",
            remedy=(
                "name the folder first, or add --dataset.root=<folder> or "
                "--dataset.repo_id=<owner>/<name>"
            ),
        )
    name = dataset.repo_id or root_name(str(dataset.root))
    return locate(name, dataset.root, dataset.revision)


@dataclass(frozen=True, kw_only=True)
class JoinedDataset(DatasetPlace):
    """The place of a dataset, and the columns that a run would join."""

    concat: dict[str, list[str]] = option(
        dict, "Columns to join, as with dataset.concat of kata train."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_concat(self.concat, "dataset.concat")


@dataclass(frozen=True, kw_only=True)
class InfoOptions(Options):
    """Options of `kata data info`."""

    dataset: JoinedDataset = option(JoinedDataset, "")
    json: bool = option(False, "Print everything as JSON.")


@dataclass(frozen=True, kw_only=True)
class FramesChoice(DatasetChoice):
    """The place of a dataset, and its episodes and frames that are taken."""

    keep_ranges: str | None = option(
        None, "File of the ranges of frames to take, by episode.", form=JSON_FILE
    )


@dataclass(frozen=True, kw_only=True)
class StatsOptions(Options):
    """Options of `kata data stats`."""

    dataset: FramesChoice = option(FramesChoice, "")
    images: bool | str = option(
        "none",
        "Decode frames: as many as LeRobot samples (also --images alone), or all.",
        choices=("none", "sampled", "all"),
    )
    write: str | None = option(
        None, "New file for the statistics, in the form of meta/stats.json.", form=JSON_FILE
    )
    overwrite: bool = option(False, "Let the file of --write exist.")
    json: bool = option(False, "Print everything as JSON.")


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """Options of `kata data check`."""

    dataset: DatasetChoice = option(DatasetChoice, "")
    decode: bool = option(False, "Decode every frame too.")
    recording: bool = option(
        False,
        "Look for faults of recording too: lag, frozen video, swapped cameras and the like.",
    )
    report: str | None = option(
        None,
        "New page of what is found, with pictures, .html; implies --recording.",
        form=HTML_FILE,
    )
    write_ranges: str | None = option(
        None,
        "New file of the frames without faults, .json, for --dataset.keep_ranges of kata train; "
        "implies --recording.",
        form=JSON_FILE,
    )
    sampled_frames: int = option(
        SAMPLED_FRAMES,
        "Frames of each camera that --recording decodes at most, evenly spread.",
        least=1,
    )
    overwrite: bool = option(False, "Let the files of --report and --write_ranges exist.")
    threads: int | None = option(
        None, "Files or GOPs that are looked at at a time; null takes one per core.", least=1
    )
    examples: int = option(3, "Problems of one kind that are printed; --json has all.", least=0)
    json: bool = option(False, "Print everything as JSON.")


@dataclass(frozen=True, kw_only=True)
class IndexOptions(Options):
    """Options of `kata data index`."""

    dataset: DatasetPlace = option(DatasetPlace, "")
    upload: bool = option(False, "Store the file beside a dataset in a store.")
    threads: int = option(16, "Videos that are indexed at a time.", least=1)


@dataclass(frozen=True, kw_only=True)
class ViewOptions(Options):
    """Options of `kata data view`."""

    dataset: DatasetChoice = option(DatasetChoice, "")
    episode: int = option(0, "Episode that is shown.", least=0)
    out: str = option(
        REQUIRED, "New file: .png, or .html that needs no other file.", form=PNG_OR_HTML
    )
    frames: int = option(
        8, "Frames of each camera, evenly spread over the episode.", least=1, most=FRAMES_MAX
    )
    overwrite: bool = option(False, "Let the file of --out exist.")


@dataclass(frozen=True, kw_only=True)
class RepairOptions(Options):
    """Options of `kata data repair`."""

    dataset: DatasetChoice = option(DatasetChoice, "")
    out: str | None = option(None, "Folder of the copy; it must not exist.")
    dry_run: bool = option(False, "Only say what would be changed.")
    fps: int | None = option(
        None,
        "Rate that is right, where tables, videos and info.json differ.",
        unit="frames per second",
        least=1,
    )
    encoding: str | None = option(
        None, "Encoding of texts that are not UTF-8, where more than one fits."
    )
    drop: list[str] = option(list, "Features to leave out.")
    declare: list[str] = option(list, "Columns of the data files to add to info.json.")
    examples: int = option(3, "Problems of one kind that are printed; --json has all.", least=0)
    json: bool = option(False, "Print everything as JSON.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is None and not self.dry_run:
            raise ConfigError(
                "out: not given",
                rule="the copy gets its own folder",
                remedy="add --out=<folder>, or --dry_run",
            )


@dataclass(frozen=True, kw_only=True)
class ResultOptions(Options):
    """Options of every verb that makes new datasets."""

    out: str = option(REQUIRED, "Folder of the new dataset; it must not exist.", section="result")
    drop: list[str] = option(list, "Features to leave out.")
    robot_type: str | None = option(None, "Name of the robot; null keeps that of the source.")
    camera_stats: str = option(
        "exact",
        "Statistics of cameras that lack some: measure them over all frames, or keep what is "
        "there.",
        choices=("exact", "kept"),
    )
    data_files_size_in_mb: int = option(
        100, "Size that a table file does not outgrow.", unit="MB", least=1
    )
    video_files_size_in_mb: int = option(
        200, "Size that a video file does not outgrow.", unit="MB", least=1
    )


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(ResultOptions):
    """Options of `kata data convert`, and of others that read one dataset."""

    dataset: DatasetChoice = option(DatasetChoice, "", section="source")


@dataclass(frozen=True, kw_only=True)
class MergeOptions(ResultOptions):
    """Options of `kata data merge`."""

    roots: list[str] = option(
        list,
        "Folders of two or more datasets; they also stand first, without a name.",
        section="source",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.roots) < 2:
            raise ConfigError(
                f"{len(self.roots)} datasets given",
                rule="two or more are merged",
                remedy="name their folders first",
            )
        found = [str(Path(root).expanduser().resolve()) for root in self.roots]
        repeated = [root for root in found if found.count(root) > 1]
        if repeated:
            raise ConfigError(
                f"{repeated[0]}: named more than once",
                rule="each dataset is merged once: its episodes would be there twice",
                remedy="name it once",
            )


@dataclass(frozen=True, kw_only=True)
class SplitOptions(ConvertOptions):
    """Options of `kata data split`."""

    fractions: str | None = option(
        None,
        "Shares of the episodes, train:0.9,val:0.1; each makes a dataset below --out.",
        section="split",
    )
    seed: int = option(0, "Seed of the choice of episodes for the shares.", least=0, most=2**64 - 1)
    by: str | None = option(None, "Make a dataset below --out for each task.", choices=("task",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by and self.fractions:
            raise ConfigError(
                f"by={self.by} and fractions={self.fractions}",
                rule="one way of splitting at a time",
                remedy="leave out one of the two",
            )
        chosen = self.dataset.episodes is not None or self.dataset.exclude_episodes
        if not (self.by or self.fractions or chosen):
            raise ConfigError(
                "nothing says which episodes",
                rule="--dataset.episodes, --dataset.exclude_episodes, --fractions or --by=task",
                remedy="for example --fractions=train:0.9,val:0.1",
            )


@dataclass(frozen=True, kw_only=True)
class TranscodeOptions(ConvertOptions):
    """Options of `kata data transcode`."""

    codec: str = option(
        "av1", "Codec of the result.", choices=("av1", "h264", "hevc"), section="encoding"
    )
    gop: int = option(2, "Frames from one keyframe to the next.", least=1)
    crf: int | None = option(
        None,
        "Quality, lower is better; null takes 30 for av1, 23 for h264, 28 for hevc.",
        least=0,
        most=63,
    )
    preset: str | None = option(
        None, "Effort of the encoder; null takes 12 for av1, veryfast for the others."
    )
    size: str | None = option(
        None, "Height x width of the result; null keeps that of the source.", form=SIZE
    )
    cameras: list[str] | None = option(None, "Cameras to encode; null takes all but depth maps.")

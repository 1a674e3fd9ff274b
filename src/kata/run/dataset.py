"""Options of the data: one dataset or a mixture, its augmentation, order and caches. Torch-free."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kata.config import BYTES, REQUIRED, Form, Options, option
from kata.config.dataset import (
    EPISODES,
    DatasetChoice,
    check_concat,
    is_address,
    refuse_credentials,
    refuse_repeated,
    refuse_revision,
    root_name,
)
from kata.config.keep_ranges import check_keep_ranges
from kata.errors import ConfigError, did_you_mean
from kata.units import num_bytes

SHUFFLES = ("auto", "full", "clips")
RESIZES = ("device", "reader")
PIXELS = ("rgb", "yuv")
DECODERS = ("cpu", "auto", "nvdec")
CACHES = ("none", "frames", "disk", "vision", "prefix")
FEATURE_CACHES = ("vision", "prefix")
"""Caches of what a frozen part of the policy makes of a sample."""

DISK_CACHES = ("disk", *FEATURE_CACHES)
STATISTICS = ("joint", "each")

NAME = Form(
    "letters, digits, '.', '_' and '-', for it names folders and metrics",
    "dataset0",
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*").fullmatch,
)


@dataclass(frozen=True, kw_only=True)
class MixEntry(Options):
    """One dataset of a mixture."""

    at: ClassVar[str] = "dataset.mix[]."

    repo_id: str = option(REQUIRED, "Dataset as <owner>/<name>.")
    root: str | None = option(
        None, "Folder of the dataset, or its address in a store.", per_machine=True
    )
    revision: str | None = option(None, "Branch, tag or commit of a dataset on the Hub.")
    name: str | None = option(
        None, "Name in tables, metrics and folders; null takes the end of repo_id.", form=NAME
    )
    weight: float | None = option(
        None,
        "Share of the samples, a positive number in proportion to the other weights. null in every "
        "entry shares by the number of samples.",
    )
    episodes: list[int] | str | None = option(
        None, "Episodes to take, as dataset.episodes.", form=EPISODES, least=0
    )
    exclude_episodes: list[int] | None = option(None, "Episodes to leave out.", least=0)
    keep_ranges: dict[str, list[list[int]]] | None = option(
        None, "Ranges of frames to take, or the file that holds them, as dataset.keep_ranges."
    )
    concat: dict[str, list[str]] = option(
        dict, "Columns of the dataset to join, as dataset.concat."
    )
    rename_map: dict[str, str] = option(dict, "The dataset's keys to the mixture's, {old: new}.")
    fill: bool = option(False, "Fill cameras that the dataset lacks with black, marked as padding.")

    @property
    def called(self) -> str:
        """The name in tables, metrics and folders."""
        return self.name or self.repo_id.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class ImageTransformConfig(Options):
    """One augmentation."""

    at: ClassVar[str] = "dataset.image_transforms.tfs."

    weight: float = option(
        1.0, "Share when the transforms of a sample are drawn; 0 leaves it out.", least=0
    )
    type: str = option(
        "Identity", "Class of kata.processors.augment or of torchvision.transforms.v2."
    )
    kwargs: dict[str, Any] = option(dict, "Arguments of the class.")


def default_transforms() -> dict[str, ImageTransformConfig]:
    """Return LeRobot's six: brightness, contrast, saturation, hue, sharpness, affine."""
    ranges: dict[str, tuple[str, dict[str, Any]]] = {
        "brightness": ("ColorJitter", {"brightness": [0.8, 1.2]}),
        "contrast": ("ColorJitter", {"contrast": [0.8, 1.2]}),
        "saturation": ("ColorJitter", {"saturation": [0.5, 1.5]}),
        "hue": ("ColorJitter", {"hue": [-0.05, 0.05]}),
        "sharpness": ("SharpnessJitter", {"sharpness": [0.5, 1.5]}),
        "affine": ("RandomAffine", {"degrees": [-5.0, 5.0], "translate": [0.05, 0.05]}),
    }
    found: dict[str, ImageTransformConfig] = {}
    for name, (kind, kwargs) in ranges.items():
        found[name] = ImageTransformConfig(type=kind, kwargs=kwargs)
    return found


@dataclass(frozen=True, kw_only=True)
class ImageTransformsConfig(Options):
    """Augmentation of training frames; LeRobot's names and defaults."""

    at: ClassVar[str] = "dataset.image_transforms."

    enable: bool = option(False, "Augment training frames.")
    max_num_transforms: int = option(3, "Transforms drawn per sample and camera.", least=1)
    random_order: bool = option(False, "Apply them in a random order instead of that of tfs.")
    tfs: dict[str, ImageTransformConfig] = option(
        default_transforms,
        "Transforms by name, {name: {type: …, weight: …, kwargs: {…}}}. Takes the place of the six "
        "defaults: brightness, contrast, saturation, hue, sharpness, affine.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.enable and not any(tf.weight > 0 for tf in self.tfs.values()):
            raise ConfigError(
                "dataset.image_transforms.enable=true, but no transform has a weight above 0",
                rule="at least one transform that can be drawn",
                remedy="leave --dataset.image_transforms.tfs out for the defaults",
            )


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(DatasetChoice):
    """The data of a run: one dataset by `repo_id`, or several by `mix`.

    Numbers of clips left at 0 are derived, and written down when the run begins; for a mixture as
    `mix_clips`, three numbers for each dataset (zeros: full).
    """

    keep_ranges: dict[str, list[list[int]]] | None = option(
        None,
        "Ranges of frames to take, {episode: [[first, end], ...]}, or the JSON file that holds "
        "them; other episodes are taken whole.",
    )
    concat: dict[str, list[str]] = option(
        dict,
        "Columns to join into one, in this order, {action: [action.joints, action.gripper]}.",
    )
    strict: bool = option(
        False, "Want LeRobot's names; otherwise a column that alone can be it is taken."
    )
    mix: list[MixEntry] | None = option(
        None, "Several datasets in one run: a list of entries, or the YAML file that holds it."
    )
    mix_stats: str = option(
        "joint",
        "Statistics that normalize: of all frames together, or of each sample's own dataset.",
        choices=STATISTICS,
    )
    mix_primary: str | None = option(
        None, "Dataset whose processors a checkpoint acts with; null takes the first."
    )
    mix_pad_vectors: bool = option(
        False, "Fill shorter state and action vectors with zeros, which the loss leaves out."
    )
    mix_any_fps: bool = option(False, "Allow datasets of different frame rates.")
    mix_clips: list[list[int]] | None = option(
        None, "clip_pool, clip_frames and clip_gop of each dataset; zeros mean full. Derived."
    )
    use_imagenet_stats: bool = option(True, "Normalize frames by ImageNet's statistics.")
    eval_split: float = option(
        0.0,
        "Share of the episodes of each task that is held out for validation.",
        least=0,
        below=1,
        is_common=True,
    )
    image_transforms: ImageTransformsConfig = option(ImageTransformsConfig, "")
    shuffle: str = option(
        "auto",
        "Order of the samples: a full permutation per epoch, or a pool of clips, which decodes "
        "each frame about once.",
        choices=SHUFFLES,
    )
    clip_pool: int = option(
        0, "Clips alive at a time, with shuffle=clips; 0 is derived from frame_memory.", least=0
    )
    clip_frames: int = option(0, "Frames of a clip; 0 is derived.", least=0)
    clip_gop: int = option(
        0, "Consecutive frames of a clip that stay together; 0 is derived.", least=0
    )
    frame_memory: str | None = option(
        None,
        "Host memory for decoded frames; null takes a share of what is free.",
        form=BYTES,
        may_change=True,
        per_machine=True,
    )
    streaming: bool = option(
        False,
        "Read videos and images of a dataset on the Hub from there, without a download. An "
        "address as dataset.root streams from any store.",
        may_change=True,
        per_machine=True,
    )
    buffer_gb: float | None = option(
        None,
        "Host memory of a streamed dataset in GB: decoded frames (frame_memory, else three "
        "quarters) and fetched bytes. null takes a share of what is free.",
        above=0,
        may_change=True,
        per_machine=True,
    )
    resize: str = option(
        "device",
        "Place where frames get the policy's size: the device, or the reader, which copies less "
        "and "
        "gives slightly other pixels.",
        choices=RESIZES,
    )
    pixels: str = option(
        "rgb",
        "Frames in a batch: rgb, or yuv as decoded, half as large; the device converts them to "
        "the same pixels.",
        choices=PIXELS,
    )
    decoder: str = option(
        "cpu",
        "Decoder of video: the CPU, an NVIDIA GPU (extra torchcodec), or the faster of both.",
        choices=DECODERS,
    )
    cache: str = option(
        "none",
        "Keep decoded frames in memory (frames) or on disk; or on disk what a frozen part of the "
        "policy computes: the tokens of cameras (vision), or all that others read (prefix).",
        choices=CACHES,
        may_change=True,
    )
    cache_dir: str | None = option(
        None,
        "Folder of the disk cache, null takes $KATA_CACHE; or, of a streamed dataset, the folder "
        "that keeps the bytes it has fetched.",
        may_change=True,
        per_machine=True,
    )
    cache_size: str | None = option(
        None,
        "Size of the cache over all cameras; null takes a quarter of the free memory, or 80 % of "
        "the free disk.",
        form=BYTES,
        may_change=True,
        per_machine=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_pixels()
        self._check_clips()
        self._check_cache()
        check_keep_ranges(self.keep_ranges or {}, "dataset.keep_ranges")
        check_concat(self.concat, "dataset.concat")
        if self.root is not None and not self.repo_id and self.mix is None:
            object.__setattr__(self, "repo_id", root_name(self.root))
        if bool(self.repo_id) == (self.mix is not None):
            raise self._one_or_several()
        if self.mix is None:
            self._refuse_beside("is about several datasets", "add --dataset.mix", _OF_A_MIX)
            return
        self._refuse_beside(
            "belongs to one dataset", "set it in the entries of dataset.mix", _OF_ONE
        )
        check_entries(self.mix)
        for number, entry in enumerate(self.mix):
            at = f"dataset.mix[{number}]."
            refuse_credentials(f"{at}root", entry.root)
            refuse_revision(at, entry.root, entry.revision)
            refuse_repeated(f"{at}episodes", entry.episodes)
            refuse_repeated(f"{at}exclude_episodes", entry.exclude_episodes)
            check_keep_ranges(entry.keep_ranges or {}, f"{at}keep_ranges")
            check_concat(entry.concat, f"{at}concat")
        check_primary(self.mix, self.mix_primary)
        check_clips(
            self.mix_clips, len(self.mix), (self.clip_pool, self.clip_frames, self.clip_gop)
        )

    def _one_or_several(self) -> ConfigError:
        rule = "a run needs one dataset (dataset.root or dataset.repo_id) or several (dataset.mix)"
        if self.mix is not None:
            return ConfigError(
                f"dataset.repo_id={self.repo_id} and dataset.mix",
                rule=rule,
                remedy="leave out one of the two",
            )
        return ConfigError(
            "no dataset given",
            rule=rule,
            remedy="add --dataset.root=<folder> for one on this disk, or "
            "--dataset.repo_id=<user>/<name>",
        )

    def _refuse_beside(self, rule: str, remedy: str, names: Sequence[str]) -> None:
        for one in dataclasses.fields(self):
            value = self.__dict__[one.name]
            if one.name in names and value not in (one.default, {}):
                raise _refuse(f"dataset.{one.name}", value, f"this option {rule}", remedy)

    def _check_pixels(self) -> None:
        for name, value, default in (
            ("resize", self.resize, "device"),
            ("decoder", self.decoder, "cpu"),
        ):
            if self.pixels == "yuv" and value != default:
                raise _refuse(
                    f"dataset.pixels=yuv and dataset.{name}",
                    value,
                    "frames stay as the host's decoder gives them",
                    "leave out one of the two",
                )

    def _check_clips(self) -> None:
        for name in ("clip_pool", "clip_frames", "clip_gop"):
            value: int = self.__dict__[name]
            if value and self.shuffle != "clips":
                raise _refuse(
                    f"dataset.{name}",
                    value,
                    "this number belongs to --dataset.shuffle=clips",
                    "add --dataset.shuffle=clips, or leave the option out",
                )

    def _check_cache(self) -> None:
        if self.cache_dir is not None and self.cache not in DISK_CACHES and not self.may_stream:
            raise ConfigError(
                f"dataset.cache_dir={self.cache_dir} with dataset.cache={self.cache}",
                rule="a folder belongs to what is kept on a disk, or to a streamed dataset",
                remedy="add --dataset.cache=disk, or leave the folder out",
            )
        if self.buffer_gb is not None:
            self._check_buffer(self.buffer_gb)
        if self.cache_size is not None and self.cache == "none":
            raise ConfigError(
                f"dataset.cache_size={self.cache_size} with dataset.cache=none",
                rule="a size belongs to a cache",
                remedy="add --dataset.cache=frames or --dataset.cache=disk, or leave the size out",
            )

    def _check_buffer(self, buffer_gb: float) -> None:
        if not self.may_stream:
            raise ConfigError(
                f"dataset.buffer_gb={buffer_gb:g} with a dataset on this machine",
                rule="the buffer holds what is fetched from a store",
                remedy="--dataset.frame_memory limits decoded frames; or add "
                "--dataset.streaming=true",
            )
        if self.frame_memory is not None and num_bytes(self.frame_memory) >= buffer_gb * 1e9:
            raise ConfigError(
                f"dataset.buffer_gb={buffer_gb:g} with dataset.frame_memory={self.frame_memory}",
                rule="the buffer holds decoded frames and fetched bytes, so it is the larger one",
                remedy="leave out --dataset.frame_memory, or raise --dataset.buffer_gb",
            )

    @property
    def may_stream(self) -> bool:
        """Return True if some dataset may be read from a store."""
        roots = [self.root, *(entry.root for entry in self.mix or ())]
        return self.streaming or any(is_address(root) for root in roots)

    @property
    def name(self) -> str:
        """Return the dataset's name, or the joined names of a mixture."""
        return self.repo_id or " + ".join(entry.called for entry in self.mix or ())

    @property
    def repo_ids(self) -> list[str]:
        """The dataset's name, or those of the mixture's datasets, each once."""
        return list(dict.fromkeys(e.repo_id for e in self.mix or ())) or [self.repo_id or ""]


_OF_ONE = ("root", "episodes", "exclude_episodes", "keep_ranges", "concat", "revision")
_OF_A_MIX = ("mix_stats", "mix_primary", "mix_pad_vectors", "mix_any_fps", "mix_clips")


def _refuse(name: str, value: object, rule: str, remedy: str) -> ConfigError:
    return ConfigError(f"{name}={value}", rule=rule, remedy=remedy)


def check_entries(entries: Sequence[MixEntry]) -> None:
    """Refuse a mixture of nothing, of equal names, or where only some entries have a weight."""
    if not entries:
        raise ConfigError(
            "dataset.mix=[]",
            rule="at least one dataset",
            remedy="list {repo_id: …, weight: …}, or use dataset.repo_id",
        )
    names = [entry.called for entry in entries]
    for number, name in enumerate(names):
        at = f"dataset.mix[{number}]"
        if not NAME.fits(name):
            raise ConfigError(
                f"{at}.name={name!r}", rule=NAME.rule, remedy=f"add name: dataset{number}"
            )
        if names.index(name) < number:
            raise ConfigError(
                f"{at} and dataset.mix[{names.index(name)}] are both called {name}",
                rule="each dataset of a mixture has its own name",
                remedy=f"add name: {name}-{number} to one of them",
            )
        weight = entries[number].weight
        if weight is not None and not (math.isfinite(weight) and weight > 0):
            raise ConfigError(
                f"{at}.weight={weight:g} ({name})",
                rule="a positive number",
                remedy="remove the entry to leave the dataset out"
                if weight == 0
                else "for example weight: 0.5",
            )
    lacking = [entry.called for entry in entries if entry.weight is None]
    if lacking and len(lacking) < len(entries):
        raise ConfigError(
            f"dataset.mix: {', '.join(lacking)} without a weight, {len(entries) - len(lacking)} "
            "with one",
            rule="all have a weight, or none has (the shares then follow the number of samples)",
            remedy="give each a weight",
        )


def check_primary(entries: Sequence[MixEntry], primary: str | None) -> None:
    """Refuse a primary dataset that is not in the mixture."""
    names = [entry.called for entry in entries]
    if primary is not None and primary not in names:
        raise ConfigError(
            f"dataset.mix_primary={primary}",
            rule="a dataset of the mixture",
            remedy=did_you_mean(primary, names),
        )


def check_clips(
    clips: Sequence[Sequence[int]] | None, datasets: int, of_one: Sequence[int]
) -> None:
    """Refuse anything but three numbers for each dataset, or none yet.

    Args:
        clips: the numbers of each dataset.
        datasets: how many there are.
        of_one: the numbers of a single dataset, which a mixture does not have.
    """
    if any(of_one):
        raise ConfigError(
            f"dataset.clip_pool, clip_frames, clip_gop = {list(of_one)}",
            rule=(
                "these numbers belong to one dataset; a mixture has dataset.mix_clips, three "
                "for each"
            ),
            remedy="leave them out: they are derived and written down",
        )
    if clips is not None and (len(clips) != datasets or not all(map(_is_clip_order, clips))):
        raise ConfigError(
            f"dataset.mix_clips={[list(each) for each in clips]}",
            rule=f"for each of {datasets} datasets clips alive at a time, frames, and frames that "
            "stay together (a divisor); zeros: full order",
            remedy="leave the option out: they are derived and written down",
        )


def _is_clip_order(numbers: Sequence[int]) -> bool:
    if len(numbers) != 3:
        return False
    return not any(numbers) or (min(numbers) > 0 and numbers[1] % numbers[2] == 0)

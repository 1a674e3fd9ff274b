"""Options of the dataset that a run trains on."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kata.errors import ConfigError, did_you_mean
from kata.run.checks import refused_option
from kata.units import num_bytes

_OF_ONE: dict[str, object] = {
    "root": None,
    "episodes": None,
    "exclude_episodes": None,
    "revision": None,
}


_OF_A_MIX: dict[str, object] = {
    "mix_stats": "joint",
    "mix_primary": None,
    "mix_pad_vectors": False,
    "mix_any_fps": False,
    "mix_clips": None,
}


SHUFFLES = ("auto", "full", "clips")


RESIZES = ("device", "reader")


PIXELS = ("rgb", "yuv")


DECODERS = ("cpu", "auto", "nvdec")


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


STATISTICS = ("joint", "each")


@dataclass(frozen=True, kw_only=True)
class MixEntry:
    """One dataset of a mixture. `repo_id`, `root`, `revision`, `episodes` and `exclude_episodes` as for one dataset.

    name: in tables, metrics and folders; the repo_id after its '/' where it is left out. weight: its share of the
    samples, in proportion to the other weights; null in every entry shares by the number of samples. rename_map: the
    dataset's keys to the mixture's. fill: cameras that it lacks are black and marked.
    """

    repo_id: str
    root: str | None = None
    revision: str | None = None
    name: str | None = None
    weight: float | None = None
    episodes: list[int] | str | None = None
    exclude_episodes: list[int] | None = None
    rename_map: dict[str, str] = field(default_factory=dict)
    fill: bool = False

    @property
    def called(self) -> str:
        """The name in tables, metrics and folders."""
        return self.name or self.repo_id.rpartition("/")[2]


def check_entries(entries: Sequence[MixEntry]) -> None:
    """ConfigError unless names differ and weights are positive numbers, or left out everywhere."""
    if not entries:
        raise ConfigError(
            "dataset.mix=[]",
            rule="at least one dataset",
            remedy="list {repo_id: …, weight: …}, or use dataset.repo_id",
        )
    names = [entry.called for entry in entries]
    for number, (entry, name) in enumerate(zip(entries, names, strict=True)):
        at = f"dataset.mix[{number}]"
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{at}.name={name!r}",
                rule="letters, digits, '.', '_' and '-', for it names folders and metrics",
                remedy=f"add name: dataset{number}",
            )
        if names.index(name) < number:
            raise ConfigError(
                f"{at} and dataset.mix[{names.index(name)}] are both called {name}",
                rule="each dataset of a mixture has a name of its own",
                remedy=f"add name: {name}-{number} to one of them",
            )
        if entry.weight is not None and not (math.isfinite(entry.weight) and entry.weight > 0):
            raise ConfigError(
                f"{at}.weight={entry.weight} ({name})",
                rule="a positive number",
                remedy="remove the entry to leave the dataset out"
                if entry.weight == 0
                else "for example weight: 0.5",
            )
    lacking = [name for entry, name in zip(entries, names, strict=True) if entry.weight is None]
    if lacking and len(lacking) < len(entries):
        raise ConfigError(
            f"dataset.mix: {', '.join(lacking)} without a weight, {len(entries) - len(lacking)} with one",
            rule="all have a weight, or none has (the shares then follow the number of samples)",
            remedy="give each a weight",
        )


def check_choices(entries: Sequence[MixEntry], stats: str, primary: str | None) -> None:
    """ConfigError for unknown statistics or a primary that is not in the mixture."""
    if stats not in STATISTICS:
        raise ConfigError(
            f"dataset.mix_stats={stats}",
            rule=f"one of: {', '.join(STATISTICS)}",
            remedy=did_you_mean(stats, STATISTICS),
        )
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
    """ConfigError unless there are three numbers for each dataset, or none yet. of_one: those of a single dataset."""
    if any(of_one):
        raise ConfigError(
            f"dataset.clip_pool, clip_frames, clip_gop = {list(of_one)}",
            rule="these numbers belong to one dataset; a mixture has dataset.mix_clips, three for each of its datasets",
            remedy="leave them out: they are derived and written down",
        )
    if clips is not None and (len(clips) != datasets or not all(map(_is_clip_order, clips))):
        raise ConfigError(
            f"dataset.mix_clips={[list(each) for each in clips]}",
            rule=f"for each of {datasets} datasets clips alive at a time, frames, group (a divisor); zeros: full order",
            remedy="leave the option out: they are derived and written down",
        )


def _is_clip_order(numbers: Sequence[int]) -> bool:
    if len(numbers) != 3:
        return False
    return not any(numbers) or (min(numbers) > 0 and numbers[1] % numbers[2] == 0)


@dataclass(frozen=True, kw_only=True)
class ImageTransformConfig:
    """One augmentation. `type` is a class of `kata.processors.augment` or of torchvision.transforms.v2, `kwargs` its range.

    `weight` is its share when the subset of a sample is drawn; 0 leaves it out.
    """

    weight: float = 1.0
    type: str = "Identity"
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ConfigError(
                f"dataset.image_transforms: weight={self.weight}",
                rule="a share of at least 0",
                remedy="use 0 to leave the transform out",
            )


def default_transforms() -> dict[str, ImageTransformConfig]:
    """LeRobot's six: brightness, contrast, saturation, hue, sharpness, affine."""
    ranges: dict[str, tuple[str, dict[str, Any]]] = {
        "brightness": ("ColorJitter", {"brightness": [0.8, 1.2]}),
        "contrast": ("ColorJitter", {"contrast": [0.8, 1.2]}),
        "saturation": ("ColorJitter", {"saturation": [0.5, 1.5]}),
        "hue": ("ColorJitter", {"hue": [-0.05, 0.05]}),
        "sharpness": ("SharpnessJitter", {"sharpness": [0.5, 1.5]}),
        "affine": ("RandomAffine", {"degrees": [-5.0, 5.0], "translate": [0.05, 0.05]}),
    }
    return {
        name: ImageTransformConfig(type=kind, kwargs=kwargs)
        for name, (kind, kwargs) in ranges.items()
    }


@dataclass(frozen=True, kw_only=True)
class ImageTransformsConfig:
    """Augmentation of training frames: of the `tfs`, up to `max_num_transforms` are drawn per sample and camera.

    They are applied in the order of `tfs`, or in a random one. A `tfs` that is given replaces all six defaults.
    """

    enable: bool = False
    max_num_transforms: int = 3
    random_order: bool = False
    tfs: dict[str, ImageTransformConfig] = field(default_factory=default_transforms)

    def __post_init__(self) -> None:
        if self.max_num_transforms < 1:
            raise ConfigError(
                f"dataset.image_transforms.max_num_transforms={self.max_num_transforms}",
                rule="at least 1",
                remedy="leave --dataset.image_transforms.enable out for no transforms",
            )
        if self.enable and not any(tf.weight > 0 for tf in self.tfs.values()):
            raise ConfigError(
                "dataset.image_transforms.enable=true, but no transform has a weight above 0",
                rule="at least one transform that can be drawn",
                remedy="leave --dataset.image_transforms.tfs out for the defaults",
            )


CACHES = ("none", "frames", "disk")


def check_cache(cache: str, folder: str | None, size: str | None) -> None:
    """Refuse impossible values of dataset.cache, cache_dir and cache_size.

    Raises: ConfigError.
    """
    if cache not in CACHES:
        raise ConfigError(
            f"dataset.cache={cache}",
            rule=f"one of: {', '.join(CACHES)}",
            remedy=did_you_mean(cache, CACHES),
        )
    if folder is not None and cache != "disk":
        raise ConfigError(
            f"dataset.cache_dir={folder} with dataset.cache={cache}",
            rule="a folder belongs to frames that are kept on a disk",
            remedy="add --dataset.cache=disk, or leave the folder out",
        )
    if size is not None and cache == "none":
        raise ConfigError(
            f"dataset.cache_size={size} with dataset.cache=none",
            rule="a size belongs to a cache",
            remedy="add --dataset.cache=frames or --dataset.cache=disk, or leave the size out",
        )
    if size is not None and not num_bytes(size) >= 1:
        raise ConfigError(
            f"dataset.cache_size={size}",
            rule="bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB",
            remedy="for example --dataset.cache_size=20GB",
        )


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Which data: one dataset by `repo_id`, or several by `mix`, a list of entries or the YAML file that holds it.

    `episodes` is a list of episode numbers, or 'available' for those whose files are all here. `eval_split` is the
    share of episodes held out per task, spread over the dataset (over each dataset of a mixture).

    mix_stats: 'joint' normalises by the statistics of all frames together, 'each' by those of a sample's own dataset.
    mix_primary: the dataset whose processors a checkpoint acts with; null is the first. mix_pad_vectors: shorter state
    and action vectors are filled with zeros, which the loss leaves out. mix_any_fps: frame rates may differ.

    `shuffle` is 'full' (a permutation of all samples per epoch), 'clips' (samples from a pool of `clip_pool` clips of
    `clip_frames` frames, so that each frame is decoded about once) or 'auto'. Clips keep `clip_gop` consecutive frames
    together. Numbers left at 0 are derived, and written down when the run begins; for a mixture as `mix_clips`, these
    three numbers for each dataset (zeros: full). `frame_memory` ('4GB') bounds what
    decoded frames take on the host.

    resize: 'device' leaves it to the policy to make frames as small as it wants them (its resize_shape), 'reader' does
    it while they are converted to RGB: less to copy, to hold and to augment, and slightly other pixels.

    pixels: 'yuv' leaves frames of 8-bit 4:2:0 videos as they were decoded, for the device to convert to the same
    pixels: half of what 'rgb' takes to write, hold, cache and copy.

    decoder: 'cpu'; 'nvdec' decodes h264 and hevc on an NVIDIA card (extra torchcodec), and on the host with a message
    where that cannot be; 'auto' also wants it to be faster.

    cache: keep decoded frames in memory ('frames') or on a disk ('disk', below `cache_dir` or else $KATA_CACHE), up to
    `cache_size` ('20GB', '512MiB') over all cameras; null takes a quarter of the memory, or 80 % of the disk, that is
    free.
    """

    repo_id: str | None = None
    root: str | None = None
    episodes: list[int] | str | None = None
    exclude_episodes: list[int] | None = None
    revision: str | None = None
    mix: list[MixEntry] | None = None
    mix_stats: str = "joint"
    mix_primary: str | None = None
    mix_pad_vectors: bool = False
    mix_any_fps: bool = False
    mix_clips: list[list[int]] | None = None
    use_imagenet_stats: bool = True
    eval_split: float = 0.0
    image_transforms: ImageTransformsConfig = field(default_factory=ImageTransformsConfig)
    shuffle: str = "auto"
    clip_pool: int = 0
    clip_frames: int = 0
    clip_gop: int = 0
    frame_memory: str | None = None
    resize: str = "device"
    pixels: str = "rgb"
    decoder: str = "cpu"
    cache: str = "none"
    cache_dir: str | None = None
    cache_size: str | None = None

    def __post_init__(self) -> None:
        self._check_order()
        check_cache(self.cache, self.cache_dir, self.cache_size)
        if not 0.0 <= self.eval_split < 1.0:
            raise refused_option(
                "dataset.eval_split", self.eval_split, "at least 0 and below 1", "for example 0.1"
            )
        if bool(self.repo_id) == (self.mix is not None):
            raise ConfigError(
                "dataset.repo_id: not given"
                if self.mix is None
                else f"dataset.repo_id={self.repo_id} and dataset.mix",
                rule="a run needs one dataset (dataset.repo_id) or several (dataset.mix)",
                remedy="add --dataset.repo_id=<user>/<name> (and --dataset.root=<folder> for one on this disk)"
                if self.mix is None
                else "leave out one of the two",
            )
        _check_episodes("dataset.", self.episodes, self.exclude_episodes)
        if self.mix is None:
            self._refuse_beside("is about several datasets", "add --dataset.mix", _OF_A_MIX)
            return
        self._refuse_beside(
            "belongs to one dataset", "set it in the entries of dataset.mix", _OF_ONE
        )
        check_entries(self.mix)
        for number, entry in enumerate(self.mix):
            _check_episodes(f"dataset.mix[{number}].", entry.episodes, entry.exclude_episodes)
        check_choices(self.mix, self.mix_stats, self.mix_primary)
        check_clips(
            self.mix_clips, len(self.mix), (self.clip_pool, self.clip_frames, self.clip_gop)
        )

    def _refuse_beside(self, rule: str, remedy: str, defaults: dict[str, object]) -> None:
        for name, default in defaults.items():
            value = getattr(self, name)
            if value != default:
                raise refused_option(f"dataset.{name}", value, f"this option {rule}", remedy)

    def _check_order(self) -> None:
        for name, word, known in (
            ("resize", self.resize, RESIZES),
            ("pixels", self.pixels, PIXELS),
            ("decoder", self.decoder, DECODERS),
            ("shuffle", self.shuffle, SHUFFLES),
        ):
            if word not in known:
                raise refused_option(
                    f"dataset.{name}",
                    word,
                    f"one of: {', '.join(known)}",
                    did_you_mean(word, known),
                )
        for name, value, default in (
            ("resize", self.resize, "device"),
            ("decoder", self.decoder, "cpu"),
        ):
            if self.pixels == "yuv" and value != default:
                raise refused_option(
                    f"dataset.pixels=yuv and dataset.{name}",
                    value,
                    "frames stay as the host's decoder gives them",
                    "leave out one of the two",
                )
        for name, value in (
            ("clip_pool", self.clip_pool),
            ("clip_frames", self.clip_frames),
            ("clip_gop", self.clip_gop),
        ):
            if value < 0 or (value and self.shuffle != "clips"):
                raise refused_option(
                    f"dataset.{name}",
                    value,
                    "a number from 1 on, with --dataset.shuffle=clips",
                    "add --dataset.shuffle=clips, or leave the option out",
                )
        if self.frame_memory is not None and not num_bytes(self.frame_memory) >= 1:
            raise refused_option(
                "dataset.frame_memory",
                self.frame_memory,
                "bytes, or a number with KB, MB, GB or GiB",
                "for example 4GB",
            )

    @property
    def name(self) -> str:
        """The dataset, or the names of those in the mixture."""
        return self.repo_id or " + ".join(entry.called for entry in self.mix or ())

    @property
    def repo_ids(self) -> list[str]:
        """The dataset's name, or those of the mixture's datasets, each once."""
        return list(dict.fromkeys(e.repo_id for e in self.mix or ())) or [self.repo_id or ""]


def _check_episodes(
    at: str, episodes: list[int] | str | None, exclude_episodes: list[int] | None
) -> None:
    if isinstance(episodes, str) and episodes != "available":
        raise refused_option(
            f"{at}episodes", episodes, "a list of episode numbers, or 'available'", "e.g. [0,3]"
        )
    for name, chosen in (("episodes", episodes), ("exclude_episodes", exclude_episodes)):
        numbers = chosen if isinstance(chosen, list) else []
        doubled = sorted({n for n in numbers if numbers.count(n) > 1})
        if doubled or any(n < 0 for n in numbers):
            raise refused_option(
                f"{at}{name}",
                numbers,
                "episode numbers of at least 0, each once",
                f"remove the doubled ones: {doubled}" if doubled else "remove the negative ones",
            )
    if episodes == []:
        raise refused_option(
            f"{at}episodes", [], "at least one episode", "leave the option out to use all"
        )

"""`kata data convert`, `merge`, `split` and `transcode`: new datasets out of old ones, which are only read."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kata.data.commands.options import Place, option, resolve
from kata.data.edit.assemble import Rules
from kata.data.edit.edit_source import Part, open_part
from kata.data.edit.operations import TRANSCODED, Encoding, convert, merge, split, transcode
from kata.data.edit.splits import by_fractions, by_task
from kata.data.video.encoder import VideoOptions
from kata.errors import ConfigError, DataError
from kata.log import counting
from kata.units import count_text

_say = logging.getLogger(__name__).info


@dataclass(frozen=True)
class Shared:
    """Options of all four verbs."""

    out: str | None = option(None, "the new dataset's folder; must not exist")
    drop: list[str] | None = option(None, "features to leave out")
    robot_type: str | None = option(None, "a name for the result; else that of the source")
    camera_stats: str = option(
        "exact",
        "exact: measure cameras that lack figures over all frames; kept: take what is there",
    )
    data_files_size_in_mb: int = option(100, "a table file is closed before it outgrows this")
    video_files_size_in_mb: int = option(200, "the same for videos")

    def rules(self) -> Rules:
        """How the result is made."""
        return Rules(
            self.robot_type,
            self.camera_stats,
            self.data_files_size_in_mb,
            self.video_files_size_in_mb,
        )

    def place(self) -> Path:
        """The result's folder; ConfigError when it is not given."""
        if not self.out:
            raise ConfigError(
                "out: not given",
                rule="the result gets a folder of its own",
                remedy="add --out=<folder>",
            )
        return Path(self.out)


@dataclass(frozen=True)
class ConvertOptions(Shared, Place):
    """Options of `kata data convert`, and of others that read one dataset."""

    episodes: list[int] | str | None = option(
        None, "episode numbers, or 'available' for those whose files are here"
    )
    exclude: list[int] | None = option(None, "episode numbers to leave out")

    def part(self) -> Part:
        """The dataset, opened."""
        if isinstance(self.episodes, str) and self.episodes != "available":
            raise ConfigError(
                f"episodes={self.episodes}",
                rule="episode numbers, or 'available'",
                remedy="e.g. --episodes=[0,3]",
            )
        return open_part(
            self.source(), episodes=self.episodes, exclude=self.exclude, drop=self.drop or ()
        )


@dataclass(frozen=True)
class MergeOptions(Shared):
    """Options of `kata data merge`."""

    roots: list[str] | None = option(
        None, "the datasets' folders; may also stand first, without a name"
    )


@dataclass(frozen=True)
class SplitOptions(ConvertOptions):
    """Options of `kata data split`."""

    fractions: str | None = option(
        None, "shares of the episodes, e.g. train:0.9,val:0.1; a dataset below --out each"
    )
    seed: int = option(0, "which episodes go into which share")
    by: str | None = option(None, "'task': a dataset below --out for each task")


@dataclass(frozen=True)
class TranscodeOptions(ConvertOptions):
    """Options of `kata data transcode`."""

    codec: str = option("av1", "av1, h264 or hevc")
    gop: int = option(2, "a keyframe every so many frames")
    crf: int | None = option(
        None, "quality, lower is better; else 30 for av1, 23 for h264, 28 for hevc"
    )
    preset: str | None = option(
        None, "the encoder's effort; else 12 for av1, veryfast for the others"
    )
    size: str | None = option(None, "HxW of the result, e.g. 240x320; else that of the source")
    cameras: list[str] | None = option(None, "which cameras; else all but depth maps")


@contextmanager
def _own_names() -> Generator[None]:
    """Errors of reading name the options of training; here they are called otherwise."""
    try:
        yield
    except DataError as error:
        remedy = error.remedy.replace("--dataset.exclude_episodes", "--exclude").replace(
            "--dataset.", "--"
        )
        raise DataError(
            error.what, rule=error.rule.replace("--dataset.", "--"), remedy=remedy
        ) from error


@_own_names()
def run_convert(args: Sequence[str]) -> int:
    """Make a v3.0 dataset of a v2.0 or v2.1 one."""
    options = resolve(ConvertOptions, args, "kata data convert <folder> --out=<folder> [options]")
    if options is None:
        return 0
    out, rules, part = options.place(), options.rules(), options.part()
    with counting("episodes converted") as progress:
        convert(part, out, rules, progress, _say)
    print(_sentence([part], out))
    return 0


@_own_names()
def run_merge(args: Sequence[str]) -> int:
    """Make one dataset of several."""
    options = resolve(
        MergeOptions,
        args,
        "kata data merge <folder> <folder> ... --out=<folder> [options]",
        free="roots",
    )
    if options is None:
        return 0
    out, rules, roots = options.place(), options.rules(), options.roots or []
    if len(roots) < 2:
        raise ConfigError(
            f"{len(roots)} datasets given",
            rule="two or more are merged",
            remedy="name their folders first",
        )
    parts = [open_part(Place(root).source(), drop=options.drop or ()) for root in roots]
    with counting("episodes merged") as progress:
        merge(parts, out, rules, progress, _say)
    print(_sentence(parts, out))
    return 0


@_own_names()
def run_split(args: Sequence[str]) -> int:
    """Make datasets of some of the episodes of one."""
    options = resolve(SplitOptions, args, "kata data split <folder> --out=<folder> [options]")
    if options is None:
        return 0
    out, rules = options.place(), options.rules()
    if options.by not in (None, "task"):
        raise ConfigError(
            f"by={options.by}", rule="task", remedy="write --by=task, or --fractions=..."
        )
    if options.by and options.fractions:
        raise ConfigError(
            "by and fractions",
            rule="one way of splitting at a time",
            remedy="leave out one of the two",
        )
    if not (options.by or options.fractions or options.episodes is not None or options.exclude):
        raise ConfigError(
            "nothing says which episodes",
            rule="--episodes, --exclude, --fractions or --by=task",
            remedy="for example --fractions=train:0.9,val:0.1",
        )
    part = options.part()
    positions = {"": list(range(len(part.layout.index)))}
    if options.fractions:
        positions = by_fractions(options.fractions, len(part.layout.index), options.seed)
    elif options.by:
        positions = by_task(part)
    groups = {name: [part.take(chosen)] for name, chosen in positions.items()}
    with counting("episodes copied") as progress:
        split(groups, out, rules, progress, _say)
    for name, parts in groups.items():
        print(_sentence(parts, out / name))
    left = len(part.layout.index) - sum(map(len, positions.values()))
    if left:
        print(f"{left} episodes are in none of them")
    return 0


@_own_names()
def run_transcode(args: Sequence[str]) -> int:
    """Make a dataset whose cameras are encoded anew."""
    options = resolve(
        TranscodeOptions, args, "kata data transcode <folder> --out=<folder> [options]"
    )
    if options is None:
        return 0
    out, rules, size = options.place(), options.rules(), _size(options.size)
    video = VideoOptions(options.codec, options.gop, options.crf, options.preset)
    part = options.part()
    with counting("episodes encoded") as progress:
        psnr = transcode(part, out, Encoding(video, size, options.cameras), rules, progress, _say)
    print(_sentence([part], out))
    for key, found in psnr.items():
        print(
            f"  {key}: {found.mean_db:.1f} dB (worst frame {found.worst_db:.1f} dB, all {found.frames} compared)"
        )
    print(f"  against the source, PSNR over RGB; also in {TRANSCODED}")
    return 0


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not found:
        raise ConfigError(
            f"size={text}", rule="height x width in pixels", remedy="for example --size=240x320"
        )
    return int(found[1]), int(found[2])


def _sentence(parts: Sequence[Part], out: Path) -> str:
    episodes = sum(len(part.layout.index) for part in parts)
    frames = sum(part.dataset.num_frames for part in parts)
    return f"{count_text(episodes)} episodes, {count_text(frames)} frames in {out}"

"""The verbs `kata data convert`, `merge`, `split` and `transcode`, which make new datasets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from kata.config.dataset import DatasetChoice
from kata.data.commands.options import (
    ConvertOptions,
    MergeOptions,
    ResultOptions,
    SplitOptions,
    TranscodeOptions,
    folder_source_of,
)
from kata.data.edit.assemble import Rules
from kata.data.edit.edit_source import Part, open_part
from kata.data.edit.operations import TRANSCODED, Encoding, convert, merge, split, transcode
from kata.data.edit.splits import by_fractions, by_task
from kata.data.video.encoder import VideoOptions
from kata.errors import DataError
from kata.log import counting
from kata.units import count_text

_say = logging.getLogger(__name__).info


def _rules(options: ResultOptions) -> Rules:
    """Return how the result is made."""
    return Rules(
        options.robot_type,
        options.camera_stats,
        options.data_files_size_in_mb,
        options.video_files_size_in_mb,
    )


def _opened(options: ConvertOptions) -> Part:
    """Return the dataset, opened."""
    dataset = options.dataset
    return open_part(
        folder_source_of(dataset),
        episodes=dataset.episodes,
        exclude=dataset.exclude_episodes,
        drop=options.drop,
    )


def run_convert(options: ConvertOptions) -> int:
    """Make a v3.0 dataset of a v2.0 or v2.1 one."""
    out, part = Path(options.out), _opened(options)
    with counting("episodes converted") as progress:
        convert(part, out, _rules(options), progress, _say)
    print(_sentence([part], out))
    return 0


def run_merge(options: MergeOptions) -> int:
    """Make one dataset of several."""
    out = Path(options.out)
    parts = [_merged_part(root, options.drop) for root in options.roots]
    with counting("episodes merged") as progress:
        merge(parts, out, _rules(options), progress, _say)
    print(_sentence(parts, out))
    return 0


def _merged_part(root: str, drop: list[str]) -> Part:
    """Return one of the datasets to be merged.

    Raises: DataError where files of it are absent: merge takes whole datasets.
    """
    try:
        return open_part(folder_source_of(DatasetChoice(root=root)), drop=drop)
    except DataError as error:
        if "--dataset." not in error.remedy:
            raise
        remedy = (
            f"make a dataset of some episodes first, and merge that: "
            f"kata data split {root} --dataset.episodes=available --out=<folder>"
        )
        raise DataError(error.what, rule=error.rule, remedy=remedy) from error


def run_split(options: SplitOptions) -> int:
    """Make datasets of some of the episodes of one."""
    out, part = Path(options.out), _opened(options)
    positions = {"": list(range(len(part.layout.index)))}
    if options.fractions:
        positions = by_fractions(options.fractions, len(part.layout.index), options.seed)
    elif options.by:
        positions = by_task(part)
    groups = {name: [part.take(chosen)] for name, chosen in positions.items()}
    with counting("episodes copied") as progress:
        split(groups, out, _rules(options), progress, _say)
    for name, parts in groups.items():
        print(_sentence(parts, out / name))
    left = len(part.layout.index) - sum(map(len, positions.values()))
    if left:
        print(f"{left} episodes are in none of them")
    return 0


def run_transcode(options: TranscodeOptions) -> int:
    """Make a dataset whose cameras are encoded again."""
    out, part = Path(options.out), _opened(options)
    size: tuple[int, int] | None = None
    if options.size is not None:
        height, _, width = options.size.partition("x")
        size = int(height), int(width)
    video = VideoOptions(options.codec, options.gop, options.crf, options.preset)
    with counting("episodes encoded") as progress:
        psnr = transcode(
            part, out, Encoding(video, size, options.cameras), _rules(options), progress, _say
        )
    print(_sentence([part], out))
    for key, found in psnr.items():
        print(
            f"  {key}: {found.mean_db:.1f} dB (worst frame {found.worst_db:.1f} dB, all "
            f"{found.frames} compared)"
        )
    print(f"  against the source, PSNR over RGB; also in {TRANSCODED}")
    return 0


def _sentence(parts: Sequence[Part], out: Path) -> str:
    episodes = sum(len(part.layout.index) for part in parts)
    frames = sum(part.dataset.num_frames for part in parts)
    return f"{count_text(episodes)} episodes, {count_text(frames)} frames in {out}"

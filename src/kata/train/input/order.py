"""The order of a run's samples: chosen once, and written down as options."""

from __future__ import annotations

import dataclasses
from typing import Any

from kata.data.dataset.anchors import AnchorRows
from kata.data.dataset.mixture import Mixture
from kata.data.loader.shuffle import Shuffle, ShuffleChoice, make_order
from kata.data.sampling.permutation import SampleOrder
from kata.run import Run
from kata.run.dataset import DatasetConfig
from kata.train.input.readers import ReaderSettings

_CLIPS = ("clip_pool", "clip_frames", "clip_gop")


def build_order(
    options: DatasetConfig, seed: int, data: Mixture, reading: ReaderSettings, rows: AnchorRows
) -> SampleOrder:
    """Return the order in which the anchors `rows` (N,) of `data` are trained on."""
    shuffles = _written(options) or [Shuffle()] * len(data.parts)
    return make_order(shuffles, data, reading.windows, reading.cameras, rows, seed)


def choose_order(
    run: Run, data: Mixture, reading: ReaderSettings, rows: AnchorRows
) -> tuple[dict[str, Any], list[str]]:
    """Choose the order of training.

    Args:
        run: its options; a resumed run has the numbers of its first start.
        data: the training episodes.
        reading: settings of the reader, whose memory the choice depends on.
        rows: the anchors (N,).

    Returns:
        Options of the dataset with all numbers, so that a resumed run has the same order whatever
        memory it finds; and messages for the user.
    """
    options = run.dataset
    asked = Shuffle(options.shuffle, options.clip_pool, options.clip_frames, options.clip_gop)
    choice = ShuffleChoice(
        asked,
        reading.frame_memory,
        run.effective_batch,
        run.prefetch_factor + 1,
        reading.frame_format,
    )
    where = (data, reading.windows, reading.cameras, rows)
    if options.mix_clips is None:
        shuffles, notes = choice.choose(*where)
        return _options(options, shuffles), notes
    if not run.resume or not any(map(any, options.mix_clips)):
        return {}, []
    # Clips on record that an overflow made are derived again; others stay as they are.
    for kind in ("auto", "clips"):
        asked = dataclasses.replace(choice, asked=Shuffle(kind))
        overflowed, _ = asked.choose(*where, in_64_bits=True)
        right, notes = asked.choose(*where)
        if list(map(_numbers, overflowed)) == options.mix_clips != list(map(_numbers, right)):
            note = (
                f"dataset.mix_clips={options.mix_clips} came from an overflow and is derived "
                "again: the order changes here, so samples of the current epoch may come twice or "
                "not at all"
            )
            return _options(options, right), [note, *notes]
    return {}, []


def _written(options: DatasetConfig) -> list[Shuffle] | None:
    """Return the order of each dataset in options, or None if a mixture's is not derived yet."""
    if options.mix is None:
        clips = (options.clip_pool, options.clip_frames, options.clip_gop)
        return [Shuffle(options.shuffle, *clips)]
    if options.mix_clips is None:
        return None
    return [Shuffle("clips", *clips) if any(clips) else Shuffle() for clips in options.mix_clips]


def _options(options: DatasetConfig, shuffles: list[Shuffle]) -> dict[str, Any]:
    """Return the options that write these orders down."""
    kind = "clips" if any(shuffle.kind == "clips" for shuffle in shuffles) else "full"
    numbers = list(map(_numbers, shuffles))
    if options.mix is not None:
        return {"shuffle": kind, "mix_clips": numbers}
    return {"shuffle": kind, **dict(zip(_CLIPS, numbers[0], strict=True))}


def _numbers(shuffle: Shuffle) -> list[int]:
    return [shuffle.clip_pool, shuffle.clip_frames, shuffle.clip_gop]

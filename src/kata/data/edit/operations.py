"""Convert, merge, split, transcode: opened parts in, folders that appear whole out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kata.data.edit.assemble import Progress, Rules, assemble
from kata.data.edit.edit_source import Part
from kata.data.edit.staged import new_folder
from kata.data.edit.transcode import LOW_PSNR_DB, Psnr, Recoder
from kata.data.video.encoder import VideoOptions
from kata.errors import DataError

TRANSCODED = "meta/transcode.json"
Say = Callable[[str], None]


def convert(part: Part, out: Path, rules: Rules, progress: Progress, say: Say) -> None:
    """A dataset of format v2.0 or v2.1 as v3.0, with the same frames.

    Raises: DataError for one that is v3.0, and as `assemble`.
    """
    if part.dataset.info.is_v3:
        raise DataError(
            f"{part.name} is {part.dataset.version} already",
            rule="v2.0 and v2.1 are converted",
            remedy="use it as it is; `kata data split` and `merge` make new datasets of it",
        )
    merge([part], out, rules, progress, say)


def merge(parts: Sequence[Part], out: Path, rules: Rules, progress: Progress, say: Say) -> None:
    """Write the episodes of all parts, in order, as one dataset.

    Raises:
        DataError: The parts differ, or one of the errors of `assemble`.
    """
    split({"": parts}, out, rules, progress, say)


def split(
    groups: Mapping[str, Sequence[Part]], out: Path, rules: Rules, progress: Progress, say: Say
) -> None:
    """Write one dataset per group, in a folder of its name below `out`.

    The group '' is `out` itself. All appear together. The errors are those of `assemble`.
    """
    parts = list(itertools.chain(*groups.values()))
    total, before = sum(len(part.layout.index) for part in parts), 0
    need = sum(int(part.bytes.sum()) for part in parts)
    notes: list[str] = []
    with new_folder(out, inputs=[part.root for part in parts], need_bytes=need, say=say) as work:
        for name, group in groups.items():
            folder = work / name
            folder.mkdir(exist_ok=True)
            notes += assemble(
                group, folder, rules, lambda done, _, before=before: progress(before + done, total)
            )
            before += sum(len(part.layout.index) for part in group)
    for note in dict.fromkeys(notes):
        say(note)


@dataclass(frozen=True)
class Encoding:
    """Options for the encoding of cameras.

    Attributes:
        size: (height, width) of the result; None keeps it.
        cameras: Their names; None for all color cameras.
    """

    video: VideoOptions
    size: tuple[int, int] | None = None
    cameras: Sequence[str] | None = None


def transcode(
    part: Part, out: Path, encoding: Encoding, rules: Rules, progress: Progress, say: Say
) -> dict[str, Psnr]:
    """Encode cameras again, and return how far each is from its source; meta keeps that too.

    Raises: DataError for cameras and sizes that cannot be encoded, and as `assemble`.
    """
    # An episode's new video lies beside the file that it is copied into until that file is whole.
    need = 2 * int(part.bytes.sum())
    with new_folder(out, inputs=[part.root], need_bytes=need, say=say) as work:
        recoder = Recoder(
            work.parent / "encoded",
            part.dataset.fps,
            encoding.video,
            size=encoding.size,
            cameras=encoding.cameras,
        )
        notes = assemble([part], work, rules, progress, recoder)
        report = {
            key: {
                "psnr_mean_db": round(p.mean_db, 3),
                "psnr_worst_frame_db": round(p.worst_db, 3),
                "frames": p.frames,
            }
            for key, p in recoder.psnr.items()
        }
        text = {
            "compared": "every frame, RGB, after resizing and before encoding",
            "cameras": report,
        }
        (work / TRANSCODED).write_text(json.dumps(text, indent=4), encoding="utf-8")
    for note in notes:
        say(note)
    for key, psnr in recoder.psnr.items():
        if psnr.mean_db < LOW_PSNR_DB:
            say(f"{key}: {psnr.mean_db:.1f} dB is low; lower --crf keeps more")
    return recoder.psnr

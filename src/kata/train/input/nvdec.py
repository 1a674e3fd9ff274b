"""Decoding on the GPU by NVDEC, through torchcodec.

It is chosen where its pixels are nearly those of the host's decoder.
"""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kata.data import Dataset, Reader
from kata.data.arrays import Pixels
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import StoredFile
from kata.data.video.decoder import Gop
from kata.data.video.packet_index import open_index
from kata.errors import DataError

CODECS = ("h264", "hevc")
"""The codecs that GPUs for training decode; an A100 or H100 has no circuit for AV1."""

LEAST_PSNR_DB = 35.0
"""The least PSNR of each frame against the host's.

Rounding and the placing of chroma leave more, a wrong colour matrix less.
"""

_OPEN_FILES = 16
"""The limit of each thread."""

_CHECKED_FRAMES = 8


class GpuDecoder:
    """A decoder of video frames by number on `device`, which several threads may call.

    The frames are copied to the host.
    """

    def __init__(self, device: str) -> None:
        self._open: Callable[..., Any] = importlib.import_module("torchcodec.decoders").VideoDecoder
        self._device, self._local = device, threading.local()

    def __call__(self, gop: Gop) -> Pixels:
        """Return the frames of a group (n, H, W, 3).

        Raises:
            FrameError: Frames cannot be decoded.
            DataError: The file has been replaced.
        """
        path = gop.index.file.path
        assert path is not None, "files elsewhere are ruled out when the decoder is chosen"
        if not path.is_file() or Stamp.of(path.stat()) != gop.stamp:
            raise DataError(
                f"{path} has changed since the run began",
                rule="the files of a dataset stay as they are while it is read",
                remedy="restore the file, or start again once the dataset is complete",
            )
        try:
            frames = self._decoder(path, gop).get_frames_at(gop.frames.tolist()).data
        except (RuntimeError, IndexError, ValueError) as error:
            raise gop.bad(0, f"torchcodec on {self._device}: {error}") from error
        return frames.cpu().numpy()

    def _decoder(self, path: Path, gop: Gop) -> Any:
        opened: OrderedDict[Path, Any] = self._local.__dict__.setdefault("opened", OrderedDict())
        if path not in opened:
            decoder = self._open(
                str(path), dimension_order="NHWC", device=self._device, seek_mode="exact"
            )
            if len(decoder) != len(gop.index):
                raise gop.bad(
                    0,
                    f"torchcodec finds {len(decoder)} frames in the file; --dataset.decoder=cpu "
                    "reads it",
                )
            opened[path] = decoder
            if len(opened) > _OPEN_FILES:
                opened.popitem(last=False)
        opened.move_to_end(path)
        return opened[path]


def gpu_decoder(device: torch.device) -> GpuDecoder:
    """Return NVDEC of a CUDA device.

    Raises:
        ImportError, RuntimeError, OSError: Torchcodec is missing or cannot be loaded.
    """
    return GpuDecoder(str(device))


def choose_decoder(
    asked: str,
    parts: Sequence[Dataset],
    cameras: Sequence[Sequence[str]],
    device: torch.device,
    threads: int,
    make: Callable[[torch.device], Callable[[Gop], Pixels]] = gpu_decoder,
) -> tuple[bool, list[str]]:
    """Return whether NVDEC decodes the cameras of each part, and notes for the user.

    Args:
        asked: 'cpu'; 'nvdec', which falls back to the host with a message; or 'auto', which also
            wants it to be faster than `threads` of the host.
        parts: The datasets.
        cameras: The cameras of each part.
        device: The device of the policy.
        threads: The threads of the host that decode.
        make: Opens NVDEC on a device.
    """
    if asked == "cpu":
        return False, []
    why_not = _unfit(parts, cameras, device)
    if why_not is None:
        try:
            card = make(device)
            found = [
                _compare(part, keys, card)
                for part, keys in zip(parts, cameras, strict=True)
                if keys
            ]
        except (DataError, ImportError, RuntimeError, OSError) as error:
            why_not = str(error).splitlines()[0]
        else:
            psnr_db = min(f[0] for f in found)
            card_s = sum(f[1] for f in found)
            host_s = sum(f[2] for f in found)
            times = (
                f"{1e3 * card_s:.1f} ms on the card, {1e3 * host_s:.1f} ms on one of "
                f"{threads} threads of the host"
            )
            if psnr_db < LEAST_PSNR_DB:
                why_not = (
                    f"its pixels differ (PSNR {psnr_db:.1f} dB, at least {LEAST_PSNR_DB:g} wanted)"
                )
            elif asked == "auto" and card_s >= host_s / threads:
                why_not = f"it is not faster ({times})"
            else:
                return True, [
                    f"frames are decoded by NVDEC: PSNR {psnr_db:.1f} dB against the host's; "
                    f"{times}"
                ]
    return False, [
        f"frames are decoded on the host, not by NVDEC (--dataset.decoder={asked}): {why_not}"
    ]


def _unfit(
    parts: Sequence[Dataset], cameras: Sequence[Sequence[str]], device: torch.device
) -> str | None:
    """Return the reason that rules NVDEC out before anything is decoded, or None."""
    if device.type != "cuda":
        return f"the policy is on {device.type}, NVDEC is part of an NVIDIA card"
    for part, keys in zip(parts, cameras, strict=True):
        for key in keys:
            if part.columns[key].dtype != "video":
                return f"{key} of {part.repo_id} is stored as images"
            span = part.layout.videos[key]
            first = StoredFile(part.store, span.files[int(span.file[0])])
            if first.path is None:
                return f"{key} of {part.repo_id} is streamed, torchcodec reads files on a disk"
            codec = open_index(first).setup[0]
            if codec not in CODECS:
                return (
                    f"{key} of {part.repo_id} is {codec}; {' and '.join(CODECS)} are what it "
                    "is asked for"
                )
    return None


def _compare(
    part: Dataset, keys: Sequence[str], card: Callable[[Gop], Pixels]
) -> tuple[float, float, float]:
    """Return the worst PSNR of a few frames in dB, and their seconds on the GPU and the host.

    The files are open by then.
    """
    rows = np.unique(np.linspace(0, part.num_frames - 1, _CHECKED_FRAMES).astype(np.int64))
    with (
        Reader(part, {}, threads=1, keys=keys) as host,
        Reader(part, {}, threads=1, keys=keys) as other,
    ):
        other.decode_with(card)
        spent_s: list[float] = []
        for reader in (host, other):
            reader.read(rows)
            began_s = time.perf_counter()
            reader.read(rows)
            spent_s.append(time.perf_counter() - began_s)
        wanted, found = host.read(rows), other.read(rows)
    worst_db = math.inf
    for key in keys:
        for one, other_one in zip(found[key], wanted[key], strict=True):
            worst_db = min(worst_db, _psnr_db(one, other_one))
    return worst_db, spent_s[1], spent_s[0]


def _psnr_db(one: Pixels, other: Pixels) -> float:
    error = float(np.mean((one.astype(np.float32) - other) ** 2))
    return 10 * float(np.log10(255**2 / max(error, 1e-9)))

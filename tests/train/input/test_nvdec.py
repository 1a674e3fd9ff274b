"""Decoding on the card is taken where its pixels are right, and left with a message elsewhere;
the card is made up.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from kata.data import Dataset, Reader, open_dataset
from kata.data.arrays import Pixels
from kata.data.frames.frame_format import FrameFormat
from kata.data.video.decoder import Gop
from kata.data.video.packet_index import build_index
from kata.errors import DataError
from kata.train.input import nvdec
from kata.train.input.nvdec import GpuDecoder, choose_decoder
from tests.data.dataset_maker import CAMERA, make

CUDA = torch.device("cuda")


class Card:
    """Decodes on the host, one grey level off for each `off`, and takes `sleep_s` more for it."""

    def __init__(self, data: Dataset, off: int = 0, sleep_s: float = 0.0) -> None:
        self._reader, self._off, self._sleep_s, self.frames = (
            Reader(data, {}, threads=1),
            off,
            sleep_s,
            0,
        )

    def __call__(self, gop: Gop) -> Pixels:
        time.sleep(self._sleep_s)
        self.frames += len(gop.frames)
        return self._reader.read(gop.rows)[CAMERA] ^ np.uint8(self._off)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    return open_dataset(
        "x/y", root=make(tmp_path_factory.mktemp("card") / "set", lengths=(12, 9), b_frames=2)
    )


def chosen(data, asked, card=None, device=CUDA, cameras=(CAMERA,)):
    def made(_):
        if card is None:
            raise ImportError("No module named 'torchcodec'")
        return card

    taken, (said,) = choose_decoder(asked, [data], [list(cameras)], device, 2, made)
    return taken, said


def test_a_card_with_the_same_pixels_is_taken(data):
    taken, said = chosen(data, "nvdec", Card(data, off=1))
    assert taken
    assert "decoded by NVDEC: PSNR 48.1 dB" in said


@pytest.mark.parametrize(
    ("asked", "card", "words"),
    [
        ("nvdec", {"off": 16}, "its pixels differ (PSNR 24.0 dB, at least 35 wanted)"),
        ("auto", {"sleep_s": 0.02}, "it is not faster"),
        ("nvdec", None, "No module named 'torchcodec'"),
    ],
)
def test_a_card_that_does_not_serve_is_left_with_a_message(data, asked, card, words):
    taken, said = chosen(data, asked, card and Card(data, **card))
    assert not taken
    assert f"decoded on the host, not by NVDEC (--dataset.decoder={asked})" in said
    assert words in said


def test_what_no_card_decodes_is_told(data, tmp_path, monkeypatch):
    assert "the policy is on cpu" in chosen(data, "auto", device=torch.device("cpu"))[1]
    images = open_dataset("x/i", root=make(tmp_path / "images", camera="image"))
    assert "stored as images" in chosen(images, "nvdec")[1]
    monkeypatch.setattr(
        nvdec, "open_index", lambda file: replace(build_index(file), setup=("libdav1d", b"", None))
    )
    assert "is libdav1d; h264 and hevc" in chosen(data, "nvdec")[1]


def test_frames_from_elsewhere_are_held_cached_and_resized_like_others(data):
    rows, card = np.arange(data.num_frames), Card(data)
    for sizes in ({}, {CAMERA: (16, 24)}):
        with (
            Reader(data, {}, frame_format=FrameFormat(sizes)) as host,
            Reader(data, {}, frame_format=FrameFormat(sizes), frame_memory=10**7) as reader,
        ):
            reader.decode_with(card)
            found, wanted = reader.read(rows)[CAMERA].astype(int), host.read(rows)[CAMERA]
        assert np.abs(found - wanted).mean() < (4 if sizes else 1e-9)
    assert card.frames == 2 * len(rows)


def test_a_run_on_the_host_says_why(tiny_run):
    from kata.train.input.prepare import prepare

    prepared = prepare(tiny_run("--dataset.decoder=auto"))
    assert not prepared.reading.is_on_gpu
    assert any("the policy is on cpu" in note for note in prepared.notes)


def test_torchcodec_gives_the_same_frames(data):
    """The real library, on its CPU device; `--dataset.decoder` drives the same code on a card."""
    pytest.importorskip("torchcodec", exc_type=ImportError)
    card = GpuDecoder("cpu")
    taken, said = choose_decoder("nvdec", [data], [[CAMERA]], CUDA, 1, lambda _: card)
    assert taken, said
    path = next(data.root.rglob("*.mp4"))
    with Reader(data, {}) as reader:
        reader.decode_with(card)
        reader.read(np.arange(3))
        path.touch()
        with pytest.raises(DataError, match="has changed since"):
            reader.read(np.arange(3))

"""A substitute is a function of seed, position and attempt, and there are limits to substituting."""

import av
import numpy as np
import pytest

from kata.data import Reader, open_dataset
from kata.data.substitute import COUNT_MIN, Substituted, substitute_anchor
from kata.errors import DataError
from tests.data.dataset_maker import make


def corrupt(path, packet: int) -> None:
    """Overwrite the bytes inside one packet of a video; its length and the file's tables stay."""
    with av.open(str(path)) as container:
        found = [p for p in container.demux(video=0) if p.size][packet]
        place, size = found.pos, found.size
    data = bytearray(path.read_bytes())
    data[place : place + size] = bytes([0xFF]) * size
    path.write_bytes(bytes(data))


def test_the_choice_depends_on_seed_position_and_attempt_alone():
    first = [substitute_anchor(3, position, 0, 1000) for position in range(200)]
    assert first == [substitute_anchor(3, position, 0, 1000) for position in range(200)]
    assert first != [substitute_anchor(4, position, 0, 1000) for position in range(200)]
    assert first != [substitute_anchor(3, position, 1, 1000) for position in range(200)]
    assert first[:3] != [substitute_anchor(3, 2**33 + position, 0, 1000) for position in range(3)]


def test_the_choice_favours_no_anchor():
    counts = np.bincount([substitute_anchor(0, position, 0, 7) for position in range(7000)], minlength=7)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_a_few_are_let_pass_and_more_than_one_in_a_thousand_are_not():
    account = Substituted()
    for position in range(COUNT_MIN):
        account.note(position, {"episode": 4}, samples=position + 1)
    account.note(COUNT_MIN, {"episode": 5}, samples=11_000)
    account.note(COUNT_MIN, {"episode": 5}, samples=11_000)
    assert len(account.lines) == COUNT_MIN + 1
    with pytest.raises(DataError, match="12 of 11000") as refused:
        account.note(COUNT_MIN + 1, {"episode": 4}, samples=11_000)
    assert "exclude_episodes=[4,5]" in refused.value.remedy


def test_a_corrupted_packet_is_named(tmp_path):
    """Today's default: the file is named. The packets before it are read as ever."""
    root = make(tmp_path / "data", lengths=(8,))
    video = next(root.glob("videos/**/*.mp4"))
    corrupt(video, 4)
    with Reader(open_dataset("x/y", root=root), {}) as reader:
        reader.read(np.arange(3))
        with pytest.raises(DataError, match=video.name):
            reader.read(np.array([4]))

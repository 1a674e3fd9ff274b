"""A substitute is a function of seed, position and attempt, and there are limits to
substituting.
"""

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.data import Batches, Order, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.loader.shuffle import Shuffle, make_order
from kata.data.loader.substitutes import (
    ATTEMPTS,
    COUNT_MIN,
    Substituted,
    Substitutes,
    read_alone,
    substitute_anchor,
)
from kata.data.sampling.mixture_order import MixtureOrder
from kata.data.sampling.permutation import SampleOrder
from kata.errors import DataError, FrameError
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, make

_alone = {}
"""Samples of datasets read one by one, by folder and windows."""


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
    counts = np.bincount(
        [substitute_anchor(0, position, 0, 7) for position in range(2100)], minlength=7
    )
    assert counts.min() > 250
    assert counts.max() < 350


def test_a_few_are_let_pass_and_more_than_one_in_a_thousand_are_not():
    account = Substituted()
    for position in range(COUNT_MIN):
        account.note(position, {"file": "v/a.mp4"}, samples=position + 1)
    account.note(COUNT_MIN, {"dataset": "two", "file": "v/b.mp4"}, samples=11_000)
    account.note(COUNT_MIN, {"dataset": "two", "file": "v/b.mp4"}, samples=11_000)
    assert len(account.lines) == COUNT_MIN + 1
    with pytest.raises(DataError, match="12 of 11000") as refused:
        account.note(COUNT_MIN + 1, {"file": "v/a.mp4"}, samples=11_000)
    assert "two/v/b.mp4, v/a.mp4" in refused.value.what
    assert "kata data check" in refused.value.remedy


def test_a_corrupted_packet_is_named(tmp_path):
    """Today's default: the file is named. The packets before it are read as ever."""
    root = make(tmp_path / "data", lengths=(8,))
    video = next(root.glob("videos/**/*.mp4"))
    corrupt(video, 4)
    with Reader(open_dataset("x/y", root=root), {}) as reader:
        reader.read(np.arange(3))
        with pytest.raises(DataError, match=video.name):
            reader.read(np.array([4]))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Episodes of 14, 9 and 8 frames with frames between keyframes that lean on later ones; five
    do not decode.
    """
    root = make(tmp_path_factory.mktemp("bad") / "damaged", lengths=(14, 9, 8), b_frames=2)
    corrupt(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", 9)
    corrupt(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", 17)
    return open_dataset("x/y", root=root)


def bad_rows(data, windows):
    return [row for row, sample in enumerate(samples_alone(data, windows)) if sample is None]


def samples_alone(data, windows):
    """Each sample, read by itself, or None where it cannot be; read once for all tests."""
    key = (data.root, tuple(windows.items()))
    if key not in _alone:
        with Reader(data, windows) as reader:
            errors = read_alone(reader, np.arange(data.num_frames))
            _alone[key] = [
                None if error else reader.read(np.array([row])) for row, error in enumerate(errors)
            ]
    return _alone[key]


def expected(data, windows, order, rows, count, seed=5):
    """What stands at the first positions: the sample of the order, or the first whole
    substitute.
    """
    alone, samples = samples_alone(data, windows), []
    for position, anchor in enumerate(order.at(np.arange(count)).tolist()):
        row, attempt = int(rows[anchor]), 0
        while alone[row] is None:
            row = int(rows[substitute_anchor(seed, position, attempt, len(rows))])
            attempt += 1
        samples.append(alone[row])
    return samples


def check_stream(
    data, windows, order: SampleOrder, *, size, threads=2, ahead=2, memory=0, caches=None
):
    rows = anchor_rows(data)
    count = 2 * len(rows) // size * size
    noted = []
    with (
        Reader(data, windows, threads=threads, frame_memory=memory, caches=caches) as reader,
        Batches(
            reader,
            rows,
            order,
            size,
            ahead=ahead,
            substitute=Substitutes(reader, rows, rows[:1], 5, noted.append),
        ) as batches,
    ):
        got = [(batches.at(step), batches.anchors(step)) for step in range(count // size)]
    wanted = expected(data, windows, order, rows, count)
    bad = set(bad_rows(data, windows))
    stood = rows[order.at(np.arange(count))]
    assert [found.position for found in noted] == [
        p for p, row in enumerate(stood.tolist()) if row in bad
    ]
    assert len(noted) >= 2
    for found in noted:
        assert found.row == stood[found.position]
        assert found.error.camera == CAMERA
        assert found.row in bad
    for position, one in enumerate(wanted):
        batch, anchors = got[position // size]
        place = position % size
        assert batch["position"][place] == position
        assert anchors[place] == one["index"][0]
        for key, value in one.items():
            assert np.array_equal(np.asarray(batch[key][place]), np.asarray(value[0])), key


@pytest.mark.parametrize(
    "how",
    [
        {"size": 4},
        {"size": 8, "threads": 1, "ahead": 1},
        {"size": 3, "threads": 4, "ahead": 6, "memory": 30 * HEIGHT * WIDTH * 3},
    ],
    ids=["small batches", "one thread", "frames held"],
)
@pytest.mark.parametrize("windows", [{}, {CAMERA: (-2, 0)}], ids=["one frame", "two frames"])
@pytest.mark.parametrize("kind", ["full", "clips"])
def test_every_position_holds_its_sample_or_its_substitute(damaged, how, windows, kind):
    """Nothing but seed and position decides what is read, and no other position moves."""
    assert len(bad_rows(damaged, {})) >= 5
    rows = anchor_rows(damaged)
    order = Order(len(rows), 5)
    if kind == "clips":
        order = make_order(
            [Shuffle("clips", 3, 4, 4)], Mixture.of(damaged), windows, [CAMERA], rows, 5
        )
    check_stream(damaged, windows, order, **how)


def test_a_frame_cache_changes_nothing(damaged, tmp_path):
    options = CacheOptions("disk", tmp_path / "cache", None)
    for _ in range(2):  # filled, then full of what can be decoded
        with FrameCache(damaged, (CAMERA,), options) as cache:
            check_stream(
                damaged, {}, Order(damaged.num_frames, 5), size=4, caches={damaged.repo_id: cache}
            )


def test_all_whole_samples_together_decode_to_what_each_gives_alone(damaged):
    """Packets are not in the order of frames: a bad frame in a batch can make the ones before it
    fail.
    """
    bad = bad_rows(damaged, {})
    rows = np.setdiff1d(np.arange(damaged.num_frames), bad)
    with Reader(damaged, {}) as reader:
        together = reader.read(rows)[CAMERA]
        alone = [reader.read(np.array([row]))[CAMERA][0] for row in rows]
    assert np.array_equal(together, np.stack(alone))


def test_in_a_mixture_the_substitute_is_of_the_same_dataset(damaged, tmp_path):
    whole = open_dataset("x/z", root=make(tmp_path / "whole", lengths=(10, 6)))
    mixture = Mixture((MixtureEntry("whole", whole), MixtureEntry("damaged", damaged)))
    rows = anchor_rows(mixture)
    order = MixtureOrder.full(mixture.sizes(rows), mixture.shares(rows), 5)
    noted = []
    with (
        Reader(mixture, {}) as reader,
        Batches(
            reader,
            rows,
            order,
            4,
            substitute=Substitutes(reader, rows, mixture.first_rows, 5, noted.append),
        ) as batches,
    ):
        numbers = np.concatenate([batches.at(step)["dataset_index"] for step in range(24)])
    assert len(noted) > 8
    assert np.array_equal(numbers, mixture.part_of(rows[order.at(np.arange(96))]))
    bad = bad_rows(damaged, {})
    for found in noted:
        drawn = [substitute_anchor(5, found.position, attempt, 31) for attempt in range(ATTEMPTS)]
        assert (found.row - 16 in bad, found.instead - 16) == (
            True,
            next(row for row in drawn if row not in bad),
        )


def test_pictures_in_tables_too(tmp_path):
    root = make(tmp_path / "data", lengths=(9, 8), camera="image")
    path = next(root.glob("data/**/*.parquet"))
    table = pq.read_table(path)
    cells = table[CAMERA].to_pylist()
    cells[6]["bytes"] = cells[6]["bytes"][:40]
    at = table.schema.get_field_index(CAMERA)
    pq.write_table(
        table.set_column(at, table.schema.field(at), pa.array(cells, table.schema.field(at).type)),
        path,
    )
    data = open_dataset("x/y", root=root)
    assert bad_rows(data, {}) == [6]
    check_stream(data, {}, Order(17, 5), size=4)


def test_which_error_is_told_depends_on_no_thread(tmp_path):
    """Of several bad frames in a batch the first by camera and row, every time."""
    root = make(tmp_path / "data", lengths=(16, 16), per_file=1)
    for video in root.glob("videos/**/*.mp4"):
        for packet in range(0, 16, 4):
            corrupt(video, packet)
    with Reader(open_dataset("x/y", root=root), {}, threads=8) as reader:
        for _ in range(20):
            with pytest.raises(FrameError) as found:
                reader.read(np.array([30, 21, 7, 13, 26]))
            assert found.value.row == 7


def test_where_nothing_is_whole_the_run_ends(tmp_path):
    root = make(tmp_path / "data", lengths=(8,))
    video = next(root.glob("videos/**/*.mp4"))
    for packet in (0, 4):
        corrupt(video, packet)
    data = open_dataset("x/y", root=root)
    rows = anchor_rows(data)
    with (
        Reader(data, {}) as reader,
        Batches(
            reader,
            rows,
            Order(8, 0),
            2,
            substitute=Substitutes(reader, rows, rows[:1], 0, lambda _: None),
        ) as batches,
        pytest.raises(DataError, match=f"{video.name}.*{ATTEMPTS} other samples") as refused,
    ):
        batches.at(0)
    assert "kata data check" in refused.value.remedy

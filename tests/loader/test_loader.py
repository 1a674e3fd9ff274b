"""kata.loader.Loader: batches of kata's reader under LeRobot's keys, in one order for all ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kata.data import Dataset, Reader, open_dataset
from kata.data.sampling.clip_order import ClipOrder
from kata.data.sampling.mixture_order import MixtureOrder
from kata.errors import ConfigError, DataError
from kata.loader import Loader
from kata.loader.batch_grid import BatchGrid
from tests.data.dataset_maker import CAMERA, GOLDEN, make
from tests.data.far_store import streamed

LENGTHS = (9, 4, 8)
TIMES = {CAMERA: [-0.2, 0.0], "action": [0.0, 0.1, 0.2]}
WINDOWS = {CAMERA: (-2, 0), "action": (0, 1, 2)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset("x/y", root=make(tmp_path_factory.mktemp("data"), lengths=LENGTHS))


def indices(loader: Loader, count: int | None = None) -> list[int]:
    found: list[int] = []
    for batch in itertools.islice(loader, count):
        found += batch["index"].tolist()
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[key].dtype
            assert torch.equal(value, other[key]), key
        else:
            assert value == other[key]


def test_batches_are_those_of_the_reader(data: Dataset) -> None:
    with (
        Loader(data, 4, TIMES, image_dtype=torch.uint8) as loader,
        Reader(data, WINDOWS) as reader,
    ):
        for batch in itertools.islice(loader, 12):
            expected = reader.read(batch["index"].numpy())
            assert batch.keys() == expected.keys()
            for key, value in expected.items():
                found = batch[key].movedim(2, -1) if key == CAMERA else batch[key]
                np.testing.assert_array_equal(found, value, err_msg=key)
            assert isinstance(batch["task"], list)


def test_float_images_are_the_bytes_divided(data: Dataset) -> None:
    with Loader(data, 5) as floats, Loader(data, 5, image_dtype=torch.uint8) as whole:
        image, pixels = next(iter(floats))[CAMERA], next(iter(whole))[CAMERA]
    assert image.shape == (5, 3, 32, 48)
    assert image.dtype == torch.float32
    assert torch.equal(image, pixels.to(torch.float32) / 255)


@pytest.mark.parametrize("shuffle", ["full", "clips"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_order_is_that_of_one_rank(data: Dataset, shuffle: str, ranks: int) -> None:
    options = {"shuffle": shuffle, "frame_memory": 20 * 32 * 48 * 3, "seed": 5}
    with Loader(data, 2 * ranks, **options) as one:
        expected = [batch["index"].tolist() for batch in itertools.islice(one, 9)]
    for rank in range(ranks):
        with Loader(data, 2, **options, rank=rank, world_size=ranks) as loader:
            for batch, whole in zip(loader, expected, strict=False):
                assert batch["index"].tolist() == whole[2 * rank : 2 * rank + 2]


def test_a_smaller_step_allows_longer_clips_whatever_the_ranks(data: Dataset) -> None:
    options: dict[str, Any] = {"shuffle": "clips", "frame_memory": 60 * 32 * 48 * 3, "seed": 5}
    times = {CAMERA: [-0.4, -0.2, 0.0]}
    orders: dict[int, list[list[int]]] = {1: [], 64: []}
    lengths: dict[int, int] = {}
    for step, found in orders.items():
        for ranks in (1, 2):
            with Loader(
                data, 2, times, **options, global_batch=step, rank=0, world_size=ranks
            ) as loader:
                assert isinstance(loader.order, MixtureOrder)
                (clips,) = loader.order.orders
                assert isinstance(clips, ClipOrder)
                lengths[step] = clips.clips.frames
                found.append(loader.order.at(np.arange(21)).tolist())
    assert lengths[1] > lengths[64]
    assert orders[1][0] == orders[1][1] != orders[64][0] == orders[64][1]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_every_sample_comes_once_per_epoch(data: Dataset, ranks: int, epochs: int) -> None:
    for _ in range(2):
        found: list[int] = []
        for rank in range(ranks):
            with Loader(data, 4, epochs=epochs, rank=rank, world_size=ranks) as loader:
                assert len(list(loader)) == len(loader)
                assert loader.position == epochs * 21
                second = indices(loader)
                found += second
                assert loader.position == 2 * epochs * 21
        assert sorted(found) == sorted([*range(21)] * epochs)


def test_drop_last_gives_all_ranks_as_many_batches(data: Dataset) -> None:
    seen: list[int] = []
    for rank in range(2):
        with Loader(data, 4, epochs=1, drop_last=True, rank=rank, world_size=2) as loader:
            batches = list(loader)
            assert [len(batch["index"]) for batch in batches] == [4, 4] == [4] * len(loader)
            assert loader.state_dict() == {"position": 21}
            seen += [number for batch in batches for number in batch["index"].tolist()]
    assert len(set(seen)) == 16


@pytest.mark.parametrize("epochs", [None, 1, 3])
@pytest.mark.parametrize("taken", [0, 1, 4, 6])
def test_a_state_resumes_on_another_number_of_ranks(
    data: Dataset, epochs: int | None, taken: int
) -> None:
    with Loader(data, 4, epochs=epochs, seed=9) as straight:
        before = indices(straight, taken)
        state = straight.state_dict()
        assert state == {"position": len(before)}
        rest = indices(straight, 12)
    found: list[list[int]] = []
    for rank in range(2):
        with Loader(data, 3, epochs=epochs, seed=9, rank=rank, world_size=2) as resumed:
            resumed.load_state_dict(state)
            found.append(indices(resumed, 8))
    joined: list[int] = []
    for step in range(-(-len(found[0]) // 3)):
        for own in found:
            joined += own[3 * step : 3 * step + 3]
    assert joined == rest[: len(joined)]
    assert len(joined) == len(rest)


def test_a_loaded_state_takes_the_place_of_batches_read_in_advance(data: Dataset) -> None:
    with Loader(data, 4) as loader:
        first = indices(loader, 5)
        loader.load_state_dict({"position": 8})
        assert indices(loader, 3) == first[8:20]


def test_streamed_batches_are_those_of_the_disk(data: Dataset) -> None:
    with (
        streamed(data, delay_s=0.001) as (there, _, _),
        Loader(data, 4, TIMES) as near,
        Loader(there, 4, TIMES) as far,
    ):
        for one, other in itertools.islice(zip(near, far, strict=True), 7):
            same(one, other)


LAUNCHERS = [
    {"RANK": "1", "WORLD_SIZE": "2"},
    {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
]


@pytest.mark.parametrize("variables", LAUNCHERS, ids=["torchrun", "srun"])
def test_the_launcher_names_the_rank(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with Loader(data, 3) as launched, Loader(data, 3, rank=1, world_size=2) as given:
        assert indices(launched, 2) == indices(given, 2)
        assert launched.position == 12


def test_the_recorded_order_and_dropped_frames(data: Dataset) -> None:
    with Loader(data, 4, shuffle="none", epochs=1, drop_n_last_frames=3) as loader:
        assert indices(loader) == [*range(6), 9, *range(13, 18)]
        assert loader.num_samples == 12


STRIDE = 4


@pytest.mark.parametrize("kind", ["video", "image"])
def test_items_equal_lerobots(kind: str) -> None:
    """LeRobot 0.6.1's items of the same files, in which kata's golden frames lie channels last."""
    top = "observation.images.top"
    data = open_dataset(f"golden/{kind}", root=GOLDEN / kind)
    offsets = {
        "observation.state": (-1, 0),
        top: (-2, 0, 1),
        "action": (0, 1, 2, 3, 4),
        "next.reward": (0, 2),
    }
    times = {key: [each / data.fps for each in value] for key, value in offsets.items()}
    prefix = f"{kind}/all/"
    with np.load(GOLDEN / "items.npz") as stored:
        names = [name for name in stored.files if name.startswith(prefix)]
        golden = {name.removeprefix(prefix): stored[name] for name in names}
    with Loader(data, data.num_frames, times, shuffle="none", epochs=1) as loader:
        (batch,) = loader
    assert set(batch) == set(golden)
    for key, expected in golden.items():
        if key in data.cameras:
            found = (batch[key] * 255).movedim(-3, -1)[..., ::STRIDE, ::STRIDE, :]
            assert np.abs(found.numpy() - expected).max() <= 1.01
        else:
            np.testing.assert_array_equal(np.asarray(batch[key]), expected, err_msg=key)
            assert np.asarray(batch[key]).dtype == expected.dtype, key


def test_a_window_of_one_frame_has_lerobots_shape(data: Dataset) -> None:
    with Loader(data, 2, {CAMERA: [0.0], "action": [0.0]}) as loader:
        batch = next(iter(loader))
    assert batch[CAMERA].shape == (2, 3, 32, 48)
    assert batch[f"{CAMERA}_is_pad"].shape == (2, 1)
    assert batch["action"].shape == (2, 1, 2)


def test_a_folder_is_opened_by_its_path(data: Dataset) -> None:
    for place in (data.root, str(data.root)):
        with Loader(place, 2, keys=["action"]) as loader:
            assert CAMERA not in next(iter(loader))


def test_an_endless_loader_has_no_length(data: Dataset) -> None:
    with Loader(data, 2) as loader, pytest.raises(TypeError, match="epochs=1"):
        len(loader)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"shuffle": "clip"}, "shuffle=clip"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"image_dtype": torch.float16}, "image_dtype=torch.float16"),
        ({"rank": 1}, "rank=1, world_size=None"),
        ({"rank": 2, "world_size": 2}, "rank=2, world_size=2"),
        ({"delta_timestamps": {"action": [0.0, 0.13]}}, "0.13 s at 10 frames per second"),
        ({"delta_timestamps": {"action": []}}, "action: no time"),
        ({"epochs": 1, "drop_last": True, "batch_size": 22}, "drop_last=True"),
    ],
)
def test_a_wrong_setting_is_refused(data: Dataset, options: dict, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        Loader(data, **options)
    assert caught.value.rule
    assert caught.value.remedy


def test_credentials_in_an_address_are_refused() -> None:
    with pytest.raises(ConfigError, match="user or password") as caught:
        Loader("https://me:secret@example.org/data")
    assert "secret" not in str(caught.value)


def test_an_unknown_key_and_an_absent_folder(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'actoin' is no column"):
        Loader(data, delta_timestamps={"actoin": [0.0]})
    with pytest.raises(DataError, match="absent"):
        Loader(tmp_path / "absent")


@pytest.mark.parametrize("state", [{}, {"position": -1}, {"position": "3"}, {"position": True}])
def test_a_state_of_something_else_is_refused(data: Dataset, state: dict) -> None:
    with Loader(data) as loader:
        with pytest.raises(ConfigError, match="whole number"):
            loader.load_state_dict(state)
        assert loader.position == 0


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("start", [0, 3, 9, 10, 25])
def test_a_grid_divides_runs_into_batches(drop_last: bool, start: int) -> None:
    """Run of 10, batches of 4: counted by a loop that takes one batch after the other."""
    grid = BatchGrid(start, 4, 10, drop_last)
    expected: list[tuple[int, int, bool]] = []
    position = start
    while len(expected) < 12:
        end = (position // 10 + 1) * 10
        left = min(4, end - position)
        if left < 4 and drop_last:
            position = end
            continue
        following = position + left
        is_last = following == end or (drop_last and end - following < 4)
        expected.append((position, left, is_last))
        position = end if is_last else following
    if expected[0][0] == start:  # a loader begins no grid at samples that are left out
        found = [(grid.first(k), grid.left(k), grid.is_last(k)) for k in range(12)]
        assert found == expected
        places = grid.positions(np.arange(48)).reshape(12, 4)
        assert places[:, 0].tolist() == [first for first, _, _ in expected]
        assert (np.diff(places, axis=1) == 1).all()

"""Items equal those that LeRobot 0.6.1 reads from the same files (tools/peer/golden_data.py)."""

from __future__ import annotations

import numpy as np
import pytest

from kata.data import Reader, open_dataset
from tests.data.dataset_maker import GOLDEN, SHARED

TOP = "observation.images.top"
WINDOWS = {
    "observation.state": (-1, 0),
    TOP: (-2, 0, 1),
    "action": (0, 1, 2, 3, 4),
    "next.reward": (0, 2),
}
STRIDE = 4


@pytest.mark.parametrize("kind", ["video", "image"])
@pytest.mark.parametrize(("name", "episodes"), [("all", None), ("subset", [2, 0])])
def test_items_equal_lerobots(kind: str, name: str, episodes: list[int] | None) -> None:
    data = open_dataset(f"golden/{kind}", root=GOLDEN / kind, episodes=episodes)
    prefix = f"{kind}/{name}/"
    with np.load(GOLDEN / "items.npz") as stored:
        golden = {
            key.removeprefix(prefix): stored[key] for key in stored.files if key.startswith(prefix)
        }
    with Reader(data, WINDOWS, threads=2) as reader:
        batch = reader.read(np.arange(data.num_frames))
    assert set(batch) == set(golden)
    for key, expected in golden.items():
        if key in data.cameras:
            found = batch[key][..., ::STRIDE, ::STRIDE, :].astype(int)
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() <= 1
        else:
            np.testing.assert_array_equal(np.asarray(batch[key]), expected, err_msg=key)
            assert np.asarray(batch[key]).dtype == expected.dtype, key


def test_the_golden_video_lies_in_several_files_per_camera() -> None:
    assert len(list((GOLDEN / "video").glob(f"videos/{TOP}/*/*.mp4"))) == 3


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is absent")
def test_pusht_items_have_the_values_that_lerobot_reads() -> None:
    """LeRobot 0.6.1's items of five rows: sums over the picture, state and action, task."""
    rows = np.array(PUSHT_ROWS)
    data = open_dataset("pusht", root=SHARED / "pusht-v30")
    with Reader(data, {"observation.image": (-2, 0, 1), "action": tuple(range(20))}) as reader:
        batch = reader.read(rows)
    pictures = batch["observation.image"].astype(np.int64)
    np.testing.assert_allclose(pictures.sum(axis=(2, 3, 4)), PUSHT_PICTURE_SUMS, atol=96 * 96 * 3)
    np.testing.assert_array_equal(
        batch["observation.state"], np.array(PUSHT_STATES, dtype=np.float32)
    )
    np.testing.assert_array_equal(
        batch["action"][:, -1], np.array(PUSHT_LAST_ACTIONS, dtype=np.float32)
    )
    np.testing.assert_array_equal(batch["action_is_pad"].sum(axis=1), PUSHT_PADS)


PUSHT_ROWS = [0, 1973, 11180, 18414, 25649]
PUSHT_PICTURE_SUMS = [
    [6876496, 6876496, 6868924],
    [6866128, 6867167, 6862771],
    [6888742, 6891947, 6900003],
    [6895270, 6896478, 6905900],
    [6913300, 6913608, 6913608],
]
PUSHT_STATES = [
    [222.0, 97.0],
    [403.6007080078125, 457.078857421875],
    [297.8124084472656, 355.5249938964844],
    [105.40218353271484, 319.763427734375],
    [144.55123901367188, 305.2630615234375],
]
PUSHT_LAST_ACTIONS = [
    [357.0, 209.0],
    [397.0, 312.0],
    [234.0, 326.0],
    [164.0, 339.0],
    [157.0, 325.0],
]
PUSHT_PADS = [0, 0, 0, 8, 19]

import numpy as np
import pytest
import torch

from kata.errors import CheckpointError
from kata.processors import AddBatchAxis, Normalize, Rename, ToDevice, Unnormalize, frames_to_float
from kata.spec import Feature, FeatureType, NormMode

FEATURES = {
    "observation.state": Feature(FeatureType.STATE, (3,)),
    "observation.images.top": Feature(FeatureType.VISUAL, (3, 4, 5)),
    "action": Feature(FeatureType.ACTION, (2,)),
}


def stats():
    rng = np.random.default_rng(0)
    named = {}
    for key, shape in (
        ("observation.state", (3,)),
        ("observation.images.top", (3, 1, 1)),
        ("action", (2,)),
    ):
        low = rng.uniform(-2, -1, shape)
        named[key] = {
            "min": low, "max": low + 3, "mean": low + 1, "std": rng.uniform(0.5, 1, shape),
            "q01": low + 0.1, "q99": low + 2.9, "q10": low + 0.4, "q90": low + 2.5,
        }  # fmt: skip
    return named


FORMULAS = {
    NormMode.MEAN_STD: lambda x, s: (x - s["mean"]) / (s["std"] + 1e-8),
    NormMode.MIN_MAX: lambda x, s: 2 * (x - s["min"]) / (s["max"] - s["min"]) - 1,
    NormMode.QUANTILES: lambda x, s: 2 * (x - s["q01"]) / (s["q99"] - s["q01"]) - 1,
    NormMode.QUANTILE10: lambda x, s: 2 * (x - s["q10"]) / (s["q90"] - s["q10"]) - 1,
    NormMode.IDENTITY: lambda x, _: x,
}


def modes(mode):
    return dict.fromkeys(("STATE", "VISUAL", "ACTION"), mode)


def batch():
    torch.manual_seed(0)
    return {
        "observation.state": torch.randn(6, 3),
        "observation.images.top": torch.rand(6, 3, 4, 5),
        "action": torch.randn(6, 7, 2),
        "task": ["x"] * 6,
    }


@pytest.mark.parametrize("mode", list(NormMode))
def test_each_mode_is_its_formula_and_comes_back(mode):
    step = Normalize.from_stats(FEATURES, modes(mode), stats())
    back = Unnormalize.from_stats(FEATURES, modes(mode), stats())
    given = batch()
    done = step(given)
    for key in FEATURES:
        named = {n: torch.as_tensor(v, dtype=torch.float32) for n, v in stats()[key].items()}
        torch.testing.assert_close(done[key], FORMULAS[mode](given[key], named))
        torch.testing.assert_close(back(done)[key], given[key], rtol=1e-5, atol=1e-5)
    assert done["task"] is given["task"]


def test_the_callers_batch_is_not_changed():
    given = batch()
    before = {k: v.clone() for k, v in given.items() if k != "task"}
    Normalize.from_stats(FEATURES, modes(NormMode.MEAN_STD), stats())(given)
    assert all(torch.equal(given[k], v) for k, v in before.items())


def test_a_range_of_zero_becomes_eps():
    flat = stats()
    flat["action"]["max"] = flat["action"]["min"]
    step = Normalize.from_stats(FEATURES, modes(NormMode.MIN_MAX), flat)
    low = torch.as_tensor(flat["action"]["min"], dtype=torch.float32)
    assert step({"action": low[None]})["action"].tolist() == [[-1.0, -1.0]]


def test_flat_camera_statistics_are_per_channel():
    flat = stats()
    for name, value in flat["observation.images.top"].items():
        flat["observation.images.top"][name] = value.reshape(3)
    given = batch()
    want = Normalize.from_stats(FEATURES, modes(NormMode.MEAN_STD), stats())(given)
    done = Normalize.from_stats(FEATURES, modes(NormMode.MEAN_STD), flat)(given)
    assert all(torch.equal(done[key], want[key]) for key in FEATURES)


def test_missing_statistics_are_refused_not_skipped():
    lacking = stats()
    del lacking["action"]["q01"]
    with pytest.raises(CheckpointError, match="q01"):
        Normalize.from_stats(FEATURES, modes(NormMode.QUANTILES), lacking)


def test_renaming_takes_the_mask_along():
    step = Rename({"observation.images.front": "observation.images.top"})
    given = {"observation.images.front": 1, "observation.images.front_is_pad": 2, "action": 3}
    assert step(given) == {
        "observation.images.top": 1,
        "observation.images.top_is_pad": 2,
        "action": 3,
    }


def test_one_observation_becomes_a_batch_and_a_batch_stays():
    one = {
        "observation.state": torch.zeros(3),
        "observation.images.top": torch.zeros(3, 4, 5),
        "task": "go",
    }
    done = AddBatchAxis()(one)
    assert (done["observation.state"].shape, done["observation.images.top"].shape) == (
        (1, 3),
        (1, 3, 4, 5),
    )
    assert done["task"] == ["go"]
    assert AddBatchAxis()(done)["observation.state"] is done["observation.state"]


def test_the_device_step_casts_floats_alone():
    done = ToDevice("cpu", "bfloat16")(
        {"a": torch.zeros(2), "i": torch.zeros(2, dtype=torch.int64), "task": ["x"]}
    )
    assert (done["a"].dtype, done["i"].dtype, done["task"]) == (torch.bfloat16, torch.int64, ["x"])
    with pytest.raises(CheckpointError, match="float33"):
        ToDevice("cpu", "float33")


def test_frames_turn_to_channels_first_floats():
    frames = torch.randint(0, 256, (2, 3, 4, 5, 3), dtype=torch.uint8)
    done = frames_to_float({"cam": frames, "x": 1}, ["cam"])
    assert done["cam"].shape == (2, 3, 3, 4, 5)
    assert torch.equal(done["cam"], frames.permute(0, 1, 4, 2, 3).float() / 255)


def test_statistics_of_training_sets_are_named_where_a_checkpoint_lacks_its_own():
    """Published bases keep statistics of each of their training sets, by its name."""
    stats = {"so100.buffer.action.mean": torch.zeros(2), "so100.buffer.action.std": torch.ones(2)}
    plain = {
        "features": {"action": {"type": "ACTION", "shape": [2]}},
        "norm_map": {"ACTION": "MEAN_STD"},
    }
    with pytest.raises(CheckpointError, match=r"(?s)those of so100\.buffer\.action.*fine-tune"):
        Unnormalize.build(plain, stats)

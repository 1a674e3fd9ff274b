"""Forecasts: the largest batch, the schedule's end, checkpoints, reading."""

import dataclasses

import pytest

from kata.optim.config import CosineDecayWithWarmupConfig
from kata.plan.catalogue import gpu_named
from kata.plan.data_size import (
    DECODE_S_PER_PIXEL,
    DataSize,
    cache_bytes,
    pixels_per_sample,
    reading_s,
)
from kata.plan.forecast import (
    TIGHT_SHARE,
    Machine,
    forecast,
    largest_batch,
    memory_of,
    schedule_facts,
)
from kata.run.batch_layout import share_out
from kata.spec import Feature, FeatureType
from tests.plan.small import VECTORS, small_run

CAMERA = {"observation.images.top": Feature(FeatureType.VISUAL, (3, 40, 50))}


def shared(**fields):
    return share_out(small_run(**fields), 1, [], keep_micro=True)


def test_the_largest_batch_fits_and_one_more_does_not(small_trace):
    run = shared()
    gpu = gpu_named("rtx3060")
    for capacity in (gpu.memory_bytes // 8, 600 * 2**20):
        small = dataclasses.replace(gpu, memory_bytes=capacity)
        most = largest_batch(run, small_trace, small, 10**6)
        room = (1 - TIGHT_SHARE) * capacity
        assert memory_of(run, small_trace, small, most).total_bytes <= room
        assert memory_of(run, small_trace, small, most + 1).total_bytes > room
    assert largest_batch(run, small_trace, dataclasses.replace(gpu, memory_bytes=1)) == 0
    assert largest_batch(run, small_trace, gpu, most=16) == 16


def test_epochs_time_and_price_follow_from_the_step(small_trace):
    run = shared(batch_size=4)
    machine = Machine(gpu=gpu_named("l4"), usd_per_hour=2.0)
    found = forecast(run, small_trace, DataSize(1001, 3, 30.0, None), machine)
    assert found.steps_per_epoch == 251
    low, expected, high = found.wall_clock_s(100)
    assert expected == pytest.approx(100 * found.time.step_s)
    assert (low, high) == pytest.approx((0.7 * expected, 1.3 * expected))
    assert found.price_usd(100) == pytest.approx(expected / 3600 * 2)
    assert found.readable_frames_per_s is None  # there is no camera
    assert found.fits


def test_reading_takes_pixels_over_threads():
    run = shared(inputs={**VECTORS, **CAMERA}, batch_size=6, num_workers=3)
    assert pixels_per_sample(run.policy) == 2000
    expected = 6 * 2000 * DECODE_S_PER_PIXEL
    assert reading_s(run, None, None) == pytest.approx(expected / 3)
    assert reading_s(run, 1, None) == pytest.approx(expected)
    assert reading_s(run, 8, 1e-6) == pytest.approx(6 * 2000 * 1e-6 / 3)
    clips = dataclasses.replace(run.dataset, shuffle="clips")
    halved = dataclasses.replace(run, dataset=clips)
    assert reading_s(halved, None, None) == pytest.approx(expected / 6)


def test_a_schedule_that_ends_late_is_said():
    decay = CosineDecayWithWarmupConfig(num_decay_steps=30_000, num_warmup_steps=10)
    done = schedule_facts(dataclasses.replace(shared(), scheduler=decay, steps=30_000))
    early = schedule_facts(dataclasses.replace(shared(), scheduler=decay, steps=5_000))
    assert done["ends_low"]
    assert not early["ends_low"]
    assert schedule_facts(shared())["type"] == "constant"


def test_a_checkpoint_holds_weights_moments_and_average(small_trace):
    run = shared()
    machine = Machine(gpu=gpu_named("l4"))
    found = forecast(run, small_trace, DataSize(1000, 0, 30.0, None), machine)
    weights = 4 * small_trace.trainable
    assert found.checkpoint_bytes == pytest.approx(3 * weights, rel=0.05)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cache": "none"}, 0),
        ({"cache": "frames"}, 300 * 3 * 2000),
        ({"cache": "disk"}, 300 * 3 * 2000),
        ({"cache": "disk", "pixels": "yuv"}, 300 * 3000),
        ({"cache": "disk", "cache_size": "1MB"}, 10**6),
        ({"cache": "prefix"}, 290 * 5_000),
        ({"cache": "vision", "cache_size": "1GB"}, 290 * 5_000),
    ],
)
def test_caches_take_disk_by_frames_and_features_by_samples(options, expected):
    run = shared(inputs={**VECTORS, **CAMERA})
    run = dataclasses.replace(run, dataset=dataclasses.replace(run.dataset, **options))
    data = DataSize(290, 3, 30.0, None, frames=300)
    assert cache_bytes(run, data, 5_000) == expected

"""A record outlives a disk that is full for a while."""

import errno
import math

import numpy as np
import pytest
import torch

from kata.train.metrics.append_log import AppendLog
from kata.train.metrics.bad_steps import BadStepMonitor
from kata.train.metrics.meter import Meter, read_metrics
from tests.train.conftest import fill_up


def test_what_a_full_disk_does_not_take_is_kept_and_written_later(tmp_path, small_disk, caplog):
    path = small_disk / "record"
    record = AppendLog(path)
    record.add(b"a" * 5000)
    fill_up(small_disk, pages_left=0)
    fresh = AppendLog(small_disk / "fresh")
    for letter in (b"b", b"c"):
        record.add(letter * 5000)
        fresh.add(letter)
    assert len(caplog.records) == 2, "one warning each"
    assert path.stat().st_size < 15_000
    (small_disk / "ballast").unlink()
    record.add(b"d")
    fresh.close()
    record.close()
    assert path.read_bytes() == b"a" * 5000 + b"b" * 5000 + b"c" * 5000 + b"d"
    assert (small_disk / "fresh").read_bytes() == b"bc"


def test_the_lists_of_steps_outlive_a_full_disk(small_disk, tmp_path):
    """Losses take a page of the disk every thousand steps."""
    with Meter(tmp_path / "metrics.jsonl", batch_size=1, num_frames=1, steps=4000) as meter:
        with BadStepMonitor(
            small_disk,
            meter,
            lambda step: [],
            max_in_a_row=10,
            spike=0.0,
            first_step=0,
            last_good=lambda: None,
        ) as watch:
            fill_up(small_disk, pages_left=0)
            for step in range(1, 3001):
                watch.add(step, torch.tensor(math.nan if step == 7 else 1.0), torch.tensor(1.0))
                if step % 100 == 0:
                    watch.settle()
            (small_disk / "ballast").unlink()
        assert np.isnan(np.fromfile(small_disk / "losses.f32", "<f4")).nonzero()[0].tolist() == [6]
        assert (small_disk / "losses.f32").stat().st_size == 12_000
        assert [line["step"] for line in read_metrics(watch.path)] == [7]


def test_nothing_added_leaves_no_file(tmp_path):
    AppendLog(tmp_path / "none").close()
    assert not (tmp_path / "none").exists()


def test_other_errors_are_errors(tmp_path):
    with pytest.raises(OSError, match="Is a directory") as caught:
        AppendLog(tmp_path).add(b"a")
    assert caught.value.errno == errno.EISDIR

"""Retries wait longer each time, respect the store's wish, and end with one message."""

import random
import threading
import time

import numpy as np
import pytest

from kata.data.remote import retry as retry_module
from kata.data.remote.http_ranges import retry_after_s
from kata.data.remote.refusals import TransientError
from kata.data.remote.retry import Retry, RetryLimits
from kata.errors import DataError

QUICK = RetryLimits(attempts=4, first_s=0.01, most_s=0.02)


class Failing:
    """A request that fails some times."""

    def __init__(self, times: int, retry_after_s: float = 0.0) -> None:
        self.left = times
        self.wait_s = retry_after_s
        self.sent_s: list[float] = []

    def __call__(self) -> str:
        self.sent_s.append(time.monotonic())
        self.left -= 1
        if self.left >= 0:
            raise TransientError("503 Service Unavailable", self.wait_s)
        return "bytes"


class AskedWaits(threading.Event):
    """Notes how long it was asked to wait, and does not: clocks of a busy machine stretch waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        return self.is_set()


def test_a_passing_failure_is_retried_after_growing_waits():
    retry = Retry(RetryLimits(attempts=4, first_s=0.04, most_s=1.0))
    retry._closed = asked = AskedWaits()
    assert retry.run("s3://b/x", Failing(3)) == "bytes"
    first_s, second_s, third_s = filter(None, asked.waits_s)
    assert 0.02 <= first_s < second_s < third_s


def test_the_wish_of_the_store_is_respected_by_every_request():
    retry, request, other = Retry(QUICK), Failing(1, retry_after_s=0.2), Failing(0)
    assert retry.run("s3://b/x", request) == "bytes"
    assert np.diff(request.sent_s)[0] >= 0.2
    with pytest.raises(DataError):
        Retry(RetryLimits(attempts=1)).run("s3://b/x", Failing(1, retry_after_s=0.2))
    began_s = time.monotonic()
    shared = Retry(RetryLimits(attempts=1))
    with pytest.raises(DataError):
        shared.run("s3://b/x", Failing(1, retry_after_s=0.2))
    shared.run("s3://b/y", other)
    assert other.sent_s[0] - began_s >= 0.2


@pytest.mark.parametrize(
    ("limits", "words"),
    [(QUICK, "4 attempts"), (RetryLimits(limit_s=0.02, first_s=0.05), "1 attempt in")],
)
def test_giving_up_names_the_object_and_the_last_failure(limits, words):
    with pytest.raises(DataError) as caught:
        Retry(limits).run("s3://bucket/videos/file-003.mp4", Failing(99))
    for word in ("s3://bucket/videos/file-003.mp4", words, "503 Service Unavailable", "remedy:"):
        assert word in str(caught.value)


def test_a_store_that_has_answered_gets_more_attempts():
    retry = Retry(RetryLimits(attempts=6, first_attempts=2, first_s=0.001))
    with pytest.raises(DataError, match="2 attempts"):
        retry.run("s3://b/x", Failing(99))
    assert retry.run("s3://b/x", Failing(1)) == "bytes"
    assert retry.run("s3://b/x", Failing(5)) == "bytes"


def test_a_wait_is_announced_once(caplog, monkeypatch):
    monkeypatch.setattr(retry_module, "_SAID_AFTER_S", 0.0)
    retry = Retry(QUICK)
    for name in ("s3://b/x", "s3://b/y"):
        retry.run(name, Failing(3))
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for s3://b/x: 503 Service Unavailable"
    ]


def test_a_store_that_asks_for_too_long_a_rest_is_given_up_at_once():
    retry = Retry()
    retry._closed = asked = AskedWaits()
    with pytest.raises(DataError, match="3600 s of rest"):
        retry.run("s3://b/x", Failing(99, retry_after_s=3600))
    assert not any(asked.waits_s)


def test_no_generator_of_a_run_moves_on():
    states = random.getstate(), np.random.get_state()[1].copy()
    Retry(QUICK).run("s3://b/x", Failing(2))
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()


def test_closing_ends_a_wait():
    retry = Retry(RetryLimits(first_s=60, most_s=60))
    retry.close()
    began_s = time.monotonic()
    with pytest.raises(DataError):
        retry.run("s3://b/x", Failing(99))
    assert time.monotonic() - began_s < 20  # the wait would be at least 30 s


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"ratelimit": '"resolvers";r=0;t=55'}, 55),
        ({"ratelimit": '"resolvers";r=3;t=55'}, 0),
    ],
)
def test_headers_that_ask_to_wait(headers, seconds):
    assert retry_after_s(headers) == seconds

"""Jobs for a few threads, begun in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class DecodeTask(NamedTuple):
    """Something to do. ended: told how that went, once and in any case: the error, CancelledError if never begun.

    `ended` raises nothing.
    """

    run: Callable[[], None]
    ended: Callable[[BaseException | None], None]


class DecodePool:
    """Threads that take jobs from one line until none is left.

    A batch is twenty short jobs. With a future and a call to a thread for each, handing them over took a sixth of the
    time that reading spends in Python.
    """

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="kata-decode")
        self._lock, self._waiting, self._runners, self._closed = (
            Lock(),
            deque[DecodeTask](),
            0,
            False,
        )

    def put(self, jobs: Sequence[DecodeTask]) -> None:
        """Have all of these done, after those that wait already.

        Raises: RuntimeError once closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("jobs for threads that were ended")
            self._waiting.extend(jobs)
            for _ in range(min(self.threads - self._runners, len(jobs))):
                self._pool.submit(self._run)
                self._runners += 1

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The function's results, in order, by the same threads."""
        return self._pool.map(function, items)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    # Under the lock: a job that comes now finds a thread or begins one.
                    self._runners -= 1
                    return
                job = self._waiting.popleft()
            try:
                job.run()
            except BaseException as error:  # noqa: BLE001 - who waits for the job is told, as by a future
                job.ended(error)
            else:
                job.ended(None)

    def close(self) -> None:
        """End the threads after what they do now; jobs that wait are cancelled."""
        with self._lock:
            self._closed, left = True, list(self._waiting)
            self._waiting.clear()
        for job in left:
            job.ended(CancelledError())
        self._pool.shutdown(wait=True, cancel_futures=True)

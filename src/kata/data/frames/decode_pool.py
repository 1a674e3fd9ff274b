"""A pool of decoding threads: tasks begin in the order in which they were submitted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Lock
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class DecodeTask(Protocol):
    """A task of the pool; `decode_tasks` has the two kinds."""

    def run(self) -> None:
        """Do the work, on a thread of the pool."""
        ...

    def done(self, error: BaseException | None) -> None:
        """Take the outcome: None, the error, or CancelledError if the task never ran.

        It is called exactly once, and raises nothing.
        """
        ...


class DecodePool:
    """A pool of threads that take tasks from one queue until it is empty.

    A batch is about twenty short tasks. A future and a submit for each would take a sixth of the
    time that reading spends in Python.

    Args:
        threads: number of threads, at least one.
    """

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="kata-decode")
        self._lock = Lock()
        self._waiting = deque[DecodeTask]()
        self._runners = 0
        self._closed = False

    def put(self, tasks: Sequence[DecodeTask]) -> None:
        """Queue tasks, and wake threads for them.

        Raises:
            RuntimeError: The pool is closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("tasks for threads that were ended")
            self._waiting.extend(tasks)
            # A thread that runs already takes further tasks by itself, so only missing ones are
            # started.
            for _ in range(min(self.threads - self._runners, len(tasks))):
                self._pool.submit(self._run)
                self._runners += 1

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call a function on the same threads, and return its results in order."""
        return self._pool.map(function, items)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    # Under the lock, so that a task that comes now starts a thread again.
                    self._runners -= 1
                    return
                task = self._waiting.popleft()
            try:
                task.run()
            except BaseException as error:  # noqa: BLE001 - done() passes it on, as a future does
                task.done(error)
            else:
                task.done(None)

    def close(self) -> None:
        """End the threads after their current tasks; cancel those in the queue."""
        with self._lock:
            self._closed, left = True, list(self._waiting)
            self._waiting.clear()
        for task in left:
            task.done(CancelledError())
        self._pool.shutdown(wait=True, cancel_futures=True)

"""Threads that work on shares of one job: kernels run without the GIL."""

from __future__ import annotations

import threading
from collections.abc import Callable

Share = Callable[[int], int]


class Team:
    """n threads, the caller's one of them. Used by one thread at a time. begin: what the others do before a share.

    Raises RuntimeError where the system gives no more threads.
    """

    def __init__(self, n: int, begin: Callable[[], object] = lambda: None) -> None:
        self.n, self._begin = n, begin
        self._job: Share | None = None
        self._error: BaseException | None = None
        self._results = [0] * n
        self._start = [threading.Semaphore(0) for _ in range(n - 1)]
        self._done = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        try:
            for i in range(1, n):
                thread = threading.Thread(target=self._work, args=(i,), name=f"edgellm-numba-{i}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def run(self, job: Share) -> list[int]:
        """What job(0) .. job(n-1) give, run side by side. Raises what one of them raised."""
        self._job, self._error = job, None
        for start in self._start:
            start.release()
        try:
            self._results[0] = job(0)
        finally:
            for _ in self._start:
                self._done.acquire()
        if self._error is not None:
            raise self._error
        return self._results

    def close(self) -> None:
        """End the threads. Idempotent."""
        self._job = None
        for start in self._start:
            start.release()
        for thread in self._threads:
            thread.join()
        self._start, self._threads = [], []

    def _work(self, i: int) -> None:
        start = self._start[i - 1]
        while True:
            start.acquire()
            if self._job is None:
                return
            try:
                self._begin()
                self._results[i] = self._job(i)
            except BaseException as e:
                self._error = e
            self._done.release()

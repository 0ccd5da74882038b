"""Asking another thread: a function that runs there, and what it returns or raises here."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")

POLL = 0.2
"""Seconds of one wait; then it is asked whether the other thread is still there."""


def answer_of(
    function: Callable[[], T],
    send: Callable[[Callable[[], None]], None],
    alive: Callable[[], bool],
    refusal: Callable[[], Exception],
) -> T:
    """What a function returns, or raises, on the thread that does what is sent. Raises `refusal()` if that has gone."""
    answer: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()

    def run() -> None:
        try:
            answer.put((function(), None))
        except Exception as e:
            answer.put((None, e))

    if not alive():
        raise refusal()
    send(run)
    while True:
        try:
            value, error = answer.get(timeout=POLL)
        except Empty:
            if not alive():
                raise refusal() from None
            continue
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

"""Calls between threads: a function that runs on another one, with what it returns or raises here; waiting for
them; and events for who waits on other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from edgellm.engine.request import Event, Request

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


IDLE = ((5.0, False), (900.0, True))
"""Seconds without a call after which the memory of free pages is given back, and further ones for cached pages."""


def next_call(
    inbox: SimpleQueue[Callable[[], None]], give_back: Callable[[bool, Callable[[], bool]], None]
) -> Callable[[], None]:
    """What arrives next.

    Where that takes long, `give_back` is called meanwhile: with whether it means cached pages too, and with a function
    that says whether something has arrived.
    """
    for seconds, everything in IDLE:
        try:
            return inbox.get(timeout=seconds)
        except Empty:
            give_back(everything, lambda: not inbox.empty())
    return inbox.get()


def deliver(outbox: deque[tuple[Request, Event]]) -> None:
    """Send events to those who wait for them, in order, and wake each of them once."""
    wakes = dict[Callable[[], None], None]()
    while outbox:
        try:
            request, event = outbox.popleft()
        except IndexError:  # the engine has ended, and another thread that submits was quicker
            break
        request.events.put(event)
        if request.wake is not None:
            wakes[request.wake] = None
    for wake in wakes:
        wake()

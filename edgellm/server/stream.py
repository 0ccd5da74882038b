"""Answers that grow: server-sent events and lines of JSON, with pings, errors in mid-stream, and disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgellm.server import errors
from edgellm.server.errors import ApiError

T = TypeVar("T")
Events = AsyncGenerator[bytes, None]

DONE = b"data: [DONE]\n\n"
PING = b":\n\n"


dumps: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
"""Compact JSON in ASCII: no byte of it can be split wrongly, and no reader takes U+2028 for a line break."""

quote: Callable[[str], str] = json.encoder.encode_basestring_ascii
"""The same of a string: what most of a stream's events have only one of that is new."""


def event(value: Any) -> bytes:
    """An unnamed server-sent event."""
    return f"data: {dumps(value)}\n\n".encode()


def named_event(name: str, value: Any) -> bytes:
    """A named server-sent event."""
    return f"event: {name}\ndata: {dumps(value)}\n\n".encode()


def line(value: Any) -> bytes:
    """A line of JSON."""
    return f"{dumps(value)}\n".encode()


def error_event(error: ApiError) -> bytes:
    """OpenAI's error in a stream, which ends it."""
    return event(error.body()) + DONE


class JSONReply(Response):
    """A JSON answer. Its text is UTF-8."""

    media_type = "application/json; charset=utf-8"

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode("utf-8")


def failure(error: ApiError) -> JSONReply:
    """An error as an answer of its own."""
    return JSONReply(error.body(), error.status, headers=error.headers)


class GrowingReply:
    """An ASGI response that sends `events` as they come, and stops the work behind them when the client goes.

    The status is decided by the first event: an error before it is an answer of its own. on_error: the bytes that tell
    of a later one. ping: bytes to send after every ping_seconds of silence.
    """

    open_replies: set[GrowingReply]

    def __init__(
        self,
        events: Events,
        *,
        open_replies: set[GrowingReply],
        media_type: str = "text/event-stream",
        ping: bytes = PING,
        ping_seconds: float = 0.0,
        on_error: Callable[[ApiError], bytes] = error_event,
        on_failure: Callable[[ApiError], Response] = failure,
    ) -> None:
        self._events, self._media_type, self._ping = events, media_type, ping
        self._ping_seconds, self._on_error, self._on_failure = ping_seconds, on_error, on_failure
        self.open_replies = open_replies
        self._started = False
        self._last = 0.0
        self._abort: asyncio.Future[ApiError] | None = None

    def abort(self, error: ApiError) -> None:
        """End the stream with an error event: the server stops."""
        if self._abort is not None and not self._abort.done():
            self._abort.set_result(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        self._abort = asyncio.get_running_loop().create_future()
        pump = asyncio.ensure_future(self._pump(send))
        gone = asyncio.ensure_future(disconnected(receive))
        pings = asyncio.ensure_future(self._ping_on(send)) if self._ping_seconds > 0 else None
        self.open_replies.add(self)
        error: ApiError | None = None
        try:
            waiting: set[asyncio.Future[Any]] = {pump, gone, self._abort}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not pump.done():
                await _cancel(pump)
                error = self._abort.result() if self._abort.done() else None
            elif not pump.cancelled() and (cause := pump.exception()) is not None:
                error = _reported(cause)
            if error is not None and not gone.done():
                await self._fail(error, scope, receive, send)
        finally:
            self.open_replies.discard(self)
            for task in (pump, gone, pings):
                if task is not None:
                    await _cancel(task)
            await self._events.aclose()

    async def _pump(self, send: Send) -> None:
        async for data in self._events:
            if not self._started:
                await self._start(send)
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._last = time.monotonic()
        if not self._started:
            await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        self._started = True
        headers = [
            (b"content-type", self._media_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _ping_on(self, send: Send) -> None:
        self._last = time.monotonic()
        while True:
            await asyncio.sleep(max(0.01, self._last + self._ping_seconds - time.monotonic()))
            if time.monotonic() - self._last >= self._ping_seconds:
                if not self._started:
                    await self._start(send)
                await send({"type": "http.response.body", "body": self._ping, "more_body": True})
                self._last = time.monotonic()

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            self._started = True
            await self._on_failure(error)(scope, receive, send)
            return
        await send({"type": "http.response.body", "body": self._on_error(error), "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientGone(Exception):
    """The client went away before its answer was ready; nobody reads what is said about it."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it is cancelled, and ClientGone raised, when the client goes first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _cancel(gone)
        await _cancel(task)


def _reported(cause: BaseException) -> ApiError:
    error = errors.of(cause)
    if error.status == 500:
        import logging

        logging.getLogger(__name__).error("a stream failed", exc_info=cause)
    return error


async def _cancel(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task

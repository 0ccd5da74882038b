"""What every route reaches: the settings, the models, the books; and how it reads a body and sends an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from edgellm.server import fields
from edgellm.server.errors import ApiError, invalid
from edgellm.server.fields import Body
from edgellm.server.metrics import Metrics
from edgellm.server.models import Models
from edgellm.server.served import SENDER, Sender, Served
from edgellm.server.settings import Settings
from edgellm.server.stream import (
    PING,
    ClientGone,
    Events,
    GrowingReply,
    JSONReply,
    error_event,
    failure,
    unless_gone,
)

PATIENCE = 4
"""A body that is too long is read (and thrown away) up to so many times the limit, so that its sender learns of it."""

T = TypeVar("T")
ServerReply = Response | GrowingReply


class Context:
    """One server's state. Routes get it with `Context.of(request)`."""

    def __init__(self, settings: Settings, models: Models, metrics: Metrics) -> None:
        self.settings, self.models, self.metrics = settings, models, metrics
        self.open_replies: set[GrowingReply] = set()
        self.draining = False

    @staticmethod
    def of(request: Request) -> Context:
        """The context of the application that a request came to."""
        context: Context = request.app.state.context
        return context

    async def body(self, request: Request) -> Body:
        """The JSON object that was sent. Raises ApiError: 413 when it is too long, 400 when it is none."""
        return fields.parse(await self.read(request))

    async def read(self, request: Request) -> bytes:
        """The bytes that were sent. Raises ApiError (413) when they are too many."""
        limit = self.settings.max_body
        parts: list[bytes] = []
        size = 0
        stream = request.stream()
        try:
            while True:
                try:
                    part = await asyncio.wait_for(anext(stream), self.settings.body_seconds)
                except StopAsyncIteration:
                    break
                size += len(part)
                if size <= limit:
                    parts.append(part)
                elif size > PATIENCE * limit:
                    break
                else:  # a client that is cut off while it sends would never read why
                    parts.clear()
        except asyncio.TimeoutError:
            message = f"nothing of the body came for {self.settings.body_seconds:g} s"
            raise ApiError("invalid_request_error", message, status=408, headers={"connection": "close"}) from None
        except ClientDisconnect:
            raise ClientGone from None
        if size > limit:
            raise _too_long(limit)
        return b"".join(parts)

    async def model(self, request: Request, body: Body, name: str | None = None) -> Served:
        """The model that a body (or `name`) names, loaded. Raises ApiError: 503 while that is being done, 404, 400."""
        if self.draining:
            raise ApiError("unavailable_error", "the server is shutting down", retry=5)
        self._remember_sender(request, body)
        return await self.models.get(name or body.text("model"))

    def _remember_sender(self, request: Request, body: Body) -> None:
        """Who sends this, for the scheduler: holders of different keys, and different `cache_salt`, share no prefixes.

        vLLM's `priority` counts downwards: what has a lower one goes first.
        """
        priority = body.integer("priority", 0) or 0
        if abs(priority) >= 1 << 31:
            raise invalid("Field 'priority': is out of range", "priority")
        key = str(request.scope.get("edgellm.key", ""))
        address = request.client.host if request.client is not None else ""
        SENDER.set(Sender(f"{key}/{body.text('cache_salt', '')}", key or address, -priority))

    async def wait(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, unless the client goes first: then it is cancelled, and ClientGone raised."""
        return await unless_gone(request.receive, work)

    def json(self, content: Any, status: int = 200) -> Response:
        """A JSON answer."""
        return JSONReply(content, status)

    def events(
        self,
        events: Events,
        *,
        ping: bytes = PING,
        media_type: str = "text/event-stream",
        on_error: Callable[[ApiError], bytes] = error_event,
        on_failure: Callable[[ApiError], Response] = failure,
    ) -> GrowingReply:
        """An answer that grows."""
        return GrowingReply(
            events,
            open_replies=self.open_replies,
            media_type=media_type,
            ping=ping,
            ping_seconds=self.settings.ping_seconds if ping else 0.0,
            on_error=on_error,
            on_failure=on_failure,
        )


def _too_long(limit: int) -> ApiError:
    return ApiError("invalid_request_error", f"the body is longer than {limit} bytes", status=413)

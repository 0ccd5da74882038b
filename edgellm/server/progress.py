"""What a stream tells of work in progress, where a request asks for it: how far the prompt is, and running timings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NamedTuple

from edgellm.core.record import dataclass
from edgellm.core.results import Chunk
from edgellm.engine.request import Request
from edgellm.server import shapes
from edgellm.server.fields import Body
from edgellm.server.served import Served

LOOK_SECONDS = 0.05
"""How often the engine's books are looked at while a prompt is computed."""

Item = tuple[int, "Chunk | Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """So many tokens of a prompt are computed or were found in the cache."""

    total: int
    cache: int
    processed: int
    seconds: float

    def shape(self) -> dict[str, Any]:
        """llama.cpp's prompt_progress."""
        return {"total": self.total, "cache": self.cache, "processed": self.processed, "time_ms": self.seconds * 1e3}


class Watch:
    """Follows the prompt of one request: the first Progress is what the cache had, the last one the whole prompt."""

    def __init__(self, request: Request) -> None:
        self._request, self._said = request, -1

    def look(self) -> Iterator[Progress]:
        """What is new."""
        request = self._request
        if not request.started:
            return
        if self._said < 0:
            yield self._at(request.cached_tokens)
        computed = min(request.sequences[0].n_cached, len(request.prompt) - 1)
        if computed > self._said:
            yield self._at(computed)

    def finish(self) -> Iterator[Progress]:
        """The rest, when an answer begins."""
        yield from self.look()
        if 0 <= self._said < len(self._request.prompt):
            yield self._at(len(self._request.prompt))

    def _at(self, processed: int) -> Progress:
        self._said = processed
        request = self._request
        seconds = max(0.0, (request.first_token or time.perf_counter()) - request.started)
        return Progress(len(request.prompt), request.cached_tokens, processed, seconds)


class Watched(NamedTuple):
    """What a request wants to be told of work in progress."""

    progress: bool = False
    timings: bool = False

    @classmethod
    def of(cls, body: Body) -> Watched:
        """What a body asks for. Answers in one piece have their timings anyway, and no progress."""
        return cls(body.flag("return_progress"), body.flag("timings_per_token"))

    def chunks(self, served: Served, requests: list[Request]) -> AsyncGenerator[Item, None]:
        """The chunks of requests, with the progress of their prompts where that is wanted."""
        chunks = served.stream(requests)
        return beside(chunks, requests) if self.progress else chunks


async def beside(
    chunks: AsyncGenerator[tuple[int, Chunk], None], requests: list[Request]
) -> AsyncGenerator[Item, None]:
    """The chunks of requests, and the progress of each prompt before its first one."""
    watches = {i: Watch(request) for i, request in enumerate(requests)}
    news: asyncio.Future[tuple[int, Chunk]] | None = None
    try:
        while True:
            news = news or asyncio.ensure_future(anext(chunks))
            await asyncio.wait({news}, timeout=LOOK_SECONDS if watches else None)
            if not news.done():
                for i, watch in watches.items():
                    for progress in watch.look():
                        yield i, progress
                continue
            try:
                which, chunk = news.result()
            except StopAsyncIteration:
                return
            if (ended := watches.pop(which, None)) is not None:
                for progress in ended.finish():
                    yield which, progress
            news = None
            yield which, chunk
    finally:
        if news is not None and not news.done():
            news.cancel()
            await asyncio.wait({news})
        await chunks.aclose()


def timings_so_far(request: Request, n_tokens: int) -> dict[str, Any]:
    """llama.cpp's timings of an answer that has n_tokens tokens by now."""
    now = time.perf_counter()
    first = request.first_token or now
    return shapes.timings_of(
        len(request.prompt), request.cached_tokens, n_tokens, 1, first - request.started, max(0.0, now - first)
    )

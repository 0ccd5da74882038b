"""The models of a server: one that is loaded at start, or all that are on this machine, loaded when first asked for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from edgellm.core.errors import EdgeLLMError
from edgellm.core.record import dataclass, field
from edgellm.engine.info import LLMStats
from edgellm.server import errors
from edgellm.server.errors import ApiError, not_found
from edgellm.server.metrics import Metrics
from edgellm.server.served import Served, ServedLLM

log = logging.getLogger(__name__)

Open = Callable[["Entry", Callable[[str, float], None]], ServedLLM]
"""Opens a model; called in a thread of its own, with where it may report its progress."""


@dataclass(slots=True, eq=False)
class Entry:
    """A model that can be served.

    name: what clients call it; aliases: what they may also call it. source: what to open. size: bytes of its file.
    stage, progress: of the loading that is going on. error: why the last one failed.
    """

    name: str
    source: str
    aliases: tuple[str, ...] = ()
    size: int = 0
    created: int = 0
    served: Served | None = None
    loading: asyncio.Task[Served] | None = None
    stage: str = "waiting"
    progress: float = 0.0
    error: BaseException | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, the first one first."""
        return (self.name, *self.aliases)


class Models:
    """Entries by name. Used in one event loop.

    most_loaded: models in memory at most; the one that was not used for longest makes room, if it is idle.
    wait: whether a request waits for its model to be loaded; else it gets a 503 meanwhile.
    """

    def __init__(
        self,
        entries: list[Entry],
        open_model: Open,
        metrics: Metrics,
        *,
        n_parallel: int = 8,
        max_queue: int = 512,
        most_loaded: int = 1,
        wait: bool = False,
    ) -> None:
        self.entries, self._open, self._metrics = entries, open_model, metrics
        self._n_parallel, self._max_queue = n_parallel, max_queue
        self._most_loaded, self._wait = most_loaded, wait
        self._closed = False
        self.on_progress: Callable[[str, float], None] = lambda stage, fraction: None

    @property
    def single(self) -> Entry | None:
        """The only model, whatever requests call it; None where there are several."""
        return self.entries[0] if len(self.entries) == 1 else None

    def find(self, name: str | None) -> Entry:
        """The entry of a name. Raises ApiError (404; 400 where several are served and none is named)."""
        if self.single is not None:
            return self.single
        loaded = [e for e in self.entries if e.served is not None]
        if name is None and len(loaded) == 1:
            return loaded[0]
        if name is None:
            raise errors.invalid("Field 'model': is required: this server has several models, see /v1/models", "model")
        found = self.named(name or "")
        if found is None:
            raise not_found(f"model {name!r:.120} is not here: see /v1/models", "model")
        return found

    def named(self, name: str) -> Entry | None:
        """The entry of a name, in any case; ":latest" may be left out or added, as with Ollama.

        An exact name goes before one that is spelt otherwise.
        """
        spelt = {name.lower(), f"{name}:latest".lower(), name.lower().removesuffix(":latest")}
        exact = next((e for e in self.entries if name in e.names), None)
        return exact or next((e for e in self.entries if spelt & {n.lower() for n in e.names}), None)

    async def get(self, name: str | None) -> Served:
        """The model of a name, loaded. Raises ApiError: 404, or 503 while it is being loaded or cannot be."""
        entry = self.find(name)
        if entry.served is not None:
            return entry.served
        if entry.loading is None:
            if entry.error is not None and not self._wait:
                raise _failed(entry)
            self.load(entry)
        if not self._wait or entry.loading is None:
            raise loading_error(entry)
        try:
            return await asyncio.shield(entry.loading)
        except EdgeLLMError:
            raise _failed(entry) from None

    def load(self, entry: Entry) -> asyncio.Task[Served]:
        """Begin to load a model, unless that is being done."""
        if entry.loading is None:
            entry.stage, entry.progress, entry.error = "waiting", 0.0, None
            entry.loading = asyncio.ensure_future(self._load(entry))
            entry.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return entry.loading

    async def _load(self, entry: Entry) -> Served:
        def progress(stage: str, fraction: float) -> None:
            entry.stage, entry.progress = stage, fraction
            self.on_progress(stage, fraction)

        try:
            await self._make_room()
            begin = time.monotonic()
            llm = await asyncio.to_thread(self._open, entry, progress)
            if self._closed:
                await llm.close()
                raise ApiError("unavailable_error", "the server is shutting down", retry=5)
            served = Served(entry.name, llm, self._metrics, n_parallel=self._n_parallel, max_queue=self._max_queue)
            log.info("%s is ready after %.1f s", entry.name, time.monotonic() - begin)
            entry.served = served
            served.find_fingerprint()
            return served
        except BaseException as e:
            entry.error = e
            log.error("%s cannot be loaded: %s", entry.name, e)
            raise
        finally:
            entry.loading = None

    async def _make_room(self) -> None:
        """Close the models that were not used for longest, as far as they are idle."""
        while True:
            loaded = [e for e in self.entries if e.served is not None]
            if len(loaded) < self._most_loaded:
                return
            idle = [e for e in loaded if e.served is not None and e.served.active == 0]
            if not idle:
                raise ApiError("unavailable_error", "all models in memory are answering: try again later", retry=5)
            await self.unload(min(idle, key=lambda e: e.served.last_used if e.served is not None else 0.0))

    async def unload(self, entry: Entry) -> bool:
        """Close a model; whether it was open. Requests that it answers end with an error."""
        served, entry.served = entry.served, None
        if served is None:
            return False
        await served.llm.close()
        log.info("%s was closed", entry.name)
        return True

    def stats(self) -> Iterator[LLMStats]:
        """The books of the models in memory."""
        for entry in self.entries:
            if entry.served is not None:
                yield entry.served.llm.stats

    async def close(self) -> None:
        """Close everything."""
        self._closed = True
        for entry in self.entries:
            if entry.loading is not None:
                await asyncio.wait({entry.loading})
            await self.unload(entry)


def loading_error(entry: Entry) -> ApiError:
    """503: the model is on its way."""
    return ApiError(
        "unavailable_error",
        "Loading model",
        more={"stage": entry.stage, "progress": round(entry.progress, 3)},
        retry=1,
    )


def _failed(entry: Entry) -> ApiError:
    if isinstance(entry.error, ApiError):
        return entry.error
    return ApiError("unavailable_error", f"{entry.name} cannot be loaded: {entry.error}", retry=60)

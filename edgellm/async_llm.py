"""AsyncLLM: a model in this process for asyncio. The verbs of LLM, awaited; one engine thread does the work.

No thread waits for a request. After a step the engine thread wakes the event loop once, however many requests have news
(`Mailbox`), and the loop hands the news to the tasks that wait for them.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, overload

from edgellm.core.config import SamplingParams
from edgellm.core.errors import RequestError
from edgellm.core.results import Chunk, Completion, Score
from edgellm.core.types import F32
from edgellm.engine.arguments import Message, as_messages, token_ids
from edgellm.engine.front import Front, Prompt, Texts
from edgellm.engine.progress import Report, reporting
from edgellm.engine.request import Done, Event, Request

T = TypeVar("T")


class AsyncLLM(Front):
    """Open a model and generate text under asyncio. The constructor is LLM's; it returns when the model is loaded.

    `await llm.generate(...)` and `await llm.chat(...)` give what LLM's give; with stream=True they are used as
    `async for chunk in llm.chat(..., stream=True)`. Options are checked at the call, prompts when it is awaited.
    Cancelling the task that waits, and closing or leaving a stream, stop the work within a step. One AsyncLLM serves
    any number of tasks, in any number of event loops.

    Raises ModelNotFound, GGUFError, UnsupportedModel, CacheError, CapacityError, ConfigError, NativeError.
    """

    # -- text ------------------------------------------------------------------------------------------------------

    @overload
    def generate(
        self,
        prompts: Prompt,
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        stream: Literal[False] = False,
        on_error: str = "return",
        **sampling: Any,
    ) -> Coroutine[Any, Any, Completion]: ...
    @overload
    def generate(
        self,
        prompts: Prompt,
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        stream: Literal[True],
        on_error: str = "return",
        **sampling: Any,
    ) -> AsyncGenerator[Chunk, None]: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str] | Sequence[list[int]],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        stream: Literal[False] = False,
        on_error: str = "return",
        progress: bool | Report = False,
        **sampling: Any,
    ) -> Coroutine[Any, Any, list[Completion]]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[str] | Sequence[list[int]],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        stream: bool = False,
        on_error: str = "return",
        progress: bool | Report = False,
        **sampling: Any,
    ) -> Coroutine[Any, Any, Completion] | Coroutine[Any, Any, list[Completion]] | AsyncGenerator[Chunk, None]:
        """Continue prompts: text or token ids give a Completion, a list of them a list in order.

        stream=True (one prompt): an async generator of Chunk; the work starts when it is first read.
        Raises at the call for options, when awaited for prompts: RequestError, ContextOverflow, TypeError.
        """
        chosen = self._options(params, sampling, n, on_error)
        if self._one_prompt(prompts):

            def prepare() -> Request:
                return self._request(self._prompt_ids(prompts), chosen, n, stream)

            return self._stream(prepare, on_error) if stream else self._one(prepare, on_error)
        if stream:
            raise RequestError("stream=True takes one prompt; use one call a prompt")
        return self._many(lambda: self._prompts(prompts), lambda ids: self._request(ids, chosen, n), on_error, progress)

    @overload
    def chat(
        self,
        messages: str | list[Message],
        params: SamplingParams | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
        n: int = 1,
        stream: Literal[False] = False,
        on_error: str = "return",
        **sampling: Any,
    ) -> Coroutine[Any, Any, Completion]: ...
    @overload
    def chat(
        self,
        messages: str | list[Message],
        params: SamplingParams | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
        n: int = 1,
        stream: Literal[True],
        on_error: str = "return",
        **sampling: Any,
    ) -> AsyncGenerator[Chunk, None]: ...

    def chat(
        self,
        messages: str | list[Message],
        params: SamplingParams | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        response_format: dict[str, Any] | None = None,
        n: int = 1,
        stream: bool = False,
        on_error: str = "return",
        **sampling: Any,
    ) -> Coroutine[Any, Any, Completion] | AsyncGenerator[Chunk, None]:
        """Answer a conversation, as LLM.chat; with stream=True an async generator of Chunk."""
        chosen = self._options(params, sampling, n, on_error)
        self._check_chat(response_format)

        def prepare() -> Request:
            ids, notes = self._chat_prompt(messages, tools)
            return self._request(ids, chosen, n, stream, notes)

        return self._stream(prepare, on_error) if stream else self._one(prepare, on_error)

    async def render(self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None) -> str:
        """The text of a conversation as the model's chat template writes it, ready for the answer."""
        self._check_alive()
        return await asyncio.to_thread(lambda: self._loaded.template.render(as_messages(messages), tools=tools))

    async def chat_prompt(
        self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None
    ) -> tuple[list[int], tuple[str, ...]]:
        """Token ids that `chat` would generate from, and its notes (Completion.notes); nothing is generated."""
        return await asyncio.to_thread(self._chat_prompt, messages, tools)

    async def chat_tokens(
        self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None
    ) -> list[int]:
        """Token ids of `render(messages)`: control tokens only where the template put them, one BOS."""
        return (await self.chat_prompt(messages, tools=tools))[0]

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of text; add_special: BOS/EOS as the model wants; parse_special: read control tokens in it."""
        self._check_alive()
        encode = self._loaded.tokenizer.encode
        return await asyncio.to_thread(encode, text, add_special=add_special, parse_special=parse_special)

    async def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids; special: also write control tokens."""
        self._check_alive()
        return await asyncio.to_thread(self._loaded.tokenizer.decode, token_ids(ids, "ids"), special=special)

    # -- numbers ---------------------------------------------------------------------------------------------------

    async def logits(self, tokens: Sequence[int], rows: slice | str | None = None) -> F32:
        """Teacher-forced logits, float32 [rows, V]: row t is the distribution after tokens[:t+1]; as LLM.logits."""
        request, logits = await asyncio.to_thread(self._scoring, tokens, rows)
        await self._run(iter([request]), "raise")
        return logits

    async def embed(self, texts: Texts, *, pooling: str | None = None, normalize: bool = True) -> F32:
        """Vectors of texts, float32 [N, D], as LLM.embed."""
        pools, requests = await asyncio.to_thread(self._embeddings, texts, pooling)
        await self._run(requests, "raise")
        return self._vectors(pools, normalize)

    @overload
    async def score(self, prompt: Prompt, continuation: Prompt) -> Score: ...  # type: ignore[overload-overlap]  # str
    @overload
    async def score(self, prompt: Prompt, continuation: Sequence[str] | Sequence[list[int]]) -> list[Score]: ...

    async def score(
        self, prompt: Prompt, continuation: Prompt | Sequence[str] | Sequence[list[int]]
    ) -> Score | list[Score]:
        """How likely continuations of a prompt are, as LLM.score."""
        one = self._one_prompt(continuation)
        requests = await asyncio.to_thread(self._scores, prompt, continuation, one)
        await self._run(iter(requests), "raise")
        scores = [self._score(r) for r in requests]
        return scores[0] if one else scores

    # -- life cycle ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop all work within a step and free everything. Idempotent."""
        await asyncio.to_thread(self._finalizer)

    async def __aenter__(self) -> AsyncLLM:
        self._check_alive()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _one(self, prepare: Callable[[], Request], on_error: str) -> Completion:
        request = await asyncio.to_thread(prepare)
        return (await self._run(iter([request]), on_error))[0]

    async def _many(
        self,
        prepare: Callable[[], list[list[int]]],
        request: Callable[[list[int]], Request],
        on_error: str,
        progress: bool | Report,
    ) -> list[Completion]:
        checked = await asyncio.to_thread(prepare)
        with reporting(progress, len(checked)) as report:
            return await self._run(map(request, checked), on_error, report)

    async def _run(
        self, requests: Iterator[Request], on_error: str, report: Callable[[int], object] | None = None
    ) -> list[Completion]:
        """Run requests to their ends, not too many at a time; a cancelled task cancels them."""
        self._check_alive()
        mailbox = Mailbox.of_this_loop()
        news: Reader[tuple[int, Event]] = Reader()
        pending = enumerate(requests)
        running: dict[int, Request] = {}
        results: dict[int, Completion] = {}
        try:
            while True:
                for i, request in islice(pending, self._at_once - len(running)):
                    running[i] = request
                    mailbox.watch(request, lambda event, i=i: news.take((i, event)))  # type: ignore[misc]
                    self._loaded.engine.submit(request)
                if not running:
                    break
                i, event = await news.next()
                if isinstance(event, Done):
                    request = running.pop(i)
                    if event.error is not None and on_error == "raise":
                        raise event.error
                    results[i] = self._completion(request)
                    if report is not None:
                        report(len(results))
        except BaseException:
            for request in running.values():
                self._loaded.engine.cancel(request)
            raise
        return [results[i] for i in range(len(results))]

    async def _stream(self, prepare: Callable[[], Request], on_error: str) -> AsyncGenerator[Chunk, None]:
        """Start with the first read, so that a stream nobody reads costs nothing; cancel when it is left."""
        request = await asyncio.to_thread(prepare)
        self._check_alive()
        news: Reader[Event] = Reader()
        Mailbox.of_this_loop().watch(request, news.take)
        chunks = self._chunks(request)
        event: Event | None = None
        self._loaded.engine.submit(request)
        try:
            while not isinstance(event, Done):
                event = await news.next()
                if isinstance(event, Done) and event.error is not None and on_error == "raise":
                    raise event.error
                chunk = chunks.of(event)
                if chunk is not None:
                    yield chunk
        finally:
            if not isinstance(event, Done):
                self._loaded.engine.cancel(request)


class Reader(Generic[T]):
    """News for one task, all in the event loop's thread."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def take(self, item: T) -> None:
        """Add news, and go on with the task if it waits for them."""
        self._items.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> T:
        """The next news, waited for."""
        while not self._items:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._items.popleft()


class Mailbox:
    """What the engine thread leaves for one event loop: events, and one wake-up for all of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._letters: deque[tuple[Callable[[Event], None], Event]] = deque()

    @classmethod
    def of_this_loop(cls) -> Mailbox:
        """The running loop's."""
        loop = asyncio.get_running_loop()
        mailbox = _mailboxes.get(loop)
        if mailbox is None:
            mailbox = _mailboxes[loop] = Mailbox(loop)
        return mailbox

    def watch(self, request: Request, take: Callable[[Event], None]) -> None:
        """Have `take` called, in this loop, with every event of a request that will be submitted."""
        request.events, request.wake = Slot(self._letters, take), self._call

    def _call(self) -> None:
        """In the engine thread: have the loop hand out what there is."""
        loop = self._loop()
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._hand_out)
        except RuntimeError:  # the loop has been closed; nobody waits any more
            self._letters.clear()

    def _hand_out(self) -> None:
        while self._letters:
            take, event = self._letters.popleft()
            take(event)


class Slot:
    """Where the engine thread puts the events of one request."""

    __slots__ = ("_letters", "_take")

    def __init__(self, letters: deque[tuple[Callable[[Event], None], Event]], take: Callable[[Event], None]) -> None:
        self._letters, self._take = letters, take

    def put(self, event: Event, /) -> None:
        """Take an event."""
        self._letters.append((self._take, event))


_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = weakref.WeakKeyDictionary()

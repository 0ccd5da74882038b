"""A model as the server uses it: prompts of every kind to token ids, and answers with the books kept."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import numpy as np

from edgellm.async_llm import AsyncLLM
from edgellm.core.config import SamplingParams
from edgellm.core.errors import EdgeLLMError, TemplateError, TokenizerError
from edgellm.core.record import dataclass, field
from edgellm.core.results import Choice, Chunk, Completion
from edgellm.core.types import F32
from edgellm.engine.embedding import Pool
from edgellm.engine.request import Request
from edgellm.server.errors import ApiError, invalid
from edgellm.server.metrics import Metrics
from edgellm.server.reasoning import Thoughts, marks_of

T = TypeVar("T")
log = logging.getLogger(__name__)

QUICK_CHARS = 2048
"""Texts up to this length are tokenised in the event loop: a thread would cost more than it spares."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as a chat template takes them.

    prefill: the beginning of the answer, which the model continues. new_turn: whether an answer is asked for at all.
    variables: further variables of the template. reasoning: whether thoughts are told apart from the answer.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    prefill: str | None = None
    new_turn: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as token ids, and the notes on it. thoughts: None where nothing is told apart in the answer."""

    ids: list[int]
    notes: tuple[str, ...] = ()
    thoughts: Thoughts | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a request, for the scheduler.

    salt: with whom it shares the prefix cache. client: whose turn it takes. priority: higher goes first.
    """

    salt: str = ""
    client: str = ""
    priority: int = 0


SENDER: ContextVar[Sender] = ContextVar("sender")
"""Of the HTTP request that is being answered: each one runs in a context of its own."""


class TokenStates(Pool):
    """A pool that keeps every token's hidden state."""

    def __init__(self, n_tokens: int) -> None:
        super().__init__("mean", n_tokens)
        self.states: list[F32] = []

    def take(self, at: int, rows: F32) -> None:
        """The states of tokens at, ...; those that are computed again are passed over."""
        news = rows[self._n - at :]
        self._n += len(news)
        self.states.append(news.copy())


class ServedLLM(AsyncLLM):
    """AsyncLLM with what only a server needs: senders, prefilled answers, pieces of tokens, facts for /props."""

    def _request(self, *args: Any, **kwargs: Any) -> Request:
        request = super()._request(*args, **kwargs)
        sender = SENDER.get(None)
        if sender is not None:
            request.salt, request.client, request.priority = sender.salt, sender.client, sender.priority
        return request

    def begin(self, ids: list[int], params: SamplingParams, n: int) -> Request:
        """The request that continues checked token ids in a stream. Raises RequestError for its parameters."""
        return self._request(ids, self._options(params, {}, n, "raise"), n, stream=True)

    def follow(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """The chunks of a request from `begin`, which is submitted with the first read."""
        return self._stream(lambda: request, "raise")

    def chat_prompt_of(self, talk: Conversation) -> ChatPrompt:
        """The prompt of a conversation. Raises RequestError, TemplateError, ContextOverflow."""
        segments, notes = self._segments(talk)
        ids = self._prompt_ids(self._loaded.tokenizer.encode_segments(segments))
        marks = marks_of(self.template_source) if talk.reasoning else None
        if marks is None:
            return ChatPrompt(ids, notes)
        end = "".join(text for text, _ in segments[-2 if talk.prefill else -1 :])
        return ChatPrompt(ids, notes, Thoughts.after(marks, end))

    async def hidden_states(self, prompts: list[list[int]]) -> list[F32]:
        """The final hidden states of checked prompts, float32 [T, D] each."""
        self._check_alive()
        greedy = SamplingParams(temperature=0.0).resolved({})
        kept = [TokenStates(len(ids)) for ids in prompts]
        requests = [Request(ids, greedy, 0, logit_rows=k.rows, pool=k) for ids, k in zip(prompts, kept, strict=True)]
        await self._run(iter(requests), "raise")
        return [np.concatenate(k.states) for k in kept]

    def pieces(self, ids: Sequence[int]) -> Iterator[str]:
        """The text that becomes certain with each of some token ids."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        return (decode(self.piece(i)[1]) for i in ids)

    def conversation_text(self, talk: Conversation) -> str:
        """The text that `chat_prompt_of` tokenises."""
        return "".join(text for text, _ in self._segments(talk)[0])

    def _segments(self, talk: Conversation) -> tuple[tuple[tuple[str, bool], ...], tuple[str, ...]]:
        if self._base:
            raise TemplateError(
                f"{self._name} is a base model: it continues text and was not trained to answer. Use /v1/completions "
                f"with the beginning of a text, or serve an instruct model"
            )
        rendered = self._loaded.template.apply(
            talk.messages, add_generation_prompt=talk.new_turn, tools=talk.tools, **talk.variables
        )
        self._refuse_endless(rendered.text + (talk.prefill or ""))
        segments = tuple(rendered.segments)
        return (*segments, (talk.prefill, False)) if talk.prefill else segments, rendered.notes

    def text_ids(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The token ids of a text. Raises ContextOverflow for one that cannot fit whatever its tokens are."""
        self._refuse_endless(text)
        return self._loaded.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def checked_ids(self, ids: Sequence[int], name: str = "") -> list[int]:
        """Token ids as a prompt; RequestError where there are none, or one is outside the vocabulary."""
        return self._prompt_ids(list(ids), name)

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens spelt out. RequestError for ids outside the vocabulary."""
        n = self._loaded.plan.n_vocab
        for i in ids:
            if not 0 <= i < n:
                raise invalid(f"token id {i} is outside the vocabulary (0 .. {n - 1})", "tokens")
        return self._loaded.tokenizer.decode(list(ids), special=True)

    def piece(self, token: int) -> tuple[str, bytes]:
        """A token's text as the vocabulary has it, and its bytes (none for a control token)."""
        try:
            data = self._loaded.tokenizer.token_bytes(token)
            if not data:
                return self._loaded.tokenizer.token_text(token), b""
        except TokenizerError:
            return "", b""
        return data.decode("utf-8", "replace"), data

    def special_id(self, name: str) -> int | None:
        """The id of a special token by its metadata name, such as "fim_pre"; None where the file has none."""
        value = self._loaded.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and 0 <= value < self._loaded.plan.n_vocab else None

    @property
    def template_source(self) -> str:
        """The chat template, "" where there is none."""
        return self._loaded.template.source or ""

    @property
    def bos_eos(self) -> tuple[str, str]:
        """What templates know as bos_token and eos_token."""
        return self._loaded.template.bos_text, self._loaded.template.eos_text

    @property
    def sampling_defaults(self) -> dict[str, float | int]:
        """The file's own sampling parameters."""
        return self._loaded.sampling_defaults

    @property
    def vocabulary_kind(self) -> str:
        """`tokenizer.ggml.model` of the file."""
        return str(self._loaded.file.metadata.get("tokenizer.ggml.model", ""))


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """What `work` returns, from a thread that the end of the program does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        tell: Callable[[], None]
        try:
            tell = partial(future.set_result, work())
        except Exception as e:
            tell = partial(future.set_exception, e)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=run, name="edgellm-fingerprint", daemon=True).start()
    return future


class Served:
    """An open model under the name that clients know it by.

    n_parallel: sequences computed side by side. max_queue: requests that may wait beyond those.
    """

    def __init__(self, name: str, llm: ServedLLM, metrics: Metrics, *, n_parallel: int, max_queue: int) -> None:
        self.name, self.llm, self.metrics = name, llm, metrics
        self.n_parallel, self.max_queue = n_parallel, max_queue
        self.created = int(time.time())
        self._fingerprint: asyncio.Future[str] | None = None
        self.n_ctx = llm.info.n_ctx
        self.active = 0
        self.last_used = time.monotonic()

    def find_fingerprint(self) -> asyncio.Future[str]:
        """Begin to find out the model's fingerprint, unless that is done or going on: it may read the whole file."""
        if self._fingerprint is None or (self._fingerprint.done() and self._fingerprint.exception() is not None):
            self._fingerprint = _in_thread(partial(getattr, self.llm.info, "fingerprint"))
            self._fingerprint.add_done_callback(self._complain)
        return self._fingerprint

    def _complain(self, found: asyncio.Future[str]) -> None:
        if not found.cancelled() and found.exception() is not None:
            log.error("%s: the fingerprint cannot be told: %s", self.name, found.exception())

    @property
    def known_fingerprint(self) -> str | None:
        """The model's fingerprint, None while it is not known yet."""
        found = self._fingerprint
        return found.result() if found is not None and found.done() and found.exception() is None else None

    async def fingerprint(self) -> str:
        """The model's fingerprint, waited for. ApiError (503) where it cannot be told, for now or ever."""
        try:
            return await asyncio.shield(self.find_fingerprint())
        except EdgeLLMError:
            raise ApiError(
                "unavailable_error",
                "the model's file cannot be read as it was when it was opened: the server's log has the reason",
                retry=60,
            ) from None

    async def conversation(self, talk: Conversation) -> ChatPrompt:
        """The prompt of a conversation."""
        return await asyncio.to_thread(self.llm.chat_prompt_of, talk)

    def split(self, prompt: ChatPrompt, choice: Choice) -> tuple[str | None, str]:
        """(thoughts, answer) of a choice; None where nothing is told apart."""
        return (None, choice.text) if prompt.thoughts is None else prompt.thoughts.split(choice.text)

    def thought_tokens(self, prompt: ChatPrompt, done: Completion) -> int:
        """How many tokens of the answers are thoughts."""
        if prompt.thoughts is None:
            return 0
        return sum(prompt.thoughts.count(self.llm.pieces(c.token_ids)) for c in done.choices)

    async def text(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The token ids of a text."""
        if len(text) <= QUICK_CHARS:
            return self.llm.text_ids(text, add_special=add_special, parse_special=parse_special)
        return await asyncio.to_thread(self.llm.text_ids, text, add_special=add_special, parse_special=parse_special)

    def tokenize(self, text: str) -> list[int]:
        """A piece of text, without BOS, as token ids."""
        return self.llm.text_ids(text, add_special=False, parse_special=True)

    async def complete(self, prompts: list[list[int]], params: SamplingParams, n: int = 1) -> list[Completion]:
        """Answers to prompts, in order."""
        with self._place():
            completions = await self.llm.generate(prompts, params, n=n, on_error="raise")
        for completion in completions:
            self.metrics.observe(completion)
        return completions

    async def embed_tokens(self, prompts: list[list[int]]) -> list[F32]:
        """The final hidden states of prompts, float32 [T, D] each."""
        with self._place():
            return await self.llm.hidden_states(prompts)

    async def embed(self, prompts: list[list[int]], pooling: str | None) -> F32:
        """Vectors of prompts, float32 [N, D], not normalised."""
        with self._place():
            return await self.llm.embed(prompts, pooling=pooling, normalize=False)

    def begin(self, prompts: list[list[int]], params: SamplingParams, n: int = 1) -> list[Request]:
        """Requests to `stream`. Raises RequestError for their parameters."""
        return [self.llm.begin(prompt, params, n) for prompt in prompts]

    async def stream(self, requests: list[Request]) -> AsyncGenerator[tuple[int, Chunk], None]:
        """(which request, chunk) of all answers as they grow. Leaving the loop stops the work."""
        with self._place():
            if len(requests) == 1:
                async with contextlib.aclosing(self.llm.follow(requests[0])) as source:
                    async for chunk in source:
                        if chunk.completion is not None:
                            self.metrics.observe(chunk.completion)
                        yield 0, chunk
                return
            async with contextlib.aclosing(self._merged(requests)) as merged:
                async for item in merged:
                    yield item

    async def _merged(self, requests: list[Request]) -> AsyncGenerator[tuple[int, Chunk], None]:
        queue: asyncio.Queue[tuple[int, Chunk | BaseException | None]] = asyncio.Queue()

        async def feed(which: int, request: Request) -> None:
            try:
                async with contextlib.aclosing(self.llm.follow(request)) as source:
                    async for chunk in source:
                        queue.put_nowait((which, chunk))
            except Exception as e:
                queue.put_nowait((which, e))
            else:
                queue.put_nowait((which, None))

        tasks = [asyncio.ensure_future(feed(i, r)) for i, r in enumerate(requests)]
        try:
            left = len(tasks)
            while left:
                which, item = await queue.get()
                if item is None:
                    left -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    if item.completion is not None:
                        self.metrics.observe(item.completion)
                    yield which, item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """A place among the requests; ApiError (503) where too many wait already."""
        if self.active >= self.n_parallel + self.max_queue:
            raise ApiError(
                "unavailable_error",
                f"{self.active} requests are being answered or wait already (at most {self.n_parallel} + "
                f"{self.max_queue}): try again later",
                retry=2,
            )
        self.active += 1
        self.last_used = time.monotonic()
        try:
            yield
        finally:
            self.active -= 1
            self.last_used = time.monotonic()

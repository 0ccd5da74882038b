"""LLM: a model in this process, synchronous. Thread-safe; one engine thread does the work."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

from edgellm.core.config import SamplingParams
from edgellm.core.errors import RequestError
from edgellm.core.results import Chunk, Completion, Score
from edgellm.core.types import F32
from edgellm.engine.arguments import Message, as_messages, token_ids
from edgellm.engine.front import Front, Prompt, Texts
from edgellm.engine.progress import Report, reporting
from edgellm.engine.request import Done, Event, Request
from edgellm.session import Owner, Session

T = TypeVar("T")

_POLL = 0.2
"""Seconds of one wait for an event: where a system delivers Ctrl-C only between waits, how late it may come."""


class LLM(Front):
    """Open a model and generate text.

    model: a path (file, any shard, or directory) or a catalogue name. It is downloaded when it has to be.
    n_ctx: context in tokens; None = what the model was trained for, or less if the KV memory holds less (said once).
    n_threads: None = one per physical core this process may use.
    kv_type: format of the KV cache: f16, bf16, q8_0, q4_0, fp8_e4m3 (fp8), fp8_e5m2 or f32; a pair means (K, V).
    weights: "mmap" runs from the file, "tiles" repacks at load, "cache" runs from a tile cache, which is written first
        where there is none ("cache:FILE": from that one as it is), "auto" = a cache if there is one, else tiles where
        memory allows. Same bits.
    backend: "auto" | "native" | "numba" | "reference".  isa: caps the instruction set level.
    max_seqs: sequences computed side by side (8).  kv_memory: bytes the KV cache may grow to.
    draft: speculative decoding: tokens are guessed, and several verified in a step: the same text, sooner. "prompt"
        guesses answers that repeat their prompt or themselves; a path or name of a smaller model with the same
        vocabulary lets that one guess. Either keeps still where it does not pay.
    n_batch: most tokens a step computes.  strict=False loads files with unknown metadata, loudly.
    prefix_cache: prompts that begin as earlier ones did are computed from where they differ. Same bits.
    prefix_cache_dir: a directory that keeps them on disk, too: what memory has no room for, and, when this LLM is
        closed, what it has, come back for a later prompt, in any process. Its files hold what was computed for prompts,
        whoever sent them. prefix_cache_size: bytes they take at most (10 GiB).
    warm: the tokenizer's tables are built while the weights are loaded; False: at the first text, or at `warm()`.
    progress: called with (stage, fraction) while loading.

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
    ) -> Completion: ...
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
    ) -> Generator[Chunk, None, None]: ...
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
    ) -> list[Completion]: ...

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
    ) -> Completion | list[Completion] | Generator[Chunk, None, None]:
        """Continue prompts: text or token ids give a Completion, a list of them a list in order.

        stream=True (one prompt): a generator of Chunk; the work starts when it is first read, and leaving it early
        stops the work within a step. An empty list is a list of no prompts.
        n: answers per prompt. progress (a list): True shows a bar on stderr, a function is called with (done, all).
        Thousands of prompts are fine: a few at a time are in the engine.
        on_error: "return" a run-time failure as Completion.error, or "raise" it.
        All inputs are checked before work starts: RequestError, ContextOverflow, TypeError; where several prompts of a
        list are wrong, one RequestError that names them.
        """
        chosen = self._options(params, sampling, n, on_error)
        if self._one_prompt(prompts):
            request = self._request(self._prompt_ids(prompts), chosen, n, stream)
            return self._stream(request, on_error) if stream else self._run([request], on_error)[0]
        if stream:
            raise RequestError("stream=True takes one prompt; use one call a prompt")
        checked = self._prompts(prompts)
        with reporting(progress, len(checked)) as report:
            return self._run((self._request(ids, chosen, n) for ids in checked), on_error, report)

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
    ) -> Completion: ...
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
    ) -> Generator[Chunk, None, None]: ...

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
    ) -> Completion | Generator[Chunk, None, None]:
        """Answer a conversation: a Completion, or with stream=True a generator of Chunk; otherwise as `generate`.

        messages: [{"role": "system" | "user" | "assistant", "content": str}, ...]; a str is one user message.
        Text in messages is never read as control tokens. What the model's template cannot express, such as a system
        message or two turns of one role, is put in a form that it can: Completion.notes says so. tools: shown to the
        model by its template; what it calls stays text in this release. Raises TemplateError for a base model.
        """
        chosen = self._options(params, sampling, n, on_error)
        self._check_chat(response_format)
        ids, notes = self._chat_prompt(messages, tools)
        request = self._request(ids, chosen, n, stream, notes)
        return self._stream(request, on_error) if stream else self._run([request], on_error)[0]

    def render(self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None) -> str:
        """The text of a conversation as the model's chat template writes it, ready for the answer."""
        self._check_alive()
        return self._loaded.template.render(as_messages(messages), tools=tools)

    def chat_tokens(self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of `render(messages)`: control tokens only where the template put them, one BOS."""
        return self._chat_prompt(messages, tools)[0]

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of text; add_special: BOS/EOS as the model wants; parse_special: read control tokens in it."""
        self._check_alive()
        return self._loaded.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids; special: also write control tokens."""
        self._check_alive()
        return self._loaded.tokenizer.decode(token_ids(ids, "ids"), special=special)

    # -- numbers ---------------------------------------------------------------------------------------------------

    def logits(self, tokens: Sequence[int], rows: slice | str | None = None) -> F32:
        """Teacher-forced logits, float32 [rows, V]: row t is the distribution after tokens[:t+1].

        rows: None = all, "last" = [1, V], or a slice with step 1. Raises CapacityError when memory cannot hold them.
        """
        request, logits = self._scoring(tokens, rows)
        self._run([request], "raise")
        return logits

    def embed(self, texts: Texts, *, pooling: str | None = None, normalize: bool = True) -> F32:
        """Vectors of texts, float32 [N, D], a row a text (or list of token ids), whatever else runs: the same bits.

        Final hidden states, pooled over a text's tokens. pooling: "mean", "last" or "cls" (the first token); None = as
        the file says, "mean" where it says nothing. normalize: rows of length 1. A text longer than the context is an
        error (ContextOverflow), never cut. Raises RequestError for one without tokens.
        """
        pools, requests = self._embeddings(texts, pooling)
        self._run(requests, "raise")
        return self._vectors(pools, normalize)

    @overload
    def score(self, prompt: Prompt, continuation: Prompt) -> Score: ...  # type: ignore[overload-overlap]  # str
    @overload
    def score(self, prompt: Prompt, continuation: Sequence[str] | Sequence[list[int]]) -> list[Score]: ...

    def score(self, prompt: Prompt, continuation: Prompt | Sequence[str] | Sequence[list[int]]) -> Score | list[Score]:
        """How likely continuations of a prompt are: one gives a Score, a list of them a list.

        Both texts or both token ids. Text is tokenised together, and what is scored begins at the first token that
        the prompt alone does not have: the one across the border, where there is one.
        """
        one = self._one_prompt(continuation)
        requests = self._scores(prompt, continuation, one)
        self._run(requests, "raise")
        scores = [self._score(r) for r in requests]
        return scores[0] if one else scores

    # -- life cycle ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop all work within a step and free everything. Idempotent."""
        self._finalizer()

    def __enter__(self) -> LLM:
        self._check_alive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def session(self, prompt: Prompt = "") -> Session:
        """A conversation that can be continued, forked, taken back and saved, and is computed only once."""
        self._check_alive()
        session = Session(Owner(self, self._run, self._stream))
        if prompt:
            session.append(prompt, add_special=True)
        return session

    # -- inside ----------------------------------------------------------------------------------------------------

    def _run(
        self, requests: Iterable[Request], on_error: str, report: Callable[[int], object] | None = None
    ) -> list[Completion]:
        """Run requests to their ends, not too many at a time; an exception here (KeyboardInterrupt) cancels them."""
        news: SimpleQueue[tuple[int, Event]] = SimpleQueue()
        pending = enumerate(requests)
        running: dict[int, Request] = {}
        results: dict[int, Completion] = {}
        engine = self._loaded.engine
        try:
            while True:
                for i, request in islice(pending, self._at_once - len(running)):
                    request.events = Tagged(news, i)
                    running[i] = request
                    engine.submit(request)
                if not running:
                    break
                i, event = self._next(news)
                if isinstance(event, Done):
                    request = running.pop(i)
                    if request.error is not None and on_error == "raise":
                        raise request.error
                    results[i] = self._completion(request)
                    if report is not None:
                        report(len(results))
        except BaseException:
            for request in running.values():
                engine.cancel(request)
            raise
        return [results[i] for i in range(len(results))]

    def _next(self, news: SimpleQueue[T]) -> T:
        """The next of what the engine says. Raises EngineError in a forked child, where none will come."""
        while True:
            self._check_process()
            try:
                return news.get(timeout=_POLL)
            except Empty:
                continue

    def _stream(self, request: Request, on_error: str) -> Generator[Chunk, None, None]:
        """Start with the first `next`, so that an iterator nobody reads costs nothing; cancel when it is left."""
        self._check_alive()
        news: SimpleQueue[Event] = SimpleQueue()
        request.events = news
        event: Event | None = None
        chunks = self._chunks(request)
        self._loaded.engine.submit(request)
        try:
            while not isinstance(event, Done):
                event = self._next(news)
                if isinstance(event, Done) and event.error is not None and on_error == "raise":
                    raise event.error
                chunk = chunks.of(event)
                if chunk is not None:
                    yield chunk
        finally:
            if not isinstance(event, Done):
                self._loaded.engine.cancel(request)


class Tagged:
    """A request's events, marked with its number, in a queue that several share."""

    def __init__(self, queue: SimpleQueue[tuple[int, Event]], tag: int) -> None:
        self._queue, self._tag = queue, tag

    def put(self, event: Event) -> None:
        """Take an event."""
        self._queue.put((self._tag, event))

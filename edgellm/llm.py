"""LLM: a model in this process, synchronous. Thread-safe; one engine thread does the work."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from queue import Empty
from types import TracebackType
from typing import Any, Literal, TypeGuard, overload

import numpy as np

from edgellm.core import memory
from edgellm.core.config import SamplingParams, as_integer
from edgellm.core.errors import (
    CapacityError,
    ConfigError,
    ContextOverflow,
    EdgeLLMError,
    EngineError,
    RequestError,
    TemplateError,
)
from edgellm.core.record import replace
from edgellm.core.results import Chunk, Completion
from edgellm.core.types import F32
from edgellm.engine.info import LLMInfo, describe
from edgellm.engine.loader import Loaded, OpenOptions, open_model
from edgellm.engine.report import LogprobText, completion_of
from edgellm.engine.request import Delta, Done, Event, Request
from edgellm.hub import resolve

Prompt = str | list[int]
Message = dict[str, Any]

MAX_CHOICES = 256
NAMED_PROMPTS = 20
"""Prompts that one error names at most."""

COUNTED_CHARS = 1 << 16
"""Texts up to this length are always tokenised, so that an overflow names the exact count."""

_POLL = 0.2
"""Seconds of one wait for an event: where a system delivers Ctrl-C only between waits, how late it may come."""


class LLM:
    """Open a model and generate text.

    model: a path (file, any shard, or directory) or a catalogue name. It is downloaded when it has to be.
    n_ctx: context in tokens; None = what the model was trained for, or less if the KV memory holds less (said once).
    n_threads: None = one per physical core this process may use.
    kv_type: format of the KV cache: f16, bf16, q8_0, q4_0, fp8_e4m3 (fp8), fp8_e5m2 or f32; a pair means (K, V).
    weights: "mmap" runs from the file, "tiles" repacks at load, "cache" runs from a tile cache, which is written first
        where there is none ("cache:FILE": from that one as it is), "auto" = a cache if there is one, else tiles where
        memory allows. Same bits.
    backend: "auto" | "native" | "reference".  isa: caps the instruction set level.
    max_seqs: sequences computed side by side (8).  kv_memory: bytes the KV cache may grow to.
    n_batch: most tokens a step computes.  strict=False loads files with unknown metadata, loudly.
    progress: called with (stage, fraction) while loading.

    Raises ModelNotFound, GGUFError, UnsupportedModel, CacheError, CapacityError, ConfigError, NativeError.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        kv_type: str | tuple[str, str] = "f16",
        weights: str = "auto",
        backend: str = "auto",
        isa: str | None = None,
        max_seqs: int | None = None,
        kv_memory: int | None = None,
        draft: str | None = None,
        strict: bool = True,
        n_batch: int = 512,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        if draft is not None:
            raise ConfigError("draft models are not supported in this release: leave draft=None")
        k_type, v_type = _pair(kv_type)
        found = resolve(os.fspath(model))
        options = OpenOptions(
            n_ctx=n_ctx,
            n_threads=n_threads,
            k_type=k_type,
            v_type=v_type,
            weights=weights,
            backend=backend,
            isa=isa,
            max_seqs=max_seqs,
            kv_memory=kv_memory,
            n_batch=n_batch,
            strict=strict,
        )
        self._pid = os.getpid()
        self._loaded: Loaded = open_model(str(found.path), options, progress)
        self._base = found.base or not self._loaded.template.has_template
        self._name = found.name
        self._finalizer = weakref.finalize(self, _close, self._loaded, self._pid)

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
        **sampling: Any,
    ) -> Completion | list[Completion] | Generator[Chunk, None, None]:
        """Continue prompts: text or token ids give a Completion, a list of them a list in order.

        stream=True (one prompt): a generator of Chunk; the work starts when it is first read, and leaving it early
        stops the work within a step. An empty list is a list of no prompts.
        n: answers per prompt. on_error: "return" a run-time failure as Completion.error, or "raise" it.
        All inputs are checked before work starts: RequestError, ContextOverflow, TypeError; where several prompts of a
        list are wrong, one RequestError that names them.
        """
        resolved = self._options(params, sampling, n, on_error)
        if isinstance(prompts, str) or (_is_ids(prompts) and len(prompts)):
            request = self._request(self._prompt_ids(prompts), resolved, n, stream)
            return self._stream(request, on_error) if stream else self._run([request], on_error)[0]
        if not isinstance(prompts, list | tuple):
            raise TypeError(f"prompts must be text, token ids or a list of them, found {type(prompts).__name__}")
        if stream:
            raise RequestError("stream=True takes one prompt; use one call a prompt")
        prompt_ids: list[list[int]] = []
        wrong: list[RequestError | TypeError] = []
        for i, p in enumerate(prompts):
            name = f"prompts[{i}]"
            try:
                prompt_ids.append(self._prompt_ids(p, name))
            except (RequestError, TypeError) as e:
                if not str(e).startswith(name):
                    e.args = (f"{name}: {e}",)
                wrong.append(e)
        if wrong:
            raise _all_of(wrong, len(prompts))
        return self._run([self._request(ids, resolved, n, False) for ids in prompt_ids], on_error)

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
        resolved = self._options(params, sampling, n, on_error)
        if response_format is not None:
            raise RequestError("response_format is not supported in this release: leave it out")
        if self._base:
            raise TemplateError(
                f"{self._name} is a base model: it continues text and was not trained to answer. Use generate() or "
                f"`edgellm run --raw` with the beginning of a text, or choose an instruct model"
            )
        ids, notes = self._chat_prompt(messages, tools)
        request = self._request(ids, resolved, n, stream)
        request.notes = notes
        return self._stream(request, on_error) if stream else self._run([request], on_error)[0]

    def render(self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None) -> str:
        """The text of a conversation as the model's chat template writes it, ready for the answer."""
        self._check_alive()
        return self._loaded.template.render(_as_messages(messages), tools=tools)

    def chat_tokens(self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of `render(messages)`: control tokens only where the template put them, one BOS."""
        self._check_alive()
        return self._chat_prompt(messages, tools)[0]

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of text; add_special: BOS/EOS as the model wants; parse_special: read control tokens in it."""
        self._check_alive()
        return self._loaded.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids; special: also write control tokens."""
        self._check_alive()
        return self._loaded.tokenizer.decode(_token_ids(ids, "ids"), special=special)

    # -- numbers ---------------------------------------------------------------------------------------------------

    def logits(self, tokens: Sequence[int], rows: slice | str | None = None) -> F32:
        """Teacher-forced logits, float32 [rows, V]: row t is the distribution after tokens[:t+1].

        rows: None = all, "last" = [1, V], or a slice with step 1. Raises CapacityError when memory cannot hold them.
        """
        self._check_alive()
        ids = self._prompt_ids(_token_ids(tokens, "tokens"), "tokens")
        first, stop = _row_range(rows, len(ids))
        greedy = SamplingParams(temperature=0.0).resolved({})
        request = Request(ids[:stop], greedy, seed=0, logit_rows=(first, stop))
        request.logits = _new_logits(stop - first, self._loaded.plan.n_vocab)
        self._run([request], "raise")
        return request.logits

    @property
    def info(self) -> LLMInfo:
        """What was opened and chosen: model, sizes, context, backend, fingerprint."""
        return describe(self._loaded)

    @property
    def is_base(self) -> bool:
        """Whether this model has no chat template or is catalogued as a base model: `generate`, not `chat`."""
        return self._base

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

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise EngineError(
                "this LLM was opened in the parent process and its threads do not exist here: "
                "open the model after the fork, or use the spawn start method"
            )

    def _check_alive(self) -> None:
        self._check_process()
        if not self._finalizer.alive:
            raise EngineError("this LLM is closed")

    def _options(
        self, params: SamplingParams | None, sampling: dict[str, Any], n: int, on_error: str
    ) -> SamplingParams:
        """The sampling parameters of a call, when all its options are sound and this LLM is open."""
        self._check_alive()
        chosen = SamplingParams.from_kwargs(params, sampling)
        if on_error not in ("return", "raise"):
            raise ConfigError(f'on_error must be "return" or "raise", found {on_error!r}')
        n_choices = as_integer(n)
        if n_choices is None or not 1 <= n_choices <= MAX_CHOICES:
            raise RequestError(f"n must be an integer from 1 to {MAX_CHOICES}, found {n!r:.80}")
        last = self._loaded.plan.n_vocab - 1
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            token = max(getattr(chosen, name) or (0,))
            if token > last:
                raise RequestError(f"{name} names token {token}, the vocabulary ends at {last}")
        if chosen.dry_multiplier and chosen.dry_sequence_breakers != () and not self._loaded.tokenizer.usable:
            raise RequestError(
                "dry_sequence_breakers need a vocabulary, which this file lacks: pass dry_sequence_breakers=()"
            )
        return chosen

    def _chat_prompt(
        self, messages: str | list[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[list[int], tuple[str, ...]]:
        """Token ids of a conversation, and what was done to messages that the template cannot express."""
        rendered = self._loaded.template.apply(_as_messages(messages), tools=tools)
        self._refuse_endless(rendered.text)
        return self._loaded.tokenizer.encode_segments(rendered.segments), rendered.notes

    def _prompt_ids(self, prompt: object, name: str = "") -> list[int]:
        """The token ids of a prompt, a new list. name: which of several it is, for errors."""
        if isinstance(prompt, str):
            self._refuse_endless(prompt)
            ids = self._loaded.tokenizer.encode(prompt)
        elif _is_ids(prompt):
            ids = [int(i) for i in prompt]
        else:
            raise TypeError(f"{name or 'the prompt'} must be text or token ids, found {type(prompt).__name__}")
        if not ids:
            raise RequestError(f"{name or 'the prompt'} has no tokens: give at least one")
        n_vocab = self._loaded.plan.n_vocab
        low, high = min(ids), max(ids)
        if low < 0 or high >= n_vocab:
            wrong = low if low < 0 else high
            where = f"{name}: " if name else ""
            raise RequestError(f"{where}token id {wrong} is outside the vocabulary (0 .. {n_vocab - 1})")
        if len(ids) > self._loaded.n_ctx:
            raise ContextOverflow(len(ids), self._loaded.n_ctx)
        return ids

    def _refuse_endless(self, text: str) -> None:
        """ContextOverflow for a text that cannot fit whatever its tokens are, before time goes into tokenising it."""
        if len(text) > COUNTED_CHARS:
            least = self._loaded.tokenizer.least_tokens(text)
            if least > self._loaded.n_ctx:
                raise ContextOverflow(least, self._loaded.n_ctx, at_least=True)

    def _request(self, ids: list[int], params: SamplingParams, n: int, stream: bool) -> Request:
        if len(ids) > self._loaded.n_ctx:  # of a chat; other prompts have been checked
            raise ContextOverflow(len(ids), self._loaded.n_ctx)
        resolved = params.resolved(self._loaded.sampling_defaults)
        suppressed = self._loaded.tokenizer.suppressed_ids
        if suppressed:  # the file's own list; a bias that the caller gives for one of them stands
            resolved = replace(resolved, logit_bias={**dict.fromkeys(suppressed, -math.inf), **resolved.logit_bias})
        return Request(
            prompt=ids,
            params=resolved,
            seed=int.from_bytes(os.urandom(8), "little") >> 1 if params.seed is None else params.seed,
            n=int(n),
            stream=stream,
            eog_ids=self._loaded.tokenizer.eog_ids,
        )

    def _run(self, requests: list[Request], on_error: str) -> list[Completion]:
        """Run requests to their ends; an exception here (KeyboardInterrupt) cancels them all."""
        try:
            for request in requests:
                self._loaded.engine.submit(request)
            errors = [self._end_of(request) for request in requests]
        except BaseException:
            for request in requests:
                self._loaded.engine.cancel(request)
            raise
        for error in errors:
            if error is not None and on_error == "raise":
                raise error
        return [self._completion(r) for r in requests]

    def _end_of(self, request: Request) -> EdgeLLMError | None:
        while True:
            event = self._event(request)
            if isinstance(event, Done):
                return event.error

    def _event(self, request: Request) -> Event:
        """The next event of a request. Raises EngineError in a forked child, where none will come."""
        while True:
            self._check_process()
            try:
                return request.events.get(timeout=_POLL)
            except Empty:
                continue

    def _stream(self, request: Request, on_error: str) -> Generator[Chunk, None, None]:
        """Start with the first `next`, so that an iterator nobody reads costs nothing; cancel when it is left."""
        self._check_alive()
        self._loaded.engine.submit(request)
        event: Event | None = None
        texts = [LogprobText(self._loaded.tokenizer) for _ in range(request.n)]

        def chunk(d: Delta, completion: Completion | None = None) -> Chunk:
            logprobs = None if d.logprobs is None else texts[d.index].add(d.logprobs)
            return Chunk(d.text, d.tokens, d.index, d.finish_reason, completion, logprobs)

        try:
            last = Delta(0, "", [], "error")
            n_ended = 0
            while not isinstance(event := self._event(request), Done):
                if event.finish_reason is not None:
                    n_ended += 1
                    if n_ended == request.n:
                        last = event  # waits for Done, so that it can carry the completion
                        continue
                yield chunk(event)
            if event.error is not None and on_error == "raise":
                raise event.error
            yield chunk(last, self._completion(request))
        finally:
            if not isinstance(event, Done):
                self._loaded.engine.cancel(request)

    def _completion(self, request: Request) -> Completion:
        return completion_of(request, self._loaded.tokenizer, self._loaded.fingerprint)


def _all_of(wrong: list[RequestError | TypeError], n: int) -> RequestError | TypeError:
    """One error for all that is wrong with a list of n prompts."""
    if len(wrong) == 1:
        return wrong[0]
    shown = [str(e) for e in wrong[:NAMED_PROMPTS]]
    if len(wrong) > NAMED_PROMPTS:
        shown.append(f"and {len(wrong) - NAMED_PROMPTS} more")
    return RequestError(f"{len(wrong)} of {n} prompts cannot be used: " + "; ".join(shown))


def _is_ids(value: object) -> TypeGuard[list[int] | tuple[int, ...]]:
    return isinstance(value, list | tuple) and all(as_integer(i) is not None for i in value)


def _token_ids(value: object, name: str) -> list[int]:
    """Token ids in any collection, as a new list. RequestError, which names the argument, for anything else."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise RequestError(f"{name} must be a list of token ids, found {type(value).__name__}")
    try:
        items = list(value)
    except TypeError:  # an array that is one number
        raise RequestError(f"{name} must be a list of token ids, found one number") from None
    ids = []
    for i, item in enumerate(items):
        integer = as_integer(item)
        if integer is None:
            raise RequestError(f"{name} must be a list of token ids, found {item!r:.80} at place {i}")
        ids.append(integer)
    return ids


def _as_messages(messages: str | list[Message]) -> list[Message]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def _pair(kv_type: object) -> tuple[str, str]:
    """(K, V) types; whether they are supported is seen when the model is opened."""
    if isinstance(kv_type, str):
        return kv_type, kv_type
    if isinstance(kv_type, list | tuple) and len(kv_type) == 2 and all(isinstance(t, str) for t in kv_type):
        return kv_type[0], kv_type[1]
    raise ConfigError(f"kv_type must be a type or a pair of types for K and V, found {kv_type!r:.80}")


def _row_range(rows: object, n: int) -> tuple[int, int]:
    """First and last + 1 of the rows of n that the argument of `logits` means."""
    if rows is None:
        return 0, n
    if isinstance(rows, slice):
        try:
            first, stop, step = rows.indices(n)
        except (TypeError, ValueError) as e:
            raise RequestError(f"rows must be a slice of whole numbers, found {rows!r:.80}: {e}") from None
        if step != 1 or stop <= first:
            raise RequestError(f"rows must be a non-empty slice with step 1 of {n} tokens, found {rows}")
        return first, stop
    if isinstance(rows, str):
        if rows == "last":
            return n - 1, n
        raise RequestError(f'rows must be None, "last" or a slice, found {rows!r:.80}')
    raise RequestError(f'rows must be None, "last" or a slice, found {type(rows).__name__}')


def _new_logits(n: int, n_vocab: int) -> F32:
    """An array [n, n_vocab] for results; CapacityError, with what would fit, where memory is short."""
    row, free = 4 * n_vocab, memory.available()
    if n * row > free:
        raise CapacityError(
            f"{n} rows of {n_vocab} logits need {n * row / 1e6:.1f} MB, {free / 1e6:.1f} MB are available: "
            f"ask for at most {free // row} rows at a time"
        )
    return np.empty((n, n_vocab), np.float32)


def _close(loaded: Loaded, pid: int) -> None:
    if os.getpid() != pid:  # a forked child has no engine thread to stop and must not touch the parent's
        return
    if loaded.engine.is_current_thread:  # the garbage collector happened to run there; it cannot wait for itself
        threading.Thread(target=_free, args=(loaded,), name="edgellm-close").start()
    else:
        _free(loaded)


def _free(loaded: Loaded) -> None:
    loaded.engine.close()
    loaded.warming.join()
    loaded.file.close()

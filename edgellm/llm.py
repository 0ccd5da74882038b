"""LLM: a model in this process, synchronous. Thread-safe; one engine thread does the work."""

from __future__ import annotations

import os
import secrets
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np

from edgellm.core.config import SamplingParams
from edgellm.core.errors import (
    ConfigError,
    ContextOverflow,
    EdgeLLMError,
    EngineError,
    RequestError,
)
from edgellm.core.results import Choice, Chunk, Completion, Timings, Usage
from edgellm.core.types import F32
from edgellm.engine.info import LLMInfo, describe
from edgellm.engine.loader import Loaded, OpenOptions, open_model
from edgellm.engine.request import Delta, Done, Request
from edgellm.hub import resolve

Prompt = str | list[int]
Message = dict[str, Any]

MAX_CHOICES = 256


class LLM:
    """Open a model and generate text.

    model: a path (file, any shard, or directory) or a catalogue name. It is downloaded when it has to be.
    n_ctx: context in tokens; None = what the model was trained for, or less if the KV memory holds less (said once).
    n_threads: None = one per physical core this process may use.
    kv_type: element type of the KV cache, "f16" or "f32"; a pair means (K, V).
    weights: "mmap" runs from the file, "tiles" repacks at load, "auto" = tiles where memory allows. Same bits.
    backend: "auto" | "native" | "reference".  isa: caps the instruction set level.
    max_seqs: sequences computed side by side (8).  kv_memory: bytes the KV cache may grow to.
    n_batch: most tokens a step computes.  strict=False loads files with unknown metadata, loudly.
    progress: called with (stage, fraction) while loading.

    Raises ModelNotFound, GGUFError, UnsupportedModel, CapacityError, ConfigError, NativeError.
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
        k_type, v_type = (kv_type, kv_type) if isinstance(kv_type, str) else kv_type
        for t in (k_type, v_type):
            if t not in ("f16", "f32"):
                raise ConfigError(f'kv_type must be "f16" or "f32" (or a pair of them) in this release, found {t!r}')
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
        self._interval = sys.getswitchinterval()
        if self._interval > 1e-4:
            sys.setswitchinterval(1e-4)
        self._finalizer = weakref.finalize(self, _close, self._loaded, self._pid, self._interval)

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
    ) -> Iterator[Chunk]: ...
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
    ) -> Completion | list[Completion] | Iterator[Chunk]:
        """Continue prompts: text or token ids give a Completion, a list of them a list in order.

        stream=True (one prompt): an iterator of Chunk; leaving it early stops the work within a step.
        n: answers per prompt. on_error: "return" a run-time failure as Completion.error, or "raise" it.
        All inputs are checked before work starts: RequestError, ContextOverflow, TypeError.
        """
        self._check_alive()
        resolved = SamplingParams.from_kwargs(params, sampling)
        if on_error not in ("return", "raise"):
            raise ConfigError(f'on_error must be "return" or "raise", found {on_error!r}')
        single = isinstance(prompts, str) or _is_ids(prompts)
        if not single and not isinstance(prompts, list | tuple):
            raise TypeError(f"prompts must be text, token ids or a list of them, found {type(prompts).__name__}")
        todo: list[Prompt] = [prompts] if single else list(prompts)  # type: ignore[list-item]
        requests = [self._request(self._prompt_ids(p), resolved, n, stream) for p in todo]
        if stream:
            if not single:
                raise RequestError("stream=True takes one prompt; use one call a prompt")
            return self._stream(requests[0], on_error)
        done = self._run(requests, on_error)
        return done[0] if single else done

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
    ) -> Any:
        """Answer a conversation: a Completion, or with stream=True an iterator of Chunk.

        messages: [{"role": "system" | "user" | "assistant", "content": str}, ...]; a str is one user message.
        Text in messages is never read as control tokens. Raises TemplateError for a base model.
        """
        self._check_alive()
        if response_format is not None:
            raise RequestError("response_format is not supported in this release: leave it out")
        resolved = SamplingParams.from_kwargs(params, sampling)
        request = self._request(self.chat_tokens(messages, tools=tools), resolved, n, stream)
        return self._stream(request, on_error) if stream else self._run([request], on_error)[0]

    def render(self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None) -> str:
        """The text of a conversation as the model's chat template writes it, ready for the answer."""
        return self._loaded.template.render(_as_messages(messages), tools=tools)

    def chat_tokens(self, messages: str | list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of `render(messages)`: control tokens only where the template put them, one BOS."""
        segments = self._loaded.template.render_segments(_as_messages(messages), tools=tools)
        return self._loaded.tokenizer.encode_segments(segments)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of text; add_special: BOS/EOS as the model wants; parse_special: read control tokens in it."""
        return self._loaded.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of token ids; special: also write control tokens."""
        return self._loaded.tokenizer.decode(list(ids), special=special)

    # -- numbers ---------------------------------------------------------------------------------------------------

    def logits(self, tokens: Sequence[int], rows: slice | str | None = None) -> F32:
        """Teacher-forced logits, float32 [rows, V]: row t is the distribution after tokens[:t+1].

        rows: None = all, "last" = [1, V], or a slice with step 1.
        """
        self._check_alive()
        ids = self._prompt_ids(list(tokens))
        if rows is None:
            first, stop = 0, len(ids)
        elif isinstance(rows, str):
            if rows != "last":
                raise RequestError(f'rows must be None, "last" or a slice, found {rows!r}')
            first, stop = len(ids) - 1, len(ids)
        else:
            first, stop, step = rows.indices(len(ids))
            if step != 1 or stop <= first:
                raise RequestError(f"rows must be a non-empty slice with step 1 of {len(ids)} tokens, found {rows}")
        request = self._request(ids[:stop], SamplingParams(temperature=0.0), 1, False)
        request.logit_rows = (first, stop)
        self._loaded.engine.submit(request)
        error = self._wait([request])[0]
        if error is not None:
            raise error
        if request.logits is None:
            raise EngineError("the request ended without its logits")
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if os.getpid() != self._pid:
            raise EngineError(
                "this LLM was opened in the parent process and its threads do not exist here: "
                "open the model after the fork, or use the spawn start method"
            )
        if not self._finalizer.alive:
            raise EngineError("this LLM is closed")

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        ids = self._loaded.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not _is_ids(ids):
            raise RequestError(f"a prompt must be text or a list of token ids, found {type(prompt).__name__}")
        if not ids:
            raise RequestError("the prompt has no tokens: give at least one")
        n_vocab = self._loaded.plan.n_vocab
        low, high = min(ids), max(ids)
        if low < 0 or high >= n_vocab:
            raise RequestError(f"token id {low if low < 0 else high} is outside the vocabulary (0 .. {n_vocab - 1})")
        if len(ids) > self._loaded.n_ctx:
            raise ContextOverflow(len(ids), self._loaded.n_ctx)
        return ids

    def _request(self, ids: list[int], params: SamplingParams, n: int, stream: bool) -> Request:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_CHOICES:
            raise RequestError(f"n must be an integer from 1 to {MAX_CHOICES}, found {n!r}")
        if len(ids) > self._loaded.n_ctx:
            raise ContextOverflow(len(ids), self._loaded.n_ctx)
        last = self._loaded.plan.n_vocab - 1
        for token in params.logit_bias:
            if token > last:
                raise RequestError(f"logit_bias names token {token}, the vocabulary ends at {last}")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return Request(
            prompt=ids,
            params=params.resolved(self._loaded.sampling_defaults),
            seed=seed,
            n=n,
            stream=stream,
            eog_ids=self._loaded.tokenizer.eog_ids,
        )

    def _run(self, requests: list[Request], on_error: str) -> list[Completion]:
        for request in requests:
            self._loaded.engine.submit(request)
        errors = self._wait(requests)
        for error in errors:
            if error is not None and on_error == "raise":
                raise error
        return [self._completion(r) for r in requests]

    def _wait(self, requests: list[Request]) -> list[EdgeLLMError | None]:
        """Wait for every request; an exception here (KeyboardInterrupt) cancels them all."""
        errors: list[EdgeLLMError | None] = []
        try:
            for request in requests:
                event = request.events.get()
                while not isinstance(event, Done):
                    event = request.events.get()
                errors.append(event.error)
        except BaseException:
            for request in requests:
                self._loaded.engine.cancel(request)
            raise
        return errors

    def _stream(self, request: Request, on_error: str) -> Iterator[Chunk]:
        """Start with the first `next`, so that an iterator nobody reads costs nothing; cancel when it is left."""
        self._check_alive()
        self._loaded.engine.submit(request)
        try:
            ends: list[Delta] = []
            while True:
                event = request.events.get()
                if isinstance(event, Done):
                    break
                if event.finish_reason is not None:
                    ends.append(event)
                    if len(ends) == request.n:
                        continue  # the last one waits for Done, so that it can carry the completion
                yield Chunk(event.text, event.tokens, event.index, event.finish_reason)
            if event.error is not None and on_error == "raise":
                raise event.error
            last = ends[-1] if ends else Delta(0, "", [], "error")
            yield Chunk(last.text, last.tokens, last.index, last.finish_reason, self._completion(request))
        finally:
            self._loaded.engine.cancel(request)

    def _completion(self, request: Request) -> Completion:
        n_prompt = len(request.prompt)
        choices = [
            Choice(s.index, "".join(s.text), s.tokens[n_prompt:], s.finish_reason or "error", s.stops.matched)
            for s in request.sequences
        ] or [Choice(0, "", [], "error")]
        first = request.first_token or request.finished
        return Completion(
            choices=choices,
            usage=Usage(n_prompt, sum(len(c.token_ids) for c in choices)),
            timings=Timings(
                queue=max(0.0, request.started - request.submitted),
                prefill=max(0.0, first - request.started),
                decode=max(0.0, request.finished - first),
                first_token=max(0.0, first - request.submitted),
            ),
            seed=request.seed,
            fingerprint=self._loaded.fingerprint,
            error=request.error,
        )


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in value)


def _as_messages(messages: str | list[Message]) -> list[Message]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def _close(loaded: Loaded, pid: int, interval: float) -> None:
    if os.getpid() == pid:  # a forked child has no engine thread to stop and must not touch the parent's
        loaded.engine.close()
        loaded.file.close()
        if sys.getswitchinterval() < interval:
            sys.setswitchinterval(interval)

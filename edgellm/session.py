"""A conversation in token ids: appended to, forked, taken back, saved. What was computed stays in the KV cache."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, overload

from edgellm.core.config import SamplingParams
from edgellm.core.errors import ContextOverflow, EngineError, RequestError
from edgellm.core.results import Chunk, Completion
from edgellm.engine import sessionfile
from edgellm.engine.engine import Engine
from edgellm.engine.front import Front
from edgellm.engine.request import Pin, Request


class Owner(NamedTuple):
    """The open model of a session, and how its requests are run: to their ends, or as a stream."""

    front: Front
    run: Callable[[list[Request], str], list[Completion]]
    stream: Callable[[Request, str], Generator[Chunk, None, None]]


class Session:
    """Made by `LLM.session()`. Each operation waits for the one before; forks work side by side.

    Its pages are not evicted until it is closed, or nobody refers to it any more; a fork shares them. Answers are those
    of the same tokens as one prompt. Errors are raised: those of `generate`, and CapacityError when sessions hold so
    many pages that nothing else fits.
    """

    def __init__(self, owner: Owner, tokens: Sequence[int] = (), pin: Pin | None = None) -> None:
        self._owner, self._tokens, self._lock = owner, list(tokens), threading.Lock()
        self._front, self._engine = owner.front, owner.front._loaded.engine
        self._held = [pin or Pin()]
        self._finalizer = weakref.finalize(self, _let_go, self._engine, self._held)

    @property
    def tokens(self) -> list[int]:
        """All tokens so far: what was appended and what was answered. A new list."""
        return list(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, text: str | list[int], *, add_special: bool = False, parse_special: bool = False) -> int:
        """Add text or token ids and compute them. How many tokens were computed for it.

        add_special, parse_special: as of `LLM.tokenize`; a text's own BOS belongs to the first one only.
        """
        with self._lock:
            tokens = self._with(text, add_special, parse_special)
            request = self._request(tokens, SamplingParams(temperature=0.0, max_tokens=0), False)
            self._run(request)
            return len(tokens) - request.cached_tokens

    @overload
    def generate(
        self,
        text: str | list[int] = "",
        params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **sampling: Any,
    ) -> Completion: ...
    @overload
    def generate(
        self,
        text: str | list[int] = "",
        params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **sampling: Any,
    ) -> Generator[Chunk, None, None]: ...

    def generate(
        self, text: str | list[int] = "", params: SamplingParams | None = None, *, stream: bool = False, **sampling: Any
    ) -> Completion | Generator[Chunk, None, None]:
        """Append text or token ids, if any, and answer; the answer is appended too. Otherwise as `LLM.generate`.

        A stream that is left early has appended what was read of it. An answer that ends with a token that the model
        ends its turns with includes that token.
        """
        chosen = self._front._options(params, sampling, 1, "raise")
        if chosen.context_shift:
            raise RequestError("a session keeps all its tokens: leave out context_shift, and rewind it yourself")
        if stream:
            return self._stream(text, chosen)
        with self._lock:
            request = self._request(self._with(text), chosen, False)
            return self._run(request)

    def fork(self) -> Session:
        """Another session with the same past. They share the pages of it; each writes only to pages of its own."""
        with self._lock:
            self._check_open()
            return Session(self._owner, self._tokens, self._engine.copy_pin(self._held[0]))

    def rewind(self, n_tokens: int) -> None:
        """Forget all but the first n_tokens tokens; a negative number: so many of the last ones.

        A model with sliding windows or recurrent state may have to compute some tokens again, since what it had of
        them has been overwritten.
        """
        with self._lock:
            self._check_open()
            n = n_tokens if n_tokens >= 0 else len(self._tokens) + n_tokens
            if not 0 <= n <= len(self._tokens):
                raise RequestError(f"n_tokens is {n_tokens}, expected -{len(self._tokens)} to {len(self._tokens)}")
            self._engine.trim_pin(self._held[0], n)
            del self._tokens[n:]

    def save(self, path: str | Path) -> None:
        """Write the session to a file: its tokens, and what was computed for them. Raises CacheError."""
        with self._lock:
            self._check_open()
            kept = self._engine.read_pin(self._held[0])
            sessionfile.write(Path(path), self._front._loaded.fingerprint(), self._tokens, kept)

    def load(self, path: str | Path) -> Session:
        """Become the session of a file that `save` wrote, also in another process. Nothing is computed. Returns self.

        Raises CacheError for a file that is damaged, of another version or of another model; CapacityError where there
        is no room for its pages.
        """
        with self._lock:
            self._check_open()
            tokens, kept = sessionfile.read(Path(path), self._front._loaded.fingerprint())
            tokens = self._front._prompt_ids(tokens) if tokens else []
            old, self._held[0] = self._held[0], self._engine.restore(tokens, kept)
            self._tokens = tokens
            self._engine.unpin(old)
            return self

    def close(self) -> None:
        """Let its pages be evicted. Idempotent; `tokens` can still be read."""
        self._finalizer()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        self._front._check_alive()
        if not self._finalizer.alive:
            raise EngineError("this session is closed")

    def _with(self, text: str | list[int], add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The tokens and those of a text behind them, checked."""
        self._check_open()
        if isinstance(text, str):
            new = (
                self._front._loaded.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
                if text
                else []
            )
        else:
            new = self._front._prompt_ids(text) if text else []
        tokens = [*self._tokens, *new]
        if not tokens:
            raise RequestError("the session has no tokens: append some text first")
        if len(tokens) > self._front._loaded.n_ctx:
            raise ContextOverflow(len(tokens), self._front._loaded.n_ctx)
        return tokens

    def _request(self, tokens: list[int], params: SamplingParams, stream: bool) -> Request:
        request = self._front._request(tokens, params, 1, stream)
        request.pin = Pin()
        return request

    def _run(self, request: Request) -> Completion:
        try:
            (completion,) = self._owner.run([request], "raise")
        except BaseException:
            self._let_go(request)
            raise
        self._take(request)
        return completion

    def _let_go(self, request: Request) -> None:
        if request.pin is not None:
            self._engine.unpin(request.pin)

    def _take(self, request: Request, n_answer: int | None = None) -> None:
        """A request has ended: its tokens, and what it keeps, take the place of what was there."""
        self._tokens = request.sequences[0].tokens[: None if n_answer is None else len(request.prompt) + n_answer]
        old, self._held[0] = self._held[0], request.pin or Pin()
        self._engine.unpin(old)

    def _stream(self, text: str | list[int], params: SamplingParams) -> Generator[Chunk, None, None]:
        with self._lock:
            request = self._request(self._with(text), params, True)
            n, ended = 0, False
            try:
                for chunk in self._owner.stream(request, "raise"):
                    n += len(chunk.token_ids)
                    ended = chunk.completion is not None
                    yield chunk
            finally:
                if ended or n:
                    self._take(request, n)
                else:
                    self._let_go(request)


def _let_go(engine: Engine, held: list[Pin]) -> None:
    engine.unpin(held[0])

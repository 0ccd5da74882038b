"""The engine: one thread owns the executable and turns queued requests into steps; others talk through queues."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from edgellm.core.errors import CapacityError, EdgeLLMError, EngineError, NumericsError
from edgellm.core.types import Batch, StepOutput
from edgellm.engine import scheduler
from edgellm.engine.batcher import Batcher
from edgellm.engine.request import Decoder, Delta, Done, Request, Sequence, new_logits
from edgellm.engine.runner import Runner
from edgellm.engine.scheduler import Budget, Piece, State
from edgellm.kvcache.table import ClassSpec, Ledger
from edgellm.sampling.sampler import Sampler
from edgellm.sampling.stops import StopMatcher

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What the engine needs to know of the model and of its memory.

    n_ctx: longest sequence in tokens. budget: limits of a step, as the executable was compiled for.
    check: verify the page ledger after every step (tests).
    """

    n_ctx: int
    n_vocab: int
    classes: tuple[ClassSpec, ...]
    n_pages: tuple[int, ...]
    budget: Budget
    check: bool = False


@dataclass(slots=True)
class Stats:
    """Counters since start. seconds_native is time inside the executable, seconds_python the rest of busy steps."""

    steps: int = 0
    tokens: int = 0
    seconds_native: float = 0.0
    seconds_python: float = 0.0


class Engine:
    """Runs requests on an executable in its own thread. Thread-safe: submit, cancel, call, close.

    new_decoder: makes a stream decoder per sequence, or None when the model has no usable vocabulary.
    """

    def __init__(
        self, executable: Runner, spec: EngineSpec, new_decoder: Callable[[], Decoder | None] = lambda: None
    ) -> None:
        self.spec, self.stats = spec, Stats()
        self._executable = executable
        self._new_decoder = new_decoder
        self._state = State(Ledger(spec.classes, spec.n_pages, spec.n_ctx))
        self._batcher = Batcher(spec.budget, self._state.ledger, spec.n_vocab)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._requests: set[Request] = set()
        self._closing = False
        self._dead: EdgeLLMError | None = None
        self._thread = threading.Thread(target=self._main, name="edgellm-engine", daemon=True)
        self._thread.start()

    # -- called from any thread ----------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request; its events arrive on request.events. Raises EngineError when the engine has ended."""
        if self._dead is not None or self._closing:
            raise self._dead or EngineError("the engine is closed")
        request.submitted = time.perf_counter()
        self._inbox.put(lambda: self._admit(request))
        if self._closing:  # the thread may have drained its inbox for the last time already
            self._thread.join()
            self._drain()

    def cancel(self, request: Request) -> None:
        """End a request within a step, in whatever state it is. Idempotent; its Done event still arrives."""
        request.cancelled = True
        self._inbox.put(lambda: self._cancel(request))

    def close(self) -> None:
        """Cancel everything, stop the thread, free the executable. Idempotent."""
        self._closing = True
        self._inbox.put(lambda: None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the engine accepts requests."""
        return self._thread.is_alive() and not self._closing

    # -- the engine thread ---------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._closing:
                pieces = self._next_pieces()
                if pieces:
                    self._step(pieces)
        except BaseException as e:
            log.exception("the engine thread failed")
            self._dead = EngineError(f"the engine has died: {type(e).__name__}: {e}")
            self._dead.__cause__ = e
        finally:
            self._closing = True
            self._drain()
            end = self._dead
            for request in list(self._requests):
                self._end_request(request, "cancelled" if end is None else "error", end)
            self._executable.close()

    def _drain(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _next_pieces(self) -> list[Piece]:
        """Handle what has arrived and schedule; sleep while there is nothing to do."""
        state = self._state
        if not state.running and not state.waiting:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()
        if not state.running and not state.waiting:
            return []
        pieces = scheduler.schedule(state, self.spec.budget)
        if not pieces:
            victim = (state.running or list(state.waiting))[0]
            error = CapacityError("the KV cache has no room for this request: open the model with a larger kv_memory")
            self._end_request(victim.request, "error", error)
        return pieces

    def _admit(self, request: Request) -> None:
        if self._closing:
            request.error = self._dead or EngineError("the engine is closed")
            request.events.put(Done(request.error))
            return
        if request.cancelled:
            request.events.put(Done())
            return
        params = request.params
        room = self.spec.n_ctx - len(request.prompt)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        self._requests.add(request)
        for i in range(request.n):
            seq = Sequence(
                request,
                i,
                list(request.prompt),
                len(request.prompt),
                self._state.ledger.new_table(),
                Sampler(params, request.seed, i, self.spec.n_vocab),
                self._new_decoder() if request.logit_rows is None else None,
                StopMatcher(params.stop),
                limit,
            )
            request.sequences.append(seq)
            scheduler.add(self._state, seq)
        if request.logit_rows is not None:
            request.logits = new_logits(request.logit_rows, self.spec.n_vocab)
        elif limit < 1:
            for seq in request.sequences:
                self._end(seq, "length")

    def _cancel(self, request: Request) -> None:
        if request in self._requests:
            self._end_request(request, "cancelled", None)

    def _step(self, pieces: list[Piece]) -> None:
        stats = self.stats
        begin = time.perf_counter()
        batch: Batch = self._batcher.build(pieces)
        for piece in pieces:
            if not piece.seq.request.started:
                piece.seq.request.started = begin
        before = time.perf_counter()
        out: StepOutput = self._executable.run(batch)
        after = time.perf_counter()
        scheduler.commit(self._state, pieces)
        row = 0
        for s, piece in enumerate(pieces):
            if out.status[s]:
                self._end_request(
                    piece.seq.request,
                    "error",
                    NumericsError("a non-finite value appeared in the model's activations for this request"),
                )
            elif piece.rows:
                try:
                    self._accept(piece, out, row, after)
                except Exception as e:
                    log.exception("a request failed")
                    self._end_request(piece.seq.request, "error", EngineError(f"{type(e).__name__}: {e}"))
            row += piece.rows
        if self.spec.check:
            scheduler.check(self._state)
        stats.steps += 1
        stats.tokens += len(batch.tokens)
        stats.seconds_native += after - before
        stats.seconds_python += time.perf_counter() - after + before - begin

    def _accept(self, piece: Piece, out: StepOutput, row: int, now: float) -> None:
        """Sample from a piece's output row, or store its logits."""
        seq, start, count, n_rows = piece
        request = seq.request
        if request.logit_rows is not None:
            if request.logits is None or out.logits is None:
                raise EngineError("the backend returned no logits although they were asked for")
            at = start + count - n_rows - request.logit_rows[0]
            request.logits[at : at + n_rows] = out.logits[row : row + n_rows]
            if seq.n_cached == len(seq.tokens):
                self._end(seq, "stop")
            return
        sampler = seq.sampler
        if sampler.needs_logits:
            if out.logits is None:
                raise EngineError("the backend returned no logits although they were asked for")
            token = sampler.pick_from_row(out.logits[row], seq.n_generated)
        else:
            token = sampler.pick(out.top_ids[row], out.top_logits[row], seq.n_generated)
        if not request.first_token:
            request.first_token = now
        seq.tokens.append(token)
        piece_text, reason = "", None
        if token in request.eog_ids:
            reason = "stop"
        else:
            if seq.decoder is not None:
                piece_text = seq.stops.push(seq.decoder.push(token))
                if seq.stops.matched is not None:
                    reason = "stop"
            if reason is None and seq.n_generated >= seq.max_tokens:
                reason = "length"
        if reason is not None:
            self._end(seq, reason, piece_text, [token])
        else:
            if piece_text:
                seq.text.append(piece_text)
            if request.stream:
                request.events.put(Delta(seq.index, piece_text, [token]))

    def _end(self, seq: Sequence, reason: str, text: str = "", tokens: list[int] | None = None) -> None:
        """Finish one sequence; the request's Done follows its last one."""
        request = seq.request
        if seq.finish_reason is not None:
            return
        if seq.decoder is not None and seq.stops.matched is None:
            text += seq.stops.push(seq.decoder.flush())
            if seq.stops.matched is None:
                text += seq.stops.flush()
        if text:
            seq.text.append(text)
        seq.finish_reason = reason
        scheduler.finish(self._state, seq)
        if request.stream:
            request.events.put(Delta(seq.index, text, tokens or [], reason))
        if request.done and request in self._requests:
            self._requests.discard(request)
            request.finished = time.perf_counter()
            request.events.put(Done(request.error))

    def _end_request(self, request: Request, reason: str, error: EdgeLLMError | None) -> None:
        request.error = request.error or error
        for seq in request.sequences:
            self._end(seq, reason)

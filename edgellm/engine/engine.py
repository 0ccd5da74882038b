"""The engine: one thread owns the executable and turns queued requests into steps; others talk through queues."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from edgellm.core.errors import CapacityError, EdgeLLMError, EngineError
from edgellm.core.types import PAGE_TOKENS, Batch, StepOutput
from edgellm.engine import pins, scheduler
from edgellm.engine.batcher import Batcher, PieceError
from edgellm.engine.books import Course, EndTokens, Load, Stats, load_of
from edgellm.engine.calls import answer_of, deliver, next_call
from edgellm.engine.failures import no_room, not_finite, typed
from edgellm.engine.flight import Flight, flight_of
from edgellm.engine.pace import Pace
from edgellm.engine.pins import Kept
from edgellm.engine.request import Decoder, Delta, Done, Event, Pin, Request, Sequence
from edgellm.engine.runner import MultiStepRunner, Runner
from edgellm.engine.scheduler import Piece, State
from edgellm.engine.scores import news_of, score_prompt
from edgellm.engine.shift import may_go_on, shift
from edgellm.engine.spec import EngineSpec
from edgellm.engine.speculation import PLAIN_STEPS, Speculation
from edgellm.engine.switching import switch_interval
from edgellm.engine.tier import Tier
from edgellm.kvcache.disk import DiskStore
from edgellm.kvcache.table import Ledger
from edgellm.sampling.sampler import Sampler, banned
from edgellm.sampling.stops import StopMatcher

log = logging.getLogger(__name__)

T = TypeVar("T")

STREAM_SECONDS = 0.1
"""Decode steps of a streamed answer that take less than this together may be one native call, and one Delta."""

MOST_STEPS, MOST_STEPS_WITH_STOPS = 32, 4
"""Decode steps of one native call at most. What comes after a stop string was computed in vain, so few with those."""


class Engine:
    """Runs requests on an executable in its own thread. Thread-safe: submit, cancel, call, close.

    new_decoder: makes a stream decoder per sequence, or None when the model has no usable vocabulary.
    speculation: guesses at tokens, which are verified several in a step; results stay the same.
    token_bytes: the bytes a token stands for, in which DRY finds its sequence breakers.
    disk: where pages of the prefix cache go when they are evicted, and come from; closed with the engine.
    """

    def __init__(
        self,
        executable: Runner,
        spec: EngineSpec,
        new_decoder: Callable[[], Decoder | None] = lambda: None,
        token_bytes: Callable[[int], bytes] = lambda _: b"",
        speculation: Speculation | None = None,
        disk: DiskStore | None = None,
    ) -> None:
        for cls, n in zip(spec.classes, spec.n_pages, strict=True):
            if cls.kind in ("full", "latent") and n * PAGE_TOKENS < spec.n_ctx:
                raise ValueError(f"{n} pages of {PAGE_TOKENS} tokens cannot hold a sequence of n_ctx={spec.n_ctx}")
        self.spec, self.stats = spec, Stats()
        self._executable = executable
        self._multi = executable if isinstance(executable, MultiStepRunner) else None
        self._speculation = speculation
        self._step_seconds = STREAM_SECONDS  # of the last decode step
        self._budget, self._pace = spec.budget, Pace()
        self._new_decoder, self._token_bytes = new_decoder, token_bytes
        self._state = State(Ledger(spec.classes, spec.n_pages, spec.n_ctx, spec.prefix_cache))
        self._tier = Tier(disk, self._state, executable)
        self._flight = flight_of(executable, self._state, self._pace)
        self._batcher = Batcher(spec.budget, self._state.ledger, spec.n_vocab)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outbox: deque[tuple[Request, Event]] = deque()
        self._requests: set[Request] = set()
        self._full: list[Sequence] = []
        self._course: Course | None = None
        self._ends = EndTokens()
        self._closing = False
        self._cause: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="edgellm-engine", daemon=True)
        switch_interval.shorten()
        self._thread.start()

    # -- called from any thread ----------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request; its events arrive on request.events.

        Raises EngineError when the engine has ended, CapacityError when too many requests are waiting already.
        """
        if self._closing:
            raise self._refusal("the engine is closed")
        waiting = self._inbox.qsize() + len(self._requests)
        if waiting >= self.spec.max_requests:
            raise CapacityError(
                f"{waiting} requests have not ended, and the queue takes {self.spec.max_requests}: send it again later"
            )
        request.submitted = time.perf_counter()
        self._send(lambda: self._admit(request))
        if not self.alive:  # the thread may have drained its inbox for the last time already
            self._thread.join()
            self._drain()
            self._deliver()

    def cancel(self, request: Request) -> None:
        """End a request within a step, in whatever state it is. Idempotent; its Done event still arrives."""
        request.cancelled = True
        if not self._closing:  # else everything ends anyway
            self._send(lambda: self._cancel(request))

    def close(self) -> None:
        """End every request with an EngineError, stop the thread, free the executable. Idempotent."""
        self._closing = True
        self._send(lambda: None)
        if not self.is_current_thread:
            self._thread.join()

    def unpin(self, pin: Pin) -> None:
        """Let go of what a pin keeps, or will keep. Idempotent."""
        if not self._closing:
            self._send(lambda: scheduler.unpin(self._state, pin))

    def copy_pin(self, pin: Pin) -> Pin:
        """A new pin that keeps what this one keeps."""
        copy = Pin()
        self._send(lambda: scheduler.copy_pin(self._state, pin, copy))
        return copy

    def trim_pin(self, pin: Pin, n_tokens: int) -> None:
        """Let go of what a pin keeps behind the first n_tokens tokens."""
        self._send(lambda: scheduler.trim_pin(pin, n_tokens))

    def read_pin(self, pin: Pin) -> Kept:
        """What a pin keeps. Raises EngineError."""

        def read() -> Kept:
            self._tier.work()
            return pins.read(self._executable, pin)

        return self._call(read)

    def restore(self, tokens: list[int], kept: Kept) -> Pin:
        """A pin that keeps the first tokens as they were computed elsewhere. Raises CapacityError, EngineError."""

        def work() -> None:
            self._tier.work(wait=True)

        return self._call(lambda: pins.restore(self._state, self._executable, tokens, kept, work))

    def _call(self, function: Callable[[], T]) -> T:
        """What a function returns, or raises, on the engine thread."""
        return answer_of(function, self._send, lambda: self.alive, lambda: self._refusal("the engine is closed"))

    def _send(self, call: Callable[[], None]) -> None:
        """Have the engine thread make a call after the step it is in."""
        self._inbox.put(call)
        if self._multi is not None:
            self._multi.halt()

    @property
    def speculation(self) -> Speculation | None:
        """Speculative decoding, where there is any."""
        return self._speculation

    @property
    def _guesses(self) -> bool:
        return self._speculation is not None and self._speculation.on

    @property
    def alive(self) -> bool:
        """Whether the engine accepts requests."""
        return self._thread.is_alive() and not self._closing

    @property
    def load(self) -> Load:
        """What there is to do now, as far as can be seen without stopping the engine thread."""
        return load_of(self._state, len(self._requests))

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is the engine's own thread (where the garbage collector may run anyone's code)."""
        return self._thread is threading.current_thread()

    # -- the engine thread ---------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as e:
            log.exception("the engine thread failed")
            self._cause = e
        finally:
            self._closing = True
            self._drain()
            for request in list(self._requests):
                self._abandon(request)
            self._deliver()
            if self._speculation is not None:
                self._speculation.guesser.close()
            try:
                self._tier.close(save=self._cause is None)
                self._executable.close()
            except Exception:
                log.exception("the executable could not be closed")
            switch_interval.restore()

    def _refusal(self, closed: str) -> EngineError:
        """A new error that says why the engine has ended: what killed it, or `closed`."""
        if self._cause is None:
            return EngineError(closed)
        error = EngineError(f"the engine has died: {type(self._cause).__name__}: {self._cause}")
        error.__cause__ = self._cause
        return error

    def _abandon(self, request: Request) -> None:
        """End a request because the engine ends. Its Done arrives even if the books are in disorder."""
        error = self._refusal("the engine was closed before this request had ended")
        try:
            self._end_request(request, "cancelled" if self._cause is None else "error", error)
        except Exception:
            log.exception("a request could not be ended in order")
            request.error = request.error or error
            self._finish(request)

    def _deliver(self) -> None:
        """Send the news. Just before the native call, which lets go of the interpreter: whoever wakes up earlier takes
        it from this thread in the middle of its work."""
        deliver(self._outbox)

    def _drain(self) -> None:
        while True:
            try:
                call = self._inbox.get_nowait()
            except Empty:  # asked beforehand, another thread that drains could take what there was
                return
            call()

    def _turn(self) -> None:
        """Handle what has arrived and compute a step; sleep while there is nothing to do."""
        state = self._state
        if self._multi is not None and self._course is not None:
            if self._keep_on(self._multi, self._course):
                return
            self._course = None
        call = None
        if not state.running and not state.waiting:
            self._deliver()
            call = next_call(self._inbox, self._tier.give_back)
        begin = time.perf_counter()
        if self._multi is not None:
            self._multi.halt(False)  # before the inbox is looked at: what comes later halts the run
        if call is not None:
            call()
        if not self._inbox.empty():
            self._drain()
        if self._closing or (not state.running and not state.waiting):
            return
        while self._full:
            self._shift(self._full.pop())
        state.now = begin
        self._tier.ask(self._budget.seqs)
        n_first = scheduler.waiting_for_first(state)
        n_decode = len(state.running) + len(state.waiting) - n_first
        if self._flight is None:
            most = self._pace.prefill(self._budget.tokens, n_decode, n_first)
        else:
            most = self._pace.flight(self._budget.tokens)
        pieces = scheduler.schedule(state, self._budget._replace(prefill=most))
        if self._flight is not None:
            pieces = self._take_off(self._flight, pieces, begin)
        if self._speculation is not None:
            pieces = self._speculation.extend(pieces, self.spec.budget)
        if pieces:
            self._step(pieces, begin)
        if self._flight is not None and state.flight:
            self._fly(self._flight, n_decode, n_first)
        elif not pieces and not self._tier.due:
            victim = (state.running or list(state.waiting.in_turn(begin)))[0]
            error = no_room(bool(state.pinned))
            self._end_request(victim.request, "error", error)

    def _admit(self, request: Request) -> None:
        self._requests.add(request)
        room = self.spec.n_ctx - len(request.prompt)
        limit = room if request.params.max_tokens is None else min(room, request.params.max_tokens)
        try:
            for i in range(request.n):
                request.sequences.append(self._sequence(request, i, limit))
        except Exception as e:
            self._end_request(request, "error", typed(e))
            return
        if self._closing:
            self._abandon(request)
        elif request.cancelled:
            self._end_request(request, "cancelled", None)
        elif limit < 1 and (request.logit_rows, request.params.prompt_logprobs, request.pin) == (None, None, None):
            self._end_request(request, "length", None)
        else:
            self._state.now = time.perf_counter()
            reason = scheduler.never_fits(self._state, request.sequences[0])
            if reason is not None:
                self._end_request(request, "error", CapacityError(reason))
                return
            for seq in request.sequences:
                seq.unasked = self._tier.store is not None
                scheduler.add(self._state, seq)

    def _sequence(self, request: Request, index: int, limit: int) -> Sequence:
        return Sequence(
            request,
            index,
            list(request.prompt),
            len(request.prompt),
            self._state.ledger.new_table(),
            self._sampler(request, index),
            self._new_decoder() if request.logit_rows is None else None,
            StopMatcher(request.params.stop),
            limit,
        )

    def _sampler(self, request: Request, index: int) -> Sampler:
        return Sampler(request.params, request.seed, index, self.spec.n_vocab, request.eog_ids, self._token_bytes)

    def _shift(self, seq: Sequence) -> None:
        if self._speculation is not None:
            self._speculation.guesser.forget(seq)
        shift(self._state, seq, self.spec.n_ctx, self._sampler(seq.request, seq.index))

    def _cancel(self, request: Request) -> None:
        if request in self._requests:
            self._end_request(request, "cancelled", None)

    def _step(self, pieces: list[Piece], begin: float) -> None:
        multi, stats = self._multi, self.stats
        n_steps = scheduler.stride(self._state, pieces, self._most_steps(pieces)) if multi is not None else 0
        batch, pieces = self._build(pieces, begin, edit=not n_steps)
        if batch is None:
            return
        if multi is not None and n_steps:
            ends = [-(-(p.start + n_steps) // PAGE_TOKENS) * PAGE_TOKENS for p in pieces]
            seqs = [p.seq for p in pieces]
            course = Course(seqs, batch, n_steps, ends, self._ends.of(seqs))
            self._run(multi, course, n_steps, begin)
            if n_steps > 1 and not self._state.waiting and not self._guesses:
                self._course = course
            return
        self._deliver()
        before = time.perf_counter()
        out = self._executable.run(batch)
        after = time.perf_counter()
        if not any(p.seq.draft for p in pieces):
            n_decode = sum(p.start + 1 == len(p.seq.tokens) for p in pieces)
            self._pace.note(n_decode, len(batch.tokens) - n_decode, after - before, bool(self._state.flight))
        if self._speculation is not None and all(p.count == p.rows for p in pieces):
            self._speculation.costs.add(len(batch.tokens), after - before)
        self._take_step(pieces, out, after)
        self._count(1, len(batch.tokens))
        stats.seconds_native += after - before
        stats.seconds_python += time.perf_counter() - after + before - begin

    def _take_off(self, flight: Flight, pieces: list[Piece], begin: float) -> list[Piece]:
        """Begin a flight with the prompts among these pieces; the pieces that a step computes."""
        pieces, prompts = flight.split(pieces)
        batch, prompts = self._build(prompts, begin)
        if batch is not None:
            try:
                flight.begin(prompts, batch)
            except CapacityError as e:
                log.warning("%s: from now on prompts are computed in the steps of those that decode", e)
                self._flight, pieces = None, [*pieces, *prompts]
        return [p for p in pieces if p.seq.finish_reason is None]

    def _fly(self, flight: Flight, n_decode: int, n_waiting: int) -> None:
        """Compute some of what is in flight."""
        self._deliver()
        before = time.perf_counter()
        landed = flight.advance(n_decode, n_waiting)
        after = time.perf_counter()
        if landed is not None:
            self._take_step(*landed, after)
            self._count(1, flight.n_tokens)
        self.stats.seconds_native += after - before
        self.stats.seconds_python += time.perf_counter() - after

    def _run(self, multi: MultiStepRunner, course: Course, n_steps: int, begin: float) -> None:
        """Several decode steps in one native call, and handing out what they have chosen."""
        stats, seqs = self.stats, course.seqs
        picks = [seq.sampler.pick_for(seq.n_generated, seq.tokens) for seq in seqs]
        self._deliver()
        before = time.perf_counter()
        run = multi.run_steps(course.batch, picks, n_steps, course.end_ids)
        after = time.perf_counter()
        n_steps = len(run.tokens[0])
        self._step_seconds = (after - before) / n_steps
        self._pace.note(len(seqs), 0, self._step_seconds, bool(self._state.flight))
        if self._speculation is not None:
            self._speculation.costs.add(len(seqs), self._step_seconds)
        for seq in seqs:
            seq.n_cached += n_steps
        for seq, tokens, status in zip(seqs, run.tokens, run.status, strict=True):
            if seq.finish_reason is not None:
                continue  # another choice of the same request failed a moment ago
            broken = status or tokens[-1] < 0
            try:
                self._extend(seq, tokens[:-1] if broken else tokens, after)
            except Exception as e:
                self._end_request(seq.request, "error", typed(e))
            if broken and seq.finish_reason is None:
                self._end_request(seq.request, "error", not_finite() if status else banned())
        self._count(n_steps, n_steps * len(seqs))
        stats.seconds_native += after - before
        stats.seconds_python += time.perf_counter() - after + before - begin

    def _count(self, n_steps: int, n_tokens: int) -> None:
        self.stats.steps += n_steps
        self.stats.tokens += n_tokens
        if self.spec.check:
            scheduler.check(self._state)

    def _keep_on(self, multi: MultiStepRunner, course: Course) -> bool:
        """The steps after the last ones, where nothing has changed: the same sequences, and room in their pages."""
        begin = time.perf_counter()
        multi.halt(False)  # before the inbox is looked at: what comes later halts the run
        if not self._inbox.empty() or self._closing:
            return False
        n = course.n_steps
        for seq, end in zip(course.seqs, course.page_ends, strict=True):
            n = min(n, end - seq.n_cached, seq.max_tokens - seq.n_generated)
            if seq.finish_reason is not None:
                return False
        if n < 1:
            return False
        self._batcher.advance(course.seqs)
        self._run(multi, course, n, begin)
        return True

    def _most_steps(self, pieces: list[Piece]) -> int:
        """Decode steps that may be one native call, as far as those who wait for the answers are concerned."""
        most = 1 if self._tier.busy else PLAIN_STEPS if self._guesses else MOST_STEPS
        for seq, _, _, _ in pieces:
            if seq.request.stream:
                most = min(most, max(1, int(STREAM_SECONDS / max(self._step_seconds, 1e-6))))
            if seq.request.params.stop:
                most = min(most, MOST_STEPS_WITH_STOPS)
        return most

    def _take_step(self, pieces: list[Piece], out: StepOutput, now: float) -> None:
        """Sample from a step's output rows, or store their logits."""
        if self._speculation is None:
            scheduler.commit(self._state, pieces)
        else:  # of guesses it is not known yet whether they stay
            scheduler.commit(self._state, [p._replace(count=1) if p.seq.draft else p for p in pieces])
        row = 0
        for s, piece in enumerate(pieces):
            if piece.seq.finish_reason is not None:
                pass  # another choice of the same request failed a moment ago
            elif out.status[s]:
                self._end_request(piece.seq.request, "error", not_finite())
            elif piece.rows:
                try:
                    self._accept(piece, out, row, now)
                except Exception as e:
                    self._end_request(piece.seq.request, "error", typed(e))
            row += piece.rows

    def _build(self, pieces: list[Piece], begin: float, edit: bool = True) -> tuple[Batch | None, list[Piece]]:
        """The batch and the pieces in it: without those of requests that failed while it was built."""
        self._tier.work()
        while pieces:
            try:
                batch = self._batcher.build(pieces, edit)
                for piece in pieces:
                    piece.seq.request.started = piece.seq.request.started or begin
                return batch, pieces
            except PieceError as e:
                self._end_request(e.piece.seq.request, "error", typed(e.cause))
                pieces = [p for p in pieces if p.seq.finish_reason is None]
        return None, pieces

    def _accept(self, piece: Piece, out: StepOutput, row: int, now: float) -> None:
        """Sample from a piece's output row, or store its logits."""
        seq, start, count, n_rows = piece
        request = seq.request
        if request.logit_rows is not None:
            at = start + count - n_rows - request.logit_rows[0]
            if request.pool is not None and out.hidden is not None:
                request.pool.take(at, out.hidden[row : row + n_rows])
            elif request.logits is not None and out.logits is not None:
                request.logits[at : at + n_rows] = out.logits[row : row + n_rows]
            else:
                raise EngineError("the backend returned no logits or hidden states although they were asked for")
            if seq.n_cached == len(seq.tokens):
                self._end(seq, "stop")
            return
        if seq.draft:
            self._verify(piece, out, row, now)
            return
        if n_rows > 1 or start + count < len(seq.tokens):
            score_prompt(piece, out, row)
            if start + count < len(seq.tokens):
                return
        if seq.max_tokens < 1:
            self._end(seq, "length")
            return
        token, score = seq.sampler.choose(out, row + n_rows - 1, seq.tokens, seq.n_generated)
        if score is not None:
            seq.logprobs.append(score)
        self._extend(seq, [token], now)

    def _verify(self, piece: Piece, out: StepOutput, row: int, now: float) -> None:
        """Choose tokens as long as they are the guessed ones, and one more: each as it would be chosen without."""
        seq, n_right = piece.seq, 0
        draft, seq.draft = seq.draft, []
        for i in range(len(draft) + 1):
            token, score = seq.sampler.choose(out, row + i, seq.tokens, seq.n_generated)
            if score is not None:
                seq.logprobs.append(score)
            self._extend(seq, [token], now)
            if seq.finish_reason is not None or i == len(draft) or token != draft[i]:
                break
            n_right += 1
        if seq.finish_reason is None:
            seq.n_cached = len(seq.tokens) - 1
        if self._speculation is not None:
            self._speculation.learn(seq, len(draft), n_right)

    def _extend(self, seq: Sequence, tokens: list[int], now: float) -> None:
        """Add tokens to an answer, up to the one that ends it, and send what they say."""
        request, text = seq.request, ""
        if not request.first_token:
            request.first_token = now
        for i, token in enumerate(tokens):
            seq.tokens.append(token)
            reason = None
            if token in request.ends:
                reason = "stop"
            else:
                if seq.decoder is not None:
                    piece = seq.decoder.push(token)
                    text += piece if seq.n_generated <= request.params.min_tokens else seq.stops.push(piece)
                    if seq.stops.matched is not None:
                        reason = "stop"
                if reason is None and seq.n_generated >= seq.max_tokens:
                    if may_go_on(seq):
                        self._full.append(seq)
                    else:
                        reason = "length"
            if reason is not None:
                self._end(seq, reason, text, tokens[: i + 1])
                return
        if text:
            seq.text.append(text)
        if request.stream and tokens:
            self._outbox.append((request, Delta(seq.index, text, tokens, None, news_of(seq, tokens))))

    def _end(self, seq: Sequence, reason: str, text: str = "", tokens: list[int] | None = None) -> None:
        """Finish one sequence; the request's Done follows its last one."""
        request = seq.request
        if seq.finish_reason is not None:
            return
        if seq.decoder is not None and seq.stops.matched is None:
            rest, stopped = seq.stops.finish(seq.decoder.flush())
            text += rest
            if stopped and reason == "length":
                reason = "stop"
        if text:
            seq.text.append(text)
        seq.finish_reason = reason
        scheduler.finish(self._state, seq)
        if self._speculation is not None:
            self._speculation.guesser.forget(seq)
        if request.stream:
            tokens = tokens or []
            self._outbox.append((request, Delta(seq.index, text, tokens, reason, news_of(seq, tokens))))
        if request.done:
            self._finish(request)

    def _end_request(self, request: Request, reason: str, error: EdgeLLMError | None) -> None:
        request.error = request.error or error
        for seq in request.sequences:
            self._end(seq, reason)
        self._finish(request)

    def _finish(self, request: Request) -> None:
        """Send the Done of a request, once."""
        if request in self._requests:
            self._requests.discard(request)
            request.finished = time.perf_counter()
            self._outbox.append((request, Done(request.error)))

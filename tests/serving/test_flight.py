"""Prompts in flight: computed in parts between the steps of those that decode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from serving.conftest import OpenLLM

from edgellm.backends.fake import FakeBackend
from edgellm.core.errors import CapacityError, EngineError, NumericsError
from edgellm.core.types import Batch
from edgellm.engine import scheduler
from edgellm.engine.request import Request
from edgellm.llm import LLM
from edgellm.sampling.sampler import Sampler

LONG = [7 + i % 50 for i in range(120)]
PARTS = 6
HELD = 4
"""From this step on a stream waits for what is to come beside it."""


class Watched:
    """A model over the fake, one stream that decodes, and what its steps were: (tokens, sequences) each.

    Once it has been asked for something beside it, the stream goes on only while that is there: it does not end before.
    """

    def __init__(
        self,
        open_llm: OpenLLM,
        failing: Callable[[list[int]], bool] | None = None,
        step_seconds: float = 0.0,
        **options: Any,
    ) -> None:
        self.steps: list[tuple[int, int]] = []
        self.trigger: Callable[[Batch], None] = lambda batch: None
        self.asker: threading.Thread | None = None
        fake = FakeBackend(
            lambda past: 65,
            failing=failing,  # type: ignore[arg-type]
            parts=PARTS,
            on_step=self._look,
            step_seconds=step_seconds,
        )
        self.llm: LLM = open_llm(fake, **{"max_seqs": 4, "n_batch": 64, **options})

    def _look(self, batch: Batch) -> None:
        self.steps.append((len(batch.tokens), len(batch.seq_start) - 1))
        self.trigger(batch)
        if len(self.steps) >= HELD:
            wait_for(self._asked)

    def _asked(self) -> bool:
        """Whether there is anybody beside the stream, or nobody will come any more."""
        engine = self.llm._loaded.engine
        if not engine._inbox.empty() or engine.load.requests > 1:
            return True
        return self.asker is not None and bool(self.asker.ident) and not self.asker.is_alive()

    def beside(self, do: Callable[[], object]) -> list[int]:
        """Start a stream, do this once it decodes, and let it end: its tokens."""
        stream = self.llm.generate([1, 2, 3], max_tokens=150, temperature=0, stream=True, on_error="raise")
        tokens: list[int] = []
        self.asker = thread = threading.Thread(target=do, name="asks")
        for chunk in stream:
            tokens += chunk.token_ids
            if not thread.ident:
                thread.start()
        thread.join(60)
        assert not thread.is_alive()
        return tokens


def test_decode_steps_go_on_between_its_parts(open_llm: OpenLLM) -> None:
    watched, got = Watched(open_llm), list[list[int]]()

    def ask() -> None:
        got.append(watched.llm.generate(LONG, max_tokens=5, temperature=0).token_ids)

    assert len(watched.beside(ask)) == 150
    assert got == [[65] * 5]
    flights = [i for i, (n, _) in enumerate(watched.steps) if n > 3]
    assert sum(watched.steps[i][0] for i in flights) == len(LONG)
    assert all(seqs == 1 for i, (_, seqs) in enumerate(watched.steps) if i in flights)  # nobody decodes in its steps
    for a, b in pairwise(flights):
        assert b - a == PARTS + 1  # as many decode steps as parts


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.0002)


def sent(llm: LLM, prompt: list[int], max_tokens: int, noted: list[Request] | None = None) -> Request:
    """A request on its way, added to `noted` before."""
    options = llm._options(None, {"max_tokens": max_tokens, "temperature": 0}, 1, "return")
    request = llm._request(prompt, options, 1, True)
    if noted is not None:
        noted.append(request)
    llm._loaded.engine.submit(request)
    return request


def test_cancelled_in_flight(open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages go back at once, and the same prompt is computed right afterwards."""
    watched, given_up = Watched(open_llm), list[int]()
    engine, end_flight = watched.llm._loaded.engine, scheduler.end_flight
    monkeypatch.setattr(scheduler, "end_flight", lambda state: (given_up.append(1), end_flight(state)))
    begin, leaving = engine._flight.begin, list[Request]()  # type: ignore[union-attr]
    ids: list[list[int]] = []

    def begin_and_leave(pieces: list[Any], batch: Batch) -> None:
        """Who is to leave does so before the first part is computed."""
        begin(pieces, batch)
        for piece in pieces:
            if piece.seq.request in leaving:
                engine.cancel(piece.seq.request)

    engine._flight.begin = begin_and_leave  # type: ignore[union-attr, method-assign]

    def ask() -> None:
        for _ in range(5):
            request = sent(watched.llm, LONG, 50, leaving)
            wait_for(lambda r=request: r.finished)  # type: ignore[misc]
            assert [s.finish_reason for s in request.sequences] == ["cancelled"]
        ids.append(watched.llm.generate(LONG, max_tokens=5, temperature=0).token_ids)

    assert watched.beside(ask) == [65] * 150
    assert ids == [[65] * 5]
    assert len(given_up) >= 5
    ledger = engine._state.ledger
    assert not any(ledger.n_in_use(c) for c in range(len(ledger.pools)))


def test_those_who_leave_do_not_keep_others_from_landing(open_llm: OpenLLM) -> None:
    """All the time somebody in flight leaves, and somebody comes: whoever stays is computed all the same."""
    watched = Watched(open_llm, step_seconds=0.001, max_seqs=5, n_batch=256, prefix_cache=False)
    engine, flights = watched.llm._loaded.engine, list[int]()
    begin = engine._flight.begin  # type: ignore[union-attr]
    victims: list[Request] = []

    def counted(pieces: list[Any], batch: Batch) -> None:
        flights.extend(len(pieces) for victim in victims if not victim.finished)
        begin(pieces, batch)

    engine._flight.begin = counted  # type: ignore[union-attr, method-assign]

    def ask() -> None:
        others = [sent(watched.llm, [9] * 10, 5) for _ in range(2)]
        victim = sent(watched.llm, LONG[:20], 1, victims)
        while not victim.finished and len(flights) < 60:
            others.append(sent(watched.llm, [9] * 10, 5))
            engine.cancel(others.pop(0))
            time.sleep(0.003)
        for request in others:
            engine.cancel(request)
        wait_for(lambda: victim.finished)

    assert watched.beside(ask) == [65] * 150
    assert 0 < len(flights) < 20


def test_without_memory_for_it_prompts_are_computed_in_steps(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def begin(self: object, batch: Batch) -> None:
        raise CapacityError("out of memory for a step in parts")

    monkeypatch.setattr("edgellm.backends.fake.FakeInParts.begin", begin)
    watched, ids = Watched(open_llm), list[list[int]]()

    def ask() -> None:
        ids.extend(watched.llm.generate(LONG, max_tokens=5, temperature=0).token_ids for _ in range(2))

    assert watched.beside(ask) == [65] * 150
    assert ids == [[65] * 5] * 2
    assert caplog.text.count("out of memory for a step in parts: from now on") == 1


def test_a_choice_that_fails_before_it_flies_ends_the_one_that_decodes(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two choices of one request, whose prompt is computed twice: the second fails while its batch is built."""
    adjustments, begin = Sampler.adjustments, Sampler.__init__
    second: list[Sampler] = []

    def init(self: Sampler, params: Any, seed: int, index: int, *rest: Any) -> None:
        begin(self, params, seed, index, *rest)
        if index == 1:
            second.append(self)

    def broken(self: Sampler, *rest: Any) -> Any:
        if any(self is s for s in second):
            raise ZeroDivisionError("a bug")
        return adjustments(self, *rest)

    monkeypatch.setattr(Sampler, "__init__", init)
    monkeypatch.setattr(Sampler, "adjustments", broken)
    watched = Watched(open_llm, n_batch=32, prefix_cache=False)
    errors: list[BaseException | None] = []

    def ask() -> None:
        errors.append(watched.llm.generate(LONG[:40], n=2, max_tokens=50, temperature=0, presence_penalty=0.2).error)

    assert watched.beside(ask) == [65] * 150
    assert "a bug" in str(errors[0])


def test_it_fails_alone(open_llm: OpenLLM) -> None:
    watched = Watched(open_llm, failing=lambda past: past[0] == LONG[0] and len(past) > 100)
    errors: list[BaseException | None] = []

    def ask() -> None:
        errors.append(watched.llm.generate(LONG, max_tokens=5, temperature=0).error)

    assert watched.beside(ask) == [65] * 150
    assert isinstance(errors[0], NumericsError)


def test_the_engine_dies_in_flight(open_llm: OpenLLM) -> None:
    watched = Watched(open_llm)

    def die(batch: Batch) -> None:
        if len(batch.tokens) > 3:
            raise MemoryError("gone")

    watched.trigger = die
    errors: list[BaseException] = []

    def ask() -> None:
        with pytest.raises(EngineError) as e:
            watched.llm.generate(LONG, max_tokens=5, temperature=0, on_error="raise")
        errors.append(e.value)

    with pytest.raises(EngineError, match="the engine has died: MemoryError: gone"):
        watched.beside(ask)
    for thread in threading.enumerate():
        if thread.name == "asks":
            thread.join(60)
    assert "the engine has died" in str(errors[0])

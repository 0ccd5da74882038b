"""Prompts in flight: computed in parts between the steps of those that decode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from serving.conftest import OpenLLM

from edgellm.backends.fake import FakeBackend
from edgellm.core.errors import EngineError, NumericsError
from edgellm.core.types import Batch
from edgellm.llm import LLM

LONG = [7 + i % 50 for i in range(120)]
PARTS = 6


class Watched:
    """A model over the fake, one stream that decodes, and what its steps were: (tokens, sequences) each."""

    def __init__(self, open_llm: OpenLLM, failing: Callable[[list[int]], bool] | None = None) -> None:
        self.steps: list[tuple[int, int]] = []
        self.trigger: Callable[[Batch], None] = lambda batch: None
        fake = FakeBackend(lambda past: 65, failing=failing, parts=PARTS, on_step=self._look)  # type: ignore[arg-type]
        self.llm: LLM = open_llm(fake, max_seqs=4, n_batch=64)

    def _look(self, batch: Batch) -> None:
        self.steps.append((len(batch.tokens), len(batch.seq_start) - 1))
        self.trigger(batch)

    @property
    def flying(self) -> int:
        """Sequences in flight now, as far as another thread can see."""
        return len(self.llm._loaded.engine._state.flight)

    def beside(self, do: Callable[[], object]) -> list[int]:
        """Start a stream, do this once it decodes, and let it end: its tokens."""
        stream = self.llm.generate([1, 2, 3], max_tokens=150, temperature=0, stream=True, on_error="raise")
        tokens: list[int] = []
        thread = threading.Thread(target=do, name="asks")
        for chunk in stream:
            tokens += chunk.token_ids
            if not thread.ident:
                thread.start()
        thread.join(60)
        assert not thread.is_alive()
        return tokens


def test_decode_steps_go_on_between_its_parts(open_llm: OpenLLM) -> None:
    watched = Watched(open_llm)
    engine, got = watched.llm._loaded.engine, list[list[int]]()

    def hold(batch: Batch) -> None:
        """The stream waits for the prompt to arrive."""
        if len(watched.steps) == 4:
            until = time.monotonic() + 60
            while engine._inbox.empty() and engine.load.requests < 2 and time.monotonic() < until:
                time.sleep(0.001)

    watched.trigger = hold

    def ask() -> None:
        got.append(watched.llm.generate(LONG, max_tokens=5, temperature=0).token_ids)

    assert len(watched.beside(ask)) == 150
    assert got == [[65] * 5]
    flights = [i for i, (n, _) in enumerate(watched.steps) if n > 3]
    assert sum(watched.steps[i][0] for i in flights) == len(LONG)
    assert all(seqs == 1 for i, (_, seqs) in enumerate(watched.steps) if i in flights)  # nobody decodes in its steps
    for a, b in pairwise(flights):
        assert b - a == PARTS + 1  # as many decode steps as parts


def test_cancelled_in_flight(open_llm: OpenLLM) -> None:
    """Its pages go back at once, and the same prompt is computed right afterwards."""
    watched = Watched(open_llm)
    ids: list[list[int]] = []

    def ask() -> None:
        for _ in range(10):
            stream = watched.llm.generate(LONG, max_tokens=50, temperature=0, stream=True)
            while not watched.flying and watched.llm._loaded.engine.load.running == 1:
                pass
            stream.close()
        ids.append(watched.llm.generate(LONG, max_tokens=5, temperature=0).token_ids)

    assert watched.beside(ask) == [65] * 150
    assert ids == [[65] * 5]
    ledger = watched.llm._loaded.engine._state.ledger
    assert not any(ledger.n_in_use(c) for c in range(len(ledger.pools)))


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

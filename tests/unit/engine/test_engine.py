"""The engine thread over a runner that does as told: what reaches a request's queue, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgellm.core.config import SamplingParams
from edgellm.core.errors import CapacityError, EngineError, NumericsError, RequestError
from edgellm.core.types import Batch, StepOutput
from edgellm.engine import engine as module
from edgellm.engine import scheduler
from edgellm.engine.engine import Engine
from edgellm.engine.request import Delta, Done, Event, Request
from edgellm.engine.scheduler import Budget
from edgellm.engine.spec import EngineSpec
from edgellm.kvcache.spec import ClassSpec

SPEC = EngineSpec(256, 100, (ClassSpec("full"),), (64,), Budget(64, 8, 8), check=True)
GREEDY = SamplingParams(temperature=0, max_tokens=5).resolved({})


class Told:
    """Every sequence's next token is its last one plus one. `on_run` may change the output or raise."""

    def __init__(self, on_run: Callable[[int, Batch, StepOutput], StepOutput | None] | None = None) -> None:
        self.on_run, self.n, self.closed = on_run, 0, 0

    def run(self, batch: Batch) -> StepOutput:
        self.n += 1
        last = batch.tokens[batch.rows]
        k = max(batch.top_k, 1)
        ids = ((last[:, None] + 1 + np.arange(k)) % 100).astype(np.int32)
        logits = np.tile(-np.arange(k, dtype=np.float32), (len(last), 1))
        status = np.zeros(len(batch.seq_start) - 1, np.int32)
        whole = np.zeros((len(last), 100), np.float32) if batch.want_logits else None
        out = StepOutput(ids, logits, status, logits=whole)
        return (self.on_run and self.on_run(self.n, batch, out)) or out

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        pass  # it has no pages

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def start() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def begin(runner: Any = None, spec: EngineSpec = SPEC, **options: Any) -> Engine:
        engines.append(Engine(runner or Told(), spec, **options))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.close()
        assert not engine._thread.is_alive()


def request(prompt: list[int] | None = None, **options: Any) -> Request:
    return Request(prompt or [1, 2, 3], options.pop("params", GREEDY), seed=0, **options)


def events_of(r: Request) -> list[Event]:
    """All events, the Done last; fails when there are more, or when they stop before."""
    events: list[Event] = []
    while not events or not isinstance(events[-1], Done):
        events.append(r.events.get(timeout=60))
    time.sleep(0.02)
    with pytest.raises(Empty):
        r.events.get_nowait()
    return events


def test_a_stream_of_deltas_and_one_done(start: Callable[..., Engine]) -> None:
    engine = start()
    r = request(stream=True)
    engine.submit(r)
    *deltas, done = events_of(r)
    assert [(d.tokens, d.finish_reason) for d in deltas if isinstance(d, Delta)] == [
        ([4], None), ([5], None), ([6], None), ([7], None), ([8], "length"),
    ]  # fmt: skip
    assert isinstance(done, Done)
    assert done.error is None
    assert 0 < r.submitted <= r.started < r.first_token < r.finished


def test_without_stream_there_is_only_the_done(start: Callable[..., Engine]) -> None:
    engine = start()
    r = request()
    engine.submit(r)
    assert len(events_of(r)) == 1
    assert r.sequences[0].tokens == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_failing_choice_ends_its_siblings_and_nothing_comes_after(start: Callable[..., Engine]) -> None:
    def fail_first(n: int, batch: Batch, out: StepOutput) -> None:
        if n == 3:
            out.status[0] = 1

    engine = start(Told(fail_first))
    r, other = request(n=3, stream=True), request([50])
    engine.submit(r)
    engine.submit(other)
    *deltas, done = events_of(r)
    assert isinstance(done, Done)
    assert isinstance(done.error, NumericsError)
    for i in range(3):
        mine = [d for d in deltas if isinstance(d, Delta) and d.index == i]
        assert [d.finish_reason for d in mine] == [None, None, "error"]
        assert sum(len(d.tokens) for d in mine) == r.sequences[i].n_generated == 2
    assert isinstance(events_of(other)[-1], Done)
    assert other.error is None
    assert other.sequences[0].n_generated == 5


def test_a_failure_while_admitting_fails_the_request_alone(start: Callable[..., Engine]) -> None:
    made = []

    def decoder() -> None:
        made.append(1)
        if len(made) == 2:
            raise RequestError("no decoder for you")

    engine = start(new_decoder=decoder)
    bad, good = request(n=3), request()
    engine.submit(bad)
    engine.submit(good)
    (done,) = events_of(bad)
    assert isinstance(done, Done)
    assert isinstance(done.error, RequestError)
    assert events_of(good) == [Done(None)]


def test_cancelled_before_it_was_admitted(start: Callable[..., Engine]) -> None:
    engine = start()
    r = request(stream=True, n=2)
    engine.cancel(r)
    engine.submit(r)
    *deltas, done = events_of(r)
    assert [d.finish_reason for d in deltas if isinstance(d, Delta)] == ["cancelled", "cancelled"]
    assert isinstance(done, Done)
    assert done.error is None
    assert r.finished > 0


def test_cancelling_while_it_waits_for_its_turn(start: Callable[..., Engine]) -> None:
    cancelled, looked = threading.Event(), threading.Event()

    def wait(n: int, batch: Batch, out: StepOutput) -> None:
        assert n <= 3 or cancelled.wait(60)
        assert n <= 20 or looked.wait(60)

    engine = start(Told(wait), EngineSpec(256, 100, SPEC.classes, (8,), Budget(8, 1, 1), True))
    first, waiting = request(params=SamplingParams(temperature=0).resolved({})), request(stream=True)
    engine.submit(first)
    engine.submit(waiting)
    engine.cancel(waiting)
    cancelled.set()
    *deltas, done = events_of(waiting)
    assert [d.finish_reason for d in deltas if isinstance(d, Delta)] == ["cancelled"]
    assert isinstance(done, Done)
    assert not first.events.qsize()
    engine.cancel(first)
    engine.cancel(first)
    looked.set()
    assert isinstance(events_of(first)[-1], Done)
    assert first.sequences[0].finish_reason == "cancelled"


def test_a_death_reaches_every_request_with_its_cause(start: Callable[..., Engine]) -> None:
    def die(n: int, batch: Batch, out: StepOutput) -> None:
        if n == 3:
            raise ZeroDivisionError("the end")

    runner = Told(die)
    engine = start(runner)
    requests = [request(stream=i % 2 == 0) for i in range(20)]
    for r in requests:
        engine.submit(r)
    for r in requests:
        done = events_of(r)[-1]
        assert isinstance(done, Done)
        assert isinstance(done.error, EngineError)
        assert isinstance(done.error.__cause__, ZeroDivisionError)
    engine._thread.join(60)
    assert runner.closed == 1
    assert not engine.alive
    with pytest.raises(EngineError, match="the engine has died: ZeroDivisionError: the end"):
        engine.submit(request())


def test_books_in_disorder_do_not_keep_requests_waiting(
    start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending a request may fail too, when the engine dies of a bug in its own books."""
    monkeypatch.setattr(scheduler, "commit", lambda *_: 1 / 0)
    monkeypatch.setattr(scheduler, "finish", lambda *_: 1 / 0)
    engine = start()
    r = request(stream=True)
    engine.submit(r)
    done = events_of(r)[-1]
    assert isinstance(done, Done)
    assert isinstance(done.error, EngineError)


def test_an_executable_that_cannot_be_closed(start: Callable[..., Engine], caplog: pytest.LogCaptureFixture) -> None:
    runner = Told()
    runner.close = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    engine = start(runner)
    engine.close()
    assert "the executable could not be closed" in caplog.text


def test_sending_races_with_closing(start: Callable[..., Engine]) -> None:
    """Every request that was accepted gets its Done; the others are refused. Nobody hangs."""
    for round_ in range(40):
        engine = start()
        done: list[str] = []

        def send(engine: Engine = engine, done: list[str] = done) -> None:
            for _ in range(20):
                r = request()
                try:
                    engine.submit(r)
                except EngineError:
                    done.append("refused")
                    continue
                while not isinstance(r.events.get(timeout=60), Done):
                    pass
                done.append("done")

        threads = [threading.Thread(target=send) for _ in range(4)]
        for t in threads:
            t.start()
        time.sleep(round_ * 1e-4)
        engine.close()
        for t in threads:
            t.join(60)
            assert not t.is_alive()
        assert len(done) == 80


def test_two_threads_that_drain_do_not_wait_for_each_other(start: Callable[..., Engine]) -> None:
    engine = start()
    engine.close()

    class Slow(SimpleQueue):  # type: ignore[type-arg]
        def empty(self) -> bool:
            answer = super().empty()
            time.sleep(0.01)  # long enough for the other thread to take what was seen here
            return answer

    engine._inbox = Slow()
    engine._inbox.put(lambda: None)
    threads = [threading.Thread(target=engine._drain, daemon=True) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()


def test_a_pool_that_cannot_hold_one_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"7 pages of 32 tokens cannot hold a sequence of n_ctx=256"):
        Engine(Told(), EngineSpec(256, 100, SPEC.classes, (7,), Budget(8, 1, 1)))


def test_a_window_too_small_for_a_step_fails_the_request(start: Callable[..., Engine]) -> None:
    spec = EngineSpec(256, 100, (ClassSpec("window", 32),), (1,), Budget(64, 2, 2), True)
    engine = start(spec=spec)
    bad, good = request([1] * 100), request([1])
    engine.submit(bad)
    done = events_of(bad)[-1]
    assert isinstance(done, Done)
    assert isinstance(done.error, CapacityError)
    engine.submit(good)
    assert events_of(good) == [Done(None)]


def test_stats_count_steps_tokens_and_time(start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def perf_counter() -> float:  # every look at it takes a millisecond
        clock[0] += 0.001
        return clock[0]

    def work(*_: object) -> None:
        clock[0] += 0.1

    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=perf_counter))
    engine = start(Told(work))
    r = request([1] * 100)
    engine.submit(r)
    events_of(r)
    stats = engine.stats
    assert (stats.steps, stats.tokens) == (6, 104)  # chunks of 64 and 36, then four tokens
    assert stats.seconds_native == pytest.approx(6 * 0.101)
    assert 6 * 0.002 <= stats.seconds_python + 1e-9 < 0.1

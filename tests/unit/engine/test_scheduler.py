"""The scheduler as a pure function: budgets, fairness, preemption, and books that balance under random traffic."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import seconds

from edgellm.core.config import SamplingParams
from edgellm.core.types import NO_PAGE
from edgellm.engine import scheduler
from edgellm.engine.flight import Flight
from edgellm.engine.queue import AGEING_SECONDS
from edgellm.engine.request import Pin, Request, Sequence
from edgellm.engine.scheduler import Budget, State
from edgellm.kvcache.spec import ClassSpec
from edgellm.kvcache.table import Ledger
from edgellm.sampling.sampler import Sampler
from edgellm.sampling.stops import StopMatcher

PARAMS = SamplingParams(temperature=0).resolved({})


def new_state(pages: int = 64, window_pages: int = 64) -> State:
    return State(Ledger((ClassSpec("full"), ClassSpec("window", 48)), (pages, window_pages), 1024))


def new_seq(
    state: State,
    n: int,
    priority: int = 0,
    logit_rows: tuple[int, int] | None = None,
    salt: str = "",
    text: int = -1,
    client: str = "",
) -> Sequence:
    """A sequence of n tokens; those of the same `text` begin alike (-1: like no other)."""
    first = text if text >= 0 else 1000 * (state.arrivals + 1)
    request = Request(list(range(first, first + n)), PARAMS, 0, priority=priority, logit_rows=logit_rows, salt=salt)
    request.client = client
    tokens, tables = list(request.prompt), state.ledger.new_table()
    seq = Sequence(request, 0, tokens, n, tables, Sampler(PARAMS, 0, 0, 100), None, StopMatcher(()), 99)
    request.sequences.append(seq)
    scheduler.add(state, seq)
    return seq


def run_step(state: State, budget: Budget, in_parts: bool = False, lands: bool = True) -> list[scheduler.Piece]:
    """A step; in_parts: prompts beside sequences that decode go to state.flight, and `lands` what is there already.
    What was computed or begun."""
    flight = state.flight
    tables = {p.seq: [a.copy() for a in p.seq.tables.arrays] for p in flight}
    pieces = scheduler.schedule(state, budget)
    flying = {p.seq for p in state.flight if p.seq.finish_reason is None}
    assert not flying or state.flight is flight
    assert flying <= set(state.running)
    assert not flying & {p.seq for p in pieces}
    for seq in flying:  # the pages that are being read and written stay the sequence's
        assert all(np.array_equal(a, b) for a, b in zip(seq.tables.arrays, tables[seq], strict=True))
    state.work.clear()
    assert sum(p.count for p in pieces) <= budget.tokens
    assert sum(p.rows for p in pieces) <= budget.rows
    assert len(pieces) <= budget.seqs
    assert len({id(p.seq) for p in pieces}) == len(pieces)
    for p in pieces:
        assert p.start == p.seq.n_cached
        assert 1 <= p.count <= p.seq.n_pending
    scheduler.check(state)
    done = pieces
    if state.flight:
        if lands:
            done = [*pieces, *(p for p in state.flight if p.seq.finish_reason is None)]
            scheduler.end_flight(state)
    elif in_parts:
        done, state.flight = Flight.split(pieces)
    scheduler.commit(state, done)
    scheduler.check(state)
    for p in done:
        if p.seq.request.logit_rows is None and p.rows:
            p.seq.tokens.append(0)
    return [*done, *state.flight]


def test_prefill_is_cut_into_chunks_and_only_the_last_wants_a_row() -> None:
    state = new_state()
    new_seq(state, 70)
    chunks = [run_step(state, Budget(32, 4, 4))[0] for _ in range(3)]
    assert [(c.start, c.count, c.rows) for c in chunks] == [(0, 32, 0), (32, 32, 0), (64, 6, 1)]


def test_decode_goes_first() -> None:
    state = new_state()
    a = new_seq(state, 4)
    run_step(state, Budget(32, 4, 4))
    b = new_seq(state, 100)
    pieces = run_step(state, Budget(32, 4, 4))
    assert [(p.seq, p.count) for p in pieces] == [(a, 1), (b, 31)]


def test_logit_rows_bound_the_chunk() -> None:
    state = new_state()
    new_seq(state, 50, logit_rows=(10, 50))
    got = []
    while state.waiting or state.running[0].n_pending:
        got.append(run_step(state, Budget(64, 4, 16))[0])
    assert [(p.start, p.count, p.rows) for p in got] == [(0, 26, 16), (26, 16, 16), (42, 8, 8)]


def test_youngest_of_lowest_priority_is_preempted() -> None:
    state = new_state(pages=4)
    old, vip = new_seq(state, 60), new_seq(state, 60, priority=1)
    run_step(state, Budget(128, 4, 4))
    assert old in state.running
    assert vip in state.running
    for _ in range(8):
        run_step(state, Budget(128, 4, 4))
    assert state.running == [vip]
    assert old.n_cached == 0
    assert list(state.waiting) == [old]
    scheduler.finish(state, vip)
    run_step(state, Budget(128, 4, 4))
    assert old.n_cached == len(old.tokens) - 1


@settings(max_examples=200)
@given(st.data())
def test_random_traffic_finishes_and_balances(data: st.DataObject) -> None:
    state = new_state(pages=data.draw(st.integers(6, 20)), window_pages=data.draw(st.integers(6, 20)))
    budget = Budget(
        data.draw(st.integers(1, 64)),
        data.draw(st.integers(1, 5)),
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(0, 9)),
    )
    in_parts = data.draw(st.booleans())
    live: list[Sequence] = []
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["add", "add", "step", "step", "step", "cancel"]))
        if action == "add":
            n = data.draw(st.integers(1, 150))
            rows = (data.draw(st.integers(0, n - 1)), n) if data.draw(st.booleans()) else None
            text = data.draw(st.sampled_from([-1, 0, 0, 50]))
            live.append(
                new_seq(
                    state,
                    n,
                    data.draw(st.integers(0, 2)),
                    rows,
                    data.draw(st.sampled_from("ab")),
                    text,
                    data.draw(st.sampled_from("xy")),
                )
            )
        elif action == "cancel" and live:
            seq = live.pop(data.draw(st.integers(0, len(live) - 1)))
            seq.finish_reason = "cancelled"
            scheduler.finish(state, seq)
        else:
            run_step(state, budget, in_parts, data.draw(st.booleans()) if state.flight else True)
    for _ in range(4000):
        for seq in list(live):
            done = seq.n_pending == 0 if seq.request.logit_rows else seq.n_generated >= 3
            if done:
                seq.finish_reason = "stop"
                scheduler.finish(state, seq)
                live.remove(seq)
        if not live:
            break
        assert run_step(state, budget, in_parts), "nothing scheduled although sequences are live"
    assert not live
    scheduler.check(state)
    assert not any(state.ledger.n_in_use(c) for c in range(len(state.ledger.pools)))


def test_what_is_in_flight_is_left_alone() -> None:
    state, budget = new_state(), Budget(64, 4, 4)
    a = new_seq(state, 4)
    run_step(state, budget)
    b, c = new_seq(state, 100), new_seq(state, 7)
    assert [(p.seq, p.count) for p in run_step(state, budget, in_parts=True)] == [(a, 1), (b, 63)]
    assert [p.seq for p in run_step(state, budget, in_parts=True, lands=False)] == [a, b]
    assert (b.n_cached, len(a.tokens), list(state.waiting)) == (0, 7, [c])
    run_step(state, budget, in_parts=True)
    assert (b.n_cached, state.flight) == (63, [])
    assert [(p.seq, p.count) for p in run_step(state, budget, in_parts=True)] == [(a, 1), (b, 37), (c, 7)]


def test_who_ends_in_flight_does_not_keep_the_others() -> None:
    """Its pages stay until the flight lands."""
    state, budget = new_state(), Budget(64, 4, 4)
    new_seq(state, 4)
    run_step(state, budget)
    b, c = new_seq(state, 40), new_seq(state, 7)
    run_step(state, budget, in_parts=True)
    assert {p.seq for p in state.flight} == {b, c}
    taken = [set(a.tolist()) - {NO_PAGE} for a in b.tables.arrays]
    b.finish_reason = "cancelled"
    scheduler.finish(state, b)
    assert {p.seq for p in state.flight} == {b, c}
    new = new_seq(state, 60)
    run_step(state, budget, in_parts=True, lands=False)
    assert new in state.waiting
    scheduler.check(state)
    run_step(state, budget, in_parts=True)
    assert (c.n_cached, state.flight, state.held, state.pinned) == (7, [], [], set())
    run_step(state, budget, in_parts=True)
    assert all(t & set(a.tolist()) for t, a in zip(taken, new.tables.arrays, strict=True))  # free now


def test_a_flight_is_given_up_with_the_last_of_its_sequences() -> None:
    state, budget = new_state(), Budget(64, 4, 4)
    new_seq(state, 4)
    run_step(state, budget)
    both = new_seq(state, 20), new_seq(state, 7)
    run_step(state, budget, in_parts=True)
    for n, seq in enumerate(both):
        assert len(state.flight) == 2, n
        seq.finish_reason = "cancelled"
        scheduler.finish(state, seq)
    assert (state.flight, state.held, state.pinned) == ([], [], set())
    scheduler.check(state)


def test_what_ended_in_flight_makes_room_for_those_that_decode() -> None:
    state, budget = new_state(pages=5), Budget(128, 4, 4)
    vip = new_seq(state, 63, priority=1)
    run_step(state, budget)
    a, b = new_seq(state, 40), new_seq(state, 20)
    run_step(state, budget, in_parts=True)
    assert {p.seq for p in state.flight} == {a, b}
    a.finish_reason = "cancelled"
    scheduler.finish(state, a)
    run_step(state, budget, in_parts=True, lands=False)  # the 65th token of the first needs a third page
    assert ([p.seq for p in state.flight], state.held) == ([b], [])  # another flight
    assert vip.n_cached == 65
    assert state.preemptions == 0  # nobody had to go
    scheduler.check(state)


def test_one_for_whom_pinned_pages_leave_no_room_is_not_begun() -> None:
    """It reads no cache: begun, it would be preempted by itself, and begin again, for ever."""
    state, budget = new_state(pages=8), Budget(64, 4, 64)
    pin = Pin()
    first = new_seq(state, 150)
    first.request.pin = pin
    while first.n_generated < 1:
        run_step(state, budget)
    first.finish_reason = "stop"
    scheduler.finish(state, first)
    late = new_seq(state, 200, logit_rows=(0, 200))
    assert run_step(state, budget) == []
    assert (list(state.waiting), state.preemptions) == ([late], 0)
    scheduler.unpin(state, pin)
    assert [p.seq for p in run_step(state, budget)] == [late]


def test_a_flight_is_given_up_where_its_pages_are_needed() -> None:
    state, budget = new_state(pages=4), Budget(128, 4, 4)
    vip = new_seq(state, 63, priority=1)
    run_step(state, budget)
    other = new_seq(state, 60)
    run_step(state, budget, in_parts=True)
    assert [p.seq for p in state.flight] == [other]
    run_step(state, budget, in_parts=True, lands=False)  # the 65th token of the first needs a third page
    assert state.flight == []
    assert list(state.waiting) == [other]
    assert vip.n_cached == 65


def test_a_prompt_leaves_room_for_those_that_decode() -> None:
    state = new_state()
    a = new_seq(state, 4)
    run_step(state, Budget(64, 4, 4))
    b = new_seq(state, 200)
    budget = Budget(64, 4, 4, prefill=10)
    assert [(p.seq, p.count) for p in run_step(state, budget)] == [(a, 1), (b, 10)]
    c = new_seq(state, 200)
    assert [(p.seq, p.count) for p in run_step(state, budget)] == [(a, 1), (b, 10)]
    scheduler.finish(state, a)
    assert [(p.seq, p.count) for p in run_step(state, budget)] == [(b, 64)]  # nobody decodes: nobody is kept waiting
    assert c in state.waiting


def test_clients_are_served_in_turns() -> None:
    state = new_state()
    many = [new_seq(state, 5, client="many") for _ in range(6)]
    few = [new_seq(state, 5, client="few") for _ in range(2)]
    order = []
    for _ in range(8):
        (piece,) = run_step(state, Budget(5, 1, 1))
        order.append(piece.seq)
        scheduler.finish(state, piece.seq)
    assert order == [many[0], few[0], many[1], few[1], *many[2:]]


def test_a_client_that_comes_back_has_saved_nothing_up() -> None:
    state = new_state()
    first = new_seq(state, 5, client="b")
    run_step(state, Budget(5, 1, 1))
    scheduler.finish(state, first)
    a = [new_seq(state, 5, client="a") for _ in range(3)]
    for seq in a[:2]:
        run_step(state, Budget(5, 1, 1))
        scheduler.finish(state, seq)
    b = [new_seq(state, 5, client="b") for _ in range(3)]
    order = []
    for _ in range(4):
        (piece,) = run_step(state, Budget(5, 1, 1))
        order.append(piece.seq)
        scheduler.finish(state, piece.seq)
    assert order == [a[2], b[0], b[1], b[2]]


def test_waiting_raises_the_priority() -> None:
    state = new_state()
    low = new_seq(state, 5, priority=0)
    state.now = 1.5 * AGEING_SECONDS
    high = new_seq(state, 5, priority=1)
    assert list(state.waiting.in_turn(state.now)) == [low, high]  # as important by now, and here before
    higher = new_seq(state, 5, priority=2)
    assert list(state.waiting.in_turn(state.now)) == [higher, low, high]
    state.now = 2.4 * AGEING_SECONDS
    assert list(state.waiting.in_turn(state.now)) == [low, higher, high]


def test_what_could_never_fit_says_why() -> None:
    state = new_state(pages=4)
    assert scheduler.never_fits(state, new_seq(state, 127)) is None
    reason = scheduler.never_fits(state, new_seq(state, 128))
    assert reason == (
        "the request (129 tokens) needs 5 pages of 32 tokens of the KV cache, which has 4 in all: "
        "open the model with a larger kv_memory"
    )
    last = new_seq(state, 128)
    last.max_tokens = 1  # it is chosen, and nothing is computed from it
    assert scheduler.never_fits(state, last) is None


def test_a_waiting_one_that_does_not_fit_is_not_looked_at_again_until_pages_are_free() -> None:
    state = new_state(pages=6)
    a = new_seq(state, 100)
    run_step(state, Budget(128, 4, 4))
    b = new_seq(state, 90)
    run_step(state, Budget(128, 4, 4))
    assert state.blocked is not None
    assert state.blocked[0] is b
    scheduler.finish(state, a)
    assert [p.seq for p in run_step(state, Budget(128, 4, 4))] == [b]
    assert state.blocked is None


@pytest.mark.timing
def test_the_cost_of_a_step_at_64_sequences() -> None:
    """Processor time of the scheduler alone, at the step that takes longest but for one in a hundred."""
    state = State(Ledger((ClassSpec("full"), ClassSpec("window", 512)), (8000, 8000), 4096))
    for i in range(64):
        new_seq(state, 200 + 13 * i, client=str(i % 7))
    budget, times = Budget(512, 64, 64, prefill=64), []
    while state.waiting or any(s.n_pending > 1 for s in state.running):
        step_without_checks(state, budget)
    gc.collect()
    gc.freeze()
    for _ in range(600):  # a fifth of them take new pages
        begin = time.thread_time()
        pieces = step_without_checks(state, budget)
        times.append(time.thread_time() - begin)
        assert len(pieces) == 64
    gc.unfreeze()
    p50, p99 = np.percentile(times, [50, 99])
    print(f"\na scheduler's step at 64 sequences: {p50 * 1e6:.0f} µs, p99 {p99 * 1e6:.0f} µs")
    assert p99 < seconds(200e-6)


def step_without_checks(state: State, budget: Budget) -> list[scheduler.Piece]:
    pieces = scheduler.schedule(state, budget)
    scheduler.commit(state, pieces)
    for p in pieces:
        if p.rows:
            p.seq.tokens.append(7)
    return pieces

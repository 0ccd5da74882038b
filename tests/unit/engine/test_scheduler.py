"""The scheduler as a pure function: budgets, fairness, preemption, and books that balance under random traffic."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.core.config import SamplingParams
from edgellm.engine import scheduler
from edgellm.engine.request import Request, Sequence
from edgellm.engine.scheduler import Budget, State
from edgellm.kvcache.spec import ClassSpec
from edgellm.kvcache.table import Ledger
from edgellm.sampling.sampler import Sampler
from edgellm.sampling.stops import StopMatcher

PARAMS = SamplingParams(temperature=0).resolved({})


def new_state(pages: int = 64, window_pages: int = 64) -> State:
    return State(Ledger((ClassSpec("full"), ClassSpec("window", 48)), (pages, window_pages), 1024))


def new_seq(
    state: State, n: int, priority: int = 0, logit_rows: tuple[int, int] | None = None, salt: str = "", text: int = -1
) -> Sequence:
    """A sequence of n tokens; those of the same `text` begin alike (-1: like no other)."""
    first = text if text >= 0 else 1000 * (state.arrivals + 1)
    request = Request(list(range(first, first + n)), PARAMS, 0, priority=priority, logit_rows=logit_rows, salt=salt)
    tokens, tables = list(request.prompt), state.ledger.new_table()
    seq = Sequence(request, 0, tokens, n, tables, Sampler(PARAMS, 0, 0, 100), None, StopMatcher(()), 99)
    request.sequences.append(seq)
    scheduler.add(state, seq)
    return seq


def run_step(state: State, budget: Budget) -> list[scheduler.Piece]:
    pieces = scheduler.schedule(state, budget)
    state.copies.clear()
    assert sum(p.count for p in pieces) <= budget.tokens
    assert sum(p.rows for p in pieces) <= budget.rows
    assert len(pieces) <= budget.seqs
    assert len({id(p.seq) for p in pieces}) == len(pieces)
    for p in pieces:
        assert p.start == p.seq.n_cached
        assert 1 <= p.count <= p.seq.n_pending
    scheduler.check(state)
    scheduler.commit(state, pieces)
    scheduler.check(state)
    for p in pieces:
        if p.seq.request.logit_rows is None and p.rows:
            p.seq.tokens.append(0)
    return pieces


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
    budget = Budget(data.draw(st.integers(1, 64)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)))
    live: list[Sequence] = []
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["add", "add", "step", "step", "step", "cancel"]))
        if action == "add":
            n = data.draw(st.integers(1, 150))
            rows = (data.draw(st.integers(0, n - 1)), n) if data.draw(st.booleans()) else None
            text = data.draw(st.sampled_from([-1, 0, 0, 50]))
            live.append(new_seq(state, n, data.draw(st.integers(0, 2)), rows, data.draw(st.sampled_from("ab")), text))
        elif action == "cancel" and live:
            seq = live.pop(data.draw(st.integers(0, len(live) - 1)))
            seq.finish_reason = "cancelled"
            scheduler.finish(state, seq)
        else:
            run_step(state, budget)
    for _ in range(4000):
        for seq in list(live):
            done = seq.n_pending == 0 if seq.request.logit_rows else seq.n_generated >= 3
            if done:
                seq.finish_reason = "stop"
                scheduler.finish(state, seq)
                live.remove(seq)
        if not live:
            break
        assert run_step(state, budget), "nothing scheduled although sequences are live"
    assert not live
    scheduler.check(state)
    assert not any(state.ledger.n_in_use(c) for c in range(len(state.ledger.pools)))

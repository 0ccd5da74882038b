"""The scheduler: which tokens of which sequences the next step computes. Pure: no clock, no I/O, no randomness.

    schedule(state, budget) -> pieces      decode first, then prefill chunks, then admission
    stride(state, pieces, most) -> n       decode steps that need no decision between them
    commit(state, pieces)                  the pieces are in the cache now
    finish(state, seq)                     the sequence has ended or was cancelled: its pages are free

When pages run out, the youngest sequence of the lowest priority gives its pages back and is computed again later;
results do not change (docs/numerics.md), only time does.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from edgellm.core.record import dataclass, field
from edgellm.engine.request import Sequence
from edgellm.kvcache.table import Ledger


class Budget(NamedTuple):
    """Most tokens, sequences and output rows of one step."""

    tokens: int
    seqs: int
    rows: int


class Piece(NamedTuple):
    """Tokens start .. start+count-1 of a sequence, all of them or a chunk; logits of the last `rows` are wanted."""

    seq: Sequence
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    rows: int


@dataclass(slots=True)
class State:
    """Sequences waiting for admission and running, in order of arrival, and the page ledger."""

    ledger: Ledger
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    arrivals: int = 0


def add(state: State, seq: Sequence) -> None:
    """Queue a new sequence."""
    state.arrivals += 1
    seq.arrival = state.arrivals
    state.waiting.append(seq)


def schedule(state: State, budget: Budget) -> list[Piece]:
    """Choose the next step's pieces and take their pages. May preempt. Empty when there is nothing to do."""
    pieces: list[Piece] = []
    tokens, rows = budget.tokens, budget.rows
    for seq in list(state.running):
        if seq.n_pending != 1:
            continue
        if tokens < 1 or rows < 1 or len(pieces) == budget.seqs:
            break
        if seq in state.running and _make_room(state, seq, len(seq.tokens), pieces):
            pieces.append(Piece(seq, seq.n_cached, 1, 1))
            tokens -= 1
            rows -= 1
    taken = {id(p.seq) for p in pieces}
    for seq in list(state.running):
        if id(seq) in taken or seq not in state.running:
            continue
        if tokens < 1 or len(pieces) == budget.seqs:
            break
        piece = _chunk(seq, tokens, rows)
        if piece is not None and _make_room(state, seq, piece.start + piece.count, pieces):
            pieces.append(piece)
            tokens -= piece.count
            rows -= piece.rows
    while state.waiting and tokens > 0 and len(state.running) < budget.seqs and len(pieces) < budget.seqs:
        seq = max(state.waiting, key=lambda s: (s.request.priority, -s.arrival))
        piece = _chunk(seq, tokens, rows)
        if piece is None:
            break
        if state.running and not _fits_whole(state, seq):
            break
        if not seq.tables.grow(piece.start + piece.count):
            break
        state.waiting.remove(seq)
        state.running.append(seq)
        pieces.append(piece)
        tokens -= piece.count
        rows -= piece.rows
    return pieces


def stride(state: State, pieces: list[Piece], most: int) -> int:
    """How many decode steps of these pieces may follow each other with nothing to decide, at most `most`; their pages
    are taken. 0: not even one, since a piece is no plain decode step."""
    n = most
    for seq, _, count, rows in pieces:
        if count != 1 or rows != 1 or seq.request.logit_rows is not None or not seq.sampler.plain:
            return 0
        n = min(n, seq.max_tokens - seq.n_generated) if seq.n_generated else 1  # the first token is waited for
    if n > 1 and len(pieces) == len(state.running) and all(p.seq.tables.grow(p.start + n) for p in pieces):
        return n
    return 1


def commit(state: State, pieces: list[Piece]) -> None:
    """Record that the pieces' tokens are in the cache; window pages nobody can see any more become free."""
    for seq, start, count, _ in pieces:
        if seq.finish_reason is None:
            seq.n_cached = start + count
            seq.tables.forget(seq.n_cached)


def finish(state: State, seq: Sequence) -> None:
    """Forget a sequence in whatever state it is, and free its pages. Idempotent."""
    if seq in state.running:
        state.running.remove(seq)
    elif seq in state.waiting:
        state.waiting.remove(seq)
    seq.tables.release()


def check(state: State) -> None:
    """Raise AssertionError unless every page is free or in exactly the tables that count it."""
    sequences = [*state.running, *state.waiting]
    if len({id(s) for s in sequences}) != len(sequences):
        raise AssertionError("a sequence is queued twice")
    state.ledger.check([s.tables for s in sequences])


def _chunk(seq: Sequence, tokens: int, rows: int) -> Piece | None:
    """The next piece of a prefilling sequence within the token and row budgets."""
    # Rows are wanted from some position on up to the last token: stop where the step's output rows are used up.
    first = max(seq.n_cached, seq.first_row)
    end = min(seq.n_cached + min(seq.n_pending, tokens), first + rows)
    count = end - seq.n_cached
    return Piece(seq, seq.n_cached, count, max(0, end - first)) if count > 0 else None


def _fits_whole(state: State, seq: Sequence) -> bool:
    """Whether the pools could hold all of the sequence's present tokens (a window class: its window)."""
    for spec, pool, need in zip(
        state.ledger.classes, state.ledger.pools, seq.tables.missing(len(seq.tokens)), strict=True
    ):
        if spec.kind == "window":
            need = min(need, 1)
        if need > pool.n_free:
            return False
    return True


def _make_room(state: State, seq: Sequence, n_tokens: int, pieces: list[Piece]) -> bool:
    """Take the sequence's pages, preempting others that have no piece in this step; False if it must wait itself."""
    while not seq.tables.grow(n_tokens):
        busy = {id(p.seq) for p in pieces}
        victims = [s for s in state.running if id(s) not in busy]
        victim = min(victims, key=lambda s: (s.request.priority, -s.arrival))
        state.running.remove(victim)
        victim.tables.release()
        victim.n_cached = 0
        state.waiting.appendleft(victim)
        if victim is seq:
            return False
    return True

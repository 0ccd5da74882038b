"""The scheduler: which tokens of which sequences the next step computes. Pure: no clock, no I/O, no randomness.

    schedule(state, budget) -> pieces      decode first, then prefill chunks, then admission; state.work comes before
    stride(state, pieces, most) -> n       decode steps that need no decision between them
    commit(state, pieces)                  the pieces are in the cache now
    finish(state, seq)                     the sequence has ended or was cancelled: its pages are free

What sequences have computed goes to the prefix cache page by page; before a chunk is prefilled, whatever the cache has
of it is taken from there. Of several sequences about to compute the same tokens one does, and the others find them.

When pages run out, the youngest sequence of the lowest priority gives its pages back and is computed again later;
results do not change (docs/numerics.md), only time does.
"""

from __future__ import annotations

from typing import NamedTuple

from edgellm.core.record import dataclass, field
from edgellm.core.types import NO_PAGE, PAGE_TOKENS
from edgellm.engine.queue import Queue
from edgellm.engine.request import Pin, Sequence
from edgellm.kvcache.prefix import NO_HIT, Hit, Node
from edgellm.kvcache.table import Ledger, Tables, Work

WORTH_WAITING = 16
"""Tokens that another sequence is about to compute, for which one waits a step instead of computing them too."""


class Budget(NamedTuple):
    """Most tokens, sequences and output rows of one step; tokens of prompts beside those that decode (None: any)."""

    tokens: int
    seqs: int
    rows: int
    prefill: int | None = None


class Piece(NamedTuple):
    """Tokens start .. start+count-1 of a sequence, all of them or a chunk; logits of the last `rows` are wanted."""

    seq: Sequence
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    rows: int


@dataclass(slots=True)
class State:
    """Sequences waiting for admission and running, in order of arrival, and the page ledger.

    arrivals, preemptions: sequences that came, and that had to give their pages back, since start.
    flight: pieces of prompts that are computed in parts, beside the steps of those that decode; empty: none.
    held: pages of sequences that ended in flight: what is computed for them still goes there, and counts for nothing.
    pinned: tables of sequences that have ended, whose pages are to stay.
    now: the time, in seconds of any clock, as told by whoever schedules.
    blocked: the sequence that was next and found too few pages, and how many there were in each class.
    """

    ledger: Ledger
    waiting: Queue = field(default_factory=Queue)
    running: list[Sequence] = field(default_factory=list)
    flight: list[Piece] = field(default_factory=list)
    held: list[Tables] = field(default_factory=list)
    pinned: set[Tables] = field(default_factory=set)
    arrivals: int = 0
    preemptions: int = 0
    now: float = 0.0
    blocked: tuple[Sequence, list[int]] | None = None

    @property
    def work(self) -> list[Work]:
        """What is to be done with pages before anything is computed (`Ledger.work`)."""
        return self.ledger.work


def add(state: State, seq: Sequence) -> None:
    """Queue a new sequence."""
    state.arrivals += 1
    seq.arrival, seq.queued = state.arrivals, state.now
    state.waiting.enter(seq)
    state.waiting.add(seq)


def never_fits(state: State, seq: Sequence) -> str | None:
    """Why a sequence could not be computed even alone: what it needs and what there is; None where it could."""
    n_tokens = seq.n_prompt + (1 if seq.max_tokens > 1 else 0)
    for spec, pool, need in zip(state.ledger.classes, state.ledger.pools, seq.tables.missing(n_tokens), strict=True):
        if spec.kind != "window" and need > pool.n_pages:
            return (
                f"the request ({n_tokens} tokens) needs {need} pages of {PAGE_TOKENS} tokens of the KV cache, "
                f"which has {pool.n_pages} in all: open the model with a larger kv_memory"
            )
    return None


def waiting_for_first(state: State) -> int:
    """Sequences that wait or prefill."""
    return len(state.waiting) + sum(len(s.tokens) - s.n_cached > 1 for s in state.running)


def schedule(state: State, budget: Budget) -> list[Piece]:
    """Choose the next step's pieces and take their pages. May preempt. Empty when there is nothing to do.

    While prompts are in flight, no others are begun.
    """
    flying = {p.seq for p in state.flight}
    for seq in state.running:
        if seq in flying:  # its pages must stay the same ones
            continue
        if seq.n_cached >= (seq.n_settled + 1) * PAGE_TOKENS or len(seq.tokens) < seq.n_prompt + 2:
            settle(state, seq)
    pieces: list[Piece] = []
    gone: set[Sequence] = set()
    longer: list[Sequence] = []
    most = min(budget[:3])
    for seq in list(state.running):
        n, n_cached = len(seq.tokens), seq.n_cached
        if n - n_cached != 1:
            longer.append(seq)
        elif (
            len(pieces) < most and seq not in gone and (n <= seq.tables.room or _make_room(state, seq, n, pieces, gone))
        ):
            pieces.append(Piece(seq, n_cached, 1, 1))
    if state.flight:
        state.waiting.serve(pieces)
        return pieces
    tokens = budget.tokens - len(pieces)
    if pieces and budget.prefill is not None:
        tokens = min(tokens, budget.prefill)
    left = Budget(tokens, budget.seqs, budget.rows - len(pieces))
    claims: set[tuple[object, ...]] = set()
    for seq in longer:
        if left.tokens < 1 or len(pieces) == budget.seqs:
            break
        if seq not in gone:
            left = _prefill(state, seq, left, pieces, gone, claims)
    if state.waiting and left.tokens > 0 and len(state.running) < budget.seqs:
        _admit(state, left, pieces, claims)
    state.waiting.serve(pieces)
    return pieces


def _prefill(
    state: State, seq: Sequence, left: Budget, pieces: list[Piece], gone: set[Sequence], claims: set[tuple[object, ...]]
) -> Budget:
    """Add a piece of a sequence that prefills, unless another one is about to compute the same. What is left then."""
    hit = _found(state, seq)
    if hit.n_tokens and _fits(state, seq, hit, len(seq.tokens)):
        _adopt(state, seq, hit)
    claim = _claim(state, seq, NO_HIT)
    if seq.reads_cache and claim in claims:
        return left
    piece = _chunk(state, seq, left.tokens, left.rows)
    if piece is None or not _make_room(state, seq, piece.start + piece.count, pieces, gone):
        return left
    claims.add(claim)
    pieces.append(piece)
    return left._replace(tokens=left.tokens - piece.count, rows=left.rows - piece.rows)


def _admit(state: State, left: Budget, pieces: list[Piece], claims: set[tuple[object, ...]]) -> None:
    """Start sequences that wait, in turn, up to the first that does not fit."""
    blocked, state.blocked = state.blocked, None
    for seq in state.waiting.in_turn(state.now):
        if seq.unasked:
            continue
        if left.tokens < 1 or len(state.running) == left.seqs or len(pieces) == left.seqs:
            break
        available = [state.ledger.n_available(c) for c in range(len(state.ledger.pools))]
        if blocked is not None and blocked[0] is seq and state.running and not _more(available, blocked[1]):
            state.blocked = blocked
            break
        hit = _found(state, seq)
        claim = _claim(state, seq, hit)
        if seq.reads_cache and claim in claims:
            continue
        if not _fits(state, seq, hit, len(seq.tokens)):
            state.blocked = (seq, available)
            break
        if hit.n_tokens and _fits(state, seq, hit, hit.n_tokens):
            _adopt(state, seq, hit)
        piece = _chunk(state, seq, left.tokens, left.rows)
        if piece is None or not seq.tables.grow(piece.start + piece.count):
            put_back(seq)
            break
        claims.add(claim)
        state.waiting.remove(seq)
        state.running.append(seq)
        pieces.append(piece)
        left = left._replace(tokens=left.tokens - piece.count, rows=left.rows - piece.rows)


def _more(now: list[int], then: list[int]) -> bool:
    return any(a > b for a, b in zip(now, then, strict=True))


def stride(state: State, pieces: list[Piece], most: int) -> int:
    """How many decode steps of these pieces may follow each other with nothing to decide, at most `most`; their pages
    are taken. 0: not even one, since a piece is no plain decode step."""
    n = most
    for seq, _, count, rows in pieces:
        if count != 1 or rows != 1 or seq.max_tokens < 1 or seq.request.logit_rows is not None or not seq.sampler.plain:
            return 0
        n = min(n, seq.max_tokens - seq.n_generated) if seq.n_generated else 1  # the first token is waited for
    if n > 1 and len(pieces) == len(state.running) and all(p.seq.tables.grow(p.start + n) for p in pieces):
        return n
    return 1


def commit(state: State, pieces: list[Piece]) -> None:
    """Record that the pieces' tokens are in the cache."""
    for seq, start, count, _ in pieces:
        if seq.finish_reason is None:
            seq.n_cached = start + count


def settle(state: State, seq: Sequence, whole: bool = False) -> None:
    """Hand the pages that a sequence has filled to the prefix cache; let go of window pages it cannot see any more.

    Behind the prompt, or whole=True (the sequence leaves), what the last page holds so far is handed over too.
    """
    cache = state.ledger.cache
    n = min(seq.n_cached, len(seq.tokens))  # a run of several steps may have computed more than the answer has
    seq.n_known = max(seq.n_known, n)
    if cache.enabled and seq.request.logit_rows is None:
        node, tables, salt = seq.node, seq.tables.arrays, seq.request.salt
        at = seq.n_settled
        if node is not None and node.parent is None:  # evicted meanwhile, as only nodes without pages of its own are
            node, at = None, 0
        while (at + 1) * PAGE_TOKENS <= n:
            node = cache.add(salt, node, tuple(seq.tokens[at * PAGE_TOKENS : (at + 1) * PAGE_TOKENS]), tables, at)
            at += 1
        seq.node, seq.n_settled = node, at
        last = node if at * PAGE_TOKENS == n else None
        if at * PAGE_TOKENS < n and (whole or n == seq.n_prompt):
            last = cache.add(salt, node, tuple(seq.tokens[at * PAGE_TOKENS : n]), tables, at)
        if cache.has_state and last is not None and n == seq.n_cached:
            _keep_state(state, seq, last, n, whole)
    seq.tables.forget(seq.n_cached)


def _keep_state(state: State, seq: Sequence, node: Node, n: int, whole: bool) -> None:
    """Keep the recurrent state after `node`, the sequence's last tokens: its own slot where it leaves, else a copy."""
    ledger = state.ledger
    for c, spec in enumerate(ledger.classes):
        if spec.kind != "state" or node.pages[c] != NO_PAGE:
            continue
        slot = int(seq.tables.arrays[c][0])
        if whole:
            ledger.cache.keep(node, c, slot)
        elif n <= seq.n_prompt and ledger.n_available(c):
            copy = ledger.take(c)
            if node.parent is not None:  # that may have evicted its last child, and with it the node
                state.work.append((c, slot, copy))
                ledger.cache.keep(node, c, copy)
            ledger.drop(c, copy)


def finish(state: State, seq: Sequence) -> None:
    """Forget a sequence in whatever state it is; its pages are the prefix cache's, or free. Idempotent."""
    if seq in state.waiting:
        state.waiting.remove(seq)
        state.waiting.leave(seq)
    elif seq in state.running:
        state.running.remove(seq)
        state.waiting.leave(seq)
        _leave_flight(state, seq)
        if seq.finish_reason != "error":
            settle(state, seq, whole=True)
            pin = seq.request.pin
            if pin is not None and seq.index == 0 and not pin.let_go:
                pin.tables = seq.tables.copy()
                pin.n_tokens = n = min(seq.n_cached, len(seq.tokens))
                pin.tables.trim(n, keep_state=n == seq.n_cached)
                state.pinned.add(pin.tables)
    if state.blocked is not None and state.blocked[0] is seq:
        state.blocked = None
    put_back(seq)


def _leave_flight(state: State, seq: Sequence) -> None:
    """Before a sequence's pages go to others. The flight goes on where it has only ended, and others are in it."""
    if not any(p.seq is seq for p in state.flight):
        return
    if seq.finish_reason is not None and any(p.seq.finish_reason is None for p in state.flight):
        state.held.append(seq.tables.copy())
        state.pinned.add(state.held[-1])
    else:
        end_flight(state)


def end_flight(state: State) -> None:
    """It has landed, or is given up: what was computed then counts for nothing, and is computed again."""
    state.flight = []
    for tables in state.held:
        state.pinned.discard(tables)
        tables.release()
    state.held.clear()


def unpin(state: State, pin: Pin) -> None:
    """Let go of what was kept. Idempotent; also before there is anything."""
    pin.let_go = True
    if pin.tables is not None:
        state.pinned.discard(pin.tables)
        pin.tables.release()
        pin.tables = None


def copy_pin(state: State, pin: Pin, copy: Pin) -> None:
    """`copy`, a new one, keeps the same pages."""
    if pin.tables is not None:
        copy.tables, copy.n_tokens = pin.tables.copy(), pin.n_tokens
        state.pinned.add(copy.tables)


def trim_pin(pin: Pin, n_tokens: int) -> None:
    """Let go of what is kept behind the first n_tokens tokens."""
    if pin.tables is not None and n_tokens < pin.n_tokens:
        pin.tables.trim(n_tokens)
        pin.n_tokens = n_tokens


def check(state: State) -> None:
    """Raise AssertionError unless every page is free or in exactly the tables that count it."""
    sequences = [*state.running, *state.waiting]
    if len({id(s) for s in sequences}) != len(sequences):
        raise AssertionError("a sequence is queued twice")
    state.ledger.check([*[s.tables for s in sequences], *state.pinned])


def _chunk(state: State, seq: Sequence, tokens: int, rows: int) -> Piece | None:
    """The next piece of a prefilling sequence within the token and row budgets."""
    # Rows are wanted from some position on up to the last token: stop where the step's output rows are used up.
    first = max(seq.n_cached, seq.first_row)
    end = min(seq.n_cached + min(seq.n_pending, tokens), first + rows)
    if state.ledger.cache.has_state and state.ledger.cache.enabled:
        # A state can be kept between steps only: let them end where pages do.
        whole = min(end, len(seq.tokens) - 1) // PAGE_TOKENS * PAGE_TOKENS
        end = whole if whole > seq.n_cached else end
    count = end - seq.n_cached
    return Piece(seq, seq.n_cached, count, max(0, end - first)) if count > 0 else None


def _found(state: State, seq: Sequence) -> Hit:
    """What the prefix cache has of a sequence's next tokens. The last one is always computed: its logits are wanted."""
    start, cache = seq.n_cached, state.ledger.cache
    if not cache.enabled or start % PAGE_TOKENS or seq.n_pending <= 1 or not seq.reads_cache:
        return NO_HIT
    if start and (seq.node is None or seq.n_settled * PAGE_TOKENS != start or not seq.tables.missing(start + 1)[0]):
        return NO_HIT
    return cache.match(seq.request.salt, seq.node, seq.tokens, start, len(seq.tokens) - 1, seq.tables.resident())


def _adopt(state: State, seq: Sequence, hit: Hit) -> None:
    """Move a sequence forward over what was found."""
    state.work.extend(seq.tables.adopt(hit, seq.n_cached))
    seq.n_cached += hit.n_tokens
    if hit.path:
        seq.node = hit.path[-1]
        seq.n_settled += len(hit.path)
    if seq.index == 0 and not seq.n_generated:
        seq.request.cached_tokens += max(0, seq.n_cached - max(seq.n_known, seq.n_cached - hit.n_tokens))
    seq.n_known = max(seq.n_known, seq.n_cached)


def _claim(state: State, seq: Sequence, hit: Hit) -> tuple[object, ...]:
    """What a sequence is about to prefill, in the terms of the prefix cache: equal for those that compute the same."""
    start = seq.n_cached + hit.n_tokens
    wanted = seq.tokens[start : min(start + PAGE_TOKENS, len(seq.tokens) - 1)]
    node = hit.path[-1] if hit.path else seq.node
    if (
        not state.ledger.cache.enabled
        or seq.request.logit_rows is not None
        or len(wanted) < WORTH_WAITING
        or start % PAGE_TOKENS
        or (start and node is None)
    ):
        return (id(seq),)
    return (seq.request.salt, id(node), *wanted)


def _fits(state: State, seq: Sequence, hit: Hit, n_tokens: int) -> bool:
    """Whether the pools could hold that many of the sequence's tokens (a window class: its window) after the hit."""
    ledger = state.ledger
    for c, (spec, need) in enumerate(zip(ledger.classes, seq.tables.missing(n_tokens), strict=True)):
        available = ledger.n_available(c)
        if spec.kind != "state":
            need -= len(hit.path)
            available -= sum(ledger.cache.is_idle(c, node.pages[c]) for node in hit.path)
        if spec.kind == "window":
            need = min(need, 1)
        if need > available:
            return False
    return True


def put_back(seq: Sequence) -> None:
    """A sequence without pages: all of it is still to be computed."""
    seq.tables.release()
    seq.n_cached = seq.n_settled = 0
    seq.node = None


def _make_room(state: State, seq: Sequence, n_tokens: int, pieces: list[Piece], gone: set[Sequence]) -> bool:
    """Take the sequence's pages, preempting others that have no piece in this step; False if it must wait itself.

    gone: receives those that were preempted.
    """
    while not seq.tables.grow(n_tokens):
        if state.held:
            end_flight(state)
            continue
        busy = {id(p.seq) for p in pieces}
        victims = [s for s in state.running if id(s) not in busy]
        victim = min(victims, key=lambda s: (s.request.priority, -s.arrival))
        state.running.remove(victim)
        _leave_flight(state, victim)
        gone.add(victim)
        state.preemptions += 1
        settle(state, victim, whole=True)
        put_back(victim)
        victim.unasked = state.ledger.cache.on_evict is not None
        state.waiting.add(victim, first=True)
        if victim is seq:
            return False
    return True

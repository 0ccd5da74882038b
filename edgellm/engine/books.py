"""What the engine keeps of its own doings: counters, what there is to do, decode steps on their way."""

from __future__ import annotations

from typing import NamedTuple

from edgellm.core.record import dataclass
from edgellm.core.types import Batch
from edgellm.engine.request import Sequence
from edgellm.engine.scheduler import State


@dataclass(slots=True)
class Stats:
    """Counters since start. seconds_native is time inside the executable, seconds_python the rest of a busy turn:
    handling what arrived, scheduling, building the batch, sampling, handing out the results."""

    steps: int = 0
    tokens: int = 0
    seconds_native: float = 0.0
    seconds_python: float = 0.0


class Load(NamedTuple):
    """Sequences running and waiting, requests not yet ended, pages in use by them and pages there are."""

    running: int
    waiting: int
    requests: int
    pages_used: int
    pages: int


def load_of(state: State, n_requests: int) -> Load:
    """Of a scheduler's state, from any thread: about as it is."""
    pools = range(len(state.ledger.pools))
    return Load(
        len(state.running),
        len(state.waiting),
        n_requests,
        sum(state.ledger.n_in_use(c) for c in pools),
        sum(p.n_pages for p in state.ledger.pools),
    )


@dataclass(slots=True)
class Course:
    """Decode steps on their way: as long as nothing happens, the next ones need no scheduler.

    n_steps: at most in one call. page_ends: the sequences' pages reach up to these positions.
    """

    seqs: list[Sequence]
    batch: Batch
    n_steps: int
    page_ends: list[int]
    end_ids: tuple[int, ...]


class EndTokens:
    """The tokens that end some sequence's answer, ascending: the same object as long as they are the same."""

    def __init__(self) -> None:
        self._set: frozenset[int] = frozenset()
        self._ids: tuple[int, ...] = ()

    def of(self, seqs: list[Sequence]) -> tuple[int, ...]:
        """Those of these sequences, of which there is one at least."""
        ids = seqs[0].request.ends
        for seq in seqs:
            if seq.request.ends is not ids:
                ids = ids | seq.request.ends
        if ids != self._set:
            self._set, self._ids = ids, tuple(sorted(ids))
        return self._ids

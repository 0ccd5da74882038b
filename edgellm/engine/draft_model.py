"""Guesses from a smaller model of the same vocabulary, which reads the same tokens into a KV cache of its own.

A sampled request's guesses are drawn as its answer is: with the draw that belongs to the position, from the smaller
model's distribution. Where the two models agree roughly, the same draw mostly falls on the same token.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgellm.core.record import dataclass
from edgellm.core.types import F32, I32, MAX_TOP_K, Batch, Pick
from edgellm.engine.request import Sequence
from edgellm.engine.runner import Runner
from edgellm.engine.scheduler import Budget
from edgellm.engine.speculation import MAX_GUESS
from edgellm.kvcache.table import Ledger, Tables
from edgellm.sampling.sampler import rank_of

GREEDY = Pick(0.0, 1, 1.0, 0.0, 0, 0, 0)


@dataclass(slots=True, eq=False)
class Reading:
    """How far the draft model has read a sequence: the tokens in its cache, guessed ones among them."""

    tables: Tables
    cached: list[int]


class DraftModel:
    """See the module. n_ctx, budget: as the executable was compiled for; ledger: of its pages.

    close_file: called when the executable has been closed.
    """

    priors: tuple[float, ...] = (0.6,)

    def __init__(
        self, executable: Runner, ledger: Ledger, n_ctx: int, budget: Budget, close_file: Callable[[], None]
    ) -> None:
        self._executable, self._ledger, self._n_ctx, self._budget = executable, ledger, n_ctx, budget
        self._close_file: Callable[[], None] | None = close_file

    def kind(self, seq: Sequence) -> int | None:
        """0 where the draft model has read all but the last token; a long text is read a step's worth at a time."""
        if seq.guesser is None:
            seq.guesser = Reading(self._ledger.new_table(), [])
        reading: Reading = seq.guesser
        n = _common(reading.cached, seq.tokens)
        n = min(n, len(seq.tokens) - 1)  # the last token is read again: what comes after it is wanted
        del reading.cached[n:]
        missing = seq.tokens[n:-1]
        if len(missing) <= MAX_GUESS:  # goes with the first step of the guess
            return 0
        missing = missing[: self._budget.tokens]
        if n + len(missing) < self._n_ctx and reading.tables.grow(n + len(missing)):
            self._run([(reading, missing)], 0)
        return None

    def guess(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        """What the draft model would answer, all sequences side by side; nothing for one that finds no pages."""
        guesses: list[list[int]] = [[] for _ in wanted]
        going = [
            i
            for i, (seq, n) in enumerate(wanted)
            if seq.guesser.tables.grow(len(seq.tokens) + n) and len(seq.tokens) + n <= self._n_ctx
        ]
        picks = [_pick(seq) for seq, _ in wanted]
        for step in range(max((wanted[i][1] for i in going), default=0)):
            going = [i for i in going if step < wanted[i][1]]
            batch = [
                (seq.guesser, guesses[i][-1:] if step else seq.tokens[len(seq.guesser.cached) :])
                for i, (seq, _) in enumerate(wanted)
                if i in going
            ]
            out = self._run(batch, max(picks[i].top_k for i in going))
            if out is None:
                break
            for row, i in enumerate(going):
                pick = picks[i]._replace(n_generated=picks[i].n_generated + step)
                guesses[i].append(int(out[0][row, rank_of(pick, out[1][row])]))
        return guesses

    def forget(self, seq: Sequence) -> None:
        """Free the pages of a sequence that has ended."""
        if seq.guesser is not None:
            seq.guesser.tables.release()
            seq.guesser = None

    def close(self) -> None:
        """Free everything. Idempotent."""
        self._executable.close()
        if self._close_file is not None:
            self._close_file()
            self._close_file = None

    def _run(self, pieces: list[tuple[Reading, list[int]]], top_k: int) -> tuple[I32, F32] | None:
        """Read tokens; the top_k likeliest after the last of each piece, None where a value is not finite."""
        counts = [len(tokens) for _, tokens in pieces]
        starts = np.cumsum([0, *counts]).astype(np.int32)
        out = self._executable.run(
            Batch(
                tokens=np.array([t for _, tokens in pieces for t in tokens], np.int32),
                positions=np.array([len(r.cached) + i for r, tokens in pieces for i in range(len(tokens))], np.int32),
                seq_start=starts,
                pages=tuple(
                    np.stack([r.tables.arrays[c] for r, _ in pieces]) for c in range(len(self._ledger.classes))
                ),
                rows=starts[1:] - 1 if top_k else np.zeros(0, np.int32),
                top_k=top_k,
            )
        )
        for reading, tokens in pieces:
            reading.cached += tokens
            reading.tables.forget(max(0, len(reading.cached) - 2 * MAX_GUESS))
        return None if out.status.any() else (out.top_ids, out.top_logits)


def _common(a: list[int], b: list[int]) -> int:
    """How many tokens two lists begin with alike."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def _pick(seq: Sequence) -> Pick:
    """How the draft model's token is chosen: as the answer's, but for edits; where that takes more, the likeliest."""
    sampler = seq.sampler
    if sampler.needs_logits or sampler.n_likeliest > MAX_TOP_K or not sampler.top_k:
        return GREEDY
    return sampler.pick_for(seq.n_generated)._replace(edits=None)

"""From logits to a token: a request's parameters become a Sampler, which reads ranked candidates and draws once.

Order (llama.cpp's): penalties and bias (the backend applies `adjustments`), top-k, top-p, min-p, temperature.
All sums are float64, in rank order, so a result depends on the logits, the seed and the position alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

import numpy as np

from edgellm.core.config import ResolvedParams
from edgellm.core.errors import RequestError
from edgellm.core.types import F32, I32, MAX_TOP_K, Pick
from edgellm.sampling.exp64 import LEAST, exp64, exp_list
from edgellm.sampling.rng import uniform

FEW = 64
"""Candidates up to which lists are quicker than arrays. The results have the same bits."""


class Sampler:
    """One choice of one request.

    n_likeliest: candidates of the draw. needs_logits: they are too many for a backend to rank, so the whole row of
    logits is needed; else the `top_k` likeliest are enough.
    """

    __slots__ = ("choice", "n_likeliest", "needs_logits", "params", "penalised", "seed", "top_k")

    def __init__(self, params: ResolvedParams, seed: int, choice: int, n_vocab: int) -> None:
        self.params, self.seed, self.choice = params, seed & (2**64 - 1), choice
        greedy = params.temperature == 0.0
        k = 1 if greedy else (min(params.top_k, n_vocab) or n_vocab)
        self.n_likeliest = k
        self.needs_logits = k > MAX_TOP_K
        self.top_k = min(k, MAX_TOP_K)
        self.penalised = bool(
            (params.repeat_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)
            and params.repeat_last_n
        )

    @property
    def plain(self) -> bool:
        """Whether `pick_for` says all there is to say: no edits, and the likeliest candidates are enough."""
        return not (self.penalised or self.needs_logits or self.params.logit_bias)

    def pick_for(self, n_generated: int) -> Pick:
        """The choice after n_generated tokens, as a backend's `run_steps` makes it."""
        p = self.params
        return Pick(p.temperature, self.n_likeliest, p.top_p, p.min_p, self.seed, self.choice, n_generated)

    @property
    def adjusts(self) -> bool:
        """Whether `adjustments` has anything to say."""
        return self.penalised or bool(self.params.logit_bias)

    def adjustments(self, history: list[int], n_vocab: int) -> list[tuple[int, float, float]]:
        """Edits (token, rep, add) for the next token after `history` (prompt and generated), by ascending token.

        Tokens at or above n_vocab are left out; rep divides positive and multiplies negative logits, add comes after.
        """
        p = self.params
        edits: dict[int, tuple[float, float]] = {}
        if self.penalised:
            recent = history if p.repeat_last_n < 0 else history[-p.repeat_last_n :]
            counts: dict[int, int] = {}
            for token in recent:
                counts[token] = counts.get(token, 0) + 1
            for token, n in counts.items():
                edits[token] = (p.repeat_penalty, -(n * p.frequency_penalty + p.presence_penalty))
        for token, bias in p.logit_bias.items():
            rep, add = edits.get(token, (1.0, 0.0))
            edits[token] = (rep, add + bias)
        return [(token, *edits[token]) for token in sorted(edits) if token < n_vocab]

    def pick(self, ids: I32, logits: F32, n_generated: int) -> int:
        """Choose from candidates ranked by logit descending, then id; at least `top_k` of them, or all of V.

        Raises RequestError when even the first is banned.
        """
        if logits[0] == -np.inf:
            raise RequestError("logit_bias bans every token: leave at least one that may come next")
        return int(ids[rank_of(self.pick_for(n_generated), logits)])

    def pick_from_row(self, row: F32, n_generated: int) -> int:
        """Choose from a whole row of logits [V] (already adjusted)."""
        order = np.argsort(-row, kind="stable").astype(np.int32)
        return self.pick(order, row[order], n_generated)


def rank_of(pick: Pick, logits: F32) -> int:
    """The rank that `pick` chooses among logits in descending order. el_pick_rank in C does the same."""
    n = min(pick.top_k, len(logits))
    if pick.temperature == 0.0 or n == 1:
        return 0
    u = uniform(pick.seed, pick.choice, pick.n_generated)
    return _draw_few(pick, logits[:n].tolist(), u) if n <= FEW else _draw_many(pick, logits[:n], u)


def _draw_few(p: Pick, logits: list[float], u: float) -> int:
    """The rank that falls on u in [0, 1) among candidates in ranked order.

    Differences from the best are bounded at LEAST: what lies below, banned tokens (-inf) among it, weighs 1e-304 beside
    the first one's 1. Sums do not change, and no draw falls on it.
    """
    top, keep = logits[0], len(logits)
    x = [v - top for v in logits]
    if p.top_p < 1.0 or p.min_p > 0.0:
        e = exp_list(x if x[-1] >= LEAST else [max(v, LEAST) for v in x])
        if p.top_p < 1.0:
            sums = list(accumulate(e))
            keep = bisect_left(sums, p.top_p * sums[-1]) + 1
        if p.min_p > 0.0:
            keep = max(1, sum([v >= p.min_p for v in e[:keep]]))
        if keep == 1:
            return 0
        x = x[:keep]
    least = LEAST * p.temperature
    scaled = [v / p.temperature for v in (x if x[-1] >= least else [max(v, least) for v in x])]
    sums = list(accumulate(exp_list(scaled)))
    return min(bisect_right(sums, u * sums[-1]), keep - 1)


def _draw_many(p: Pick, logits: F32, u: float) -> int:
    """The same over arrays."""
    x, keep = logits.astype(np.float64), len(logits)
    x -= x[0]
    if p.top_p < 1.0 or p.min_p > 0.0:
        e = exp64(np.maximum(x, LEAST))
        if p.top_p < 1.0:
            sums = e.cumsum()
            keep = int(sums.searchsorted(p.top_p * sums[-1], side="left")) + 1
        if p.min_p > 0.0:
            keep = max(1, int(np.count_nonzero(e[:keep] >= p.min_p)))
        if keep == 1:
            return 0
        x = x[:keep]
    sums = exp64(np.maximum(x, LEAST * p.temperature) / p.temperature).cumsum()
    return min(int(sums.searchsorted(u * sums[-1], side="right")), keep - 1)

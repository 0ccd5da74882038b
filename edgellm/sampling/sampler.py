"""From logits to a token: a request's parameters become a Sampler, which reads what a step returns and draws once.

Order (llama.cpp's): penalties, DRY, bias and bans (as edits, which mostly the backend makes), top-n-sigma, top-k,
typical-p, top-p, min-p, XTC, temperature. All sums are float64, in rank order, so a result depends on the logits, the
seed and the position alone.

    plain        no more than edits, top-k, top-p, min-p and temperature: a backend can run several steps by itself
    needs_logits the whole row: more candidates than a backend ranks, or a sampler that looks at all of them
    else         the `top_k` likeliest are enough, and the rest of the chain (chain.py) is Python
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate

import numpy as np

from edgellm.core.config import ResolvedParams
from edgellm.core.errors import EngineError, RequestError
from edgellm.core.types import F32, I32, MAX_TOP_K, Edits, Pick, Scored, StepOutput
from edgellm.sampling import chain
from edgellm.sampling.dry import Dry
from edgellm.sampling.edits import NONE, Edit, edited, edits_after
from edgellm.sampling.exp64 import LEAST, exp64, exp_list
from edgellm.sampling.rng import second_uniform, uniform

FEW = 64
"""Candidates up to which lists are quicker than arrays. The results have the same bits."""


class Sampler:
    """One choice of one request. Of mirostat it keeps the state, so one `choose` for each token, in order.

    eog_ids: the model's ending tokens; token_bytes: what DRY finds its breakers in.

    n_likeliest: candidates of the draw. top_k: how many a backend is asked to rank. needs_lse: their logarithm of the
    sum of exponentials too. adjusts: whether a batch has edits for this sequence.
    """

    __slots__ = (
        "_allowed", "_dry", "_edits", "_edits_here", "_mu", "_rare", "adjusts", "choice", "n_likeliest",
        "needs_logits", "needs_lse", "params", "plain", "seed", "top_k",
    )  # fmt: skip

    def __init__(
        self,
        params: ResolvedParams,
        seed: int,
        choice: int,
        n_vocab: int,
        eog_ids: frozenset[int] = frozenset(),
        token_bytes: Callable[[int], bytes] = lambda _: b"",
    ) -> None:
        p = self.params = params
        self.seed, self.choice = seed & (2**64 - 1), choice
        self._rare = p.typical_p < 1.0 or chain.xtc_on(p) or p.dynatemp_range > 0.0
        if p.mirostat:
            self._rare = p.temperature > 0.0
        greedy = p.temperature == 0.0 and not self._rare
        k = 1 if greedy else n_vocab if p.mirostat else (min(p.top_k, n_vocab) or n_vocab)
        self.n_likeliest = k
        self._mu = 2.0 * p.mirostat_tau
        self._dry = Dry(p, token_bytes) if Dry.wanted(p) else None
        self._edits = _edits_of(p, eog_ids)
        self._allowed = None if p.allowed_token_ids is None else np.array(p.allowed_token_ids, np.int64)
        edits = self._dry is not None or self._edits is not None
        self.needs_lse = p.logprobs is not None
        self._edits_here = edits and self.needs_lse  # log-probabilities are those of the logits before the edits
        self.adjusts = edits and not self._edits_here
        self.needs_logits = (
            k > MAX_TOP_K
            or self._edits_here
            or self._allowed is not None
            or (not greedy and (p.top_n_sigma > 0.0 or p.mirostat > 0))
        )
        scores = self.needs_lse or p.prompt_logprobs is not None
        self.plain = not (self.needs_logits or scores or self._rare or self._dry)
        self.top_k = min(max(0 if self.needs_logits else k, p.logprobs or 0), n_vocab)

    def pick_for(self, n_generated: int, tokens: list[int] | None = None) -> Pick:
        """The choice after n_generated tokens, as a backend's `run_steps` makes it.

        tokens: prompt and answer so far, the list that they are always kept in; needed where there are edits.
        """
        p, e = self.params, self._edits
        if e is not None and tokens is not None:
            e.tokens = tokens
        return Pick(p.temperature, self.n_likeliest, p.top_p, p.min_p, self.seed, self.choice, n_generated, e)

    def adjustments(self, history: list[int], n_vocab: int, n_generated: int = 0) -> list[Edit]:
        """Edits (token, rep, add) for the next token after `history` (prompt and generated), by ascending token.

        Tokens at or above n_vocab are left out; rep divides positive and multiplies negative logits, add comes after.
        """
        dry = NONE if self._dry is None else self._dry.penalties(history)
        return edits_after(self._edits or Edits(history), history, n_generated, n_vocab, dry)

    def choose(self, out: StepOutput, row: int, history: list[int], n_generated: int) -> tuple[int, Scored | None]:
        """The next token after `history`, from output row `row` of a step, and its log-probability where wanted."""
        if not self.needs_logits:
            token = self.pick(out.top_ids[row], out.top_logits[row], n_generated)
            if not self.needs_lse:
                return token, None
            return token, scored(token, out, row, self.params.logprobs or 0)
        if out.logits is None:
            raise EngineError("the backend returned no logits although they were asked for")
        raw = logits = out.logits[row]
        if self._edits_here:
            logits = edited(raw, self.adjustments(history, len(raw), n_generated))
        token = self.pick_from_row(logits, n_generated)
        return token, scored(token, out, row, self.params.logprobs or 0) if self.needs_lse else None

    def pick(self, ids: I32, logits: F32, n_generated: int) -> int:
        """Choose from candidates ranked by logit descending, then id; at least `n_likeliest` of them, or all of V.

        Raises RequestError when even the first is banned.
        """
        if logits[0] == -np.inf:
            raise banned()
        if not self._rare:
            return int(ids[rank_of(self.pick_for(n_generated), logits)])
        u, other = uniform(self.seed, self.choice, n_generated), second_uniform(self.seed, self.choice, n_generated)
        return int(ids[chain.rank_in_chain(self.params, logits[: self.n_likeliest], u, other)])

    def pick_from_row(self, row: F32, n_generated: int) -> int:
        """Choose from a whole row of logits [V] (already adjusted)."""
        p, allowed = self.params, self._allowed
        if allowed is not None:
            row = row[allowed]
        if p.mirostat and self._rare:
            if row.max() == -np.inf:
                raise banned()
            token, self._mu = chain.mirostat(p, row, self._mu, uniform(self.seed, self.choice, n_generated))
        else:
            if p.top_n_sigma > 0.0:
                row = chain.within_sigma(row, p.top_n_sigma)
            token = self.pick(*chain.ranked(row, min(self.n_likeliest, len(row))), n_generated)
        return token if allowed is None else int(allowed[token])


def banned() -> RequestError:
    """The error for a request that leaves no token to choose."""
    return RequestError(
        "logit_bias bans every token, or ignore_eos, min_tokens and allowed_token_ids do together: leave at least one "
        "that may come next"
    )


def scored(token: int, out: StepOutput, row: int, n: int) -> Scored:
    """The log-probability of a token after an output row without edits, and of the n likeliest."""
    if out.lse is None:
        raise EngineError("the backend returned no sums although they were asked for")
    lse = float(out.lse[row])
    if out.logits is not None:
        logits = out.logits[row]
        logit = float(logits[token])
        ids, values = chain.ranked(logits, min(n, len(logits))) if n > out.top_ids.shape[1] else _top(out, row, n)
    else:
        logit = float(out.top_logits[row, np.flatnonzero(out.top_ids[row] == token)[0]])
        ids, values = _top(out, row, n)
    top = tuple([(i, v - lse) for i, v in zip(ids.tolist(), values.tolist(), strict=True) if i >= 0])
    return Scored(token, logit - lse, top)


def _top(out: StepOutput, row: int, n: int) -> tuple[I32, F32]:
    return out.top_ids[row, :n], out.top_logits[row, :n]


def _edits_of(p: ResolvedParams, eog_ids: frozenset[int]) -> Edits | None:
    """What edits the logits of a request, None where nothing does."""
    penalised = p.repeat_penalty != 1.0 or p.presence_penalty or p.frequency_penalty
    last_n = p.repeat_last_n if penalised else 0
    bias = dict(p.logit_bias)
    ends = set(p.stop_token_ids)
    if p.ignore_eos:
        bias.update(dict.fromkeys(eog_ids, -np.inf))
    else:
        ends |= eog_ids
    if not last_n and not bias and not (p.min_tokens and ends):
        return None
    return Edits(
        [],
        p.repeat_penalty,
        p.presence_penalty,
        p.frequency_penalty,
        last_n,
        dict(sorted(bias.items())),
        tuple(sorted(ends)),
        p.min_tokens,
    )


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

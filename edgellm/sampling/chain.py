"""The rarer samplers: typical-p, XTC, dynamic temperature, mirostat, top-n-sigma; and ranking of whole rows.

Everything is float64 from fixed operations, sums run in rank order (cumsum adds one after the other, whatever the
machine), draws are the caller's. docs/sampling.md has the formulas and where they come from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgellm.core.config import ResolvedParams
from edgellm.core.types import F32, I32
from edgellm.sampling.exp64 import LEAST, LN2, exp64, exp_of, log64, pow64

F64 = NDArray[np.float64]

MIROSTAT_TOKENS = 100
"""Tokens from which mirostat 1 estimates the exponent of the distribution."""


def ranked(row: F32, k: int) -> tuple[I32, F32]:
    """ids and logits of the k likeliest of a row of logits [V], by logit descending, then id.

    Banned tokens (-inf) are left out, but for the first token of a row that has nothing else.
    """
    if k < 1:
        return np.zeros(0, np.int32), row[:0]
    least = np.partition(row, len(row) - k)[len(row) - k] if k < len(row) else row.min()
    ids = np.flatnonzero(row >= least if least > -np.inf else row > least).astype(np.int32)
    if len(ids) == 0:
        return np.zeros(1, np.int32), row[:1]
    bits = (row[ids] + np.float32(0.0)).view(np.uint32)  # -0 and 0 are equal: both become 0
    keys = np.where(bits >> 31, bits, ~(bits | np.uint32(0x80000000))).astype(np.uint64)  # ascending: logits descend
    keys <<= np.uint64(32)
    keys |= np.arange(len(ids), dtype=np.uint64)
    keys.sort()
    ids = ids[(keys[:k] & np.uint64(0xFFFFFFFF)).astype(np.int64)]
    return ids, row[ids]


def within_sigma(row: F32, n: float) -> F32:
    """A copy of a row [V] in which what lies more than n standard deviations below the best is -inf.

    Mean and deviation are those of all logits but the banned ones, in order of their ids.
    """
    there = row > -np.inf
    x = row[there].astype(np.float64)
    if len(x) < 2:
        return row
    mean = x.cumsum()[-1] / len(x)
    deviation = np.sqrt(((x - mean) * (x - mean)).cumsum()[-1] / len(x))
    return np.where(row.astype(np.float64) >= x.max() - n * deviation, row, np.float32(-np.inf))


def rank_in_chain(p: ResolvedParams, logits: F32, u: float, xtc: float) -> int:
    """The rank chosen among logits in descending order (those after top-k), of which the first is not -inf.

    u: the draw in [0, 1); xtc: another, which decides whether XTC acts.
    """
    x = logits[: np.count_nonzero(logits > -np.inf)].astype(np.float64)
    x -= x[0]
    at = np.arange(len(x))  # ranks that are left
    e = exp64(np.maximum(x, LEAST))
    if p.typical_p < 1.0:
        at = _typical(x, e, p.typical_p)
    if p.top_p < 1.0:
        sums = e[at].cumsum()
        at = at[: int(sums.searchsorted(p.top_p * sums[-1], side="left")) + 1]
    if p.min_p > 0.0:
        at = at[: max(1, int(np.count_nonzero(e[at] >= p.min_p * e[at[0]])))]
    if xtc_on(p) and xtc < p.xtc_probability and len(at) > 1:
        sums = e[at].cumsum()
        at = at[max(0, int(np.count_nonzero(e[at] >= p.xtc_threshold * sums[-1])) - 1) :]
    if len(at) == 1:
        return int(at[0])
    x = x[at] - x[at[0]]
    temperature = p.temperature
    if p.dynatemp_range > 0.0:
        low, high = max(0.0, temperature - p.dynatemp_range), temperature + p.dynatemp_range
        temperature = low + (high - low) * pow64(min(1.0, _entropy(x)[0] / log64(len(x))), p.dynatemp_exponent)
    return int(at[0] if temperature == 0.0 else at[_draw(x, temperature, u)])


def xtc_on(p: ResolvedParams) -> bool:
    """Whether XTC may act: two tokens cannot both have more than half."""
    return p.xtc_probability > 0.0 and p.xtc_threshold <= 0.5


def mirostat(p: ResolvedParams, row: F32, mu: float, u: float) -> tuple[int, float]:
    """The token chosen from a row of logits [V], not all of them -inf, and the next mu (S. Basu et al., 2021)."""
    if p.mirostat == 1:
        ids, logits = ranked(row, len(row))
        x = _scaled(logits, logits[0], p.temperature)
        x = x[: _mirostat_k(x, len(row), mu)]
    else:
        x = _scaled(row, row.max(), p.temperature)
        surprise = (log64(float(exp64(x).cumsum()[-1])) - x) / LN2
        kept = np.flatnonzero(surprise <= mu)
        if len(kept) == 0:
            kept = np.array([row.argmax()])
        at, logits = ranked(row[kept], len(kept))
        ids = kept[at].astype(np.int32)
        x = _scaled(logits, logits[0], p.temperature)
    sums = exp64(x).cumsum()
    rank = min(int(sums.searchsorted(u * sums[-1], side="right")), len(x) - 1)
    seen = (log64(float(sums[-1])) - float(x[rank])) / LN2
    return int(ids[rank]), mu - p.mirostat_eta * (seen - p.mirostat_tau)


def _scaled(logits: F32, best: np.float32, temperature: float) -> F64:
    """(logits - best) / temperature, at least LEAST."""
    x = logits.astype(np.float64) - np.float64(best)
    scaled: F64 = np.maximum(x, LEAST * temperature) / temperature
    return scaled


def _mirostat_k(x: F64, n_vocab: int, mu: float) -> int:
    """How many of the likeliest keep the surprise at mu bits, if their probabilities follow a power law."""
    above = below = 0.0
    for i in range(min(MIROSTAT_TOKENS, len(x)) - 1):
        t = _LOG_RATIOS[i]
        above += t * float(x[i] - x[i + 1])
        below += t * t
    s = above / below if below else 0.0
    if s < 1e-6:  # all alike: the power law says nothing
        return len(x)
    more = s - 1.0
    size = 1.0 / log64(n_vocab) if more == 0.0 else more / (1.0 - pow64(float(n_vocab), -more))
    return max(1, int(min(pow64(size * exp_of(mu * LN2), 1.0 / s), float(len(x)))))


_LOG_RATIOS = [log64((i + 2) / (i + 1)) for i in range(MIROSTAT_TOKENS - 1)]


def _entropy(x: F64) -> tuple[float, F64]:
    """Entropy in nats of softmax(x), and minus the logarithms of the probabilities."""
    e = exp64(np.maximum(x, LEAST))
    total = float(e.cumsum()[-1])
    surprise = log64(total) - x
    return float((e / total * surprise).cumsum()[-1]), surprise


def _typical(x: F64, e: F64, typical_p: float) -> NDArray[np.int64]:
    """Ranks of the tokens whose surprise is nearest the entropy, until their probability exceeds typical_p."""
    entropy, surprise = _entropy(x)
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    sums = e[order].cumsum()
    n = int(sums.searchsorted(typical_p * e.cumsum()[-1], side="right")) + 1
    return np.sort(order[:n])


def _draw(x: F64, temperature: float, u: float) -> int:
    """The index that falls on u among x, which descends from 0."""
    sums = exp64(np.maximum(x, LEAST * temperature) / temperature).cumsum()
    return min(int(sums.searchsorted(u * sums[-1], side="right")), len(x) - 1)

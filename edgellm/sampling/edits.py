"""Edits of the logits before a choice: penalties, DRY, biases, bans. native/core/edits.c makes the same, but for DRY.

Each edit is (token, rep, add), as Adjust has them: the sums are float64 in a fixed order, rounded once to float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgellm.core.types import F32, Adjust, Edits, Pick

Edit = tuple[int, float, float]
NONE: Mapping[int, float] = {}


def edits_after(
    e: Edits, tokens: Sequence[int], n_generated: int, n_vocab: int, dry: Mapping[int, float] = NONE
) -> list[Edit]:
    """Edits for the token after `tokens`, of which n_generated are the answer's, by ascending token below n_vocab.

    dry: what DRY takes off each token.
    """
    edits: dict[int, tuple[float, float]] = {}
    if e.last_n:
        counts: dict[int, int] = {}
        for token in tokens if e.last_n < 0 else tokens[-e.last_n :]:
            counts[token] = counts.get(token, 0) + 1
        for token, n in counts.items():
            edits[token] = (e.repeat_penalty, -(n * e.frequency_penalty + e.presence_penalty))
    for token, penalty in dry.items():
        rep, add = edits.get(token, (1.0, 0.0))
        edits[token] = (rep, add - penalty)
    for token, bias in e.bias.items():
        rep, add = edits.get(token, (1.0, 0.0))
        edits[token] = (rep, add + bias)
    if n_generated < e.min_tokens:
        for token in e.ends:
            rep, add = edits.get(token, (1.0, 0.0))
            edits[token] = (rep, add + -np.inf)
    return [(token, *edits[token]) for token in sorted(edits) if token < n_vocab]


def adjust(edits: Sequence[tuple[int, int, float, float]]) -> Adjust | None:
    """Edits with their rows, (row, token, rep, add), as a batch takes them."""
    if not edits:
        return None
    rows, tokens, reps, adds = zip(*edits, strict=True)
    return Adjust(
        np.array(rows, np.int32), np.array(tokens, np.int32), np.array(reps, np.float32), np.array(adds, np.float32)
    )


def adjust_for(picks: Sequence[Pick], chosen: Sequence[Sequence[int]], n_vocab: int) -> Adjust | None:
    """The edits of the next step of a run: row s is sequence s, for which `chosen[s]` were chosen so far."""
    edits = []
    for row, (pick, more) in enumerate(zip(picks, chosen, strict=True)):
        e = pick.edits
        if e is not None:
            edits += [(row, *x) for x in edits_after(e, [*e.tokens, *more], pick.n_generated + len(more), n_vocab)]
    return adjust(edits)


def edited(row: F32, edits: Sequence[Edit]) -> F32:
    """A copy of a row of logits [V] with the edits made, in float32 as a backend makes them."""
    row = row.copy()
    if edits:
        tokens, reps, adds = zip(*edits, strict=True)
        at, rep, add = np.array(tokens), np.array(reps, np.float32), np.array(adds, np.float32)
        x = row[at]
        with np.errstate(over="ignore"):
            row[at] = np.where(x > 0, x / rep, x * rep) + add
    return row

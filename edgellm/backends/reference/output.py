"""From logits to a StepOutput: edits, candidates, log of the sum of exponentials."""

from __future__ import annotations

import numpy as np

from edgellm.core.types import F32, I32, Adjust, Batch, StepOutput


def step_output(batch: Batch, logits: F32, status: I32, hidden: F32 | None = None) -> StepOutput:
    """What the batch asked for. logits [R, V] are edited in place; rows of failed sequences mean nothing."""
    if batch.adjust is not None:
        adjust(logits, batch.adjust)
    ids, values = top_k(logits, batch.top_k)
    return StepOutput(
        top_ids=ids,
        top_logits=values,
        status=status,
        lse=log_sum_exp(logits) if batch.want_lse else None,
        logits=logits if batch.want_logits else None,
        hidden=hidden,
    )


def adjust(logits: F32, edits: Adjust) -> None:
    """Apply sparse edits, one after the other, in place."""
    for row, token, rep, add in zip(edits.row, edits.token, edits.rep, edits.add, strict=True):
        x = logits[row, token]
        logits[row, token] = (x / rep if x > 0 else x * rep) + add


def top_k(logits: F32, k: int) -> tuple[I32, F32]:
    """ids and logits [R, k] of the largest, in descending order, equal ones by lower id."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
    return np.ascontiguousarray(ids), np.ascontiguousarray(np.take_along_axis(logits, ids, axis=1))


def log_sum_exp(logits: F32) -> F32:
    """log(sum(exp(row))) of every row."""
    top = logits.max(axis=1)
    total = np.exp(logits.astype(np.float64) - top[:, None]).sum(axis=1)
    out: F32 = (top + np.log(total)).astype(np.float32)
    return out

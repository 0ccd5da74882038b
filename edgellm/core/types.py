"""Value types shared by the layers: what one step computes (Batch) and what it returns (StepOutput).

Frozen contract. Shape letters: T tokens in the batch, S sequences, R output rows, V vocabulary,
C cache classes of the plan. All integer arrays are C-contiguous int32, all float arrays float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgellm.core.record import dataclass, field

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]

PAGE_TOKENS = 32
"""Tokens in one page of the KV cache."""

NO_PAGE = -1
"""Block-table entry of a page that is not resident (it left the sliding window)."""


@dataclass(frozen=True, slots=True)
class Adjust:
    """Sparse edits of the logits, applied before selection, in the given order.

    For entry i: ``l = logits[row[i], token[i]]``; ``l = l / rep[i] if l > 0 else l * rep[i]``; ``l = l + add[i]``.
    Presence and frequency penalties and logit bias are folded into ``add``; a banned token has ``add = -inf``.

    row: [N] output row, ascending.  token: [N] token id.  rep: [N] 1.0 for none.  add: [N] 0.0 for none.
    """

    row: I32
    token: I32
    rep: F32
    add: F32


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes: the new tokens of S sequences, back to back.

    tokens:    [T] token ids.
    positions: [T] absolute position of each token; consecutive within a sequence.
    seq_start: [S+1] sequence s owns rows seq_start[s] .. seq_start[s+1]-1 (at least one).
    pages:     one block table per cache class: [S, P_c]; entry j holds positions 32*j .. 32*j+31. Every page that
               the step reads or writes is resident; other entries may be NO_PAGE. A recurrent-state class has
               P_c = 1 and holds the sequence's state slot; the state starts from zero where positions begin at 0.
    rows:      [R] token rows, ascending, whose logits are wanted.
    top_k:     candidates wanted per output row (0: none, at most MAX_TOP_K).
    want_logits: also return the (adjusted) logits.
    want_hidden: also return the final hidden states.
    want_lse:  also return log(sum(exp(logits))) per output row.
    adjust:    sparse edits, or None.
    """

    tokens: I32
    positions: I32
    seq_start: I32
    pages: tuple[I32, ...]
    rows: I32
    top_k: int = 1
    want_logits: bool = False
    want_lse: bool = False
    adjust: Adjust | None = None
    want_hidden: bool = False


MAX_TOP_K = 1024
"""Largest Batch.top_k."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step returns. Arrays belong to the caller; nothing aliases the executable's memory.

    top_ids, top_logits: [R, top_k], by logit descending, equal logits by lower id.
    lse:    [R] or None.     logits: [R, V] or None.
    hidden: [R, D] or None: what the model's last matrix multiplies, after the final norm.
    status: [S] 0 = fine, 1 = a non-finite value appeared: that sequence's rows mean nothing.
    """

    top_ids: I32
    top_logits: F32
    status: I32
    lse: F32 | None = None
    logits: F32 | None = None
    hidden: F32 | None = None


@dataclass(slots=True, eq=False)
class Edits:
    """How one sequence's logits are edited before each choice; edgellm.sampling.edits makes Adjust entries of it.

    tokens: prompt and answer so far: the engine's own list, which grows.
    repeat_penalty, presence_penalty, frequency_penalty: of the tokens among the last `last_n` (0 none, -1 all).
    bias: token -> what is added, by ascending token.
    ends: tokens, ascending, that are banned while fewer than min_tokens were generated.
    kept: what a backend remembers of it from run to run.
    """

    tokens: list[int]
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    last_n: int = 0
    bias: dict[int, float] = field(default_factory=dict)
    ends: tuple[int, ...] = ()
    min_tokens: int = 0
    kept: Any = None


class Pick(NamedTuple):
    """How one sequence's next token is chosen among its `top_k` likeliest; SamplingParams has the meanings.

    n_generated: tokens of this sequence chosen so far: with seed and choice it numbers the draw.
    edits: what is done to its logits before, or None.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int
    n_generated: int
    edits: Edits | None = None


class Scored(NamedTuple):
    """A token, its log-probability, and the likeliest tokens in its place with theirs.

    Natural logarithms of the model's own distribution, before any edit, filter or temperature.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class RunOutput:
    """What a run of several decode steps returns.

    tokens: for each of S sequences the tokens chosen in its n >= 1 steps, -1 where every token is banned.
    status: [S] as in StepOutput, after the last.
    Lists, since they are few numbers that only Python reads.
    """

    tokens: list[list[int]]
    status: list[int]

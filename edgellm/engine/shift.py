"""Going on when the context is full, for requests that ask for it: the oldest tokens are forgotten.

    before   | first 4 | n tokens to forget | as many, or one more |    n_ctx tokens
    after    | first 4 | as many, or one more |                         at positions 0, 1, ...

What is left is computed again at its new positions: the same bits as for a prompt of these tokens. Random draws are
counted on; what samplers learnt from earlier tokens (mirostat) begins anew.
"""

from __future__ import annotations

from edgellm.engine import scheduler
from edgellm.engine.request import Sequence
from edgellm.engine.scheduler import State
from edgellm.sampling.sampler import Sampler

FIRST = 4
"""Tokens at the beginning that stay: models attend to the first ones whatever they are."""


def may_go_on(seq: Sequence) -> bool:
    """Whether a sequence that has filled its context wants to go on, and would forget something."""
    most = seq.request.params.max_tokens
    return (
        seq.request.params.context_shift
        and most is not None
        and seq.n_generated < most
        and len(seq.tokens) - FIRST >= 2
    )


def shift(state: State, seq: Sequence, n_ctx: int, sampler: Sampler) -> None:
    """Forget the older half of a running sequence's tokens; what stays is prefilled by the next steps."""
    if seq.finish_reason is not None:
        return
    scheduler.settle(state, seq, whole=True)
    scheduler.put_back(seq)
    seq.past += seq.tokens[seq.n_prompt :]
    n = (len(seq.tokens) - FIRST) // 2
    seq.tokens = [*seq.tokens[:FIRST], *seq.tokens[FIRST + n :]]
    seq.n_prompt, seq.forgotten, seq.sampler = len(seq.tokens), seq.forgotten + n, sampler
    most = seq.request.params.max_tokens or 0
    seq.max_tokens = min(most, seq.n_generated + n_ctx - len(seq.tokens))

"""Log-probabilities on their way from a step to a request: those of a prompt, and the news of an answer."""

from __future__ import annotations

from edgellm.core.types import Scored, StepOutput
from edgellm.engine.request import Sequence
from edgellm.engine.scheduler import Piece
from edgellm.sampling.sampler import scored


def score_prompt(piece: Piece, out: StepOutput, row: int) -> None:
    """Record the log-probabilities of the prompt's tokens after a piece's output rows, the first of which is `row`."""
    seq, start, count, n_rows = piece
    known = seq.request.prompt_logprobs
    wanted = seq.request.params.prompt_logprobs or 0
    for i in range(n_rows):
        position = start + count - n_rows + i
        if position + 1 == len(known) + seq.request.scored_from < seq.n_prompt:
            known.append(scored(seq.tokens[position + 1], out, row + i, wanted))


def news_of(seq: Sequence, tokens: list[int]) -> list[Scored] | None:
    """The log-probabilities of the last tokens, where they are wanted."""
    if seq.request.params.logprobs is None:
        return None
    return seq.logprobs[len(seq.logprobs) - len(tokens) :]

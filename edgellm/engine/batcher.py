"""From scheduled pieces to the flat arrays of a Batch; buffers are reused from step to step."""

from __future__ import annotations

import numpy as np

from edgellm.core.types import Batch
from edgellm.engine.request import Sequence
from edgellm.engine.scheduler import Budget, Piece
from edgellm.kvcache.table import Ledger
from edgellm.sampling.edits import adjust


class PieceError(Exception):
    """Something failed for one piece of a batch that was to be built: `cause`."""

    def __init__(self, piece: Piece, cause: Exception) -> None:
        super().__init__(cause)
        self.piece, self.cause = piece, cause


class Batcher:
    """Builds one Batch a step. The Batch is valid until the next `build`."""

    def __init__(self, budget: Budget, ledger: Ledger, n_vocab: int) -> None:
        self._tokens = np.zeros(budget.tokens, np.int32)
        self._positions = np.zeros(budget.tokens, np.int32)
        self._starts = np.zeros(budget.seqs + 1, np.int32)
        self._rows = np.zeros(max(budget.rows, 1), np.int32)
        self._pages = tuple(np.zeros((budget.seqs, w), np.int32) for w in ledger.widths)
        self._n_vocab = n_vocab
        self._one = np.zeros(2, np.int32)
        self._one[1] = 1
        self._row0 = np.zeros(1, np.int32)

    def advance(self, seqs: list[Sequence]) -> None:
        """Turn the Batch of the last `build`, a decode step of these sequences, into that of their next one."""
        for s, seq in enumerate(seqs):
            self._tokens[s] = seq.tokens[-1]
            self._positions[s] = seq.n_cached

    def build(self, pieces: list[Piece], edit: bool = True) -> Batch:
        """Lay the pieces out back to back; output rows are in the order of the pieces. Raises PieceError.

        edit=False: without edits of the logits, which follow the picks of a run of several steps.
        """
        if len(pieces) == 1 and pieces[0].count == 1 and pieces[0].rows == 1:
            seq, start, _, _ = pieces[0]
            self._tokens[0] = seq.tokens[start]
            self._positions[0] = start
            tokens, positions, starts, rows = self._tokens[:1], self._positions[:1], self._one, self._row0
            pages = tuple([a[None, :] for a in seq.tables.arrays])
        else:
            t = r = 0
            for s, (seq, start, count, n_rows) in enumerate(pieces):
                self._starts[s] = t
                if count == 1:
                    self._tokens[t] = seq.tokens[start]
                    self._positions[t] = start
                else:
                    new = seq.tokens[start:] + seq.draft if seq.draft else seq.tokens[start : start + count]
                    self._tokens[t : t + count] = new
                    self._positions[t : t + count] = np.arange(start, start + count, dtype=np.int32)
                t += count
                for i in range(n_rows):
                    self._rows[r + i] = t - n_rows + i
                r += n_rows
                for out, array in zip(self._pages, seq.tables.arrays, strict=True):
                    out[s] = array
            n = len(pieces)
            self._starts[n] = t
            tokens, positions, starts = self._tokens[:t], self._positions[:t], self._starts[: n + 1]
            rows, pages = self._rows[:r], tuple([p[:n] for p in self._pages])
        top_k, want_logits, want_lse, want_hidden, edits = 0, False, False, False, []
        row = 0
        for piece in pieces:
            seq, _, _, n_rows = piece
            if seq.request.logit_rows is not None:
                if seq.request.pool is None:
                    want_logits = want_logits or n_rows > 0
                else:
                    want_hidden = want_hidden or n_rows > 0
            elif n_rows:
                sampler = seq.sampler
                want_logits = want_logits or sampler.needs_logits
                want_lse = want_lse or sampler.needs_lse
                if sampler.top_k > top_k:
                    top_k = sampler.top_k
                if seq.draft:  # a row for each of them, after what came before it
                    if edit and sampler.adjusts:
                        edits += self._draft_edits(piece, row)
                    row += n_rows
                    continue
                if n_rows > 1 or piece.start + piece.count < len(seq.tokens):  # rows of the prompt, to be scored
                    want_logits = want_lse = True
                    top_k = max(top_k, min(seq.request.params.prompt_logprobs or 0, self._n_vocab))
                if edit and sampler.adjusts and piece.start + piece.count == len(seq.tokens):
                    last = row + n_rows - 1
                    try:
                        history, n = seq.tokens, seq.n_generated
                        edits += [(last, *e) for e in sampler.adjustments(history, self._n_vocab, n)]
                    except Exception as e:
                        raise PieceError(piece, e) from e
            row += n_rows
        return Batch(tokens, positions, starts, pages, rows, top_k, want_logits, want_lse, adjust(edits), want_hidden)

    def _draft_edits(self, piece: Piece, row: int) -> list[tuple[int, int, float, float]]:
        """The edits of a piece with guesses, whose first output row is `row`. Raises PieceError."""
        seq = piece.seq
        edits: list[tuple[int, int, float, float]] = []
        try:
            for i in range(piece.rows):
                history = seq.tokens + seq.draft[:i]
                edits += [(row + i, *e) for e in seq.sampler.adjustments(history, self._n_vocab, seq.n_generated + i)]
        except Exception as e:
            raise PieceError(piece, e) from e
        return edits

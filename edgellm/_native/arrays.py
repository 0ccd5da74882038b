"""The C arrays of a step: a batch is copied in, and small results out: less than half the time of new pointers."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgellm._native.library import ffi
from edgellm.core.types import F32, I32, MAX_TOP_K, Adjust, Batch, StepOutput

_I32 = np.dtype(np.int32)
_F32 = np.dtype(np.float32)
_memmove = ffi.memmove


class EditArrays:
    """C arrays for `room` edits of logits."""

    __slots__ = ("add", "rep", "room", "row", "token")

    def __init__(self, room: int) -> None:
        self.room = room
        self.row, self.token = ffi.new("int32_t[]", room), ffi.new("int32_t[]", room)
        self.rep, self.add = ffi.new("float[]", room), ffi.new("float[]", room)


class StepArrays:
    """An el_batch and an el_output with the memory behind them. batch, out, status: C.

    limits: most tokens, sequences and rows of a step. n_hidden: columns of a hidden state, 0 where there are none.
    """

    __slots__ = (
        "_edits", "_keep", "_limits", "_n_classes", "_n_hidden", "_n_vocab", "_page_tables", "_pages", "_positions",
        "_rows", "_seq_start", "_strides", "_tokens", "_top_ids", "_top_logits", "batch", "out", "status",
    )  # fmt: skip

    def __init__(self, limits: tuple[int, int, int], n_classes: int, n_vocab: int, n_hidden: int) -> None:
        max_tokens, max_seqs, max_rows = limits
        self._limits, self._n_classes, self._n_vocab, self._n_hidden = limits, n_classes, n_vocab, n_hidden
        self._tokens, self._positions, self._rows, self.status = (
            ffi.new("int32_t[]", n) for n in (max_tokens, max_tokens, max_rows, max_seqs)
        )
        self._seq_start = ffi.new("int32_t[]", max_seqs + 1)
        self._strides = ffi.new("int32_t[]", max(1, n_classes))
        self._page_tables: list[Any] = [ffi.new("int32_t[]", 1) for _ in range(n_classes)]
        self._pages = ffi.new("int32_t *[]", self._page_tables or 1)
        self._edits = EditArrays(1)
        self._top_ids, self._top_logits = ffi.new("int32_t[]", 1), ffi.new("float[]", 1)
        self._keep: list[Any] = []
        self.batch = b = ffi.new("el_batch *")
        b.size = ffi.sizeof("el_batch")
        b.tokens, b.positions, b.rows = self._tokens, self._positions, self._rows
        b.seq_start, b.pages, b.page_stride = self._seq_start, self._pages, self._strides
        self.out = ffi.new("el_output *")
        self.out.status = self.status

    def copy(self, batch: Batch) -> tuple[int, int]:
        """Put the batch in, and have room for its candidates; the numbers of sequences and of rows. ValueError."""
        b, top_k = self.batch, batch.top_k
        n_tokens, n_seqs, n_rows = len(batch.tokens), len(batch.seq_start) - 1, len(batch.rows)
        max_tokens, max_seqs, max_rows = self._limits
        if n_tokens > max_tokens or n_rows > max_rows or not 1 <= n_seqs <= max_seqs or not 0 <= top_k <= MAX_TOP_K:
            raise ValueError(
                f"batch has {n_tokens} tokens, {n_seqs} sequences, {n_rows} rows, top_k {top_k}; expected at most "
                f"{max_tokens}, {max_seqs} (at least 1), {max_rows}, {MAX_TOP_K}"
            )
        b.n_tokens, b.n_seqs, b.n_rows, b.top_k = n_tokens, n_seqs, n_rows, top_k
        copy_in(self._tokens, batch.tokens, n_tokens, "tokens")
        copy_in(self._positions, batch.positions, n_tokens, "positions")
        copy_in(self._seq_start, batch.seq_start, n_seqs + 1, "seq_start")
        copy_in(self._rows, batch.rows, n_rows, "rows")
        self._copy_pages(batch.pages, n_seqs)
        b.n_adjust = 0
        if batch.adjust is not None:
            self._copy_edits(batch.adjust)
        out, n_top = self.out, n_rows * top_k
        if n_top > len(self._top_ids):
            self._top_ids, self._top_logits = ffi.new("int32_t[]", n_top), ffi.new("float[]", n_top)
        out.top_ids, out.top_logits, out.lse, out.logits = self._top_ids, self._top_logits, ffi.NULL, ffi.NULL
        out.hidden = ffi.NULL
        return n_seqs, n_rows

    def result_for(self, batch: Batch) -> StepOutput:
        """Put the batch in; where its results go, large ones without a copy. Complete after `fill`. ValueError."""
        n_seqs, n_rows = self.copy(batch)
        result = StepOutput(
            top_ids=np.empty((n_rows, batch.top_k), _I32),
            top_logits=np.empty((n_rows, batch.top_k), _F32),
            status=np.empty(n_seqs, _I32),
            lse=np.empty(n_rows, _F32) if batch.want_lse else None,
            logits=np.empty((n_rows, self._n_vocab), _F32) if batch.want_logits else None,
            hidden=np.empty((n_rows, self._n_hidden), _F32) if batch.want_hidden else None,
        )
        self._keep = []
        for field, array in (("lse", result.lse), ("logits", result.logits), ("hidden", result.hidden)):
            if array is not None and n_rows:
                data = ffi.from_buffer("float[]", array)
                setattr(self.out, field, data)
                self._keep.append(data)
        return result

    def fill(self, result: StepOutput) -> StepOutput:
        """The same result, complete."""
        _memmove(result.status, self.status, 4 * len(result.status))
        n_top = result.top_ids.size
        if n_top:
            _memmove(result.top_ids, self._top_ids, 4 * n_top)
            _memmove(result.top_logits, self._top_logits, 4 * n_top)
        return result

    def _copy_pages(self, tables: tuple[I32, ...], n_seqs: int) -> None:
        if len(tables) != self._n_classes:
            raise ValueError(f"batch.pages has {len(tables)} block tables, expected {self._n_classes}")
        for c, table in enumerate(tables):
            shape = table.shape
            if len(shape) != 2 or shape[0] != n_seqs:
                raise ValueError(f"batch.pages[{c}] has shape {shape}, expected ({n_seqs}, pages)")
            n = shape[0] * shape[1]
            if n > len(self._page_tables[c]):
                self._page_tables[c] = self._pages[c] = ffi.new("int32_t[]", 2 * n)
            copy_in(self._page_tables[c], table, n, "pages")
            self._strides[c] = shape[1]

    def _copy_edits(self, edits: Adjust) -> None:
        n = len(edits.row)
        if n > self._edits.room:
            self._edits = EditArrays(2 * n)
        e, b = self._edits, self.batch
        copy_in(e.row, edits.row, n, "adjust.row")
        copy_in(e.token, edits.token, n, "adjust.token")
        copy_in(e.rep, edits.rep, n, "adjust.rep", _F32)
        copy_in(e.add, edits.add, n, "adjust.add", _F32)
        b.adj_row, b.adj_token, b.adj_rep, b.adj_add, b.n_adjust = e.row, e.token, e.rep, e.add, n


def copy_in(to: Any, array: I32 | F32, n: int, name: str, dtype: np.dtype[Any] = _I32) -> None:
    """Copy n entries into a C array. Raises ValueError for another type, number, or an array with gaps."""
    if array.dtype != dtype or array.size != n:
        raise ValueError(f"batch.{name} is {array.dtype}{list(array.shape)}, expected {dtype} with {n} entries")
    _memmove(to, array, 4 * n)

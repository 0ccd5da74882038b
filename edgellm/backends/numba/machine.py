"""What the calls of a program work on: buffers, caches, scratch, and the numbers of a step that calls depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.backends.base import BackendConfig
from edgellm.backends.lower import A16, CODES, VECTOR_BASE, Program
from edgellm.backends.numba import attention, kv, matmul
from edgellm.backends.numba.calls import Rooms, Var
from edgellm.backends.numba.pack import Panels
from edgellm.backends.numba.team import Team
from edgellm.core.record import dataclass
from edgellm.core.types import F32, PAGE_TOKENS, Batch
from edgellm.gguf.qtypes import QType
from edgellm.gguf.values import Bytes
from edgellm.models.plan import CacheLayer, Plan
from edgellm.models.rope import RopeCache

Array = NDArray[Any]

NO_FLOATS = np.empty(0, np.float32)
NOWHERE = np.zeros(0, np.int64)
TOKENS, ROWS = 0, 1
ONE_CHUNK = 1 << 17
"""Products of a matmul and a column that are worth a chunk."""
CHUNKS_PER_THREAD = 8
MAX_ROW_CHUNKS = 8
"""Threads that share what is done row by row."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of an embedding, in the file's bytes [V, row bytes]."""

    data: Bytes
    qtype: QType
    n_cols: int


@dataclass(frozen=True, slots=True)
class Place:
    """A view of a buffer: row t begins at start + t * stride of the flat `array`. axis: TOKENS or ROWS."""

    array: Array
    start: int
    stride: int
    width: int
    axis: int

    @property
    def address(self) -> tuple[Array, int, int]:
        """What kernels take."""
        return self.array, self.start, self.stride


class Layer:
    """K and V of one layer of a cache class."""

    def __init__(self, spec: CacheLayer, n_pages: int, config: BackendConfig) -> None:
        self.spec = spec
        self.kinds = (kv.KINDS[config.k_type], kv.KINDS[config.v_type])
        self.sizes = (_head_size(config.k_type, spec.k_dim), _head_size(config.v_type, spec.v_dim))
        self.arrays: list[Array | None] = []  # K, its scales, V, its scales
        for kind, size, dim in ((config.k_type, self.sizes[0], spec.k_dim), (config.v_type, self.sizes[1], spec.v_dim)):
            heads = n_pages * spec.heads
            scales = np.zeros(heads * kv.squares(dim) * PAGE_TOKENS, np.int16) if _has_scales(kind) else None
            # A vector may read past the end.
            self.arrays += [np.zeros(heads * size + 64, kv.DTYPES[kind]), scales]

    def copy(self, src: int, dst: int) -> None:
        """Page dst becomes a copy of page src."""
        for i, array in enumerate(self.arrays):
            if array is not None:
                dim = self.spec.v_dim if i // 2 else self.spec.k_dim
                n = self.spec.heads * (kv.squares(dim) * PAGE_TOKENS if i % 2 else self.sizes[i // 2])
                array[dst * n : (dst + 1) * n] = array[src * n : (src + 1) * n]


def _has_scales(kind: str) -> bool:
    return kind in ("q8_0", "q4_0")


def _head_size(kind: str, dim: int) -> int:
    return (kv.squares(dim) * PAGE_TOKENS if _has_scales(kind) else dim) * PAGE_TOKENS


class Values:
    """The numbers of a step that calls depend on. now: what a Var means; the other arrays lie where they lie.

    positions, bad[TOKENS] [T], rows, bad[ROWS] [R]; spans[axis] = [0, rows of this axis]. Of each cache class: tables,
    the block tables [S, table_width], and pages, the page of each token.
    """

    def __init__(self, plan: Plan, config: BackendConfig, n_threads: int) -> None:
        n = (config.max_tokens, config.max_rows)
        self.n_chunks = n_chunks = min(n_threads, MAX_ROW_CHUNKS)
        self.n_unit_chunks = 1 if n_threads == 1 else 2 * n_threads
        self.table_width = -(-config.n_ctx // PAGE_TOKENS)
        self.now: list[int] = [0] * (2 + 4 * n_chunks)
        self.positions, self.rows = np.zeros(n[0], np.int32), np.zeros(n[1], np.int32)
        self.bad = np.zeros(n[0], np.int8), np.zeros(n[1], np.int8)
        self.spans = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self.tables = [np.zeros(config.max_seqs * self.table_width, np.int32) for _ in plan.caches]
        self.pages = [np.zeros(n[0], np.int32) for _ in plan.caches]
        self._units: dict[tuple[int, int], tuple[Array, int]] = {}
        self._n = n[0], config.max_seqs

    def n(self, axis: int) -> Var:
        """How many rows an axis has."""
        return Var(axis)

    def share(self, axis: int, chunk: int) -> tuple[Var, Var]:
        """The first row of a chunk's share of an axis, and the row after its last."""
        at = 2 + 2 * (axis * self.n_chunks + chunk)
        return Var(at), Var(at + 1)

    def units(self, heads: int, group: int) -> tuple[Array, list[tuple[Var, Var]]]:
        """Units of attention (attention.attend) with `heads` kv heads, and each chunk's first and last."""
        if (heads, group) not in self._units:
            n_tokens, n_seqs = self._n
            most = heads * (n_seqs + n_tokens * group // attention.UNIT_ROWS)
            self._units[heads, group] = np.zeros(6 * most, np.int64), len(self.now)
            self.now += [0] * (self.n_unit_chunks + 1)
        array, at = self._units[heads, group]
        return array, [(Var(at + i), Var(at + i + 1)) for i in range(self.n_unit_chunks)]

    def set(self, batch: Batch) -> Array:
        """Take them from a batch; `now` as an array."""
        n_tokens, n_rows = n = len(batch.tokens), len(batch.rows)
        self.positions[:n_tokens], self.rows[:n_rows] = batch.positions, batch.rows
        for axis in (TOKENS, ROWS):
            self.now[axis] = self.spans[axis][1] = n[axis]
            self.bad[axis][: n[axis]] = 0
            for c in range(self.n_chunks):
                at, rounding = 2 + 2 * (axis * self.n_chunks + c), self.n_chunks - 1
                self.now[at] = (n[axis] * c + rounding) // self.n_chunks
                self.now[at + 1] = (n[axis] * (c + 1) + rounding) // self.n_chunks
        lengths = np.diff(batch.seq_start)
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        for c, table in enumerate(batch.pages):
            width = min(table.shape[1], self.table_width)
            self.tables[c].reshape(-1, self.table_width)[: len(lengths), :width] = table[:, :width]
            self.pages[c][:n_tokens] = table[sequence, batch.positions // PAGE_TOKENS]
        for (heads, group), (array, at) in self._units.items():
            units = _units(batch, heads, group)
            array[: 6 * len(units)] = np.array(units, np.int64).reshape(-1)
            m = self.n_unit_chunks
            self.now[at : at + m + 1] = [len(units) * i // m for i in range(m + 1)]
        return np.array(self.now, np.int64)


def _units(batch: Batch, heads: int, group: int) -> list[tuple[int, ...]]:
    units: list[tuple[int, ...]] = []
    ends = batch.seq_start.tolist()
    for s, start in enumerate(ends[:-1]):
        last, n_rows = int(batch.positions[ends[s + 1] - 1]), (ends[s + 1] - start) * group
        for row in range(0, n_rows, attention.UNIT_ROWS):
            n = min(attention.UNIT_ROWS, n_rows - row)
            units += [(s, start, last, g, row, n) for g in range(heads)]
    return units


class Machine:
    """Everything a program's calls work on."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        config: BackendConfig,
        panels: dict[int, Panels],
        tables: dict[int, Table],
        vectors: list[F32],
        ropes: list[RopeCache],
        team: Team,
    ) -> None:
        self.team, self.panels, self.tables, self.ropes = team, panels, tables, ropes
        self.vectors = [np.ascontiguousarray(v).reshape(-1) for v in vectors]
        self.n_rows = (config.max_tokens, config.max_rows)
        self._axes = ["TR".index(b.axis) for b in program.buffers]
        self._widths = [b.width for b in program.buffers]
        self.buffers: list[Array] = [
            np.zeros(self.n_rows[axis] * b.width, np.int32 if b.dtype == "i32" else np.float32)
            for axis, b in zip(self._axes, program.buffers, strict=True)
        ]
        self.layers = [
            [Layer(x, n_pages, config) for x in c.layers]
            for c, n_pages in zip(plan.caches, config.n_pages, strict=True)
        ]
        self.values = Values(plan, config, team.n)
        k_dim = max((x.k_dim for c in plan.caches for x in c.layers), default=0)
        v_dim = max((x.v_dim for c in plan.caches for x in c.layers), default=0)
        floats = attention.plane_floats(k_dim), attention.plane_floats(v_dim)
        self._rooms = Rooms()
        self.sums = self._rooms.reserve(np.float32, 16 * matmul.COLUMNS)
        self.planes = tuple(self._rooms.reserve(t, n) for t in (np.float32, np.int16) for n in floats)
        self.rooms = [np.zeros(self._rooms.n_bytes, np.uint8) for _ in range(team.n)]
        self._slots: dict[int, tuple[Array, ...]] = {}
        self._slot_sizes = self._sizes_of_slots(program)
        self._columns: dict[tuple[int, int, int], Array] = {}
        self._scratch: dict[tuple[str, Any], Array] = {}

    def _sizes_of_slots(self, program: Program) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for r in program.ops:
            if r["code"] == CODES["QUANTIZE"]:
                n = self.n_rows[self._axes[r["v"][0][0]]] * int(r["v"][0][2])
                sizes[int(r["i"][1])] = max(sizes.get(int(r["i"][1]), 0), n)
        return sizes

    def slot(self, fmt: int) -> tuple[Array, ...]:
        """q, d and sums of an activation format (kernels.h), for the largest input."""
        if fmt not in self._slots:
            n = self._slot_sizes[fmt]
            sums = np.zeros(n // 32, np.float32) if fmt == A16 else np.zeros(n // 16, np.int16)
            self._slots[fmt] = (np.zeros(n, np.int16), np.zeros(n // (16 if fmt == A16 else 256), np.float32), sums)
        return self._slots[fmt]

    def place(self, view: Any) -> Place | None:
        """A record's view; None where there is none."""
        buf, start, width = (int(x) for x in view)
        if buf < 0:
            return None
        return Place(self.buffers[buf], start, self._widths[buf], width, self._axes[buf])

    def vector(self, w: int) -> F32:
        """A float32 weight; empty where there is none."""
        return NO_FLOATS if w < 0 else self.vectors[w - VECTOR_BASE]

    def columns(self, start: int, stride: int, axis: int) -> Array:
        """Where each row of a view begins."""
        key = start, stride, axis
        if key not in self._columns:
            self._columns[key] = start + np.arange(self.n_rows[axis], dtype=np.int64) * stride
        return self._columns[key]

    def scratch(self, name: str, length: int, dtype: Any) -> Array:
        """An array for use within one op."""
        key = f"{name} {length}", dtype
        if key not in self._scratch:
            self._scratch[key] = np.zeros(length, dtype)
        return self._scratch[key]

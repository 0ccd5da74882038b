"""A lowered program as a list of calls of kernels: what native/core does with the records of a plan, in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.backends.base import BackendConfig
from edgellm.backends.lower import A16, CODES, FLOAT, VECTOR_BASE, Program
from edgellm.backends.numba import attention, kv, matmul, rows
from edgellm.backends.numba.pack import Panels
from edgellm.backends.numba.team import Team
from edgellm.core.record import dataclass, field
from edgellm.core.types import F32, I32, PAGE_TOKENS, Batch
from edgellm.gguf.dequantize import dequantize
from edgellm.gguf.qtypes import QType
from edgellm.gguf.values import Bytes
from edgellm.models.plan import CacheLayer, Plan
from edgellm.models.rope import RopeCache

Array = NDArray[Any]
Op = Callable[["Step"], None]

NO_FLOATS = np.empty(0, np.float32)
NOWHERE = np.zeros(matmul.COLUMNS, np.int64)
TOKENS, ROWS = 0, 1
FEW_PRODUCTS = 1 << 20
"""Fewer products are not worth a second thread: handing over takes as long as a million of them."""
HIDING_ACTS = (4, 5, 6, 7)
"""Activations that could make an ordinary number of an inf or nan."""


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


@dataclass(slots=True)
class Step:
    """A batch in progress. n: rows of each axis. bad: rows of each axis that hold a value which is not finite."""

    batch: Batch
    n: tuple[int, int]
    bad: tuple[Array, Array]
    pages: list[Array] = field(default_factory=list)
    units: dict[tuple[int, int], tuple[Array, list[int]]] = field(default_factory=dict)


class Layer:
    """K and V of one layer of a cache class."""

    def __init__(self, spec: CacheLayer, n_pages: int, config: BackendConfig) -> None:
        self.spec = spec
        self.kinds = (kv.KINDS[config.k_type], kv.KINDS[config.v_type])
        self.sizes = (_head_size(config.k_type, spec.k_dim), _head_size(config.v_type, spec.v_dim))
        self.arrays: list[Array] = []
        for kind, size, dim in ((config.k_type, self.sizes[0], spec.k_dim), (config.v_type, self.sizes[1], spec.v_dim)):
            heads = n_pages * spec.heads
            n_scales = heads * kv.squares(dim) * PAGE_TOKENS if _has_scales(kind) else 0
            # A vector may read past the end.
            self.arrays += [np.zeros(heads * size + 64, kv.DTYPES[kind]), np.zeros(n_scales, np.int16)]

    def copy(self, src: int, dst: int) -> None:
        """Page dst becomes a copy of page src."""
        for i, array in enumerate(self.arrays):
            size = self.sizes[i // 2]
            if i % 2:
                size = kv.squares(self.spec.k_dim if i == 1 else self.spec.v_dim) * PAGE_TOKENS if len(array) else 0
            n = self.spec.heads * size
            array[dst * n : (dst + 1) * n] = array[src * n : (src + 1) * n]


def _has_scales(kind: str) -> bool:
    return kind in ("q8_0", "q4_0")


def _head_size(kind: str, dim: int) -> int:
    return (kv.squares(dim) * PAGE_TOKENS if _has_scales(kind) else dim) * PAGE_TOKENS


class Machine:
    """Everything a program's calls use, and the calls: `ops`, in order."""

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
        self.team, self.panels, self.tables, self.vectors, self.ropes = team, panels, tables, vectors, ropes
        n_rows = (config.max_tokens, config.max_rows)
        self._axes = ["TR".index(b.axis) for b in program.buffers]
        self._widths = [b.width for b in program.buffers]
        self.buffers: list[Array] = [
            np.zeros(n_rows[axis] * b.width, np.int32 if b.dtype == "i32" else np.float32)
            for axis, b in zip(self._axes, program.buffers, strict=True)
        ]
        self.layers = [
            [Layer(x, n_pages, config) for x in c.layers]
            for c, n_pages in zip(plan.caches, config.n_pages, strict=True)
        ]
        k_dim = max((x.k_dim for c in plan.caches for x in c.layers), default=0)
        v_dim = max((x.v_dim for c in plan.caches for x in c.layers), default=0)
        floats = attention.plane_floats(k_dim), attention.plane_floats(v_dim)
        self.planes = [
            (*(np.zeros(n, np.float32) for n in floats), *(np.zeros(n, np.int16) for n in floats))
            for _ in range(team.n)
        ]
        self._sums = [np.zeros(16 * matmul.COLUMNS, np.float32) for _ in range(team.n)]
        self.count = np.arange(max(n_rows))
        self._slots: dict[int, tuple[Array, ...]] = {}
        self._slot_sizes = self._sizes_of_slots(program, n_rows)
        handlers = {CODES[name]: handler for name, handler in _HANDLERS.items()}
        self.ops: list[Op] = [handlers[int(r["code"])](self, _Record(self, r)) for r in program.ops]

    def _sizes_of_slots(self, program: Program, n_rows: tuple[int, int]) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for r in program.ops:
            if r["code"] == CODES["QUANTIZE"]:
                n = n_rows[self._axes[r["v"][0][0]]] * int(r["v"][0][2])
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

    # ---- matmul ----

    def multiply(
        self,
        panels: list[tuple[Panels, int, int]],
        k: int,
        x: Any,
        xs: Array,
        outs: list[tuple[Array, Array, float, F32]],
        residual: tuple[Array, list[Array]] | None = None,
    ) -> None:
        """Run matrices (panels, index in the stack, column of their first row in y) over columns.

        xs: int64 [n], each column's row of x. outs: for each matrix y (flat), to [n], scale, bias. residual: what is
        added, from where.
        """
        n, total = len(xs), sum(m.n_panels for m, _, _ in panels)
        n_shares = 1 if total * 16 * k * n < FEW_PRODUCTS else self.team.n

        def share(thread: int) -> None:
            first, last = total * thread // n_shares, total * (thread + 1) // n_shares
            at = 0
            for i, (m, index, _) in enumerate(panels):
                lo, hi = max(first - at, 0), min(last - at, m.n_panels)
                at += m.n_panels
                if lo >= hi:
                    continue
                y, to, scale, bias = outs[i]
                for c in range(0, n, matmul.COLUMNS):
                    cut = slice(c, c + matmul.COLUMNS)
                    added, other = (NO_FLOATS, NOWHERE) if residual is None else (residual[0], residual[1][i][cut])
                    m.kernel(
                        m.arrays, index * m.n_panels, lo, hi, m.n_rows, k, x, xs[cut], y, to[cut], scale, bias,
                        added, other, self._sums[thread],
                    )  # fmt: skip

        if n_shares == 1:
            share(0)
        elif n:
            self.team.run(share)

    def columns(self, place: Place, n: int) -> Array:
        """Where the rows of a view begin."""
        return place.start + self.count[:n] * place.stride


class _Record:
    """A record of a program, with its views looked up. w, i: indices of weights, integers; f: float32 numbers."""

    def __init__(self, machine: Machine, r: Any) -> None:
        self.views = [machine.place(v) for v in r["v"]]
        self.w = [int(x) for x in r["w"]]
        self.i = [int(x) for x in r["i"]]
        self.f = [np.float32(x) for x in r["f"]]
        self._machine = machine

    def view(self, i: int) -> Place:
        """A view that every such record has."""
        place = self.views[i]
        if place is None:
            raise ValueError(f"view {i} of a record is missing")
        return place

    def vector(self, i: int) -> F32:
        """A float32 weight; empty where there is none."""
        return NO_FLOATS if self.w[i] < 0 else self._machine.vectors[self.w[i] - VECTOR_BASE]


# ---- ops: each takes a record and gives what a step calls ------------------------------------------------------------


def _embed(m: Machine, r: _Record) -> Op:
    table = m.tables[r.w[0]]
    y, scale = r.view(0), r.f[0]
    out = y.array.reshape(-1, y.stride)[:, y.start : y.start + y.width]

    def run(step: Step) -> None:
        tokens = step.batch.tokens
        values = dequantize(table.data[tokens].reshape(-1), table.qtype, (len(tokens), table.n_cols))
        out[: len(tokens)] = values * scale if scale != 1 else values

    return run


def _norm(m: Machine, r: _Record) -> Op:
    x, y, w, b = r.view(0), r.view(1), r.vector(0), r.vector(1)
    kind, groups = r.i[0], r.i[1]
    n = x.width // groups
    return lambda step: rows.norm(kind, step.n[x.axis], groups, n, *x.address, *y.address, w, b, r.f[0])


def _quantize(m: Machine, r: _Record) -> Op:
    x, fmt, segments = r.view(0), r.i[0], r.i[2]
    k = x.width // segments
    run = rows.quantize_a16 if fmt == A16 else rows.quantize_a256
    slot = m.slot(fmt)
    return lambda step: run(step.n[x.axis], segments, k, *x.address, *slot, step.bad[x.axis])


def _linear(m: Machine, r: _Record) -> Op:
    x, y, residual = r.view(0), r.view(1), r.views[2]
    slot = r.i[1]
    matrices, scales, biases, starts = [], [], [], []
    start = 0
    for p in range(r.i[0]):
        matrix = m.panels[r.w[2 * p]]
        matrices.append((matrix, 0, start))
        starts.append(start)
        start += matrix.n_rows
        scales.append(r.f[p])
        biases.append(r.vector(2 * p + 1))
    data = x.array if slot == FLOAT else m.slot(slot)

    def run(step: Step) -> None:
        n = step.n[x.axis]
        xs = m.columns(x, n) if slot == FLOAT else m.count[:n]
        to = m.columns(y, n)
        outs = [(y.array, to + s, scale, bias) for s, scale, bias in zip(starts, scales, biases, strict=True)]
        added = None
        if residual is not None:
            other = m.columns(residual, n)
            added = (residual.array, [other + s for s in starts])
        m.multiply(matrices, x.width, data, xs, outs, added)

    return run


def _gated(m: Machine, r: _Record) -> Op:
    x, y, act, slot = r.view(0), r.view(1), r.i[0], r.i[1]
    gate = np.zeros(len(y.array) // y.stride * y.width, np.float32)
    matrices = [(m.panels[r.w[2 * p]], 0, 0) for p in range(2)]
    data = x.array if slot == FLOAT else m.slot(slot)

    def run(step: Step) -> None:
        n = step.n[x.axis]
        xs = m.columns(x, n) if slot == FLOAT else m.count[:n]
        outs = [
            (gate, m.count[:n] * y.width, r.f[0], r.vector(1)),
            (y.array, m.columns(y, n), r.f[1], r.vector(3)),
        ]
        m.multiply(matrices, x.width, data, xs, outs)
        rows.glu(act, n, y.width, gate, 0, y.width, *y.address, *y.address)

    return run


def _glu(m: Machine, r: _Record) -> Op:
    gate, up, y, act = r.view(0), r.view(1), r.view(2), r.i[0]

    def run(step: Step) -> None:
        n = step.n[y.axis]
        if act in HIDING_ACTS:
            rows.note_nonfinite(n, gate.width, *gate.address, step.bad[gate.axis])
        rows.glu(act, n, y.width, *gate.address, *up.address, *y.address)

    return run


def _act(m: Machine, r: _Record) -> Op:
    x, y, act = r.view(0), r.view(1), r.i[0]

    def run(step: Step) -> None:
        n = step.n[y.axis]
        if act in HIDING_ACTS:
            rows.note_nonfinite(n, x.width, *x.address, step.bad[x.axis])
        rows.act(act, n, y.width, *x.address, *y.address)

    return run


def _window(place: Place, n: int) -> Array:
    """The first n rows of a view, [n, width]."""
    whole: Array = place.array.reshape(-1, place.stride)[:n, place.start : place.start + place.width]
    return whole


def _add(m: Machine, r: _Record) -> Op:
    a, b, y = r.view(0), r.view(1), r.view(2)

    def run(step: Step) -> None:
        n = step.n[y.axis]
        np.add(_window(a, n), _window(b, n), out=_window(y, n))

    return run


def _scale(m: Machine, r: _Record) -> Op:
    x, y, factor = r.view(0), r.view(1), r.f[0]

    def run(step: Step) -> None:
        n = step.n[y.axis]
        np.multiply(_window(x, n), factor, out=_window(y, n))

    return run


def _softcap(m: Machine, r: _Record) -> Op:
    x, y, cap = r.view(0), r.view(1), r.f[0]

    def run(step: Step) -> None:
        n = step.n[y.axis]
        rows.note_nonfinite(n, x.width, *x.address, step.bad[x.axis])
        rows.softcap(cap, n, y.width, *x.address, *y.address)

    return run


def _rope(m: Machine, r: _Record) -> Op:
    x, (heads, n_rot, offset, mode, table) = r.view(0), r.i[:5]
    width = x.width // heads
    cos, sin = m.ropes[table].cos.reshape(-1), m.ropes[table].sin.reshape(-1)
    return lambda step: rows.rope(
        mode, step.batch.positions, heads, width, n_rot, x.array, x.start + offset, x.stride, cos, sin
    )


def _kv_write(m: Machine, r: _Record) -> Op:
    k, v, cls, layer = r.view(0), r.view(1), r.i[0], m.layers[r.i[0]][r.i[1]]
    s = layer.spec

    def run(step: Step) -> None:
        where = step.pages[cls], step.batch.positions, s.heads
        kv.store(layer.kinds[0], True, *where, s.k_dim, *k.address, *layer.arrays[:2], layer.sizes[0])
        kv.store(layer.kinds[1], False, *where, s.v_dim, *v.address, *layer.arrays[2:], layer.sizes[1])

    return run


def _attention(m: Machine, r: _Record) -> Op:
    q, y, sinks = r.view(0), r.view(1), r.vector(0)
    cls, index, heads, window, causal = r.i[:5]
    layer = m.layers[cls][index]
    s, arrays = layer.spec, tuple(layer.arrays)
    group = heads // s.heads
    dims = (s.k_dim, s.v_dim)

    def run(step: Step) -> None:
        key = (s.heads, group)
        if key not in step.units:
            products = heads * (s.k_dim + s.v_dim) * int(step.batch.positions.sum(dtype=np.int64))
            step.units[key] = _units(step.batch, s.heads, group, 1 if products < FEW_PRODUCTS else m.team.n)
        units, cuts = step.units[key]
        table = step.batch.pages[cls]

        def share(thread: int) -> None:
            attention.attend(
                units, cuts[thread], cuts[thread + 1], layer.kinds, arrays, layer.sizes, dims, s.heads, group, window,
                bool(causal), r.f[0], r.f[1], sinks, table.reshape(-1), table.shape[1], step.batch.positions,
                *q.address, *y.address, m.planes[thread],
            )  # fmt: skip

        if len(cuts) == 2:
            share(0)
        else:
            m.team.run(share)

    return run


def _units(batch: Batch, heads: int, group: int, n_shares: int) -> tuple[Array, list[int]]:
    """Units of attention (attention.attend), flat, dealt out to the threads, and where each thread's begin."""
    units = []
    for s, start in enumerate(batch.seq_start[:-1].tolist()):
        end = int(batch.seq_start[s + 1])
        last = int(batch.positions[end - 1])
        for row in range(0, (end - start) * group, attention.UNIT_ROWS):
            n = min(attention.UNIT_ROWS, (end - start) * group - row)
            units += [(s, start, last, g, row, n) for g in range(heads)]
    dealt = [units[i::n_shares] for i in range(n_shares)]
    cuts = np.cumsum([0, *(len(d) for d in dealt)]).tolist()
    return np.array([u for d in dealt for u in d], np.int64).reshape(-1), cuts


def _route(m: Machine, r: _Record) -> Op:
    x, ids, y, bias = r.view(0), r.view(1), r.view(2), r.vector(0)
    k, func, divide = r.i[:3]
    return lambda step: rows.route(
        func, step.n[x.axis], x.width, k, bool(divide), r.f[0], bias, *x.address, *ids.address, *y.address
    )


def _experts(
    m: Machine, step: Step, r: _Record, w: int, x: Place, slot: int, ids: Place, out: Place, k: int, per_rank: bool
) -> None:
    """Expert matrices `w` of a record over all (token, rank) pairs, expert by expert."""
    panels, bias, scale = m.panels[r.w[w]], r.vector(w + 1), r.vector(w + 2)
    n = step.n[x.axis]
    chosen = _window(ids, n)[:, :k].reshape(-1)
    order = np.argsort(chosen, kind="stable")
    experts, firsts = np.unique(chosen[order], return_index=True)
    width, x_width = out.width // k, x.width // k if per_rank else x.width
    for e, pairs in zip(experts.tolist(), np.split(order, firsts[1:]), strict=True):
        token, rank = pairs // k, pairs % k
        if slot == FLOAT:
            xs = x.start + token * x.stride + (rank * x_width if per_rank else 0)
        else:
            xs = pairs if per_rank else token
        to = out.start + token * out.stride + rank * width
        one = np.float32(1) if len(scale) == 0 else scale[e]
        b = bias[e * panels.n_rows : (e + 1) * panels.n_rows] if len(bias) else bias
        m.multiply([(panels, e, 0)], x_width, x.array if slot == FLOAT else m.slot(slot), xs, [(out.array, to, one, b)])


def _expert_linear(m: Machine, r: _Record) -> Op:
    x, ids, y, (k, per_rank, slot) = r.view(0), r.view(1), r.view(2), r.i[:3]
    return lambda step: _experts(m, step, r, 0, x, slot, ids, y, k, bool(per_rank))


def _expert_gated(m: Machine, r: _Record) -> Op:
    x, ids, y, (k, act, slot) = r.view(0), r.view(1), r.view(2), r.i[:3]
    gate = Place(np.zeros(len(y.array) // y.stride * y.width, np.float32), 0, y.width, y.width, y.axis)

    def run(step: Step) -> None:
        _experts(m, step, r, 0, x, slot, ids, gate, k, False)
        _experts(m, step, r, 3, x, slot, ids, y, k, False)
        rows.glu(act, step.n[y.axis], y.width, *gate.address, *y.address, *y.address)

    return run


def _combine(m: Machine, r: _Record) -> Op:
    x, w, y, residual, k = r.view(0), r.view(1), r.view(2), r.views[3], r.i[0]
    other = (NO_FLOATS, 0, 0) if residual is None else residual.address
    return lambda step: rows.combine(step.n[y.axis], y.width, k, *x.address, *w.address, *other, *y.address)


def _select(m: Machine, r: _Record) -> Op:
    x, y = r.view(0), r.view(1)

    def run(step: Step) -> None:
        _window(y, step.n[ROWS])[...] = _window(x, step.n[TOKENS])[step.batch.rows]

    return run


_HANDLERS: dict[str, Callable[[Machine, _Record], Op]] = {
    "EMBED": _embed,
    "NORM": _norm,
    "QUANTIZE": _quantize,
    "LINEAR": _linear,
    "GATED": _gated,
    "GLU": _glu,
    "ACT": _act,
    "ADD": _add,
    "SCALE": _scale,
    "SOFTCAP": _softcap,
    "ROPE": _rope,
    "KV_WRITE": _kv_write,
    "ATTENTION": _attention,
    "ROUTE": _route,
    "EXPERT_LINEAR": _expert_linear,
    "EXPERT_GATED": _expert_gated,
    "COMBINE": _combine,
    "SELECT_ROWS": _select,
}


def pages_of_tokens(batch: Batch, cls: int) -> I32:
    """The page of a cache class that each token is written to, int32 [T]."""
    lengths = np.diff(batch.seq_start)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    pages: I32 = batch.pages[cls][sequence, batch.positions // PAGE_TOKENS]
    return pages

"""A lowered program as calls of kernels: what native/core does with the records of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgellm.backends.lower import A16, CODES, FLOAT, Program
from edgellm.backends.numba import attention, kv, rows
from edgellm.backends.numba.calls import Calls
from edgellm.backends.numba.machine import (
    CHUNKS_PER_THREAD,
    NO_FLOATS,
    NOWHERE,
    ONE_CHUNK,
    ROWS,
    TOKENS,
    Array,
    Machine,
    Place,
)
from edgellm.backends.numba.pack import Panels
from edgellm.core.record import dataclass
from edgellm.core.types import F32, Batch
from edgellm.gguf.dequantize import dequantize

HIDING_ACTS = (4, 5, 6, 7)
"""Activations that could make an ordinary number of an inf or nan."""

Step = Callable[[Batch, Array], None]
"""Part of a step, with the values of the step (machine.Values)."""


@dataclass(frozen=True, slots=True)
class Product:
    """A stack of matrices and what becomes of its products (matmul.py)."""

    panels: Panels
    y: Array
    to: Array
    factors: F32
    bias: F32
    residual: F32 = NO_FLOATS
    other: Array = NOWHERE


class Assembler:
    """Makes the calls of a program: `steps`, runs of calls and between them what Python does."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.steps: list[Step] = []
        self._calls = Calls()
        self._axis = TOKENS
        self._by_rows: list[tuple[Any, tuple[Any, ...]]] = []

    def python(self, step: Step) -> None:
        """What Python does, after all calls so far."""
        self.finish()
        self.steps.append(step)

    def by_rows(self, axis: int, kernel: Any, *args: Any) -> None:
        """kernel(first row, row after the last, *args), for shares of the rows of an axis. A row of a view must depend
        on the same row of others only: a share goes through several such kernels in a row."""
        if axis != self._axis:
            self._share_rows()
        self._axis = axis
        self._by_rows.append((kernel, args))

    def alone(self, kernel: Any, *args: Any) -> None:
        """kernel(*args), once."""
        self._phase()
        self._calls.chunk()
        self._calls.add(kernel, *args)

    def attend(self, heads: int, group: int, *args: Any) -> None:
        """attention.attend(units, first, last, *args)."""
        units, shares = self.machine.values.units(heads, group)
        self._phase()
        for first, last in shares:
            self._calls.chunk()
            self._calls.add(attention.attend, units, first, last, *args)

    def multiply(
        self,
        products: list[Product],
        k: int,
        starts: Array,
        x: Any,
        xs: Array,
        then: Callable[[int, int], tuple[Any, ...]] | None = None,
    ) -> None:
        """Matrices times columns of x, with `starts` and `xs` as in matmul.py; matrices are shared out side by side.
        then: shares are the same panels of each matrix; the call to make with panels first .. last-1 of all."""
        self._phase()
        sizes = [p.panels.n_panels for p in products]
        total = sizes[0] if then else sum(sizes)
        for first, last in _shares(total, sum(sizes) * 16 * k, self.machine.team.n):
            self._calls.chunk()
            at = 0
            for p, size in zip(products, sizes, strict=True):
                lo, hi = max(first - at, 0), min(last - at, size)
                at += 0 if then else size
                if lo < hi:
                    self._calls.add(
                        p.panels.kernel, lo, hi, p.panels.arrays, size, p.panels.n_rows, k, starts, x, xs, p.y, p.to,
                        p.factors, p.bias, p.residual, p.other, self.machine.sums,
                    )  # fmt: skip
            if then:
                self._calls.add(*then(first, last))

    def finish(self) -> None:
        """End a run of calls."""
        self._share_rows()
        if self._calls.n:
            self.steps.append(self._running(self._calls))
            self._calls = Calls()

    def _running(self, calls: Calls) -> Step:
        ready, m = calls.ready(), self.machine
        return lambda _, now: ready.run(m.team, m.rooms, now)

    def _phase(self) -> None:
        self._share_rows()
        self._calls.phase()

    def _share_rows(self) -> None:
        if not self._by_rows:
            return
        values = self.machine.values
        self._calls.phase()
        for c in range(values.n_chunks):
            self._calls.chunk()
            for kernel, args in self._by_rows:
                self._calls.add(kernel, *values.share(self._axis, c), *args)
        self._by_rows = []


def _shares(n_panels: int, products: int, n_threads: int) -> list[tuple[int, int]]:
    """Panels in shares of about ONE_CHUNK products, as many for each thread."""
    n = 1 if n_threads == 1 else n_threads * min(max(products // (n_threads * ONE_CHUNK), 1), CHUNKS_PER_THREAD)
    n = min(n, n_panels)
    return [(n_panels * i // n, n_panels * (i + 1) // n) for i in range(n)]


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
        return self._machine.vector(self.w[i])


# ---- ops: each turns a record into calls -----------------------------------------------------------------------------


def _embed(a: Assembler, r: _Record) -> None:
    table = a.machine.tables[r.w[0]]
    y, scale = r.view(0), r.f[0]
    out = y.array.reshape(-1, y.stride)[:, y.start : y.start + y.width]

    def run(batch: Batch, _: Array) -> None:
        tokens = batch.tokens
        values = dequantize(table.data[tokens].reshape(-1), table.qtype, (len(tokens), table.n_cols))
        out[: len(tokens)] = values * scale if scale != 1 else values

    a.python(run)


def _norm(a: Assembler, r: _Record) -> None:
    x, y, w, b = r.view(0), r.view(1), r.vector(0), r.vector(1)
    kind, groups = r.i[0], r.i[1]
    a.by_rows(x.axis, rows.norm, kind, groups, x.width // groups, *x.address, *y.address, w, b, r.f[0])


def _quantize(a: Assembler, r: _Record) -> None:
    x, fmt, segments = r.view(0), r.i[0], r.i[2]
    run = rows.quantize_a16 if fmt == A16 else rows.quantize_a256
    bad = a.machine.values.bad[x.axis]
    a.by_rows(x.axis, run, segments, x.width // segments, *x.address, *a.machine.slot(fmt), bad)


def _activations(m: Machine, x: Place, slot: int) -> tuple[Any, Array]:
    """What a matmul reads rows of a view from, and where in it they are: from a slot, or as they are."""
    if slot == FLOAT:
        return x.array, m.columns(x.start, x.stride, x.axis)
    return m.slot(slot), m.columns(0, 1, x.axis)


def _linear(a: Assembler, r: _Record) -> None:
    x, y, residual, m = r.view(0), r.view(1), r.views[2], a.machine
    products, start = [], 0
    for p in range(r.i[0]):
        panels = m.panels[r.w[2 * p]]
        to = m.columns(y.start + start, y.stride, y.axis)
        added: tuple[Any, ...] = ()
        if residual is not None:
            added = residual.array, m.columns(residual.start + start, residual.stride, residual.axis)
        products.append(Product(panels, y.array, to, np.array([r.f[p]]), r.vector(2 * p + 1), *added))
        start += panels.n_rows
    a.multiply(products, x.width, m.values.spans[x.axis], *_activations(m, x, r.i[1]))


def _gated(a: Assembler, r: _Record) -> None:
    x, y, act, m = r.view(0), r.view(1), r.i[0], a.machine
    gate = m.scratch("gate", m.n_rows[y.axis] * y.width, np.float32)
    products = [
        Product(m.panels[r.w[0]], gate, m.columns(0, y.width, y.axis), np.array([r.f[0]]), r.vector(1)),
        Product(m.panels[r.w[2]], y.array, m.columns(y.start, y.stride, y.axis), np.array([r.f[1]]), r.vector(3)),
    ]
    n_rows = m.values.n(y.axis)

    def glu(first: int, last: int) -> tuple[Any, ...]:
        up = y.array, y.start + 16 * first, y.stride
        n = min(16 * last, y.width) - 16 * first
        return rows.glu, 0, n_rows, act, n, gate, 16 * first, y.width, *up, *up

    a.multiply(products, x.width, m.values.spans[x.axis], *_activations(m, x, r.i[1]), glu)


def _note(a: Assembler, x: Place) -> None:
    a.by_rows(x.axis, rows.note_nonfinite, x.width, *x.address, a.machine.values.bad[x.axis])


def _glu(a: Assembler, r: _Record) -> None:
    gate, up, y, act = r.view(0), r.view(1), r.view(2), r.i[0]
    if act in HIDING_ACTS:
        _note(a, gate)
    a.by_rows(y.axis, rows.glu, act, y.width, *gate.address, *up.address, *y.address)


def _act(a: Assembler, r: _Record) -> None:
    x, y, act = r.view(0), r.view(1), r.i[0]
    if act in HIDING_ACTS:
        _note(a, x)
    a.by_rows(y.axis, rows.act, act, y.width, *x.address, *y.address)


def _add(a: Assembler, r: _Record) -> None:
    y = r.view(2)
    a.by_rows(y.axis, rows.add_rows, y.width, *r.view(0).address, *r.view(1).address, *y.address)


def _scale(a: Assembler, r: _Record) -> None:
    x, y = r.view(0), r.view(1)
    a.by_rows(y.axis, rows.scale_rows, r.f[0], y.width, *x.address, *y.address)


def _softcap(a: Assembler, r: _Record) -> None:
    x, y = r.view(0), r.view(1)
    _note(a, x)
    a.by_rows(y.axis, rows.softcap, r.f[0], y.width, *x.address, *y.address)


def _rope(a: Assembler, r: _Record) -> None:
    x, (heads, n_rot, offset, mode, table), m = r.view(0), r.i[:5], a.machine
    a.by_rows(
        x.axis, rows.rope, mode, m.values.positions, heads, x.width // heads, n_rot, x.array, x.start + offset,
        x.stride, m.ropes[table].cos.reshape(-1), m.ropes[table].sin.reshape(-1),
    )  # fmt: skip


def _kv_write(a: Assembler, r: _Record) -> None:
    k, v, cls, m = r.view(0), r.view(1), r.i[0], a.machine
    layer = m.layers[cls][r.i[1]]
    where = m.values.pages[cls], m.values.positions, layer.spec.heads
    for i, (x, dim) in enumerate(((k, layer.spec.k_dim), (v, layer.spec.v_dim))):
        to, scales = layer.arrays[2 * i : 2 * i + 2]
        a.by_rows(x.axis, kv.store, layer.kinds[i], i == 0, *where, dim, *x.address, to, scales, layer.sizes[i])


def _attention(a: Assembler, r: _Record) -> None:
    q, y, sinks, values = r.view(0), r.view(1), r.vector(0), a.machine.values
    cls, index, heads, window, causal = r.i[:5]
    layer = a.machine.layers[cls][index]
    s = layer.spec
    group = heads // s.heads
    a.attend(
        s.heads, group, layer.kinds, *layer.arrays, layer.sizes, (s.k_dim, s.v_dim), s.heads, group, window,
        causal, r.f[0], r.f[1], sinks, values.tables[cls], values.table_width, values.positions, *q.address,
        *y.address, a.machine.planes,
    )  # fmt: skip


def _route(a: Assembler, r: _Record) -> None:
    x, ids, y, bias = r.view(0), r.view(1), r.view(2), r.vector(0)
    k, func, divide = r.i[:3]
    a.by_rows(x.axis, rows.route, func, x.width, k, divide, r.f[0], bias, *x.address, *ids.address, *y.address)


def _experts(
    a: Assembler, r: _Record, w: int, x: Place, slot: int, ids: Place, out: Place, k: int, per_rank: bool
) -> None:
    """Expert matrices `w` of a record over all (token, rank) pairs, expert by expert."""
    m = a.machine
    panels, factors = m.panels[r.w[w]], r.vector(w + 2)
    n_experts, n_pairs = panels.n_stack, m.n_rows[x.axis] * k
    starts = m.scratch("starts", n_experts + 1, np.int64)
    xs, to = m.scratch("xs", n_pairs, np.int64), m.scratch("to", n_pairs, np.int64)
    k_cols = x.width // k if per_rank else x.width
    if slot == FLOAT:
        data: Any = x.array
        read = x.start, x.stride, k_cols if per_rank else 0
    else:
        data = m.slot(slot)
        read = (0, k, 1) if per_rank else (0, 1, 0)
    written = out.start, out.stride, out.width // k
    a.alone(rows.deal, m.values.n(x.axis), k, n_experts, *ids.address, starts, *read, xs, *written, to)
    a.multiply([Product(panels, out.array, to, factors, r.vector(w + 1))], k_cols, starts, data, xs)


def _expert_linear(a: Assembler, r: _Record) -> None:
    x, ids, y, (k, per_rank, slot) = r.view(0), r.view(1), r.view(2), r.i[:3]
    _experts(a, r, 0, x, slot, ids, y, k, bool(per_rank))


def _expert_gated(a: Assembler, r: _Record) -> None:
    x, ids, y, (k, act, slot), m = r.view(0), r.view(1), r.view(2), r.i[:3], a.machine
    gate = Place(m.scratch("gate", m.n_rows[y.axis] * y.width, np.float32), 0, y.width, y.width, y.axis)
    _experts(a, r, 0, x, slot, ids, gate, k, False)
    _experts(a, r, 3, x, slot, ids, y, k, False)
    a.by_rows(y.axis, rows.glu, act, y.width, *gate.address, *y.address, *y.address)


def _combine(a: Assembler, r: _Record) -> None:
    x, w, y, residual, k = r.view(0), r.view(1), r.view(2), r.views[3], r.i[0]
    other = (NO_FLOATS, 0, 0) if residual is None else residual.address
    a.by_rows(y.axis, rows.combine, y.width, k, *x.address, *w.address, *other, *y.address)


def _select(a: Assembler, r: _Record) -> None:
    x, y = r.view(0), r.view(1)
    a.by_rows(ROWS, rows.select, a.machine.values.rows, y.width, *x.address, *y.address)


_HANDLERS: dict[str, Callable[[Assembler, _Record], None]] = {
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


def assemble(machine: Machine, program: Program) -> list[Step]:
    """What a step of this program does, in order. Its kernels are compiled."""
    handlers = {CODES[name]: handler for name, handler in _HANDLERS.items()}
    assembler = Assembler(machine)
    for r in program.ops:
        handlers[int(r["code"])](assembler, _Record(machine, r))
    assembler.finish()
    return assembler.steps

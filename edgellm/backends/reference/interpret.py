"""What each op does to a step's buffers: one short function per op, found by its type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from edgellm.backends.reference import arith
from edgellm.backends.reference.memory import Caches, Weights
from edgellm.core.record import dataclass
from edgellm.core.types import F32, I32, Batch
from edgellm.models import ops as o
from edgellm.models.plan import Plan
from edgellm.models.rope import RopeCache

_NORMS = {"rms": arith.rms_norm, "layer": arith.layer_norm, "l2": arith.l2_norm}


@dataclass(slots=True)
class Step:
    """One step in progress. buffers [rows, width]; `failed` [S] is set where a value is not finite."""

    plan: Plan
    batch: Batch
    weights: Weights
    caches: Caches
    ropes: list[RopeCache]
    buffers: list[F32 | I32]
    failed: I32

    def read(self, view: o.View) -> Any:
        """The view's columns, [rows, width], as a window into the buffer."""
        return self.buffers[view.buf][:, view.start : view.start + view.width]

    def write(self, view: o.View, value: F32 | I32) -> None:
        """Fill the view; note the sequences that got a value which is not finite."""
        self.read(view)[...] = value
        if value.dtype == np.float32:
            bad = ~np.isfinite(self.read(view)).all(axis=1)
            if bad.any():
                on_tokens = self.plan.buffers[view.buf].axis == "T"
                rows = np.arange(len(bad), dtype=np.int32) if on_tokens else self.batch.rows
                self.failed[np.searchsorted(self.batch.seq_start, rows[bad], side="right") - 1] = 1

    def weight(self, index: int | None) -> F32:
        """A weight that may be absent: then 0, so that adding it changes nothing."""
        return np.zeros((), np.float32) if index is None else self.weights[index]

    def sequences(self, cls: int) -> Iterator[tuple[slice, I32, I32]]:
        """Of every sequence: its rows, its block table in this class, its positions."""
        for s in range(len(self.batch.seq_start) - 1):
            rows = slice(int(self.batch.seq_start[s]), int(self.batch.seq_start[s + 1]))
            yield rows, self.batch.pages[cls][s], self.batch.positions[rows]

    def part(self, x: F32, part: o.Part) -> F32:
        """One matrix of a Linear."""
        y: F32 = (x @ self.weights[part.w].T) * np.float32(part.scale) + self.weight(part.b)
        return y

    def expert(self, x: F32, e: o.Experts, index: int) -> F32:
        """Expert `index` applied to rows x."""
        y: F32 = x @ self.weights[e.w][index].T
        if e.scale is not None:
            y = y * self.weights[e.scale][index]
        return y if e.b is None else y + self.weights[e.b][index]


def segments(x: Any, n: int) -> Any:
    """x [rows, n * w] as [rows, n, w]; there may be no rows."""
    return x.reshape(len(x), n, x.shape[1] // n)


def interpret(op: o.Op, st: Step) -> None:
    """Run one op."""
    _HANDLERS[type(op)](op, st)


def _embed(op: o.Embed, st: Step) -> None:
    st.write(op.y, st.weights.rows(op.w, st.batch.tokens) * np.float32(op.scale))


def _norm(op: o.Norm, st: Step) -> None:
    x = st.read(op.x)
    y = _NORMS[op.kind](segments(x, op.groups), op.eps)
    for w, combine in ((op.w, np.multiply), (op.b, np.add)):
        if w is not None:
            value = st.weights[w]
            y = combine(y, value.reshape(-1, y.shape[2]) if value.size != y.shape[2] else value)
    st.write(op.y, y.reshape(x.shape))


def _linear(op: o.Linear, st: Step) -> None:
    x = st.read(op.x)
    y = np.concatenate([st.part(x, p) for p in op.parts], axis=1)
    st.write(op.y, y if op.residual is None else st.read(op.residual) + y)


def _gated(op: o.Gated, st: Step) -> None:
    x = st.read(op.x)
    st.write(op.y, arith.gated(op.act, st.part(x, op.gate), st.part(x, op.up)))


def _glu(op: o.Glu, st: Step) -> None:
    st.write(op.y, arith.gated(op.act, st.read(op.gate), st.read(op.up)))


def _act(op: o.Act, st: Step) -> None:
    st.write(op.y, arith.activate(op.act, st.read(op.x)))


def _add(op: o.Add, st: Step) -> None:
    st.write(op.y, st.read(op.a) + st.read(op.b))


def _copy(op: o.Copy, st: Step) -> None:
    x, y = st.read(op.x), st.read(op.y).copy()
    taken = segments(x, op.heads)[:, :, op.x_offset : op.x_offset + op.n]
    segments(y, op.heads)[:, :, op.y_offset : op.y_offset + op.n] = taken
    st.read(op.y)[...] = y


def _scale(op: o.Scale, st: Step) -> None:
    st.write(op.y, st.read(op.x) * np.float32(op.factor))


def _softcap(op: o.Softcap, st: Step) -> None:
    cap = np.float32(op.cap)
    st.write(op.y, cap * np.tanh(st.read(op.x) / cap))


def _rope(op: o.Rope, st: Step) -> None:
    table, positions = st.ropes[op.table], st.batch.positions
    x = segments(st.read(op.x), op.heads)
    turned = arith.rotate(
        x[:, :, op.offset : op.offset + op.n_rot], table.cos[positions], table.sin[positions], op.mode
    )
    y = x.copy()
    y[:, :, op.offset : op.offset + op.n_rot] = turned
    st.write(op.x, y.reshape(len(positions), -1))


def _kv_write(op: o.KVWrite, st: Step) -> None:
    layer = st.caches.paged[op.cache]
    k, v = st.read(op.k), None if op.v is None else st.read(op.v)
    for rows, table, positions in st.sequences(op.cache.cls):
        layer.write(table, positions, k[rows], None if v is None else v[rows])


def _attention(op: o.Attention, st: Step) -> None:
    layer = st.caches.paged[op.cache]
    q = segments(st.read(op.q), op.heads)
    out = np.empty((len(q), op.y.width), np.float32)
    sinks = None if op.sinks is None else st.weights[op.sinks]
    for rows, table, positions in st.sequences(op.cache.cls):
        last = int(positions[-1])
        first = max(0, int(positions[0]) - op.window + 1) if op.window else 0
        k, v = layer.read(table, first, last)
        at, p = np.arange(first, last + 1)[None, :], positions[:, None]
        seen = at <= p if op.causal else np.ones((len(positions), last + 1 - first), np.bool_)
        if op.window:
            seen = seen & (at > p - op.window)
        y = arith.attention(q[rows], k, v, seen, op.scale, op.softcap, sinks)
        out[rows] = y.reshape(len(positions), -1)
    st.write(op.y, out)


def _route(op: o.Route, st: Step) -> None:
    logits = st.read(op.logits)
    if op.func == "softmax":
        probs = arith.softmax(logits)
    elif op.func == "sigmoid":
        probs = arith.sigmoid(logits)
    elif op.func == "sqrt_softplus":
        probs = np.sqrt(arith.softplus(logits))
    else:
        probs = logits
    choice = probs + st.weight(op.bias)
    if op.groups > 1:
        grouped = choice.reshape(len(choice), op.groups, -1)
        best_two = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)
        kept = np.argsort(-best_two, axis=1, kind="stable")[:, : op.groups_used]
        keep = np.zeros(best_two.shape, np.bool_)
        np.put_along_axis(keep, kept, True, axis=1)
        choice = np.where(keep[:, :, None], grouped, -np.inf).reshape(choice.shape)
    ids = np.argsort(-choice, axis=1, kind="stable")[:, : op.k].astype(np.int32)
    weights = np.take_along_axis(probs, ids, axis=1)
    if op.func == "softmax_topk":
        weights = arith.softmax(weights)
    if op.norm:
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), np.float32(6.103515625e-5))
    st.write(op.ids, ids)
    st.write(op.weights, weights * np.float32(op.scale))


def _ranks(op: o.ExpertLinear | o.ExpertGated, st: Step) -> Iterator[tuple[int, int, Any]]:
    """(rank, expert, token rows that chose it there)."""
    ids = st.read(op.ids)
    for j in range(op.k):
        for e in np.unique(ids[:, j]):
            yield j, int(e), np.flatnonzero(ids[:, j] == e)


def _expert_linear(op: o.ExpertLinear, st: Step) -> None:
    x, n = st.read(op.x), op.y.width // op.k
    width = op.x.width // op.k if op.per_rank else op.x.width
    y = np.empty((len(x), op.y.width), np.float32)
    for j, e, rows in _ranks(op, st):
        start = j * width if op.per_rank else 0
        y[rows, j * n : (j + 1) * n] = st.expert(x[rows, start : start + width], op.experts, e)
    st.write(op.y, y)


def _expert_gated(op: o.ExpertGated, st: Step) -> None:
    x, n = st.read(op.x), op.y.width // op.k
    y = np.empty((len(x), op.y.width), np.float32)
    for j, e, rows in _ranks(op, st):
        gate, up = st.expert(x[rows], op.gate, e), st.expert(x[rows], op.up, e)
        y[rows, j * n : (j + 1) * n] = arith.gated(op.act, gate, up)
    st.write(op.y, y)


def _combine(op: o.Combine, st: Step) -> None:
    x, weights, n = st.read(op.x), st.read(op.weights), op.y.width
    y = np.zeros((len(x), n), np.float32)
    for j in range(op.k):
        y = y + weights[:, j : j + 1] * x[:, j * n : (j + 1) * n]
    st.write(op.y, y if op.residual is None else st.read(op.residual) + y)


def _select_rows(op: o.SelectRows, st: Step) -> None:
    st.write(op.y, st.read(op.x)[st.batch.rows])


def _head_linear(op: o.HeadLinear, st: Step) -> None:
    x = st.read(op.x)
    y = np.einsum("thk,hnk->thn", segments(x, op.heads), st.weights[op.w])
    st.write(op.y, y.reshape(len(x), op.y.width))


def _conv1d(op: o.Conv1d, st: Step) -> None:
    x, w = st.read(op.x), st.weights[op.w]
    state = st.caches.states[op.cache]
    n_taps = w.shape[1]
    y = np.empty(x.shape, np.float32)
    for rows, table, positions in st.sequences(op.cache.cls):
        past = np.concatenate([state.load(table[0], positions[0]), x[rows]])
        taps = [past[j : j + len(positions)] * w[:, j] for j in range(n_taps)]
        y[rows] = np.sum(taps, axis=0, dtype=np.float32) + st.weight(op.b)
        state.store(table[0], past[len(positions) :])
    st.write(op.y, arith.activate(op.act, y))


def _delta_net(op: o.DeltaNet, st: Step) -> None:
    n = len(st.batch.tokens)
    head = np.arange(op.heads)
    key = head % op.k_heads if op.head_map == "tiled" else head // (op.heads // op.k_heads)
    q = segments(st.read(op.q), op.k_heads)[:, key]
    k = segments(st.read(op.k), op.k_heads)[:, key]
    v = segments(st.read(op.v), op.heads)
    decay, beta = np.exp(st.read(op.g)), st.read(op.beta)
    state = st.caches.states[op.cache]
    y = np.empty(v.shape, np.float32)
    for rows, table, positions in st.sequences(op.cache.cls):
        s = state.load(table[0], positions[0])
        for t in range(rows.start, rows.stop):
            s = s * decay[t][:, None, None]
            error = (v[t] - np.einsum("hkv,hk->hv", s, k[t])) * beta[t][:, None]
            s = s + k[t][:, :, None] * error[:, None, :]
            y[t] = np.einsum("hkv,hk->hv", s, q[t])
        state.store(table[0], s)
    st.write(op.y, y.reshape(n, -1))


def _decay(op: o.Decay, st: Step) -> None:
    st.write(op.y, st.weights[op.w] * arith.softplus(st.read(op.x) + st.weights[op.b]))


def _ssm(op: o.Ssm, st: Step) -> None:
    n = len(st.batch.tokens)
    group = np.arange(op.heads) // (op.heads // op.groups)
    x = segments(st.read(op.x), op.heads)
    b = segments(st.read(op.B), op.groups)[:, group]
    c = segments(st.read(op.C), op.groups)[:, group]
    dt = arith.softplus(st.read(op.dt) + st.weights[op.dt_bias])
    decay = np.exp(dt * st.weights[op.a])
    state = st.caches.states[op.cache]
    y = np.empty(x.shape, np.float32)
    for rows, table, positions in st.sequences(op.cache.cls):
        s = state.load(table[0], positions[0])
        for t in range(rows.start, rows.stop):
            step = (dt[t][:, None] * x[t])[:, :, None] * b[t][:, None, :]
            s = s * decay[t][:, None, None] + step
            y[t] = np.einsum("hen,hn->he", s, c[t])
        state.store(table[0], s)
    y = y + x * st.weights[op.d][:, None]
    st.write(op.y, y.reshape(n, -1))


_HANDLERS: dict[type, Callable[[Any, Step], None]] = {
    o.Embed: _embed,
    o.Norm: _norm,
    o.Linear: _linear,
    o.Gated: _gated,
    o.Glu: _glu,
    o.Act: _act,
    o.Add: _add,
    o.Copy: _copy,
    o.Scale: _scale,
    o.Softcap: _softcap,
    o.Rope: _rope,
    o.KVWrite: _kv_write,
    o.Attention: _attention,
    o.Route: _route,
    o.ExpertLinear: _expert_linear,
    o.ExpertGated: _expert_gated,
    o.Combine: _combine,
    o.SelectRows: _select_rows,
    o.HeadLinear: _head_linear,
    o.Conv1d: _conv1d,
    o.DeltaNet: _delta_net,
    o.Decay: _decay,
    o.Ssm: _ssm,
}

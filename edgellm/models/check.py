"""Is an op sound, is a plan? Sizes are bound to letters with their sources, so that a clash reads

    Linear: K is 2048 from x (buffer 'h') but 2560 in blk.3.attn_q.weight

`check_op` looks at one op, `check_plan` at everything: tables, ops, and that nothing is read before it is written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from edgellm.models import ops as o
from edgellm.models.scope import MAX_WIDTH, Scope
from edgellm.models.tables import CacheClass, PlanError, Tables

MAX_OPS = 1 << 20
MAX_CTX = 1 << 26
MAX_ELEMENTS = 1 << 40
MAX_STATE = 1 << 28


def reads(op: o.Op) -> Iterator[o.View]:
    """Views that the op reads, a residual and what is changed in place included."""
    for f in dataclasses.fields(op):
        value = getattr(op, f.name)
        if isinstance(value, o.View) and (f.name not in _outputs(op) or isinstance(op, o.Rope)):
            yield value


def writes(op: o.Op) -> Iterator[o.View]:
    """Views that the op writes (a Copy fills only parts of its view)."""
    for name in _outputs(op):
        yield getattr(op, name)


def _outputs(op: o.Op) -> tuple[str, ...]:
    if isinstance(op, o.Route):
        return ("ids", "weights")
    if isinstance(op, o.Rope):
        return ("x",)
    return () if isinstance(op, o.KVWrite) else ("y",)


def check_op(op: o.Op, tables: Tables) -> None:
    """PlanError unless every view, index and shape of the op fits the tables and each other."""
    _CHECKS[type(op)](op, Scope(op, tables))


def _embed(op: o.Embed, s: Scope) -> None:
    s.view("y", "D", axis="T")
    s.weight(op.w, "embedding", "V", "D")
    s.finite("scale", op.scale)


def _norm(op: o.Norm, s: Scope) -> None:
    width = s.view("x", "N")
    s.view("y", "N")
    s.count("groups", op.groups)
    s.require(width % op.groups == 0, f"x has {width} columns, not a multiple of {op.groups} groups")
    s.choice("kind", op.kind, ("rms", "layer", "l2"))
    s.finite("eps", op.eps, 0.0)
    for w in (op.w, op.b):
        if w is not None and 0 <= w < len(s.t.weights) and s.t.weights[w].shape != (width,):
            s.bind("N / groups", width // op.groups, "x")
            s.weight(w, "vector", "N / groups")
        else:
            s.weight(w, "vector", "N")


def _linear(op: o.Linear, s: Scope) -> None:
    s.view("x", "K")
    width = s.view("y", "N")
    s.require(len(op.parts) >= 1, "has no parts")
    total = sum(s.part(p, f"N{i}") for i, p in enumerate(op.parts))
    names = " + ".join(s.t.weights[p.w].tensor for p in op.parts)
    s.require(total == width, f"y has {width} columns but {names} give {total}")
    if op.residual is not None:
        s.view("residual", "N")
    s.apart("x")


def _gated(op: o.Gated, s: Scope) -> None:
    s.view("x", "K")
    s.view("y", "F")
    s.part(op.gate, "F")
    s.part(op.up, "F")
    s.choice("act", op.act, o.ACTS)
    s.apart("x")


def _glu(op: o.Glu, s: Scope) -> None:
    s.view("gate", "N")
    s.view("up", "N")
    s.view("y", "N")
    s.choice("act", op.act, o.ACTS)


def _act(op: o.Act, s: Scope) -> None:
    s.view("x", "N")
    s.view("y", "N")
    s.choice("act", op.act, [a for a in o.ACTS if a != "swiglu_oai"])


def _add(op: o.Add, s: Scope) -> None:
    s.view("a", "N")
    s.view("b", "N")
    s.view("y", "N")


def _copy(op: o.Copy, s: Scope) -> None:
    s.count("heads", op.heads)
    s.count("n", op.n)
    for field, width, offset in (
        ("x", s.view("x", times=op.heads), op.x_offset),
        ("y", s.view("y", times=op.heads), op.y_offset),
    ):
        s.require(
            0 <= offset <= width - op.n,
            f"{field} has segments of {width} columns, too few for {op.n} from {offset}",
        )
    s.apart("x")


def _scale(op: o.Scale, s: Scope) -> None:
    s.view("x", "N")
    s.view("y", "N")
    s.finite("factor", op.factor)


def _softcap(op: o.Softcap, s: Scope) -> None:
    s.view("x", "N")
    s.view("y", "N")
    s.finite("cap", op.cap)
    s.require(op.cap > 0, f"cap is {op.cap}, expected a positive number")


def _rope(op: o.Rope, s: Scope) -> None:
    s.count("heads", op.heads)
    width = s.view("x", times=op.heads)
    s.require(s.axis == "T", "works on the token axis only")
    s.choice("mode", op.mode, ("norm", "neox"))
    s.require(0 <= op.table < len(s.t.ropes), f"rope table {op.table} does not exist (there are {len(s.t.ropes)})")
    s.bind("n_rot", s.t.ropes[op.table].n_rot, f"rope table {op.table}")
    s.bind("n_rot", op.n_rot, "the op")
    s.require(
        0 <= op.offset <= width - op.n_rot,
        f"segments have {width} columns, too few for {op.n_rot} from {op.offset}",
    )


def _kv_write(op: o.KVWrite, s: Scope) -> None:
    cls, layer = s.cache(op.cache, "full", "window", "latent")
    s.bind("Ek", layer.k_dim, "the cache")
    s.view("k", "Ek", layer.heads)
    s.require(s.axis == "T", "works on the token axis only")
    s.require(
        (op.v is None) == (cls.kind == "latent"),
        f"v must be absent exactly where the cache is latent ({cls.kind})",
    )
    if op.v is not None:
        s.bind("Ev", layer.v_dim, "the cache")
        s.view("v", "Ev", layer.heads)


def _attention(op: o.Attention, s: Scope) -> None:
    cls, layer = s.cache(op.cache, "full", "window", "latent")
    s.count("heads", op.heads)
    s.require(
        op.heads % layer.heads == 0,
        f"{op.heads} query heads are not a multiple of the cache's {layer.heads} heads",
    )
    s.bind("Ek", layer.k_dim, "the cache")
    s.bind("Ev", layer.v_dim, "the cache")
    s.view("q", "Ek", op.heads)
    s.view("y", "Ev", op.heads)
    s.require(s.axis == "T", "works on the token axis only")
    s.bind("H", op.heads, "heads")
    s.weight(op.sinks, "vector", "H")
    s.finite("scale", op.scale)
    s.finite("softcap", op.softcap, 0.0)
    s.require(0 <= op.window <= MAX_CTX, f"window is {op.window}, expected 0..{MAX_CTX}")
    s.require(
        cls.kind != "window" or 1 <= op.window <= cls.window,
        f"window is {op.window}, but the cache keeps {cls.window} positions",
    )
    s.apart("q")


def _route(op: o.Route, s: Scope) -> None:
    n = s.view("logits", "X")
    s.count("k", op.k, n)
    s.bind("k", op.k, "k")
    s.view("ids", "k", dtype="i32")
    s.view("weights", "k")
    s.choice("func", op.func, ("softmax", "sigmoid", "softmax_topk", "sqrt_softplus"))
    s.weight(op.bias, "vector", "X")
    s.finite("scale", op.scale)
    s.count("groups", op.groups, n)
    s.count("groups_used", op.groups_used, op.groups)
    s.require(n % op.groups == 0, f"{n} experts do not divide into {op.groups} groups")
    size = n // op.groups
    s.require(op.groups == 1 or size >= 2, f"a group has {size} expert; the choice of groups needs two")
    s.require(
        op.k <= op.groups_used * size,
        f"k is {op.k}, but {op.groups_used} groups hold {op.groups_used * size}",
    )


def _expert_ids(s: Scope, k: int) -> None:
    s.count("k", k)
    s.bind("k", k, "k")
    s.view("ids", "k", dtype="i32")


def _expert_linear(op: o.ExpertLinear, s: Scope) -> None:
    _expert_ids(s, op.k)
    s.view("x", "K", op.k if op.per_rank else 1)
    s.view("y", "N", op.k)
    s.experts(op.experts, "N", "K")
    s.apart("x")


def _expert_gated(op: o.ExpertGated, s: Scope) -> None:
    _expert_ids(s, op.k)
    s.view("x", "K")
    s.view("y", "F", op.k)
    s.experts(op.gate, "F", "K")
    s.experts(op.up, "F", "K")
    s.choice("act", op.act, o.ACTS)
    s.apart("x")


def _combine(op: o.Combine, s: Scope) -> None:
    s.count("k", op.k)
    s.bind("k", op.k, "k")
    s.view("x", "D", op.k)
    s.view("weights", "k")
    s.view("y", "D")
    if op.residual is not None:
        s.view("residual", "D")
    s.apart("x")


def _select_rows(op: o.SelectRows, s: Scope) -> None:
    s.view("x", "D", axis="T")
    s.view("y", "D", axis="R")


def _head_linear(op: o.HeadLinear, s: Scope) -> None:
    s.count("heads", op.heads)
    s.bind("H", op.heads, "heads")
    s.view("x", "K", op.heads)
    s.view("y", "N", op.heads)
    s.weight(op.w, "matrix", "H", "N", "K")
    s.apart("x")


def _conv1d(op: o.Conv1d, s: Scope) -> None:
    width = s.view("x", "C")
    s.view("y", "C")
    shape = s.weight(op.w, "vector", "C", "J")
    s.weight(op.b, "vector", "C")
    s.choice("act", op.act, [a for a in o.ACTS if a != "swiglu_oai"])
    s.require(shape[1] >= 2, "a convolution over one token keeps no state")
    s.state(op.cache, shape[1] - 1, width)


def _delta_net(op: o.DeltaNet, s: Scope) -> None:
    s.count("heads", op.heads)
    s.count("k_heads", op.k_heads, op.heads)
    s.require(op.heads % op.k_heads == 0, f"{op.heads} value heads are not a multiple of {op.k_heads} key heads")
    s.choice("head_map", op.head_map, ("tiled", "grouped"))
    e_k = s.view("q", "Ek", op.k_heads)
    s.view("k", "Ek", op.k_heads)
    e_v = s.view("v", "Ev", op.heads)
    s.view("y", "Ev", op.heads)
    s.bind("Hv", op.heads, "heads")
    s.view("g", "Hv")
    s.view("beta", "Hv")
    s.state(op.cache, op.heads, e_k, e_v)
    s.apart("q", "k")


def _decay(op: o.Decay, s: Scope) -> None:
    s.view("x", "Hv")
    s.view("y", "Hv")
    s.weight(op.w, "vector", "Hv")
    s.weight(op.b, "vector", "Hv")


def _ssm(op: o.Ssm, s: Scope) -> None:
    s.count("heads", op.heads)
    s.count("groups", op.groups, op.heads)
    s.require(op.heads % op.groups == 0, f"{op.heads} heads are not a multiple of {op.groups} groups")
    e = s.view("x", "E", op.heads)
    s.view("y", "E", op.heads)
    n = s.view("B", "N", op.groups)
    s.view("C", "N", op.groups)
    s.bind("H", op.heads, "heads")
    s.view("dt", "H")
    for w in (op.a, op.d, op.dt_bias):
        s.weight(w, "vector", "H")
    s.state(op.cache, op.heads, e, n)


_CHECKS: dict[type, Callable[[Any, Scope], None]] = {
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


def check_plan(tables: Tables, ops: Sequence[o.Op], n_vocab: int, n_ctx_train: int, logits: int) -> None:
    """PlanError unless tables and ops are sound and no op reads columns that none before it has written."""
    _require(0 < len(ops) <= MAX_OPS, f"the plan has {len(ops)} ops, expected 1..{MAX_OPS}")
    _require(1 <= n_ctx_train <= MAX_CTX, f"n_ctx_train is {n_ctx_train}, expected 1..{MAX_CTX}")
    _tables(tables)
    written = [np.zeros(b.width, np.bool_) for b in tables.buffers]
    for i, op in enumerate(ops):
        try:
            check_op(op, tables)
        except PlanError as e:
            raise PlanError(f"ops[{i}] {e}") from None
        for v in reads(op):
            name = tables.buffers[v.buf].name
            _require(
                bool(written[v.buf][v.start : v.start + v.width].all()),
                f"ops[{i}] {type(op).__name__} reads columns of buffer '{name}' that nothing has written",
            )
        for v in writes(op):
            if isinstance(op, o.Copy):
                segments = written[v.buf][v.start : v.start + v.width].reshape(op.heads, -1)
                segments[:, op.y_offset : op.y_offset + op.n] = True
            else:
                written[v.buf][v.start : v.start + v.width] = True
    _require(0 <= logits < len(tables.buffers), f"logits is buffer {logits}, which does not exist")
    out = tables.buffers[logits]
    _require(
        (out.axis, out.dtype, out.width) == ("R", "f32", n_vocab) and bool(written[logits].all()),
        f"the logits must fill an f32 buffer of {n_vocab} columns on the output axis; '{out.name}' is not that",
    )


def _tables(t: Tables) -> None:
    _require(len(t.buffers) <= 1 << 16, f"the plan has {len(t.buffers)} buffers")
    for b in t.buffers:
        _require(1 <= b.width <= MAX_WIDTH, f"buffer '{b.name}' has {b.width} columns, expected 1..{MAX_WIDTH}")
        _require(b.axis in ("T", "R"), f"buffer '{b.name}' has axis {b.axis!r}, expected 'T' or 'R'")
        _require(b.dtype in ("f32", "i32"), f"buffer '{b.name}' has type {b.dtype!r}, expected 'f32' or 'i32'")
    ranks = {"matrix": (2, 3), "embedding": (2,), "vector": (1, 2, 3, 4)}
    for w in t.weights:
        _require(w.role in ranks, f"weight {w.tensor} has role {w.role!r}, expected one of {', '.join(ranks)}")
        _require(
            len(w.shape) in ranks[w.role],
            f"weight {w.tensor} has shape {list(w.shape)}, not that of a {w.role}",
        )
        _require(
            all(n >= 1 for n in w.shape) and math.prod(w.shape) <= MAX_ELEMENTS,
            f"weight {w.tensor} has shape {list(w.shape)}, expected positive sizes",
        )
        _require(w.row0 >= 0 and (w.role == "matrix" or w.row0 == 0), f"weight {w.tensor} starts at row {w.row0}")
    for i, r in enumerate(t.ropes):
        _require(2 <= r.n_rot <= MAX_WIDTH and r.n_rot % 2 == 0, f"rope table {i} rotates {r.n_rot} dimensions")
        numbers = (r.base, r.scale_factor, r.attn_factor)
        _require(
            all(math.isfinite(x) and x > 0 for x in numbers),
            f"rope table {i} has base or factors {numbers}, expected > 0",
        )
        if r.factors is not None:
            _require(
                0 <= r.factors < len(t.weights),
                f"rope table {i} names weight {r.factors}, which does not exist",
            )
            w = t.weights[r.factors]
            _require(
                (w.role, w.shape) == ("vector", (r.n_rot // 2,)),
                f"rope table {i}: {w.tensor} is a {w.role} {list(w.shape)}, expected a vector of {r.n_rot // 2}",
            )
    for i, c in enumerate(t.caches):
        _cache_class(i, c)


def _cache_class(i: int, c: CacheClass) -> None:
    where = f"cache class {i} ({c.kind})"
    _require(c.kind in ("full", "window", "latent", "state"), f"cache class {i} has kind {c.kind!r}")
    _require(
        1 <= len(c.layers) <= 1 << 16, f"{where} has {len(c.layers)} layers" if c.layers else f"{where} has no layers"
    )
    window_ok = 1 <= c.window <= MAX_CTX if c.kind == "window" else c.window == 0
    _require(window_ok, f"{where} has window {c.window}")
    for layer in c.layers:
        sizes = [layer.heads, layer.k_dim, layer.v_dim]
        if c.kind == "state":
            shapes = layer.state
            positive = bool(shapes) and all(len(x) >= 1 and all(n >= 1 for n in x) for x in shapes)
            bounded = all(math.prod(x) <= MAX_STATE for x in shapes)
            _require(positive and bounded and sizes == [0, 0, 0], f"{where} has state shapes {shapes}, sizes {sizes}")
            continue
        positive = all(n >= 1 for n in sizes) and not layer.state
        bounded = layer.heads * max(layer.k_dim, layer.v_dim) <= MAX_WIDTH
        latent = c.kind != "latent" or (layer.heads == 1 and layer.v_dim <= layer.k_dim)
        _require(positive and bounded and latent, f"{where} has heads, key and value sizes {sizes}")


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise PlanError(message)

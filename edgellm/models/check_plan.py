"""Is a plan sound? Its tables, each op (check.py), and that nothing is read before it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgellm.models import ops as o
from edgellm.models.check import check_op, reads, writes
from edgellm.models.scope import MAX_CTX, MAX_WIDTH
from edgellm.models.tables import CacheClass, PlanError, RopeTable, Tables

MAX_OPS = 1 << 20
MAX_ELEMENTS = 1 << 40
MAX_STATE = 1 << 28
MAX_TEMPERATURE = 1e6


def check_plan(
    tables: Tables, ops: Sequence[o.Op], n_vocab: int, n_ctx_train: int, logits: int, *, checked: bool = False
) -> None:
    """PlanError unless tables and ops are sound and no op reads columns that none before it has written.

    checked: each op has been looked at by itself already.
    """
    _require(0 < len(ops) <= MAX_OPS, f"the plan has {len(ops)} ops, expected 1..{MAX_OPS}")
    _require(1 <= n_ctx_train <= MAX_CTX, f"n_ctx_train is {n_ctx_train}, expected 1..{MAX_CTX}")
    _tables(tables)
    written = [np.zeros(b.width, np.bool_) for b in tables.buffers]
    for i, op in enumerate(ops):
        if not checked:
            try:
                check_op(op, tables)
            except PlanError as e:
                raise PlanError(f"ops[{i}] {e}") from None
        for v in reads(op):
            if not written[v.buf][v.start : v.start + v.width].all():
                name = tables.buffers[v.buf].name
                raise PlanError(
                    f"ops[{i}] {type(op).__name__} reads columns of buffer '{name}' that nothing has written"
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
        _rope(i, r, t)
    for i, c in enumerate(t.caches):
        _cache_class(i, c)


def _rope(i: int, r: RopeTable, t: Tables) -> None:
    where = f"rope table {i}"
    _require(2 <= r.n_rot <= MAX_WIDTH and r.n_rot % 2 == 0, f"{where} rotates {r.n_rot} dimensions")
    numbers = (r.base, r.scale_factor, r.attn_factor)
    _require(all(math.isfinite(x) and x > 0 for x in numbers), f"{where} has base or factors {numbers}, expected > 0")
    if r.factors is not None:
        _require(0 <= r.factors < len(t.weights), f"{where} names weight {r.factors}, which does not exist")
        w = t.weights[r.factors]
        _require(
            (w.role, w.shape) == ("vector", (r.n_rot // 2,)),
            f"{where}: {w.tensor} is a {w.role} {list(w.shape)}, expected a vector of {r.n_rot // 2}",
        )
    if r.yarn is not None:
        y = (r.yarn.low, r.yarn.high, r.yarn.ext)
        _require(all(map(math.isfinite, y)) and 0 <= r.yarn.ext <= 1, f"{where} has YaRN numbers {y}")
    if r.longrope is not None:
        _require(r.factors is None, f"{where} has two kinds of divisors")
        _require(1 <= r.longrope.n_ctx <= MAX_CTX, f"{where} changes its divisors at {r.longrope.n_ctx} tokens")
        for name, values in (("short", r.longrope.short), ("long", r.longrope.long)):
            _require(
                len(values) == r.n_rot // 2 and all(math.isfinite(x) and x > 0 for x in values),
                f"{where} has {len(values)} {name} divisors, expected {r.n_rot // 2} finite ones > 0",
            )
    if r.temperature is not None:
        scale, length = r.temperature.scale, r.temperature.length
        _require(
            0 <= scale <= MAX_TEMPERATURE and 1 <= length <= MAX_CTX, f"{where} has temperature {scale} per {length}"
        )


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

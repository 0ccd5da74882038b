"""Lowering: a Plan becomes the flat program of the native core (struct el_op, in numpy with the same layout), which the
numba backend reads too.

What happens here and nowhere else: int8 activations are made explicit (QUANTIZE into a slot, shared by the ops that
read the same columns), parts with different activation formats become separate LINEARs, weights are split into
matrices and float32 vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import UnsupportedModel
from edgellm.core.record import dataclass, field
from edgellm.gguf.qtypes import QType
from edgellm.models import ops
from edgellm.models.ops import Experts, Op, Part, View
from edgellm.models.plan import Buffer, Plan

OP_DTYPE = np.dtype([("code", "<i4"), ("v", "<i4", (4, 3)), ("w", "<i4", (8,)), ("i", "<i4", (7,)), ("f", "<f4", (4,))])
"""struct el_op."""

CODES = {
    name: code
    for code, name in enumerate(
        "EMBED NORM QUANTIZE LINEAR GATED GLU ACT ADD SCALE SOFTCAP ROPE KV_WRITE ATTENTION ROUTE EXPERT_LINEAR "
        "EXPERT_GATED COMBINE SELECT_ROWS".split(),
        start=1,
    )
}
"""enum el_opcode, in its order (tests/unit/backends/test_lower.py reads the header)."""

VECTOR_BASE = 1_000_000
ACTS = {"none": 0, "silu": 1, "gelu_tanh": 2, "gelu_erf": 3, "relu": 4, "relu2": 5, "sigmoid": 6, "swiglu_oai": 7}
NORMS = {"rms": 0, "layer": 1, "l2": 2}
ROUTERS = {"softmax": 0, "sigmoid": 1, "softmax_topk": 2}
MAX_PARTS = 4

A16, A256, FLOAT = 0, 1, -1
ACT_FORMATS = {
    QType.Q4_0: A16,
    QType.Q4_1: A16,
    QType.Q5_0: A16,
    QType.Q5_1: A16,
    QType.Q8_0: A16,
    QType.IQ4_NL: A16,
    QType.MXFP4: A16,
    QType.NVFP4: A16,
    QType.Q2_K: A256,
    QType.Q3_K: A256,
    QType.Q4_K: A256,
    QType.Q5_K: A256,
    QType.Q6_K: A256,
    QType.IQ1_S: A256,
    QType.IQ1_M: A256,
    QType.IQ2_XXS: A256,
    QType.IQ2_XS: A256,
    QType.IQ2_S: A256,
    QType.IQ3_XXS: A256,
    QType.IQ3_S: A256,
    QType.IQ4_XS: A256,
    QType.TQ1_0: A256,
    QType.TQ2_0: A256,
    QType.F16: FLOAT,
    QType.BF16: FLOAT,
    QType.F32: FLOAT,
}
"""Weight types the native core multiplies with, and the activation format each reads (docs/numerics.md)."""


@dataclass(slots=True)
class Program:
    """What a backend needs besides the weights' bytes. matrices and vectors are indices into plan.weights."""

    ops: NDArray[np.void]
    buffers: list[Buffer]
    matrices: list[int]
    packed: set[int]
    vectors: list[int]
    n_act_slots: int


@dataclass(slots=True)
class _State:
    plan: Plan
    qtype: Callable[[str], QType]
    backend: str
    records: list[tuple[int, list[View], list[int], list[int], list[float]]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    matrix_ids: dict[int, int] = field(default_factory=dict)
    vector_ids: dict[int, int] = field(default_factory=dict)
    packed: set[int] = field(default_factory=set)
    valid: dict[int, tuple[View, int]] = field(default_factory=dict)  # activation slot (= format) -> what it holds


def lower(plan: Plan, qtype: Callable[[str], QType], backend: str = "native") -> Program:
    """Translate a plan; qtype gives the type of a tensor. Raises UnsupportedModel, in the name of `backend`, for what a
    program cannot express."""
    s = _State(plan, qtype, backend, buffers=list(plan.buffers))
    for op in plan.ops:
        handler = _HANDLERS.get(type(op))
        if handler is None:
            raise UnsupportedModel(
                f"{plan.arch}: the {backend} backend has no {type(op).__name__} op in this release: "
                f'open the model with backend="reference"'
            )
        handler(s, op)
    records = np.zeros(len(s.records), OP_DTYPE)
    if s.records:
        codes, views, weights, ints, floats = zip(*s.records, strict=True)
        records["code"] = codes
        records["v"] = _rows(views, 4, (-1, -1, -1))
        records["w"] = _rows(weights, 8, -1)
        records["i"] = _rows(ints, 7, 0)
        records["f"] = _rows(floats, 4, 0.0)
    return Program(records, s.buffers, list(s.matrix_ids), s.packed, list(s.vector_ids), 2)


def _rows(lists: Iterable[list[Any]], width: int, filler: object) -> list[list[Any]]:
    """The lists, filled up to one width."""
    return [[*values, *[filler] * (width - len(values))] for values in lists]


def _emit(
    s: _State,
    name: str,
    views: list[View],
    written: View | None,
    weights: list[int] | None = None,
    ints: list[int] | None = None,
    floats: list[float] | None = None,
) -> None:
    s.records.append((CODES[name], views, weights or [], ints or [], floats or []))
    if written is not None:
        for slot, (view, _) in list(s.valid.items()):
            overlap = min(view.start + view.width, written.start + written.width) - max(view.start, written.start)
            if view.buf == written.buf and overlap > 0:
                del s.valid[slot]


def _vector(s: _State, w: int | None) -> int:
    if w is None:
        return -1
    return VECTOR_BASE + s.vector_ids.setdefault(w, len(s.vector_ids))


def _matrix(s: _State, w: int, *, packed: bool = True) -> int:
    if packed:
        s.packed.add(w)
    return s.matrix_ids.setdefault(w, len(s.matrix_ids))


def _format(s: _State, w: int) -> int:
    weight = s.plan.weights[w]
    qtype = s.qtype(weight.tensor)
    if qtype not in ACT_FORMATS:
        raise UnsupportedModel(
            f"{weight.tensor} has weight type {qtype.name}, which the {s.backend} backend does not multiply with in "
            f'this release (it has {", ".join(q.name for q in ACT_FORMATS)}): open the model with backend="reference"'
        )
    return ACT_FORMATS[qtype]


def _quantized(s: _State, x: View, fmt: int, segments: int = 1) -> int:
    """The activation slot that holds x in this format, quantising where it does not yet; -1 for float weights."""
    if fmt == FLOAT:
        return -1
    if s.valid.get(fmt) != (x, segments):
        _emit(s, "QUANTIZE", [x], None, ints=[fmt, fmt, segments])
        s.valid[fmt] = (x, segments)
    return fmt


def _embed(s: _State, op: ops.Embed) -> None:
    _emit(s, "EMBED", [op.y], op.y, [_matrix(s, op.w, packed=False)], floats=[op.scale])


def _norm(s: _State, op: ops.Norm) -> None:
    per_row = 0
    if op.w is not None and op.groups > 1:
        per_row = int(int(np.prod(s.plan.weights[op.w].shape)) == op.x.width)
    ints = [NORMS[op.kind], op.groups, per_row]
    _emit(s, "NORM", [op.x, op.y], op.y, [_vector(s, op.w), _vector(s, op.b)], ints, [op.eps])


def _linear_parts(s: _State, x: View, y: View, parts: list[Part], residual: View | None) -> None:
    """One LINEAR per run of parts with the same activation format, at most MAX_PARTS each."""
    start = done = 0
    while start < len(parts):
        fmt = _format(s, parts[start].w)
        stop, width = start, 0
        while stop < len(parts) and stop - start < MAX_PARTS and _format(s, parts[stop].w) == fmt:
            width += s.plan.weights[parts[stop].w].shape[-2]
            stop += 1
        slot = _quantized(s, x, fmt)
        out = View(y.buf, y.start + done, width)
        res = View(-1, 0, 0) if residual is None else View(residual.buf, residual.start + done, width)
        weights = [i for p in parts[start:stop] for i in (_matrix(s, p.w), _vector(s, p.b))]
        _emit(s, "LINEAR", [x, out, res], out, weights, [stop - start, slot], [p.scale for p in parts[start:stop]])
        start, done = stop, done + width


def _linear(s: _State, op: ops.Linear) -> None:
    _linear_parts(s, op.x, op.y, list(op.parts), op.residual)


def _gated(s: _State, op: ops.Gated) -> None:
    if _format(s, op.gate.w) != _format(s, op.up.w):
        tmp = View(len(s.buffers), 0, op.y.width)
        s.buffers.append(Buffer("gated_tmp", op.y.width, s.buffers[op.y.buf].axis))
        _linear_parts(s, op.x, tmp, [op.gate], None)
        _linear_parts(s, op.x, op.y, [op.up], None)
        _emit(s, "GLU", [tmp, op.y, op.y], op.y, ints=[ACTS[op.act]])
        return
    slot = _quantized(s, op.x, _format(s, op.gate.w))
    weights = [_matrix(s, op.gate.w), _vector(s, op.gate.b), _matrix(s, op.up.w), _vector(s, op.up.b)]
    _emit(s, "GATED", [op.x, op.y], op.y, weights, [ACTS[op.act], slot], [op.gate.scale, op.up.scale])


def _glu(s: _State, op: ops.Glu) -> None:
    _emit(s, "GLU", [op.gate, op.up, op.y], op.y, ints=[ACTS[op.act]])


def _act(s: _State, op: ops.Act) -> None:
    _emit(s, "ACT", [op.x, op.y], op.y, ints=[ACTS[op.act]])


def _add(s: _State, op: ops.Add) -> None:
    _emit(s, "ADD", [op.a, op.b, op.y], op.y)


def _scale(s: _State, op: ops.Scale) -> None:
    _emit(s, "SCALE", [op.x, op.y], op.y, floats=[op.factor])


def _softcap(s: _State, op: ops.Softcap) -> None:
    _emit(s, "SOFTCAP", [op.x, op.y], op.y, floats=[op.cap])


def _rope(s: _State, op: ops.Rope) -> None:
    mode = {"norm": 0, "neox": 1}[op.mode]
    _emit(s, "ROPE", [op.x], op.x, ints=[op.heads, op.n_rot, op.offset, mode, op.table])


def _kv_write(s: _State, op: ops.KVWrite) -> None:
    if op.v is None:
        raise UnsupportedModel(
            f'{s.plan.arch}: the {s.backend} backend has no latent KV cache in this release: use backend="reference"'
        )
    _emit(s, "KV_WRITE", [op.k, op.v], None, ints=[op.cache.cls, op.cache.layer])


def _attention(s: _State, op: ops.Attention) -> None:
    ints = [op.cache.cls, op.cache.layer, op.heads, op.window, int(op.causal)]
    _emit(s, "ATTENTION", [op.q, op.y], op.y, [_vector(s, op.sinks)], ints, [op.scale, op.softcap])


def _route(s: _State, op: ops.Route) -> None:
    if op.func not in ROUTERS or op.groups != 1:
        raise UnsupportedModel(
            f"{s.plan.arch}: the {s.backend} backend has no router {op.func!r} with {op.groups} groups in this "
            f'release: open the model with backend="reference"'
        )
    ints = [op.k, ROUTERS[op.func], int(op.norm)]
    _emit(s, "ROUTE", [op.logits, op.ids, op.weights], op.weights, [_vector(s, op.bias)], ints, [op.scale])


def _stack(s: _State, e: Experts) -> list[int]:
    return [_matrix(s, e.w), _vector(s, e.b), _vector(s, e.scale)]


def _expert_linear(s: _State, op: ops.ExpertLinear) -> None:
    slot = _quantized(s, op.x, _format(s, op.experts.w), op.k if op.per_rank else 1)
    ints = [op.k, int(op.per_rank), slot]
    _emit(s, "EXPERT_LINEAR", [op.x, op.ids, op.y], op.y, _stack(s, op.experts), ints)


def _expert_gated(s: _State, op: ops.ExpertGated) -> None:
    if _format(s, op.gate.w) != _format(s, op.up.w):
        tmp = View(len(s.buffers), 0, op.y.width)
        s.buffers.append(Buffer("experts_tmp", op.y.width, s.buffers[op.y.buf].axis))
        _expert_linear(s, ops.ExpertLinear(op.x, op.ids, tmp, op.gate, op.k))
        _expert_linear(s, ops.ExpertLinear(op.x, op.ids, op.y, op.up, op.k))
        _emit(s, "GLU", [tmp, op.y, op.y], op.y, ints=[ACTS[op.act]])
        return
    slot = _quantized(s, op.x, _format(s, op.gate.w))
    weights = _stack(s, op.gate) + _stack(s, op.up)
    _emit(s, "EXPERT_GATED", [op.x, op.ids, op.y], op.y, weights, [op.k, ACTS[op.act], slot])


def _combine(s: _State, op: ops.Combine) -> None:
    residual = View(-1, 0, 0) if op.residual is None else op.residual
    _emit(s, "COMBINE", [op.x, op.weights, op.y, residual], op.y, ints=[op.k])


def _select(s: _State, op: ops.SelectRows) -> None:
    _emit(s, "SELECT_ROWS", [op.x, op.y], op.y)


_HANDLERS: Mapping[type[Op], Callable[[_State, Any], None]] = {
    ops.Embed: _embed,
    ops.Norm: _norm,
    ops.Linear: _linear,
    ops.Gated: _gated,
    ops.Glu: _glu,
    ops.Act: _act,
    ops.Add: _add,
    ops.Scale: _scale,
    ops.Softcap: _softcap,
    ops.Rope: _rope,
    ops.KVWrite: _kv_write,
    ops.Attention: _attention,
    ops.Route: _route,
    ops.ExpertLinear: _expert_linear,
    ops.ExpertGated: _expert_gated,
    ops.Combine: _combine,
    ops.SelectRows: _select,
}

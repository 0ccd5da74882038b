"""Is an op sound? One rule for each: sizes are bound to letters with their sources, so that a clash reads

Linear: K is 2048 from x (buffer 'h') but 2560 in blk.3.attn_q.weight
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from edgellm.models import ops as o
from edgellm.models.scope import MAX_CTX, Scope
from edgellm.models.tables import Tables


def reads(op: o.Op) -> Iterator[o.View]:
    """Views that the op reads, a residual and what is changed in place included."""
    passed = () if isinstance(op, o.Rope) else _outputs(op)
    for name in op.__match_args__:
        value = getattr(op, name)
        if isinstance(value, o.View) and name not in passed:
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

"""Blocks that families are made of: each adds the ops of one part of a layer to a Builder.

Buffers by name: "x" is the residual stream, "h" a normalised copy of it, "t" a sub-layer's result before its own norm.
"""

from __future__ import annotations

from edgellm.core.record import dataclass
from edgellm.models import ops as o
from edgellm.models.build import Builder
from edgellm.models.dims import Dims
from edgellm.models.ops import View
from edgellm.models.tables import CacheLayer, PlanError

UNUSED_SCALE = "a factor of quantised weights that this architecture's graph does not apply"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How q and k are rotated. mode: "norm" or "neox"."""

    table: int
    n_rot: int
    mode: str


@dataclass(frozen=True, slots=True)
class Attn:
    """One layer's grouped-query attention. rope None = no positions; window 0 = all positions.

    q_rope: how q is rotated, where that is not as k is (a temperature is part of the table).
    qk_norm: "head": RMS norm of every head of q and k before the rotation, "head_last": after it; "full": one RMS norm
    over all heads together; "layer": layer norm of every head with weights of its own. sinks: `attn_sinks` is there.
    gate: `attn_q` yields a query and a gate for each head; the result is multiplied by sigmoid(gate).
    out_bias: the bias of the output projection counts (`stack.attention`).
    """

    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    scale: float
    rope: RopeSpec | None
    window: int = 0
    softcap: float = 0.0
    qk_norm: str = ""
    sinks: bool = False
    gate: bool = False
    q_rope: RopeSpec | None = None
    out_bias: bool = True


def embed(b: Builder, d: Dims, scale: float = 1.0) -> View:
    """Token embeddings into the residual stream."""
    x = b.buffer("x", d.n_embd)
    b.add(o.Embed(x, b.embedding("token_embd.weight"), scale))
    return x


def rms_norm(b: Builder, x: View, y: View, tensor: str, eps: float, groups: int = 1) -> View:
    """y = RMS norm of x with the tensor's weights; returns y."""
    b.add(o.Norm(x, y, eps, b.vector(tensor), groups=groups))
    return y


def layer_norm(b: Builder, x: View, y: View, stem: str, eps: float) -> View:
    """y = layer norm of x with `<stem>.weight`, and `<stem>.bias` where the file has it; returns y."""
    b.add(o.Norm(x, y, eps, b.vector(f"{stem}.weight"), b.optional_vector(f"{stem}.bias"), kind="layer"))
    return y


def pre_norm(b: Builder, d: Dims, x: View, tensor: str) -> View:
    """The normalised copy of the residual stream that a sub-layer reads."""
    return rms_norm(b, x, b.buffer("h", d.n_embd), tensor, d.eps)


def post_norm(b: Builder, d: Dims, t: View, x: View, tensor: str) -> None:
    """x += RMS norm of the sub-layer's result t."""
    rms_norm(b, t, t, tensor, d.eps)
    b.add(o.Add(x, t, x))


def project(b: Builder, stem: str, x: View, y: View, residual: View | None = None, scale: bool = True) -> None:
    """y = (residual +) the matrix `stem` times x, with its bias and scale."""
    b.add(o.Linear(x, y, (b.part(stem, y.width, scale),), residual))


def qkv(b: Builder, i: int, h: View, n_q: int, n_k: int, n_v: int) -> tuple[View, View, View]:
    """Queries, keys and values in one product, from `attn_qkv` or from three tensors; views of one buffer."""
    out = b.buffer("qkv", n_q + n_k + n_v)
    sizes = (n_q, n_k, n_v)
    blk = f"blk.{i}"
    fused = f"{blk}.attn_qkv"
    parts: tuple[o.Part, ...]
    if not b.has(f"{fused}.weight"):
        parts = tuple(b.part(f"{blk}.attn_{c}", n) for c, n in zip("qkv", sizes, strict=True))
    elif not all(b.has(f"{blk}.attn_{c}.bias") for c in "qkv"):
        parts = (b.part(fused, sum(sizes)),)
    else:
        scale = b.scale(fused)
        starts = (0, n_q, n_q + n_k)
        parts = tuple(
            o.Part(b.rows(f"{fused}.weight", start, n), b.vector(f"{blk}.attn_{c}.bias"), scale)
            for c, start, n in zip("qkv", starts, sizes, strict=True)
        )
    b.add(o.Linear(h, out, parts))
    return out.columns(0, n_q), out.columns(n_q, n_k), out.columns(n_q + n_k, n_v)


def attend(b: Builder, d: Dims, i: int, h: View, a: Attn) -> View:
    """Attention of layer i up to its output projection: [T, H * Ev]."""
    n_q = a.heads * a.k_dim
    q, k, v = qkv(b, i, h, 2 * n_q if a.gate else n_q, a.kv_heads * a.k_dim, a.kv_heads * a.v_dim)
    gate = None
    if a.gate:
        both, q, gate = q, b.buffer("q", n_q), b.buffer("gate", n_q)
        b.add(o.Copy(both, q, a.heads, 0, 0, a.k_dim))
        b.add(o.Copy(both, gate, a.heads, a.k_dim, 0, a.k_dim))
    if a.qk_norm != "head_last":
        _qk_norm(b, d, i, a, q, k)
    if a.rope is not None:
        q_rope = a.q_rope or a.rope
        b.add(o.Rope(q, a.heads, q_rope.n_rot, 0, q_rope.mode, q_rope.table))
        b.add(o.Rope(k, a.kv_heads, a.rope.n_rot, 0, a.rope.mode, a.rope.table))
    if a.qk_norm == "head_last":
        _qk_norm(b, d, i, a, q, k)
    slot = b.cache("window" if a.window else "full", CacheLayer(a.kv_heads, a.k_dim, a.v_dim), a.window)
    b.add(o.KVWrite(k, v, slot))
    y = b.buffer("att", a.heads * a.v_dim)
    sinks = b.vector(f"blk.{i}.attn_sinks.weight") if a.sinks else None
    b.add(o.Attention(q, y, slot, a.heads, a.scale, a.window, a.softcap, sinks))
    if gate is not None:
        b.add(o.Glu(gate, y, y, "sigmoid"))
    return y


def _qk_norm(b: Builder, d: Dims, i: int, a: Attn, q: View, k: View) -> None:
    for name, x, heads in (("q", q, a.heads), ("k", k, a.kv_heads)):
        tensor = f"blk.{i}.attn_{name}_norm.weight"
        if a.qk_norm.startswith("head"):
            rms_norm(b, x, x, tensor, d.eps, heads)
        elif a.qk_norm == "full":
            rms_norm(b, x, x, tensor, d.eps)
        elif a.qk_norm == "layer":
            b.add(o.Norm(x, x, d.eps, b.vector(tensor, (x.width,)), kind="layer", groups=heads))


def mlp(
    b: Builder,
    stem: str,
    h: View,
    y: View,
    n_ff: int,
    act: str,
    residual: View | None = None,
    scale: bool = True,
    suffix: str = "",
) -> None:
    """y = (residual +) down(act(gate(h)) * up(h)). n_ff 0: as many as the tensors have.

    scale: the tensors' `.scale` is applied, after the bias; otherwise it is left out. suffix: as in `ffn_up_shexp`.
    """
    names = [f"{stem}_{part}{suffix}" for part in ("gate", "up", "down")]
    if not scale:
        for name in names:
            b.ignore(f"{name}.scale", UNUSED_SCALE)
    n_ff = n_ff or b.shape(f"{names[1]}.weight")[0]
    gate, up = (b.part(name, n_ff, scale) for name in names[:2])
    down = b.part(names[2], y.width, scale)
    g = b.buffer("ff", n_ff)
    if not any(p.b is not None and p.scale != 1.0 for p in (gate, up, down)):
        b.add(o.Gated(h, g, gate, up, act))
        b.add(o.Linear(g, y, (down,), residual))
        return
    # The scale multiplies the bias too, so it is an op of its own.
    u, t = b.buffer("ff_up", n_ff), b.buffer("t", y.width)
    for part, x, out in ((gate, h, g), (up, h, u)):
        b.add(o.Linear(x, out, (part._replace(scale=1.0),)))
        b.add(o.Scale(out, out, part.scale))
    b.add(o.Glu(g, u, g, act))
    b.add(o.Linear(g, t, (down._replace(scale=1.0),)))
    if residual is None:
        b.add(o.Scale(t, y, down.scale))
    else:
        b.add(o.Scale(t, t, down.scale))
        b.add(o.Add(residual, t, y))


def fused_mlp(b: Builder, stem: str, h: View, y: View, n_ff: int, act: str, residual: View | None = None) -> None:
    """As `mlp`, with the gate's rows before those of the up projection in `<stem>_up`. Without biases and scales."""
    for part in ("up", "down"):
        b.ignore(f"{stem}_{part}.scale", UNUSED_SCALE)
    up = f"{stem}_up.weight"
    g = b.buffer("ff", n_ff)
    b.add(o.Gated(h, g, o.Part(b.rows(up, 0, n_ff)), o.Part(b.rows(up, n_ff, n_ff)), act))
    b.add(o.Linear(g, y, (b.part(f"{stem}_down", y.width, scale=False),), residual))


@dataclass(frozen=True, slots=True)
class Moe:
    """Experts of one layer; the fields are Route's. scale: their `.scale` is applied, else left out."""

    n: int
    k: int
    act: str
    func: str = "softmax"
    norm: bool = False
    weight_scale: float = 1.0
    select_bias: bool = False
    groups: int = 1
    groups_used: int = 1
    scale: bool = True


def moe(b: Builder, i: int, h: View, y: View, m: Moe, residual: View | None = None) -> None:
    """y = (residual +) the routed experts' results for h. Gate and up are two stacks, or one with twice the rows."""
    blk = f"blk.{i}"
    logits = b.buffer("router", m.n)
    ids, weights = b.buffer("ids", m.k, dtype="i32"), b.buffer("weights", m.k)
    b.add(o.Linear(h, logits, (b.part(f"{blk}.ffn_gate_inp", m.n),)))
    bias = b.optional_vector(f"{blk}.exp_probs_b.bias") if m.select_bias else None
    route = o.Route(
        logits, ids, weights, m.k, m.func, bias, m.norm, m.weight_scale or 1.0, m.groups or 1, m.groups_used or 1
    )
    b.add(route)
    experts(b, i, h, y, m, ids, weights, residual)


def experts(
    b: Builder, i: int, h: View, y: View, m: Moe, ids: View, weights: View, residual: View | None = None
) -> None:
    """y = (residual +) the weighted results of the chosen experts."""
    blk = f"blk.{i}"
    if not m.scale:
        for part in ("gate", "up", "down"):
            b.ignore(f"{blk}.ffn_{part}_exps.scale", UNUSED_SCALE)
    merged = f"{blk}.ffn_gate_up_exps.weight"
    if b.has(merged):
        if len(b.shape(merged)) != 3 or b.shape(merged)[1] % 2 or b.has(f"{blk}.ffn_gate_up_exps.bias"):
            raise PlanError(f"{merged} has shape {list(b.shape(merged))}, expected [experts, 2 * F, D] without bias")
        n_ff = b.shape(merged)[1] // 2
        gate, up = o.Experts(b.rows(merged, 0, n_ff)), o.Experts(b.rows(merged, n_ff, n_ff))
    else:
        gate = b.experts(f"{blk}.ffn_gate_exps", m.scale)
        up = b.experts(f"{blk}.ffn_up_exps", m.scale)
        n_ff = b.weights[up.w].shape[-2]
    down = b.experts(f"{blk}.ffn_down_exps", m.scale)
    for e in (gate, up, down):
        w = b.weights[e.w]
        if w.shape[0] != m.n:
            raise PlanError(f"{w.tensor} has {w.shape[0]} experts, but expert_count is {m.n}")
    g = b.buffer("ff_exps", m.k * n_ff)
    t = b.buffer("out_exps", m.k * y.width)
    b.add(o.ExpertGated(h, ids, g, gate, up, m.k, m.act))
    b.add(o.ExpertLinear(g, ids, t, down, m.k, per_rank=True))
    b.add(o.Combine(t, weights, y, m.k, residual))


def head(b: Builder, d: Dims, x: View, softcap: float = 0.0, *, scale: float = 1.0, norm: str = "rms") -> View:
    """The rows whose logits are wanted, the final norm and the logits (tied to the embeddings without `output`).

    norm: "rms", or "layer" (with a bias where the file has one). scale: factor on the logits.
    """
    out = b.buffer("out", d.n_embd, "R")
    logits = b.buffer("logits", d.n_vocab, "R")
    b.add(o.SelectRows(x, out))
    if norm == "layer":
        layer_norm(b, out, out, "output_norm", d.eps)
    else:
        rms_norm(b, out, out, "output_norm.weight", d.eps)
    if b.has("output.weight"):
        project(b, "output", out, logits)
    else:
        b.add(o.Linear(out, logits, (o.Part(b.tied("token_embd.weight")),)))
    if scale != 1.0:
        b.add(o.Scale(logits, logits, scale))
    if softcap:
        b.add(o.Softcap(logits, logits, softcap))
    return logits

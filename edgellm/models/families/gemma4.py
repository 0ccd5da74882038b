"""gemma4: Gemma 4, text only: E2B, E4B, 12B, 31B and the 26B with experts.

Head sizes, KV heads and feed-forward widths differ from layer to layer; the last layers read the keys and values of
earlier ones; an extra embedding per layer is mixed in (E2B, E4B); a factor ends each layer.
"""

from __future__ import annotations

from edgellm.core.errors import UnsupportedModel
from edgellm.core.record import dataclass
from edgellm.models import ops as o
from edgellm.models.blocks import Moe, RopeSpec, embed, experts, head, mlp, post_norm, pre_norm, project, qkv, rms_norm
from edgellm.models.build import Builder
from edgellm.models.dims import Dims, f32, read_dims, rsqrt32, sqrt32
from edgellm.models.keys import Keys
from edgellm.models.ops import View
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.tables import CacheLayer, RopeTable


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's attention. source: the earlier layer whose keys and values it reads, None for its own."""

    heads: int
    kv_heads: int
    e: int
    rope: RopeSpec
    window: int
    source: int | None


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    layers = _layers(b, k, d)
    x = embed(b, d, sqrt32(d.n_embd))
    n_extra = k.integer("embedding_length_per_layer_input")
    extra = _per_layer_inputs(b, d, x, n_extra) if n_extra else None
    moe = Moe(d.n_expert, d.n_expert_used, "gelu_tanh", norm=True) if d.n_expert else None
    slots: list[o.Slot] = []
    t = b.buffer("t", d.n_embd)
    for i, layer in enumerate(layers):
        y = _attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), layer, slots)
        project(b, f"blk.{i}.attn_output", y, t)
        post_norm(b, d, t, x, f"blk.{i}.post_attention_norm.weight")
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        mlp(b, f"blk.{i}.ffn", h, t, d.n_ff[i], "gelu_tanh")
        if moe is not None and b.has(f"blk.{i}.ffn_gate_inp.weight"):
            _experts(b, d, i, x, t, moe)
        post_norm(b, d, t, x, f"blk.{i}.post_ffw_norm.weight")
        if extra is not None:
            gate = b.buffer("extra_gate", n_extra)
            project(b, f"blk.{i}.inp_gate", x, gate)
            b.add(o.Glu(gate, extra.columns(i * n_extra, n_extra), gate, "gelu_tanh"))
            project(b, f"blk.{i}.proj", gate, t)
            post_norm(b, d, t, x, f"blk.{i}.post_norm.weight")
        if b.has(f"blk.{i}.layer_output_scale.weight"):
            b.add(o.Scale(x, x, b.scalar(f"blk.{i}.layer_output_scale.weight")))
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, k.number("final_logit_softcapping", 30.0)))


def _layers(b: Builder, k: Keys, d: Dims) -> list[_Layer]:
    local = k.flags("attention.sliding_window_pattern", d.n_layer)
    window = k.integer("attention.sliding_window", lo=1, hi=1 << 26)
    e_local = k.integer("attention.key_length_swa", lo=1, hi=1 << 16)
    if d.k_dim != d.v_dim or e_local != k.integer("attention.value_length_swa", lo=1, hi=1 << 16):
        raise UnsupportedModel("gemma4 heads have one size for keys and values; the file says otherwise")
    n_rot_local = k.integer("rope.dimension_count_swa", d.n_rot)
    factors = b.shared_vector("rope_freqs.weight") if not all(local) else None
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot, factors)), d.n_rot, "neox")
    local_table = RopeTable(n_rot_local, k.number("rope.freq_base_swa", 10000.0))
    local_rope = RopeSpec(b.rope(local_table), n_rot_local, "neox")
    n_own = d.n_layer - k.integer("attention.shared_kv_layers", 0, hi=d.n_layer)
    layers = []
    for i in range(d.n_layer):
        source = None if i < n_own else n_own - (2 if local[i] else 1)
        if source is not None and (source < 0 or local[source] != local[i]):
            raise UnsupportedModel(
                f"layer {i} would read the keys of layer {source}, which has another kind of attention "
                f"({k.arch}.attention.shared_kv_layers and sliding_window_pattern do not fit each other)"
            )
        e, r, w = (e_local, local_rope, window) if local[i] else (d.k_dim, rope, 0)
        layers.append(_Layer(d.heads[i], d.kv_heads[i], e, r, w, source))
    return layers


def _attend(b: Builder, d: Dims, i: int, h: View, a: _Layer, slots: list[o.Slot]) -> View:
    """Attention up to its output projection. Values are normalised too; without `attn_v` they are the raw keys."""
    n_q, n_kv = a.heads * a.e, a.kv_heads * a.e
    blk = f"blk.{i}"
    if a.source is not None:
        q = b.buffer("q", n_q)
        project(b, f"{blk}.attn_q", h, q)
        for name in ("attn_k", "attn_v", "attn_k_norm"):
            b.ignore(f"{blk}.{name}.weight", "the layer reads the keys and values of an earlier one")
        slot = slots[a.source]
    else:
        if b.has(f"{blk}.attn_v.weight") or b.has(f"{blk}.attn_qkv.weight"):
            q, key, value = qkv(b, i, h, n_q, n_kv, n_kv)
            b.add(o.Norm(value, value, d.eps, groups=a.kv_heads))
        else:
            out, value = b.buffer("qk", n_q + n_kv), b.buffer("v", n_kv)
            b.add(o.Linear(h, out, (b.part(f"{blk}.attn_q", n_q), b.part(f"{blk}.attn_k", n_kv))))
            q, key = out.columns(0, n_q), out.columns(n_q, n_kv)
            b.add(o.Norm(key, value, d.eps, groups=a.kv_heads))
        rms_norm(b, key, key, f"{blk}.attn_k_norm.weight", d.eps, a.kv_heads)
        b.add(o.Rope(key, a.kv_heads, a.rope.n_rot, 0, a.rope.mode, a.rope.table))
        slot = b.cache("window" if a.window else "full", CacheLayer(a.kv_heads, a.e, a.e), a.window)
        b.add(o.KVWrite(key, value, slot))
    slots.append(slot)
    rms_norm(b, q, q, f"{blk}.attn_q_norm.weight", d.eps, a.heads)
    b.add(o.Rope(q, a.heads, a.rope.n_rot, 0, a.rope.mode, a.rope.table))
    y = b.buffer("att", n_q)
    b.add(o.Attention(q, y, slot, a.heads, 1.0, a.window))
    return y


def _experts(b: Builder, d: Dims, i: int, x: View, t: View, m: Moe) -> None:
    """t = norm(t) + norm(experts of norm(x)); the router reads x over its root mean square, times its own factors."""
    blk = f"blk.{i}"
    rms_norm(b, t, t, f"{blk}.post_ffw_norm_1.weight", d.eps)
    seen, logits = b.buffer("router_in", d.n_embd), b.buffer("router", m.n)
    rms_norm(b, x, seen, f"{blk}.ffn_gate_inp.scale", d.eps)
    b.add(o.Scale(seen, seen, rsqrt32(d.n_embd)))
    project(b, f"{blk}.ffn_gate_inp", seen, logits, scale=False)
    ids, weights = b.buffer("ids", m.k, dtype="i32"), b.buffer("weights", m.k)
    b.add(o.Route(logits, ids, weights, m.k, m.func, norm=m.norm))
    h, u = b.buffer("h", d.n_embd), b.buffer("t2", d.n_embd)
    rms_norm(b, x, h, f"{blk}.pre_ffw_norm_2.weight", d.eps)
    experts(b, i, h, u, m, ids, weights)
    rms_norm(b, u, u, f"{blk}.post_ffw_norm_2.weight", d.eps)
    b.add(o.Add(t, u, t))


def _per_layer_inputs(b: Builder, d: Dims, x: View, n: int) -> View:
    """[T, layers * n]: (the token's own embedding of each layer + a projection of x, normalised) / sqrt(2)."""
    own, projected = b.buffer("extra", d.n_layer * n), b.buffer("extra_proj", d.n_layer * n)
    b.add(o.Embed(own, b.embedding("per_layer_token_embd.weight"), sqrt32(n)))
    project(b, "per_layer_model_proj", x, projected)
    b.add(o.Scale(projected, projected, rsqrt32(d.n_embd)))
    rms_norm(b, projected, projected, "per_layer_proj_norm.weight", d.eps, d.n_layer)
    b.add(o.Add(projected, own, own))
    b.add(o.Scale(own, own, f32(rsqrt32(2.0))))
    return own


FAMILY = Family("gemma4", build)

"""gemma3: Gemma 3, 270M to 27B, text only.

Embeddings times sqrt(D); norms before and after each sub-layer, and on every head of q and k; five sliding-window
layers (rope base 10,000) for each global one (the file's base and scaling); GELU. The 27B model's attention scale is
1 / sqrt(D / H), the others' 1 / sqrt(head size).
"""

from __future__ import annotations

from edgellm.models.blocks import Attn, RopeSpec, attend, embed, head, mlp, post_norm, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, rsqrt32, sqrt32, windowed
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.tables import RopeTable


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    window = k.integer("attention.sliding_window", 0, hi=1 << 26)
    local = windowed(k, d.n_layer, 6) if window else (False,) * d.n_layer
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    base_swa = k.number("rope.freq_base_swa", 10000.0)
    rope_swa = RopeSpec(b.rope(RopeTable(d.n_rot, base_swa)), d.n_rot, "neox") if any(local) else rope
    scale = rsqrt32(d.n_embd // d.heads[0] if d.n_layer == 62 else d.k_dim)
    softcap = k.number("attn_logit_softcapping", 0.0)
    x = embed(b, d, sqrt32(d.n_embd))
    t = b.buffer("t", d.n_embd)
    for i in range(d.n_layer):
        a = Attn(
            d.heads[i],
            d.kv_heads[i],
            d.k_dim,
            d.v_dim,
            scale,
            rope_swa if local[i] else rope,
            window=window if local[i] else 0,
            softcap=softcap,
            qk_norm="head",
        )
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), a)
        project(b, f"blk.{i}.attn_output", y, t)
        post_norm(b, d, t, x, f"blk.{i}.post_attention_norm.weight")
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        mlp(b, f"blk.{i}.ffn", h, t, d.n_ff[i], "gelu_tanh", scale=False)
        post_norm(b, d, t, x, f"blk.{i}.post_ffw_norm.weight")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, k.number("final_logit_softcapping", 0.0)))


FAMILY = Family("gemma3", build)

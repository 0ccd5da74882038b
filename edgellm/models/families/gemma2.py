"""gemma2: Gemma 2: sandwich norms, soft caps on attention and output, every other layer with a sliding window."""

from __future__ import annotations

from edgellm.core.record import replace
from edgellm.models.blocks import Attn, RopeSpec, attend, embed, head, mlp, post_norm, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, rsqrt32, sqrt32, windowed
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    window = k.integer("attention.sliding_window", 4096, lo=1, hi=1 << 26)
    local = windowed(k, d.n_layer, 2)
    table = rope_table(k, d.n_rot)
    rope = RopeSpec(b.rope(table), d.n_rot, "neox")
    rope_swa = RopeSpec(b.rope(replace(table, base=k.number("rope.freq_base_swa", table.base))), d.n_rot, "neox")
    scale = rsqrt32(d.n_embd // d.heads[0] if d.n_layer == 46 else d.k_dim)
    softcap = k.number("attn_logit_softcapping", 50.0)
    x, t = embed(b, d, sqrt32(d.n_embd)), b.buffer("t", d.n_embd)
    for i in range(d.n_layer):
        a = Attn(d.heads[i], d.kv_heads[i], d.k_dim, d.v_dim, scale, rope, softcap=softcap)
        if local[i]:
            a = replace(a, rope=rope_swa, window=window)
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), a)
        project(b, f"blk.{i}.attn_output", y, t)
        post_norm(b, d, t, x, f"blk.{i}.post_attention_norm.weight")
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        mlp(b, f"blk.{i}.ffn", h, t, d.n_ff[i], "gelu_tanh", scale=False)
        post_norm(b, d, t, x, f"blk.{i}.post_ffw_norm.weight")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, k.number("final_logit_softcapping", 30.0)))


FAMILY = Family("gemma2", build)

"""cohere2: Command R7B and Command A: command-r, where every fourth layer sees everything and has no positions."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, embed, head, mlp
from edgellm.models.build import Builder
from edgellm.models.dims import LAYER_EPS, read_dims, windowed
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import attention, heads, pre_layer_norm


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b, LAYER_EPS)
    window = k.integer("attention.sliding_window", lo=1, hi=1 << 26)
    local = windowed(k, d.n_layer, 4)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "norm")
    x = embed(b, d)
    for i in range(d.n_layer):
        h = pre_layer_norm(b, d, x, f"blk.{i}.attn_norm")
        attention(b, d, i, h, x, heads(d, i, rope, window=window) if local[i] else heads(d, i, None))
        mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x)
    scale = k.number("logit_scale") or 1.0
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, scale=scale, norm="layer"))


FAMILY = Family("cohere2", build)

"""command-r: Command R and R+, Aya: attention and feed-forward side by side, layer norms without biases."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, embed, head, mlp
from edgellm.models.build import Builder
from edgellm.models.dims import LAYER_EPS, read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import attention, heads, pre_layer_norm


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b, LAYER_EPS)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "norm")
    x = embed(b, d)
    for i in range(d.n_layer):
        h = pre_layer_norm(b, d, x, f"blk.{i}.attn_norm")
        qk_norm = "layer" if b.has(f"blk.{i}.attn_q_norm.weight") else ""
        attention(b, d, i, h, x, heads(d, i, rope, qk_norm))
        mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x, scale=False)
    scale = k.number("logit_scale", 0.0) or 1.0
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, scale=scale, norm="layer"))


FAMILY = Family("command-r", build)

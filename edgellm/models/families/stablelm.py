"""stablelm: StableLM 2 and others: layer norms, a part of each head rotated; the 12B has norms on q and k."""

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
    """Without `ffn_norm` both sub-layers read the same norm, side by side."""
    d = read_dims(k, b, LAYER_EPS)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    x = embed(b, d)
    for i in range(d.n_layer):
        h = pre_layer_norm(b, d, x, f"blk.{i}.attn_norm")
        attention(b, d, i, h, x, heads(d, i, rope, "layer" if b.has(f"blk.{i}.attn_q_norm.weight") else ""))
        if b.has(f"blk.{i}.ffn_norm.weight"):
            h = pre_layer_norm(b, d, x, f"blk.{i}.ffn_norm")
        mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x, scale=False)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, norm="layer"))


FAMILY = Family("stablelm", build, ignored_keys={"use_parallel_residual": "files of models with it have no ffn_norm"})

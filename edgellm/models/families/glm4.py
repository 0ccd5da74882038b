"""glm4: GLM 4 (0414) and Z1: norms before and behind each sub-layer, a fused feed-forward."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, attend, embed, fused_mlp, head, post_norm, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import heads


def build(b: Builder, k: Keys) -> Plan:
    """Files with sections of a multi-axis rotation hold q and k in the order that it needs: halves instead of pairs."""
    d = read_dims(k, b)
    sections = k.integers("rope.dimension_sections", 4, 0) if k.is_array("rope.dimension_sections") else (0,)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox" if any(sections) else "norm")
    x = embed(b, d)
    t = b.buffer("t", d.n_embd)
    for i in range(d.n_layer):
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), heads(d, i, rope))
        project(b, f"blk.{i}.attn_output", y, t)
        post_norm(b, d, t, x, f"blk.{i}.post_attention_norm.weight")
        fused_mlp(b, f"blk.{i}.ffn", pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight"), t, d.n_ff[i], "silu")
        post_norm(b, d, t, x, f"blk.{i}.post_ffw_norm.weight")
    b.ignore_layers(d.n_layer, d.n_extra, "predicts further tokens; the next token's logits do not depend on it")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("glm4", build)

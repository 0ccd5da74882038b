"""smollm3: SmolLM3: like llama, with no positions in every fourth layer."""

from __future__ import annotations

from edgellm.core.errors import UnsupportedModel
from edgellm.models.blocks import Attn, RopeSpec, attend, embed, head, mlp, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, rsqrt32
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family

NO_ROPE_STEP = 4
"""Of so many layers the last one has no positions; the file does not say."""


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    if not d.n_rot == d.k_dim == d.v_dim:
        raise UnsupportedModel(
            f"smollm3 heads have one size and rotate whole, but rope.dimension_count is {d.n_rot}, "
            f"attention.key_length {d.k_dim} and attention.value_length {d.v_dim}"
        )
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "norm")
    x = embed(b, d)
    for i in range(d.n_layer):
        rotated = (i + 1) % NO_ROPE_STEP != 0
        a = Attn(d.heads[i], d.kv_heads[i], d.k_dim, d.v_dim, rsqrt32(d.k_dim), rope if rotated else None)
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), a)
        project(b, f"blk.{i}.attn_output", y, x, residual=x)
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x, scale=False)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("smollm3", build)

"""phi3: Phi 3, 3.5 and 4, and Phi 4 mini: fused matrices, and LongRoPE in those with a long context.

`attn_qkv` holds queries, keys and values, `ffn_up` the gate's rows before the up projection's. The divisors of
`rope_factors_short` and `rope_factors_long` are used whatever the scaling type says.
"""

from __future__ import annotations

from edgellm.models.blocks import Attn, RopeSpec, attend, embed, fused_mlp, head, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, rsqrt32
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import long_factors, rope_table
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    table = rope_table(k, d.n_rot, longrope=long_factors(b, k, d.n_rot))
    rope = RopeSpec(b.rope(table), d.n_rot, "neox")
    x = embed(b, d)
    for i in range(d.n_layer):
        a = Attn(d.heads[i], d.kv_heads[i], d.k_dim, d.v_dim, rsqrt32(d.k_dim), rope)
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), a)
        project(b, f"blk.{i}.attn_output", y, x, residual=x)
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        fused_mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family(
    "phi3",
    build,
    ignored_keys={"attention.sliding_window": "converters write it for models that attend to everything, too"},
)

"""ernie4_5-moe: Ernie 4.5 with experts: a softmax router with a selection bias, beside shared experts."""

from __future__ import annotations

from edgellm.core.record import replace
from edgellm.models.blocks import Moe, RopeSpec, embed, head
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import dense_layer, heads, moe_layer, shared_expert


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "norm")
    experts = Moe(d.n_expert, d.n_expert_used, "silu", norm=True, select_bias=True, scale=False)
    n_dense = k.integer("leading_dense_block_count", 0)
    step = k.integer("interleave_moe_layer_step", lo=1)
    x = embed(b, d)
    for i in range(d.n_layer):
        a = replace(heads(d, i, rope), out_bias=False)
        if i < n_dense or (i + 1) % step:
            dense_layer(b, d, i, x, a)
            continue
        h = moe_layer(b, d, i, x, a, experts)
        if b.has(f"blk.{i}.ffn_up_shexp.weight"):
            shared_expert(b, i, h, x)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family(
    "ernie4_5-moe",
    build,
    ignored_keys={"expert_shared_count": "the shared experts are one matrix, as wide as they are together"},
)

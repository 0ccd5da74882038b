"""olmoe: OLMoE: an RMS norm over all of q and of k, and experts whose weights are not normalised."""

from __future__ import annotations

from edgellm.models.blocks import Moe, RopeSpec, embed, head
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import heads, moe_layer


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    experts = Moe(d.n_expert, d.n_expert_used, "silu", scale=False)
    x = embed(b, d)
    for i in range(d.n_layer):
        moe_layer(b, d, i, x, heads(d, i, rope, "full"), experts)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("olmoe", build)

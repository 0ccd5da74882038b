"""ernie4_5: Ernie 4.5, the dense models: llama in other words."""

from __future__ import annotations

from edgellm.core.record import replace
from edgellm.models.blocks import RopeSpec, embed, head
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import dense_layer, heads


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "norm")
    x = embed(b, d)
    for i in range(d.n_layer):
        dense_layer(b, d, i, x, replace(heads(d, i, rope), out_bias=False))
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("ernie4_5", build)

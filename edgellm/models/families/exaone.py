"""exaone: EXAONE 3 and 3.5: like llama, with rotation of the two halves of a head."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, embed, head
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import divided_table
from edgellm.models.spec import Family
from edgellm.models.stack import dense_layer, heads


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    rope = RopeSpec(b.rope(divided_table(b, k, d.n_rot)), d.n_rot, "neox")
    x = embed(b, d)
    for i in range(d.n_layer):
        dense_layer(b, d, i, x, heads(d, i, rope))
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("exaone", build)

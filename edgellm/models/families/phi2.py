"""phi2: Phi 1, 1.5 and 2: attention and feed-forward side by side, biases everywhere, layer norms."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, embed, head
from edgellm.models.build import Builder
from edgellm.models.dims import LAYER_EPS, read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import attention, heads, plain_mlp, pre_layer_norm


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b, LAYER_EPS)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    x = embed(b, d)
    for i in range(d.n_layer):
        h = pre_layer_norm(b, d, x, f"blk.{i}.attn_norm")
        attention(b, d, i, h, x, heads(d, i, rope))
        plain_mlp(b, d, i, h, x, "gelu_tanh")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, norm="layer"))


FAMILY = Family("phi2", build)

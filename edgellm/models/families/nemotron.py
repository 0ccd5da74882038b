"""nemotron: Nemotron and Minitron: layer norms, the square of ReLU without a gate."""

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
        attention(b, d, i, pre_layer_norm(b, d, x, f"blk.{i}.attn_norm"), x, heads(d, i, rope))
        plain_mlp(b, d, i, pre_layer_norm(b, d, x, f"blk.{i}.ffn_norm"), x, "relu2")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, norm="layer"))


FAMILY = Family("nemotron", build)

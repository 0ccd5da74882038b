"""arcee: Arcee AFM: like llama, with a feed-forward without a gate (the square of ReLU)."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, embed, head, pre_norm
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import divided_table
from edgellm.models.spec import Family
from edgellm.models.stack import attention, heads, plain_mlp


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    rope = RopeSpec(b.rope(divided_table(b, k, d.n_rot)), d.n_rot, "norm")
    x = embed(b, d)
    for i in range(d.n_layer):
        attention(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), x, heads(d, i, rope))
        plain_mlp(b, d, i, pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight"), x, "relu2")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("arcee", build)

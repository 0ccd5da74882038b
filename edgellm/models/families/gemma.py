"""gemma: the first Gemma: embeddings times sqrt(D), norms before each sub-layer, GELU."""

from __future__ import annotations

from edgellm.models.blocks import Attn, RopeSpec, attend, embed, head, mlp, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, rsqrt32, sqrt32
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    x = embed(b, d, sqrt32(d.n_embd))
    for i in range(d.n_layer):
        a = Attn(d.heads[i], d.kv_heads[i], d.k_dim, d.v_dim, rsqrt32(d.k_dim), rope)
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), a)
        project(b, f"blk.{i}.attn_output", y, x, residual=x)
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "gelu_tanh", residual=x, scale=False)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("gemma", build)

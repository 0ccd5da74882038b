"""qwen35: Qwen 3.5 dense models. Three of four layers are gated delta-nets, every fourth is gated attention.

The positions of text are equal on all axes of its multi-axis rotation, which is then the plain one.
"""

from __future__ import annotations

from edgellm.models.blocks import Attn, RopeSpec, attend, embed, head, mlp, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, rsqrt32
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.recurrent import delta_net, read_ssm
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    d, s = read_dims(k, b), read_ssm(k)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    interval = k.integer("full_attention_interval", 4, lo=1)
    recurrent = tuple((i + 1) % interval != 0 for i in range(d.n_layer))
    recurrent = k.flags("attention.recurrent_layers", d.n_layer, recurrent)
    x = embed(b, d)
    for i in range(d.n_layer):
        h = pre_norm(b, d, x, f"blk.{i}.attn_norm.weight")
        if recurrent[i]:
            delta_net(b, d, i, h, x, s, "tiled")
        else:
            a = Attn(d.heads[i], d.kv_heads[i], d.k_dim, d.v_dim, rsqrt32(d.k_dim), rope, qk_norm="head", gate=True)
            project(b, f"blk.{i}.attn_output", attend(b, d, i, h, a), x, residual=x)
        h = pre_norm(b, d, x, f"blk.{i}.post_attention_norm.weight")
        mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x)
    b.ignore_layers(d.n_layer, d.n_extra, "predicts further tokens; the next token's logits do not depend on it")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("qwen35", build, ignored_keys={"rope.dimension_sections": "text has the same position on every axis"})

"""gptneox: GPT-NeoX, Pythia, Dolly: sub-layers side by side (or in turn), each with a layer norm of its own."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, embed, head, layer_norm
from edgellm.models.build import Builder
from edgellm.models.dims import LAYER_EPS, read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import attention, heads, plain_mlp, pre_layer_norm


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b, LAYER_EPS)
    side_by_side = k.flag("use_parallel_residual")
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    x, h2 = embed(b, d), b.buffer("h2", d.n_embd)
    for i in range(d.n_layer):
        h = pre_layer_norm(b, d, x, f"blk.{i}.attn_norm")
        if side_by_side:
            layer_norm(b, x, h2, f"blk.{i}.ffn_norm", d.eps)
        attention(b, d, i, h, x, heads(d, i, rope))
        if not side_by_side:
            layer_norm(b, x, h2, f"blk.{i}.ffn_norm", d.eps)
        plain_mlp(b, d, i, h2, x, "gelu_tanh")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, norm="layer"))


FAMILY = Family("gptneox", build)

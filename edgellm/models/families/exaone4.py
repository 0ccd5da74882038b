"""exaone4: EXAONE 4: norms behind the sub-layers and on every head of q and k; the 32B has windows."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, attend, embed, head, mlp, post_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, windowed
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import divided_table
from edgellm.models.spec import Family
from edgellm.models.stack import heads


def build(b: Builder, k: Keys) -> Plan:
    """The 32B model is known by its 64 layers: three of four have a window, the fourth has no positions."""
    d = read_dims(k, b)
    local = (False,) * d.n_layer
    window = 0
    if d.n_layer == 64:
        window = k.integer("attention.sliding_window", 4096, lo=1, hi=1 << 26)
        local = windowed(k, d.n_layer, 4)
    rope = RopeSpec(b.rope(divided_table(b, k, d.n_rot)), d.n_rot, "neox")
    x = embed(b, d)
    t = b.buffer("t", d.n_embd)
    for i in range(d.n_layer):
        a = heads(d, i, rope if local[i] or not window else None, "head", window if local[i] else 0)
        project(b, f"blk.{i}.attn_output", attend(b, d, i, x, a), t)
        post_norm(b, d, t, x, f"blk.{i}.post_attention_norm.weight")
        mlp(b, f"blk.{i}.ffn", x, t, d.n_ff[i], "silu", scale=False)
        post_norm(b, d, t, x, f"blk.{i}.post_ffw_norm.weight")
    b.ignore_layers(d.n_layer, d.n_extra, "predicts further tokens; the next token's logits do not depend on it")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("exaone4", build)

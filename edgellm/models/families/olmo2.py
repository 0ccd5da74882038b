"""olmo2: OLMo 2 and 3: norms behind the sub-layers only, one over all of q and of k; OLMo 3 has windows."""

from __future__ import annotations

from edgellm.models.blocks import RopeSpec, attend, embed, head, mlp, post_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, windowed
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import heads
from edgellm.models.tables import RopeTable


def build(b: Builder, k: Keys) -> Plan:
    """Layers with a window are rotated without the file's scaling."""
    d = read_dims(k, b)
    window = k.integer("attention.sliding_window", 0, hi=1 << 26)
    local = windowed(k, d.n_layer, 4) if window else (False,) * d.n_layer
    table = rope_table(k, d.n_rot)
    rope = RopeSpec(b.rope(table), d.n_rot, "neox")
    local_rope = RopeSpec(b.rope(RopeTable(d.n_rot, table.base)), d.n_rot, "neox") if any(local) else rope
    x = embed(b, d)
    t = b.buffer("t", d.n_embd)
    for i in range(d.n_layer):
        a = heads(d, i, local_rope if local[i] else rope, "full", window if local[i] else 0)
        project(b, f"blk.{i}.attn_output", attend(b, d, i, x, a), t)
        post_norm(b, d, t, x, f"blk.{i}.post_attention_norm.weight")
        mlp(b, f"blk.{i}.ffn", x, t, d.n_ff[i], "silu", scale=False)
        post_norm(b, d, t, x, f"blk.{i}.post_ffw_norm.weight")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("olmo2", build)

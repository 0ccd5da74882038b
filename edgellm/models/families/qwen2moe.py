"""qwen2moe: Qwen 1.5 and 2 with experts, whose weights are not normalised, beside a gated shared expert."""

from __future__ import annotations

from edgellm.models import ops as o
from edgellm.models.blocks import Moe, RopeSpec, embed, head, mlp
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family
from edgellm.models.stack import heads, moe_layer


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    experts = Moe(d.n_expert, d.n_expert_used, "silu", scale=False)
    t, gate = b.buffer("t", d.n_embd), b.buffer("gate_shexp", 1)
    x = embed(b, d)
    for i in range(d.n_layer):
        h = moe_layer(b, d, i, x, heads(d, i, rope), experts)
        mlp(b, f"blk.{i}.ffn", h, t, 0, "silu", scale=False, suffix="_shexp")
        w = b.matrix(f"blk.{i}.ffn_gate_inp_shexp.weight", (1, d.n_embd))
        b.add(o.Linear(h, gate, (o.Part(w),)))
        b.add(o.Act(gate, gate, "sigmoid"))
        b.add(o.Combine(t, gate, x, 1, x))
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("qwen2moe", build)

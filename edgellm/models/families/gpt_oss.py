"""gpt-oss: experts with a clamped SwiGLU, biases everywhere, an attention sink per head, every other layer windowed."""

from __future__ import annotations

from edgellm.core.errors import UnsupportedModel
from edgellm.models.blocks import Attn, Moe, RopeSpec, attend, embed, head, moe, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, rsqrt32, windowed
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    if not d.n_rot == d.k_dim == d.v_dim:
        raise UnsupportedModel(
            f"gpt-oss heads have one size and rotate whole, but rope.dimension_count is {d.n_rot}, "
            f"attention.key_length {d.k_dim} and attention.value_length {d.v_dim}"
        )
    window = k.integer("attention.sliding_window", lo=1, hi=1 << 26)
    local = windowed(k, d.n_layer, 2)
    table = rope_table(k, d.n_rot)
    rope = RopeSpec(b.rope(table), d.n_rot, "neox")
    local_table = rope_table(k, d.n_rot, base=k.number("rope.freq_base_swa", table.base))
    local_rope = RopeSpec(b.rope(local_table), d.n_rot, "neox")
    experts = Moe(d.n_expert, d.n_expert_used, "swiglu_oai", "softmax_topk", scale=False)
    x = embed(b, d)
    for i in range(d.n_layer):
        a = Attn(
            d.heads[i],
            d.kv_heads[i],
            d.k_dim,
            d.v_dim,
            rsqrt32(d.k_dim),
            local_rope if local[i] else rope,
            window=window if local[i] else 0,
            sinks=True,
        )
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), a)
        project(b, f"blk.{i}.attn_output", y, x, residual=x)
        moe(b, i, pre_norm(b, d, x, f"blk.{i}.post_attention_norm.weight"), x, experts, residual=x)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("gpt-oss", build)

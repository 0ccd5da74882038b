"""llama: Llama 1 to 3, Mistral, Mixtral, SmolLM2, TinyLlama and everything else that was converted as one.

RMS norm before each sub-layer, rotary positions on adjacent pairs (with the divisors of `rope_freqs` in Llama 3),
SwiGLU, or a softmax router over experts whose weights are normalised (Mixtral).
"""

from __future__ import annotations

from edgellm.core.errors import UnsupportedModel
from edgellm.models.blocks import Attn, Moe, RopeSpec, attend, embed, head, mlp, moe, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import Dims, read_dims, rsqrt32
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import divided_table
from edgellm.models.spec import Family
from edgellm.models.tables import RopeTable


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    table = divided_table(b, k, d.n_rot)
    return layers(b, k, d, table, table)


def layers(b: Builder, k: Keys, d: Dims, table: RopeTable, q_table: RopeTable) -> Plan:
    """The whole graph; `table` rotates the keys, `q_table` the queries."""
    if not d.n_rot == d.k_dim == d.v_dim:
        raise UnsupportedModel(
            f"{k.arch} heads have one size and rotate whole, but rope.dimension_count is {d.n_rot}, "
            f"attention.key_length {d.k_dim} and attention.value_length {d.v_dim}"
        )
    rope, q_rope = (RopeSpec(b.rope(t), d.n_rot, "norm") for t in (table, q_table))
    x = embed(b, d)
    for i in range(d.n_layer):
        a = Attn(d.heads[i], d.kv_heads[i], d.k_dim, d.v_dim, rsqrt32(d.k_dim), rope, q_rope=q_rope)
        h = pre_norm(b, d, x, f"blk.{i}.attn_norm.weight")
        y = attend(b, d, i, h, a)
        project(b, f"blk.{i}.attn_output", y, x, residual=x)
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        if d.n_expert:
            moe(b, i, h, x, Moe(d.n_expert, d.n_expert_used, "silu", norm=True), residual=x)
        else:
            mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("llama", build)

"""qwen3: Qwen 3 dense models: an RMS norm on every head of q and k, and a head size of its own."""

from __future__ import annotations

from edgellm.models.blocks import Attn, Moe, RopeSpec, attend, embed, head, mlp, moe, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims, rsqrt32
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    """Also for qwen3moe: where there are experts, they replace the dense feed-forward."""
    d = read_dims(k, b)
    rope = RopeSpec(b.rope(rope_table(k, d.n_rot)), d.n_rot, "neox")
    experts = Moe(d.n_expert, d.n_expert_used, "silu", norm=True) if d.n_expert else None
    x = embed(b, d)
    for i in range(d.n_layer):
        a = Attn(d.heads[i], d.kv_heads[i], d.k_dim, d.v_dim, rsqrt32(d.k_dim), rope, qk_norm="head")
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), a)
        project(b, f"blk.{i}.attn_output", y, x, residual=x)
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        if experts is not None:
            moe(b, i, h, x, experts, residual=x)
        else:
            mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family(
    "qwen3", build, ignored_tensors={"cls.output.weight": "a reranker's head; the logits of tokens do not depend on it"}
)

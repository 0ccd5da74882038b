"""granite: Granite 3 and 4, dense: llama with factors on embeddings, attention, sub-layers and logits."""

from __future__ import annotations

from edgellm.core.errors import UnsupportedModel
from edgellm.core.record import dataclass, replace
from edgellm.models import ops as o
from edgellm.models.blocks import Moe, RopeSpec, attend, embed, head, mlp, moe, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import Dims, f32, read_dims, rsqrt32
from edgellm.models.keys import Keys
from edgellm.models.ops import View
from edgellm.models.plan import Plan
from edgellm.models.scaling import divided_table
from edgellm.models.spec import Family
from edgellm.models.stack import heads, shared_expert


@dataclass(frozen=True, slots=True)
class Factors:
    """On the embeddings, on each sub-layer's result, and the divisor of the logits; 0: none."""

    embedding: float
    residual: float
    logit: float


def build(b: Builder, k: Keys) -> Plan:
    factors = Factors(k.number("embedding_scale", 0.0), k.number("residual_scale", 0.0), k.number("logit_scale"))
    return layers(b, k, read_dims(k, b), factors, rotated=k.flag("rope.scaling.finetuned", True))


def layers(b: Builder, k: Keys, d: Dims, factors: Factors, rotated: bool = True) -> Plan:
    """The whole graph, with experts where the file has some. rotated: there are positions."""
    if factors.logit <= 0 or not d.n_rot == d.k_dim == d.v_dim:
        raise UnsupportedModel(
            f"{k.arch} heads have one size and rotate whole, and logits have a divisor above 0; found "
            f"rope.dimension_count {d.n_rot}, attention.key_length {d.k_dim}, attention.value_length {d.v_dim} and "
            f"logit_scale {factors.logit}"
        )
    table = divided_table(b, k, d.n_rot)
    rope = RopeSpec(b.rope(table), d.n_rot, "norm") if rotated else None
    scale = k.number("attention.scale", 0.0) or rsqrt32(d.k_dim)
    x = embed(b, d, factors.embedding or 1.0)
    t = b.buffer("t", d.n_embd)
    for i in range(d.n_layer):
        a = replace(heads(d, i, rope), scale=scale)
        y = attend(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), a)
        project(b, f"blk.{i}.attn_output", y, t)
        _add(b, x, t, factors.residual)
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        if d.n_expert:
            moe(b, i, h, t, Moe(d.n_expert, d.n_expert_used, "silu", norm=True, scale=False))
            if b.has(f"blk.{i}.ffn_up_shexp.weight"):
                shared_expert(b, i, h, t)
        else:
            mlp(b, f"blk.{i}.ffn", h, t, d.n_ff[i], "silu", scale=False)
        _add(b, x, t, factors.residual)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x, scale=f32(1.0 / factors.logit)))


def _add(b: Builder, x: View, t: View, factor: float) -> None:
    """x += factor * t"""
    if factor not in (0.0, 1.0):
        b.add(o.Scale(t, t, factor))
    b.add(o.Add(x, t, x))


FAMILY = Family("granite", build)

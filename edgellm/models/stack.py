"""Whole sub-layers, as many families have them: each adds its result to the residual stream x."""

from __future__ import annotations

from edgellm.models import ops as o
from edgellm.models.blocks import Attn, Moe, RopeSpec, attend, layer_norm, mlp, moe, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import Dims, rsqrt32
from edgellm.models.ops import View


def heads(d: Dims, i: int, rope: RopeSpec | None, qk_norm: str = "", window: int = 0) -> Attn:
    """The attention of layer i with nothing special about it."""
    return Attn(d.heads[i], d.kv_heads[i], d.k_dim, d.v_dim, rsqrt32(d.k_dim), rope, window=window, qk_norm=qk_norm)


def attention(b: Builder, d: Dims, i: int, h: View, x: View, a: Attn) -> None:
    """x += attention of h with its output projection."""
    y, stem = attend(b, d, i, h, a), f"blk.{i}.attn_output"
    if not a.out_bias:
        b.ignore(f"{stem}.bias", "this architecture's graph leaves it out; its published models have none")
        b.add(o.Linear(y, x, (o.Part(b.matrix(f"{stem}.weight"), None, b.scale(stem)),), x))
    else:
        project(b, stem, y, x, residual=x)


def dense_layer(b: Builder, d: Dims, i: int, x: View, a: Attn, ffn_norm: str = "ffn_norm") -> None:
    """x += attention of norm(x); x += SwiGLU of norm(x), with RMS norms."""
    attention(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), x, a)
    h = pre_norm(b, d, x, f"blk.{i}.{ffn_norm}.weight")
    mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x, scale=False)


def moe_layer(b: Builder, d: Dims, i: int, x: View, a: Attn, m: Moe) -> View:
    """x += attention of norm(x); x += experts of norm(x), with RMS norms. Returns the latter, for shared experts."""
    attention(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), x, a)
    h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
    moe(b, i, h, x, m, residual=x)
    return h


def shared_expert(b: Builder, i: int, h: View, y: View) -> None:
    """y += SwiGLU of h with the tensors `ffn_*_shexp`."""
    mlp(b, f"blk.{i}.ffn", h, y, 0, "silu", residual=y, scale=False, suffix="_shexp")


def pre_layer_norm(b: Builder, d: Dims, x: View, stem: str) -> View:
    """The normalised copy of the residual stream, as `pre_norm`, by a layer norm."""
    return layer_norm(b, x, b.buffer("h", d.n_embd), stem, d.eps)


def plain_mlp(b: Builder, d: Dims, i: int, h: View, x: View, act: str) -> None:
    """x += down(act(up(h))), without a gate."""
    stem = f"blk.{i}.ffn"
    for part in ("up", "down"):
        b.ignore(f"{stem}_{part}.scale", "a factor of quantised weights that this architecture's graph does not apply")
    g = b.buffer("ff", d.n_ff[i])
    b.add(o.Linear(h, g, (b.part(f"{stem}_up", g.width, scale=False),)))
    b.add(o.Act(g, g, act))
    b.add(o.Linear(g, x, (b.part(f"{stem}_down", x.width, scale=False),), x))

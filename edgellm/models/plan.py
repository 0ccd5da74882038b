"""A plan: a model as a flat, immutable list of ops over numbered buffers, with its weights and caches named.

`Builder` collects ops with every shape checked by name; `Plan.to_bytes` / `Plan.from_bytes` round-trip.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgellm.models.ops import Op


@dataclass(frozen=True, slots=True)
class Buffer:
    """A matrix of `width` columns with one row per token (axis "T") or per output row ("R"). dtype "f32" or "i32"."""

    name: str
    width: int
    axis: str = "T"
    dtype: str = "f32"


@dataclass(frozen=True, slots=True)
class Weight:
    """Rows row0 .. row0+shape[-2]-1 of the file's tensor (whole tensor: row0 = 0). shape is outermost first, as used.

    role: "matrix" ([N,K] or [X,N,K], any type), "embedding" ([V,D], rows are looked up), "vector" (converted to
    float32 when loaded, any rank).
    """

    tensor: str
    shape: tuple[int, ...]
    role: str = "matrix"
    row0: int = 0


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos/sin tables for Rope ops: angle(p, i) = p / scale_factor * base^(-2i/n_rot) / factors[i].

    Built in float64, rounded once to float32 (models/rope.py). factors: weight index [n_rot/2] or None.
    attn_factor multiplies cos and sin.
    """

    n_rot: int
    base: float
    factors: int | None = None
    scale_factor: float = 1.0
    attn_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """One layer's share of a page. Full and window classes: K is [G, Ek, 32], V is [G, 32, Ev].

    Latent class: heads = 1, only K is stored and V is K's first v_dim dimensions. State class: `state` lists the
    shapes (float32) of one sequence's state in this layer, and heads = k_dim = v_dim = 0.
    """

    heads: int
    k_dim: int
    v_dim: int
    state: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CacheClass:
    """Layers that share one block table. kind: "full" | "window" | "latent" | "state"; window in tokens, 0 = none."""

    kind: str
    layers: tuple[CacheLayer, ...]
    window: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a backend needs to run a model, except the weights' bytes.

    n_vocab: width of the logits. n_ctx_train: trained context length. logits: index of the [R, V] result buffer.
    """

    arch: str
    n_vocab: int
    n_ctx_train: int
    buffers: tuple[Buffer, ...]
    weights: tuple[Weight, ...]
    ropes: tuple[RopeTable, ...]
    caches: tuple[CacheClass, ...]
    ops: tuple[Op, ...]
    logits: int

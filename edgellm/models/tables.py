"""The records that the ops of a plan refer to by index: buffers, weights, rope tables, caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgellm.core.errors import ModelError


class PlanError(ModelError, ValueError):
    """A plan is malformed: the message names the op, the field and both sizes."""


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

    role: "matrix" ([N,K] or [X,N,K], any type; of a stack, the rows of every matrix), "embedding" ([V,D], rows are
    looked up), "vector" (the whole tensor, converted to float32 when loaded, any rank). The file may spell the same
    elements with other dimensions of size 1, or flat; the order of the elements is the same.
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

    Latent class: heads = 1, only K is stored and V is K's first v_dim dimensions. State class: one entry per op that
    keeps state (a convolution and a scan of one transformer layer are two entries); `state` lists the shapes
    (float32) of what that op keeps for one sequence, and heads = k_dim = v_dim = 0.
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


class Tables(Protocol):
    """What an op can be checked against: a finished plan, or one that is being built."""

    @property
    def buffers(self) -> Sequence[Buffer]: ...
    @property
    def weights(self) -> Sequence[Weight]: ...
    @property
    def ropes(self) -> Sequence[RopeTable]: ...
    @property
    def caches(self) -> Sequence[CacheClass]: ...

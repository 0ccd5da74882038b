"""The records that the ops of a plan refer to by index: buffers, weights, rope tables, caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgellm.core.errors import ModelError
from edgellm.core.record import dataclass


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
class Yarn:
    """YaRN: pair i keeps the share ext * (1 - clamp((i - low) / max(high - low, 0.001), 0, 1)) of its own frequency,
    the rest of it is scaled."""

    low: float
    high: float
    ext: float = 1.0


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE: divisors of the frequencies, [n_rot/2]: `short` for contexts up to n_ctx tokens, else `long`.

    The context is the longest a sequence may get, not its length so far: what is cached stays valid as it grows.
    """

    n_ctx: int
    short: tuple[float, ...]
    long: tuple[float, ...]

    def divisors(self, n_ctx: int) -> tuple[float, ...]:
        """Those of a context of n_ctx tokens."""
        return self.long if n_ctx > self.n_ctx else self.short


@dataclass(frozen=True, slots=True)
class Temperature:
    """Row p of the table is multiplied by 1 + scale * ln(1 + floor(p / length))."""

    scale: float
    length: int


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos/sin tables for Rope ops: angle(p, i) = p * f(i), f(i) = base^(-2i/n_rot) / divisors[i] / scale_factor.

    Built in float64, rounded once to float32 (models/rope.py). factors: divisors as a weight index [n_rot/2], or
    None; or else longrope: two sets of divisors by context. yarn: some pairs are scaled only in part. attn_factor and
    temperature multiply cos and sin, and with them what is rotated.
    """

    n_rot: int
    base: float
    factors: int | None = None
    scale_factor: float = 1.0
    attn_factor: float = 1.0
    yarn: Yarn | None = None
    longrope: LongRope | None = None
    temperature: Temperature | None = None


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

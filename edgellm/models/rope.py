"""cos/sin tables for rotary positions, with the same bits on every machine.

    f[i]        = base^(-2i / n_rot) / scale_factor / divisors[i]    60 decimal digits
    inv[i]      = f[i] * (1 + own[i] * (scale_factor - 1))           60 digits, then rounded to float64; YaRN only
    angle(p, i) = p * inv[i]                                          float64
    angle       = n * (pi/2) + r, |r| <= pi/4                         Cody-Waite: pi/2 in three parts
    sin r, cos r                                                      Taylor polynomials in r * r

Only +, -, * and rint touch float64 values, each rounding once: neither libm nor NumPy's own sin and cos, whose last
bits depend on the machine. The result is multiplied by attn_factor (and the position's temperature) and rounded once
to float32.
"""

from __future__ import annotations

import decimal
import math

import numpy as np
from numpy.typing import NDArray

from edgellm.core.types import F32
from edgellm.models.tables import PlanError, RopeTable, Yarn

F64 = NDArray[np.float64]

BLOCK = 256
"""Positions that are filled at once."""

_CONTEXT = decimal.Context(prec=60, rounding=decimal.ROUND_HALF_EVEN)

# pi/2 = _P1 + _P2 + _P3: the first two have 30 significant bits, so n * _P1 and n * _P2 are exact for n < 2^23.
_HALF_PI = decimal.Decimal("1.57079632679489661923132169163975144209858469968755291048747")
_P1 = math.floor(_HALF_PI * 2**29) / 2**29
_P2 = math.floor((_HALF_PI - decimal.Decimal(_P1)) * 2**62) / 2**62
_P3 = float(_HALF_PI - decimal.Decimal(_P1) - decimal.Decimal(_P2))
_TWO_OVER_PI = float(1 / _HALF_PI)

# Taylor coefficients, highest power first: the next terms are below 2^-60 at pi/4.
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(9, 0, -1)]
_COS = [(-1) ** k / math.factorial(2 * k) for k in range(9, 0, -1)]


def ln(x: float) -> float:
    """The natural logarithm of x > 0, rounded once: the same on every machine."""
    return float(_CONTEXT.ln(decimal.Decimal(x)))


def turning_pair(n_rot: int, base: float, n_ctx: int, turns: float) -> float:
    """The (fractional) index of the pair that makes this many turns over n_ctx positions. base > 1, turns > 0."""
    ctx = _CONTEXT
    positions = ctx.divide(decimal.Decimal(n_ctx), ctx.multiply(decimal.Decimal(4 * turns), _HALF_PI))
    log = ctx.multiply(decimal.Decimal(n_rot), ctx.ln(positions))
    return float(ctx.divide(log, ctx.multiply(2, ctx.ln(decimal.Decimal(base)))))


def inverse_frequencies(table: RopeTable, factors: F32 | None = None) -> F64:
    """Radians per position of each pair, float64 [n_rot / 2]. factors: the divisors, if there are some."""
    if factors is not None and not (np.isfinite(factors).all() and (factors > 0).all()):
        raise PlanError("the rope frequency factors must be finite and positive")
    ctx = _CONTEXT
    log_base = ctx.ln(decimal.Decimal(table.base))
    scale = decimal.Decimal(table.scale_factor)
    inv = np.empty(table.n_rot // 2)
    for i in range(table.n_rot // 2):
        exponent = ctx.divide(ctx.multiply(log_base, decimal.Decimal(-2 * i)), decimal.Decimal(table.n_rot))
        value = ctx.divide(ctx.exp(exponent), scale)
        if factors is not None:
            value = ctx.divide(value, decimal.Decimal(float(factors[i])))
        if table.yarn is not None:
            own = decimal.Decimal(_own_share(table.yarn, i))
            value = ctx.multiply(value, ctx.add(1, ctx.multiply(own, ctx.subtract(scale, 1))))
        inv[i] = float(value)
    return inv


def _own_share(yarn: Yarn, i: int) -> float:
    """The share of pair i that is not scaled."""
    return yarn.ext * (1.0 - min(1.0, max(0.0, (i - yarn.low) / max(0.001, yarn.high - yarn.low))))


def sin_cos(angle: F64) -> tuple[F64, F64]:
    """sin and cos of angles in 0 .. 2^23, within 2^-50 absolutely for angles below 2^20."""
    n = np.rint(angle * _TWO_OVER_PI)
    r = angle - n * _P1
    r = r - n * _P2
    r = r - n * _P3
    z = r * r
    s = np.full_like(z, _SIN[0])
    for c in _SIN[1:]:
        s = s * z + c
    sin = r + r * (z * s)
    c = np.full_like(z, _COS[0])
    for k in _COS[1:]:
        c = c * z + k
    cos = 1.0 + z * c
    quadrant = n.astype(np.int64) & 3
    swap = (quadrant & 1).astype(bool)
    out_sin = np.where(swap, cos, sin)
    out_cos = np.where(swap, sin, cos)
    return np.where(quadrant >= 2, -out_sin, out_sin), np.where((quadrant + 1) & 2, -out_cos, out_cos)


class RopeCache:
    """The table's rows for positions 0 .. n_ctx-1, filled when first needed. Not for use by two threads at once.

    factors: the values of `table.factors`. cos, sin: float32 [n_ctx, n_rot / 2], C-contiguous, at a fixed address.
    Rows from `n_filled` on are zero and cost no memory until `ensure` reaches them.
    """

    def __init__(self, table: RopeTable, n_ctx: int, factors: F32 | None = None) -> None:
        self.table = table
        if table.longrope is not None:
            factors = np.array(table.longrope.divisors(n_ctx), np.float32)
        self._inv = inverse_frequencies(table, factors)
        self.cos: F32 = np.zeros((n_ctx, table.n_rot // 2), np.float32)
        self.sin: F32 = np.zeros((n_ctx, table.n_rot // 2), np.float32)
        self.n_filled = 0

    def ensure(self, n_positions: int) -> None:
        """Fill at least rows 0 .. n_positions-1. ValueError past n_ctx."""
        n_ctx = len(self.cos)
        if n_positions > n_ctx:
            raise ValueError(f"position {n_positions - 1} is outside the rope table of {n_ctx} rows")
        while self.n_filled < n_positions:
            start, stop = self.n_filled, min(self.n_filled + BLOCK, n_ctx)
            angle = np.arange(start, stop, dtype=np.float64)[:, None] * self._inv
            sin, cos = sin_cos(angle)
            factor = self._factor(start, stop)
            self.sin[start:stop] = sin * factor
            self.cos[start:stop] = cos * factor
            self.n_filled = stop

    def _factor(self, start: int, stop: int) -> F64:
        """What multiplies cos and sin of these positions, float64 [stop - start, 1]."""
        factor = np.full((stop - start, 1), self.table.attn_factor)
        t = self.table.temperature
        if t is not None:
            spans = np.arange(start, stop) // t.length
            for span in np.unique(spans).tolist():
                factor[spans == span] *= 1.0 + t.scale * ln(1 + span)
        return factor

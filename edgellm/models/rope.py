"""cos/sin tables for rotary positions, with the same bits on every machine.

    inv[i]      = base^(-2i / n_rot) / scale_factor / factors[i]     60 decimal digits, then rounded to float64
    angle(p, i) = p * inv[i]                                          float64
    angle       = n * (pi/2) + r, |r| <= pi/4                         Cody-Waite: pi/2 in three parts
    sin r, cos r                                                      Taylor polynomials in r * r

Only +, -, * and rint touch float64 values, each rounding once: neither libm nor NumPy's own sin and cos, whose last
bits depend on the machine. The result is multiplied by attn_factor and rounded once to float32.
"""

from __future__ import annotations

import decimal
import math

import numpy as np
from numpy.typing import NDArray

from edgellm.core.types import F32
from edgellm.models.tables import PlanError, RopeTable

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


def inverse_frequencies(table: RopeTable, factors: F32 | None = None) -> F64:
    """Radians per position of each pair, float64 [n_rot / 2]. factors: the table's divisors, if it has them."""
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
        inv[i] = float(value)
    return inv


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

    cos, sin: float32 [n_ctx, n_rot / 2], C-contiguous, at a fixed address. Rows from `n_filled` on are zero and cost
    no memory until `ensure` reaches them.
    """

    def __init__(self, table: RopeTable, n_ctx: int, factors: F32 | None = None) -> None:
        self.table = table
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
            self.sin[start:stop] = sin * self.table.attn_factor
            self.cos[start:stop] = cos * self.table.attn_factor
            self.n_filled = stop

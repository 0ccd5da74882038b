"""exp in float64 from fixed operations: the same bits on every machine (numpy's and libm's differ between CPUs).

exp(x) = 2^(n / 256) * exp(r) with n = rint(x * 256 / ln 2): 2^(j / 256) for j < 256 comes from a table that is
computed in integers, exp(r) from a polynomial of degree 4 (|r| < 0.00136): relative error below 3e-16. The same
operations twice: over arrays, and over lists, which for the forty numbers of a sampling step are quicker in the end.
"""

from __future__ import annotations

from math import isqrt, ldexp

import numpy as np
from numpy.typing import NDArray

_STEPS = 256
_BITS = 128


def _table() -> NDArray[np.float64]:
    """2^(j / 256) for j = 0..255, each rounded once to float64."""
    root = 2 << _BITS
    for _ in range(8):  # square roots of 2: after eight, 2^(1 / 256) with 128 bits after the point
        root = isqrt(root << _BITS)
    powers, power = [], 1 << _BITS
    for _ in range(_STEPS):
        powers.append(power / (1 << _BITS))
        power = power * root >> _BITS
    return np.array(powers)


_POWERS = _table()
_LIST = _POWERS.tolist()
_SCALE = 369.3299304675746  # 256 / ln 2
_HI = float.fromhex("0x1.62e42fef8p-9")  # ln 2 / 256 to 34 bits: its product with any n is exact
_LO = float.fromhex("0x1.1cf79abc9e3b4p-44")  # the rest
LEAST = -700.0
"""Smallest argument of exp64: its exponential is still a normal number, and is nothing beside exp(0)."""


def exp64(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(x) for LEAST <= x <= 0 (float64, any shape)."""
    n = np.rint(x * _SCALE)
    r = x - n * _HI
    r -= n * _LO
    p = r * (1.0 / 24.0)
    p += 1.0 / 6.0
    p *= r
    p += 0.5
    p *= r
    p += 1.0
    p *= r
    k = n.astype(np.int32)
    power = _POWERS[k & (_STEPS - 1)]
    p *= power
    p += power
    k >>= 8
    y: NDArray[np.float64] = np.ldexp(p, k)
    return y


def exp_list(x: list[float]) -> list[float]:
    """exp64 of every number."""
    out = []
    for v in x:
        n = round(v * _SCALE)
        r = v - n * _HI - n * _LO
        power = _LIST[n & 255]
        p = (((r * (1.0 / 24.0) + 1.0 / 6.0) * r + 0.5) * r + 1.0) * r
        out.append(ldexp(p * power + power, n >> 8))
    return out

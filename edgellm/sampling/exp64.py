"""exp in float64 from fixed operations: the same bits on every machine (numpy's and libm's differ between CPUs).

exp(x) = 2^(n / 256) * exp(r) with n = rint(x * 256 / ln 2): 2^(j / 256) for j < 256 comes from a table that is
computed in integers, exp(r) from a polynomial of degree 4 (|r| < 0.00136): relative error below 3e-16. The same
operations twice: over arrays, and over lists, which for the forty numbers of a sampling step are quicker in the end.
"""

from __future__ import annotations

from math import frexp, isqrt, ldexp

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


_LN2_HI = float.fromhex("0x1.62e42fee00000p-1")  # its product with any exponent is exact
_LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")
LN2 = float.fromhex("0x1.62e42fefa39efp-1")


def log64(x: float) -> float:
    """log(x) for a positive number, from fixed operations: 2 atanh((m - 1) / (m + 1)) + e ln 2 for x = m 2^e."""
    m, e = frexp(x)
    if m < 0.7071067811865476:
        m, e = 2.0 * m, e - 1
    f = (m - 1.0) / (m + 1.0)
    z = f * f
    p = 0.0
    for k in range(23, 1, -2):
        p = (p + 1.0 / k) * z
    return e * _LN2_HI + (2.0 * f + (2.0 * f * p + e * _LN2_LO))


def exp_of(x: float) -> float:
    """exp(x) for any number, held within exp(+-LEAST)."""
    return exp_list([max(x, LEAST)])[0] if x <= 0.0 else 1.0 / exp_list([max(-x, LEAST)])[0]


def pow64(x: float, y: float) -> float:
    """x^y for x >= 0, as exp(y log x)."""
    if y == 0.0:
        return 1.0
    if x == 0.0:
        return 0.0 if y > 0.0 else exp_of(-LEAST)
    return exp_of(y * log64(x))

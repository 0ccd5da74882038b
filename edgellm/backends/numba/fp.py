"""The functions of docs/numerics.md, operation for operation as in native/kernels/fp.h. Arguments and results are
float32."""

from __future__ import annotations

import numpy as np

from edgellm.backends.numba.compiled import kernel
from edgellm.backends.numba.vectors import bits, fma, from_bits

F = np.float32
MAGIC = F(12582912.0)  # 1.5 * 2^23: the last bit of a sum with it is worth one
MAGIC_BITS = 0x4B400000
INF = F(np.inf)
NAN = F(np.nan)

_EXP = [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1]
E0, E1, E2, E3, E4, E5 = (F(x) for x in _EXP)
_TANH = [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1]
T0, T1, T2, T3, T4 = (F(x) for x in _TANH)
_ERF = [
    7.853861353153693e-5,
    -8.010193625184903e-4,
    5.188327685732524e-3,
    -2.685381193529856e-2,
    1.128358514861418e-1,
    -3.761262582423300e-1,
    1.128379165726710,
]
R0, R1, R2, R3, R4, R5, R6 = (F(x) for x in _ERF)
_ERF_TAIL = [1.3962277e-5, -3.5059039e-4, 3.7574703e-3, -2.4010055e-2, 1.0653085e-1, 6.3496953e-1, 1.1286943]
Q0, Q1, Q2, Q3, Q4, Q5, Q6 = (F(x) for x in _ERF_TAIL)
_LOG = [
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
]
L0, L1, L2, L3, L4, L5, L6, L7, L8 = (F(x) for x in _LOG)

ZERO, ONE, TWO, HALF = F(0), F(1), F(2), F(0.5)
LOG2_E, LN2_HIGH, LN2_LOW = F(1.44269504088896341), F(0.693359375), F(2.12194440e-4)
EXP_LOW, EXP_HIGH, TANH_SMALL, FOUR, SEVEN = F(-87), F(88), F(0.625), F(4), F(7)
GELU_CUBE, GELU_SLOPE, ROOT_HALF, OAI_SLOPE = F(0.044715), F(-1.5957691216057308), F(0.70710678), F(-1.702)
SMALLEST_NORMAL, TWO_23 = F(1.17549435e-38), F(8388608.0)


@kernel
def rint(x: F) -> int:
    """The integer nearest to x, ties to even, for |x| <= 2^22."""
    return bits(F(x + MAGIC)) - MAGIC_BITS


@kernel
def exp(x: F) -> F:
    c = EXP_HIGH if x > EXP_HIGH else x
    t = F(F(c * LOG2_E) + MAGIC)
    n = F(t - MAGIC)
    r = fma(n, -LN2_HIGH, c)
    r = fma(n, LN2_LOW, r)
    p = fma(E0, r, E1)
    p = fma(p, r, E2)
    p = fma(p, r, E3)
    p = fma(p, r, E4)
    p = fma(p, r, E5)
    y = F(fma(p, F(r * r), r) + ONE)
    y = F(y * from_bits((bits(t) - MAGIC_BITS + 127) << 23))
    return y if x >= EXP_LOW else (ZERO if x == x else x)


@kernel
def copysign(x: F, s: F) -> F:
    return from_bits((bits(x) & 0x7FFFFFFF) | (bits(s) & 0x80000000))


@kernel
def tanh(x: F) -> F:
    a = from_bits(bits(x) & 0x7FFFFFFF)
    if a < TANH_SMALL:
        z = F(x * x)
        p = fma(T0, z, T1)
        p = fma(p, z, T2)
        p = fma(p, z, T3)
        p = fma(p, z, T4)
        return fma(F(p * z), x, x)
    return copysign(F(ONE - F(TWO / F(exp(F(a + a)) + ONE))), x)


@kernel
def erf(x: F) -> F:
    a = from_bits(bits(x) & 0x7FFFFFFF)
    if a < ONE:
        z = F(x * x)
        p = fma(R0, z, R1)
        p = fma(p, z, R2)
        p = fma(p, z, R3)
        p = fma(p, z, R4)
        p = fma(p, z, R5)
        p = fma(p, z, R6)
        return F(p * x)
    a = FOUR if a > FOUR else a
    q = fma(Q0, a, Q1)
    q = fma(q, a, Q2)
    q = fma(q, a, Q3)
    q = fma(q, a, Q4)
    q = fma(q, a, Q5)
    q = fma(q, a, Q6)
    return copysign(F(ONE - exp(F(-F(q * a)))), x)


@kernel
def log(x: F) -> F:
    if x != x:
        return x
    if x == ZERO:
        return F(-INF)
    if x < ZERO:
        return NAN
    if x == INF:
        return x
    e = 0
    if x < SMALLEST_NORMAL:
        x = F(x * TWO_23)
        e = -23
    u = bits(x)
    shift = (u - 0x3F3504F3) >> 23
    n = F(e + shift)
    f = F(from_bits(u - (shift << 23)) - ONE)
    z = F(f * f)
    p = fma(L0, f, L1)
    p = fma(p, f, L2)
    p = fma(p, f, L3)
    p = fma(p, f, L4)
    p = fma(p, f, L5)
    p = fma(p, f, L6)
    p = fma(p, f, L7)
    p = fma(p, f, L8)
    y = F(F(p * f) * z)
    y = fma(n, -LN2_LOW, y)
    y = fma(z, -HALF, y)
    return fma(n, LN2_HIGH, F(f + y))


@kernel
def activate(kind: int, x: F) -> F:
    """The activation of this number (ACTS of backends/lower.py); 0 is none."""
    if kind == 1:
        return F(x / F(ONE + exp(F(-x))))
    if kind == 2:
        u = F(x * fma(F(x * x), GELU_CUBE, ONE))
        return F(x / F(ONE + exp(F(u * GELU_SLOPE))))
    if kind == 3:
        return F(F(HALF * x) * F(ONE + erf(F(x * ROOT_HALF))))
    if kind == 4:
        return x if x > ZERO else ZERO
    if kind == 5:
        r = x if x > ZERO else ZERO
        return F(r * r)
    if kind == 6:
        return F(ONE / F(ONE + exp(F(-x))))
    return x


@kernel
def gate(kind: int, g: F, up: F) -> F:
    """activate(g) * up; 7 is swiglu_oai, which exists as a gate only."""
    if kind == 7:
        g = SEVEN if g > SEVEN else g
        up = SEVEN if up > SEVEN else up
        up = F(-SEVEN) if up < F(-SEVEN) else up
        return F(F(g / F(ONE + exp(F(g * OAI_SLOPE)))) * F(up + ONE))
    return F(activate(kind, g) * up)


@kernel
def is_finite(x: F) -> bool:
    return (bits(x) & 0x7F800000) != 0x7F800000

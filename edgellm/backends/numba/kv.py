"""The KV cache: stores into pages, and pages as floats or integers for attention. Layouts of one head in a page:

    f16 f32 bf16 fp8   K numbers [k_dim, 32 tokens]                  V numbers [32 tokens, v_dim]
    q8_0               K int8 [squares, 16 pairs of dims, 32, 2]     V int8 [squares, 16 pairs of tokens, 32 dims, 2]
    q4_0               K int8 [squares, 32 dims, 32 tokens]          V int8 [32 tokens, squares, 32 dims]

A square is 32 dims of 32 tokens with a bf16 scale for each token, kept apart [squares, 32]. How numbers
are rounded: native/kernels/kv.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgellm.backends.numba import fp
from edgellm.backends.numba.compiled import kernel
from edgellm.backends.numba.vectors import bits, from_bits

F = np.float32
ZERO, ONE, EIGHT, INT8_MAX = F(0), F(1), F(8), F(127)
TINY, INFINITE, BF16_NAN = 0x03800000, 0x7F800000, 0x7FC0
PAGE = 32

F16, BF16, NUMBERS32, E4M3, E5M2, Q8_0, Q4_0 = range(7)
KINDS = {"f16": F16, "bf16": BF16, "f32": NUMBERS32, "fp8_e4m3": E4M3, "fp8_e5m2": E5M2, "q8_0": Q8_0, "q4_0": Q4_0}
DTYPES: dict[str, Any] = {
    "f16": np.uint16,
    "bf16": np.int16,
    "f32": np.float32,
    "fp8_e4m3": np.uint8,
    "fp8_e5m2": np.int8,
    "q8_0": np.int8,
    "q4_0": np.int8,
}


def squares(dim: int) -> int:
    """Squares of a head of `dim` numbers."""
    return -(-dim // PAGE)


@kernel
def to_f16(x: F) -> int:
    u = bits(x)
    sign, a = (u >> 16) & 0x8000, u & 0x7FFFFFFF
    if a > 0x7F800000:
        return sign | 0x7E00 | ((a >> 13) & 0x3FF)
    if a >= 0x47800000:
        return sign | 0x7C00
    if a < 0x38800000:
        return sign | (bits(F(from_bits(a) + F(0.5))) - 0x3F000000)
    return sign | ((a - (112 << 23) + 0xFFF + ((a >> 13) & 1)) >> 13)


@kernel
def to_bf16(x: F) -> int:
    u = bits(x)
    if (u & 0x7FFFFFFF) > 0x7F800000:
        return (u >> 16) | 0x40
    return (u + 0x7FFF + ((u >> 16) & 1)) >> 16


@kernel
def fp8_code(a: int, mantissa: int, bias: int) -> int:
    """The code of |x| for finite x of bits a, without saturation."""
    if a < (128 - bias) << 23:
        unit = (127 + 1 - bias - mantissa + 23) << 23
        return bits(F(from_bits(a) + from_bits(unit))) - unit
    shift = 23 - mantissa
    return ((a + (1 << (shift - 1)) - 1 + ((a >> shift) & 1)) >> shift) - ((127 - bias) << mantissa)


@kernel
def to_e4m3(x: F) -> int:
    u = bits(x)
    a = u & 0x7FFFFFFF
    return ((u >> 31) << 7) | (min(fp8_code(a, 3, 7), 0x7E) if a < INFINITE else 0x7F)


@kernel
def to_e5m2(x: F) -> int:
    u = bits(x)
    a = u & 0x7FFFFFFF
    code = min(fp8_code(a, 2, 15), 0x7B) if a < INFINITE else (0x7C if a == INFINITE else 0x7F)
    return ((u >> 31) << 7) | code


@kernel
def set_number(to: Any, i: int, x: F, kind: int) -> None:
    """to[i] = x in a format of single numbers."""
    if kind == F16:
        to[i] = to_f16(x)
    elif kind == BF16:
        to[i] = to_bf16(x)
    elif kind == E4M3:
        to[i] = to_e4m3(x)
    elif kind == E5M2:
        to[i] = to_e5m2(x)
    else:
        to[i] = x


@kernel
def bf16(h: int) -> F:
    """The float of bf16 bits."""
    return from_bits((np.int64(h) & 0xFFFF) << 16)


@kernel
def set_square(x: Any, i: int, n: int, kind: int, q: Any) -> int:
    """n <= 32 dims as q [32]; the scale's bf16 bits."""
    top, negative = 0, False
    for j in range(n):
        top = max(top, bits(x[i + j]) & 0x7FFFFFFF)
    for j in range(PAGE):
        q[j] = 0
    if top < TINY or top >= INFINITE:
        return 0 if top < TINY else BF16_NAN
    for j in range(n):
        negative |= bits(x[i + j]) == (0x80000000 | top)
    amax = from_bits(top)
    d = (bits(F(amax / (INT8_MAX if kind == Q8_0 else EIGHT))) + 0xFFFF) >> 16
    if kind == Q4_0 and not negative:
        d |= 0x8000
    factor = F(ONE / bf16(d))
    for j in range(n):
        q[j] = min(fp.rint(F(x[i + j] * factor)), 127 if kind == Q8_0 else 7)
    return d


@kernel
def store(
    first: int,
    last: int,
    kind: int,
    is_k: int,
    pages: Any,
    positions: Any,
    heads: int,
    dim: int,
    x: Any,
    x0: int,
    xs: int,
    to: Any,
    scales: Any,
    head_size: int,
) -> None:
    """Store rows first .. last-1 of x [T, heads * dim] at `positions` of `pages` [T]. to: [pages, heads, head_size]
    flat. scales: None for a format of single numbers, so that what the others take is not compiled.
    """
    n_squares = (dim + PAGE - 1) // PAGE
    if scales is not None:
        q = np.empty(PAGE, np.int64)
    for t in range(first, last):
        slot = positions[t] % PAGE
        for h in range(heads):
            head = pages[t] * heads + h
            i, o = x0 + t * xs + h * dim, head * head_size
            if scales is None:
                for e in range(dim):
                    set_number(to, o + (e * PAGE + slot if is_k else slot * dim + e), x[i + e], kind)
                continue
            for b in range(n_squares):
                scales[(head * n_squares + b) * PAGE + slot] = set_square(
                    x, i + PAGE * b, min(PAGE, dim - PAGE * b), kind, q
                )
                for e in range(PAGE):
                    if kind == Q4_0:
                        at = (b * PAGE + e) * PAGE + slot if is_k else (slot * n_squares + b) * PAGE + e
                    elif is_k:
                        at = ((b * 16 + e // 2) * PAGE + slot) * 2 + e % 2
                    else:
                        at = ((b * 16 + slot // 2) * PAGE + e) * 2 + slot % 2
                    to[o + at] = q[e]

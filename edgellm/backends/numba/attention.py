"""Attention over pages: segments of 256 positions, each relative to its own maximum, folded left to right.

A unit is a block of query rows that share a kv head: rows are tokens x the query heads of that kv head. The pages of a
segment that the unit sees are first laid out as planes, then every row runs over these. native/kernels/kernels.h has
the formulas.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgellm.backends.numba import fp
from edgellm.backends.numba.compiled import kernel
from edgellm.backends.numba.kv import PAGE, Q8_0, bf16
from edgellm.backends.numba.vectors import (
    add,
    bits,
    fma,
    fold16,
    from_bits,
    load,
    load_ints,
    load_pairs,
    load_shorts,
    madd,
    mul,
    no_ints,
    splat,
    splat_at,
    splat_pair,
    store,
    to_floats,
)

F = np.float32
ZERO, ONE, INT16_MAX, INF = F(0), F(1), F(32767), F(np.inf)
TINY, INFINITE = 0x07800000, 0x7F800000  # bits of 2^-112: 32767 by what is smaller overflows
SEGMENT = 256
UNIT_ROWS = 32


def plane_floats(dim: int) -> int:
    """Floats that the plane of a head of `dim` numbers takes."""
    return SEGMENT * (-(-dim // 32) * 32) + 64


@kernel
def k_plane(kind: int, k: Any, scales: Any, head: int, size: int, dim: int, at: int, plane: Any, shorts: Any) -> None:
    """K of a page at positions at .. at+31 of the plane [dim, 256]; q8_0 as int16 [pairs of dims, 256, 2], with the
    scales as floats [squares, 256]."""
    n_squares = (dim + PAGE - 1) // PAGE
    if scales is None:
        for e in range(dim):
            for j in range(0, PAGE, 16):
                store(plane, e * SEGMENT + at + j, load(k, head * size + e * PAGE + j))
    elif kind == Q8_0:
        for b in range(n_squares):
            for j in range(0, PAGE, 16):
                store(plane, b * SEGMENT + at + j, load(scales, (head * n_squares + b) * PAGE + j))
            for e in range(16 * b, 16 * b + 16):
                for j in range(0, 2 * PAGE, 32):
                    store(shorts, (e * SEGMENT + at) * 2 + j, load_pairs(k, head * size + e * 2 * PAGE + j))
    else:
        for e in range(dim):
            for j in range(0, PAGE, 16):
                d = load(scales, (head * n_squares + e // PAGE) * PAGE + j)
                store(plane, e * SEGMENT + at + j, mul(to_floats(load_ints(k, head * size + e * PAGE + j)), d))


@kernel
def v_plane(
    kind: int, v: Any, scales: Any, head: int, size: int, dim: int, width: int, at: int, plane: Any, shorts: Any
) -> None:
    """V of a page at positions at .. at+31 of the plane [256, width]; q8_0 as int16 [pairs of tokens, width, 2] and the
    scales as floats [squares, 256]."""
    n_squares = (dim + PAGE - 1) // PAGE
    if scales is None:
        for t in range(PAGE):
            for j in range(0, dim, 16):
                store(plane, (at + t) * width + j, load(v, head * size + t * dim + j))
    elif kind == Q8_0:
        for b in range(n_squares):
            for j in range(0, PAGE, 16):
                store(plane, b * SEGMENT + at + j, load(scales, (head * n_squares + b) * PAGE + j))
            for t in range(16):
                for j in range(0, 2 * PAGE, 32):
                    to = ((at // 2 + t) * width + b * PAGE) * 2 + j
                    store(shorts, to, load_pairs(v, head * size + (b * 16 + t) * 2 * PAGE + j))
    else:
        for t in range(PAGE):
            for b in range(n_squares):
                d = splat(bf16(scales[(head * n_squares + b) * PAGE + t]))
                for j in range(0, PAGE, 16):
                    q = load_ints(v, head * size + (t * n_squares + b) * PAGE + j)
                    store(plane, (at + t) * width + b * PAGE + j, mul(to_floats(q), d))


@kernel
def query(x: Any, i: int, dim: int, q: Any, d: Any) -> None:
    """The query as int16 q and a scale for each 32 dims."""
    for b in range((dim + PAGE - 1) // PAGE):
        n, top = min(PAGE, dim - b * PAGE), 0
        for j in range(n):
            top = max(top, bits(x[i + b * PAGE + j]) & 0x7FFFFFFF)
        for j in range(PAGE):
            q[b * PAGE + j] = 0
        if top < TINY or top >= INFINITE:
            d[b] = ZERO if top < TINY else fp.NAN
            continue
        amax = from_bits(top)
        factor = F(INT16_MAX / amax)
        d[b] = F(amax / INT16_MAX)
        for j in range(n):
            q[b * PAGE + j] = fp.rint(F(x[i + b * PAGE + j] * factor))


@kernel
def dots(x: Any, i: int, dim: int, plane: Any, lo: int, hi: int, s: Any) -> None:
    """s[p] = chain over e of x[e] * plane[e, p]."""
    for p in range(lo // 64 * 64, hi, 64):
        a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
        for e in range(dim):
            v, o = splat_at(x, i + e), e * SEGMENT + p
            a = fma(v, load(plane, o), a)
            b = fma(v, load(plane, o + 16), b)
            c = fma(v, load(plane, o + 32), c)
            d = fma(v, load(plane, o + 48), d)
        store(s, p, a)
        store(s, p + 16, b)
        store(s, p + 32, c)
        store(s, p + 48, d)


@kernel
def dots_q8(q: Any, dq: Any, n_squares: int, plane: Any, shorts: Any, lo: int, hi: int, s: Any) -> None:
    """s[p] = chain over squares of (exact product of q and k) * (dq * d[p])."""
    for p in range(lo // 16 * 16, hi, 16):
        total = splat(ZERO)
        for b in range(n_squares):
            product = no_ints()
            for e in range(16 * b, 16 * b + 16):
                product = add(product, madd(load_shorts(shorts, (e * SEGMENT + p) * 2), splat_pair(q, 2 * e)))
            total = fma(to_floats(product), mul(splat_at(dq, b), load(plane, b * SEGMENT + p)), total)
        store(s, p, total)


@kernel
def weigh(w: Any, plane: Any, width: int, lo: int, hi: int, o: Any) -> None:
    """o[d] = chain over p of w[p] * plane[p, d]."""
    for j in range(0, width, 32):
        a, b = splat(ZERO), splat(ZERO)
        for p in range(lo, hi):
            v = splat_at(w, p)
            a = fma(v, load(plane, p * width + j), a)
            b = fma(v, load(plane, p * width + j + 16), b)
        store(o, j, a)
        store(o, j + 16, b)


@kernel
def weigh_q8(w: Any, plane: Any, shorts: Any, width: int, lo: int, hi: int, o: Any, x: Any, q: Any) -> None:
    """o of each 32 dims: weights times the tokens' scales as int16, then an exact integer product. x, q: room."""
    for b in range(width // PAGE):
        top, finite = ZERO, True
        for p in range(lo, hi):
            v = F(w[p] * plane[b * SEGMENT + p])
            x[p] = v
            finite &= fp.is_finite(v)
            top = v if v > top else top
        usable = finite and bits(top) >= TINY
        factor = F(INT16_MAX / top) if usable else ZERO
        for p in range(lo // 2 * 2, (hi + 1) // 2 * 2):
            q[p] = fp.rint(F(x[p] * factor)) if usable and lo <= p < hi else 0
        scale = splat(F(top / INT16_MAX) if usable else (ZERO if finite else fp.NAN))
        for j in range(b * PAGE, b * PAGE + PAGE, 16):
            total = no_ints()
            for p in range(lo // 2, (hi + 1) // 2):
                total = add(total, madd(load_shorts(shorts, (p * width + j) * 2), splat_pair(q, 2 * p)))
            store(o, j, mul(to_floats(total), scale))


@kernel
def soften(w: Any, lo: int, hi: int, scale: F, softcap: F) -> tuple[F, F]:
    """w becomes exp(s - max), zeros around up to multiples of 16; max and the fold16 of them."""
    top = F(-INF)
    for p in range(lo, hi):
        s = F(w[p] * scale)
        if softcap != ZERO:
            s = F(softcap * fp.tanh(F(s / softcap)))
        w[p] = s
        top = s if s > top else top
    for p in range(lo, hi):
        w[p] = fp.exp(F(w[p] - top))
    first, last = lo // 16 * 16, (hi + 15) // 16 * 16
    for p in range(first, lo):
        w[p] = ZERO
    for p in range(hi, last):
        w[p] = ZERO
    sums = splat(ZERO)
    for p in range(first, last, 16):
        sums = add(sums, load(w, p))
    return top, fold16(sums)


@kernel
def fold(state: Any, r: int, out: Any, i: int, m: F, total: F, o: Any, width: int) -> None:
    """Fold the partial (m, total, o) into row r: state [rows, 2] has its maximum and sum, `out` the rest from i."""
    if total == ZERO:
        return
    top, before = state[2 * r], state[2 * r + 1]
    if before == ZERO:
        state[2 * r], state[2 * r + 1] = m, total
        for d in range(width):
            out[i + d] = o[d]
        return
    n = m if m > top else top
    a, b = fp.exp(F(top - n)), fp.exp(F(m - n))
    state[2 * r], state[2 * r + 1] = n, fma(total, b, F(before * a))
    for d in range(width):
        out[i + d] = fma(o[d], b, F(out[i + d] * a))


@kernel
def attend(
    units: Any,
    first_unit: int,
    last_unit: int,
    kinds: tuple[int, int],
    k: Any,
    k_scales: Any,
    v: Any,
    v_scales: Any,
    sizes: tuple[int, int],
    dims: tuple[int, int],
    heads: int,
    group: int,
    window: int,
    causal: int,
    scale: F,
    softcap: F,
    sinks: Any,
    table: Any,
    table_width: int,
    positions: Any,
    q: Any,
    q0: int,
    qs: int,
    y: Any,
    y0: int,
    ys: int,
    planes: tuple[Any, ...],
) -> None:
    """units [n, 6]: sequence, its first token, its last position, kv head, first row, rows. Scales are None for formats
    of single numbers (kv.store). planes: room for K, V, both as int16."""
    k_floats, v_floats, k_shorts, v_shorts = planes
    k_dim, v_dim = dims
    k_squares = (k_dim + PAGE - 1) // PAGE
    width = (v_dim + PAGE - 1) // PAGE * PAGE
    state, out = np.empty(2 * UNIT_ROWS, np.float32), np.empty(UNIT_ROWS * width, np.float32)
    lows, highs = np.empty(UNIT_ROWS, np.int64), np.empty(UNIT_ROWS, np.int64)
    w, o, x = np.empty(SEGMENT, np.float32), np.empty(width, np.float32), np.empty(SEGMENT, np.float32)
    weights = np.empty(SEGMENT, np.int16)
    qq, dq = np.empty(k_squares * PAGE, np.int16), np.empty(k_squares, np.float32)
    for u in range(first_unit, last_unit):
        sequence, token0, last_position = units[6 * u], units[6 * u + 1], units[6 * u + 2]
        g, row0, n = units[6 * u + 3], units[6 * u + 4], units[6 * u + 5]
        low, high = 1 << 40, 0
        for r in range(n):
            position = positions[token0 + (row0 + r) // group]
            lows[r] = position - window + 1 if window and position >= window else 0
            highs[r] = (position if causal else last_position) + 1
            low, high = min(low, lows[r]), max(high, highs[r])
            state[2 * r], state[2 * r + 1] = ZERO, ZERO
        for segment in range(low // SEGMENT, (high - 1) // SEGMENT + 1):
            start = segment * SEGMENT
            from_page, to_page = max(low - start, 0) // PAGE, (min(high - start, SEGMENT) - 1) // PAGE + 1
            for j in range(from_page, to_page):
                head = np.int64(table[sequence * table_width + segment * 8 + j]) * heads + g
                k_plane(kinds[0], k, k_scales, head, sizes[0], k_dim, j * PAGE, k_floats, k_shorts)
                v_plane(kinds[1], v, v_scales, head, sizes[1], v_dim, width, j * PAGE, v_floats, v_shorts)
            for r in range(n):
                lo, hi = max(lows[r] - start, 0), min(highs[r] - start, SEGMENT)
                if lo >= hi:
                    continue
                i = q0 + (token0 + (row0 + r) // group) * qs + (g * group + (row0 + r) % group) * k_dim
                if k_scales is None:
                    dots(q, i, k_dim, k_floats, lo, hi, w)
                elif kinds[0] == Q8_0:
                    query(q, i, k_dim, qq, dq)
                    dots_q8(qq, dq, k_squares, k_floats, k_shorts, lo, hi, w)
                else:
                    dots(q, i, k_dim, k_floats, lo, hi, w)
                m, total = soften(w, lo, hi, scale, softcap)
                if v_scales is None:
                    weigh(w, v_floats, width, lo, hi, o)
                elif kinds[1] == Q8_0:
                    weigh_q8(w, v_floats, v_shorts, width, lo, hi, o, x, weights)
                else:
                    weigh(w, v_floats, width, lo, hi, o)
                fold(state, r, out, r * width, m, total, o, v_dim)
        for r in range(n):
            h = g * group + (row0 + r) % group
            if len(sinks):
                o[:] = ZERO
                fold(state, r, out, r * width, sinks[h], ONE, o, v_dim)
            factor = F(ONE / state[2 * r + 1])
            at = y0 + (token0 + (row0 + r) // group) * ys + h * v_dim
            for d in range(v_dim):
                y[at + d] = F(out[r * width + d] * factor)

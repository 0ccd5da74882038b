"""Kernels of what computes a row from the same row: norms, quantisation, rope, activations, routing, selection.

Rows lie in flat arrays: row t of a view begins at `start + t * stride`. A kernel does rows first .. last-1. Formulas:
docs/numerics.md, kernels.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgellm.backends.numba import fp
from edgellm.backends.numba.compiled import function, kernel
from edgellm.backends.numba.vectors import add, bits, fma, fold16, from_bits, load, set_rounding, splat, store

F = np.float32
ZERO, ONE, INF = F(0), F(1), F(np.inf)
TINY = 0x03800000  # the bits of 2^-120
INT8_MAX = F(127)
LEAST_SUM = F(6.103515625e-5)
TOP_SEGMENT = 1024


@function
def control(word: int) -> int:
    """set_rounding."""
    return set_rounding(word)


@kernel
def sum16(x: Any, i: int, n: int, minus: F, squares: bool) -> F:
    """fold16 of x - minus, or of the squares by fma."""
    p = splat(ZERO)
    shift = splat(F(-minus))
    whole = n // 16 * 16
    for j in range(0, whole, 16):
        v = add(load(x, i + j), shift)
        p = fma(v, v, p) if squares else add(p, v)
    if whole == n:
        return fold16(p)
    part = np.empty(16, np.float32)
    store(part, 0, p)
    for j in range(whole, n):
        v = F(x[i + j] - minus)
        part[j - whole] = fma(v, v, part[j - whole]) if squares else F(part[j - whole] + v)
    return fold16(load(part, 0))


@kernel
def norm(
    first: int,
    last: int,
    kind: int,
    groups: int,
    n: int,
    x: Any,
    x0: int,
    xs: int,
    y: Any,
    y0: int,
    ys: int,
    w: Any,
    b: Any,
    eps: F,
) -> None:
    """Each of `groups` segments of n; w and b have n or groups * n elements, or none. kind: NORMS of lower.py."""
    for t in range(first, last):
        for g in range(groups):
            i, o = x0 + t * xs + g * n, y0 + t * ys + g * n
            wi = g * n if len(w) > n else 0
            bi = g * n if len(b) > n else 0
            mean = ZERO
            if kind == 1:
                mean = F(sum16(x, i, n, ZERO, False) / F(n))
            total = sum16(x, i, n, mean, True)
            if kind == 2:
                length = F(np.sqrt(total))
                factor = F(ONE / (length if length > eps else eps))
            else:
                factor = F(ONE / F(np.sqrt(F(F(total / F(n)) + eps))))
            for j in range(n):
                v = x[i + j]
                if kind == 1:
                    v = F(v - mean)
                v = F(v * factor)
                if len(w):
                    v = F(v * w[wi + j])
                if len(b):
                    v = F(v + b[bi + j])
                y[o + j] = v


@kernel
def quantize(x: Any, i: int, n: int, q: Any, o: int) -> F:
    """n values as q = rint(x * (127 / amax)); the scale amax / 127. Negative: one was not finite, zeros written."""
    top = 0
    for j in range(n):
        a = bits(x[i + j]) & 0x7FFFFFFF
        top = a if a > top else top
    if top >= 0x7F800000 or top < TINY:
        for j in range(n):
            q[o + j] = 0
        return F(-ONE) if top >= 0x7F800000 else ZERO
    amax = from_bits(top)
    factor = F(INT8_MAX / amax)
    for j in range(n):
        v = fp.rint(F(x[i + j] * factor))
        q[o + j] = min(max(v, -127), 127)
    return F(amax / INT8_MAX)


@kernel
def quantize_a16(
    first: int, last: int, segments: int, k: int, x: Any, x0: int, xs: int, q: Any, d: Any, s: Any, bad: Any
) -> None:
    """q [rows * segments, k]; d per 16; s = fma(sum1, d1, sum0 * d0) per 32. bad[t] = 1: a value is not finite."""
    for t in range(first, last):
        for g in range(segments):
            i, o = x0 + t * xs + g * k, (t * segments + g) * k
            for b in range(k // 16):
                scale = quantize(x, i + 16 * b, 16, q, o + 16 * b)
                if scale < ZERO:
                    bad[t] = 1
                    scale = ZERO
                d[o // 16 + b] = scale
            for b in range(k // 32):
                low, high = 0, 0
                for j in range(16):
                    low += q[o + 32 * b + j]
                    high += q[o + 32 * b + 16 + j]
                at = o // 16 + 2 * b
                s[o // 32 + b] = fma(F(high), d[at + 1], F(F(low) * d[at]))


@kernel
def quantize_a256(
    first: int, last: int, segments: int, k: int, x: Any, x0: int, xs: int, q: Any, d: Any, s: Any, bad: Any
) -> None:
    """q [rows * segments, k]; d per 256; s = sum of q per 16."""
    for t in range(first, last):
        for g in range(segments):
            i, o = x0 + t * xs + g * k, (t * segments + g) * k
            for b in range(k // 256):
                scale = quantize(x, i + 256 * b, 256, q, o + 256 * b)
                if scale < ZERO:
                    bad[t] = 1
                    scale = ZERO
                d[o // 256 + b] = scale
            for b in range(k // 16):
                total = 0
                for j in range(16):
                    total += q[o + 16 * b + j]
                s[o // 16 + b] = total


@function
def note_nonfinite(first: int, last: int, n: int, x: Any, x0: int, xs: int, bad: Any) -> None:
    """bad[t] = 1 where row t holds an inf or nan."""
    for t in range(first, last):
        found = False
        for j in range(n):
            found |= not fp.is_finite(x[x0 + t * xs + j])
        if found:
            bad[t] = 1


@kernel
def glu(
    first: int,
    last: int,
    kind: int,
    n: int,
    g: Any,
    g0: int,
    gs: int,
    u: Any,
    u0: int,
    us: int,
    y: Any,
    y0: int,
    ys: int,
) -> None:
    """y = act(g) * u."""
    for t in range(first, last):
        for j in range(n):
            y[y0 + t * ys + j] = fp.gate(kind, g[g0 + t * gs + j], u[u0 + t * us + j])


@kernel
def act(first: int, last: int, kind: int, n: int, x: Any, x0: int, xs: int, y: Any, y0: int, ys: int) -> None:
    """y = act(x)."""
    for t in range(first, last):
        for j in range(n):
            y[y0 + t * ys + j] = fp.activate(kind, x[x0 + t * xs + j])


@kernel
def add_rows(
    first: int, last: int, n: int, a: Any, a0: int, a_stride: int, b: Any, b0: int, bs: int, y: Any, y0: int, ys: int
) -> None:
    """y = a + b."""
    for t in range(first, last):
        for j in range(n):
            y[y0 + t * ys + j] = F(a[a0 + t * a_stride + j] + b[b0 + t * bs + j])


@kernel
def scale_rows(first: int, last: int, factor: F, n: int, x: Any, x0: int, xs: int, y: Any, y0: int, ys: int) -> None:
    """y = x * factor."""
    for t in range(first, last):
        for j in range(n):
            y[y0 + t * ys + j] = F(x[x0 + t * xs + j] * factor)


@kernel
def select(first: int, last: int, chosen: Any, n: int, x: Any, x0: int, xs: int, y: Any, y0: int, ys: int) -> None:
    """Row t of y is row chosen[t] of x."""
    for t in range(first, last):
        for j in range(n):
            y[y0 + t * ys + j] = x[x0 + chosen[t] * xs + j]


@kernel
def softcap(first: int, last: int, cap: F, n: int, x: Any, x0: int, xs: int, y: Any, y0: int, ys: int) -> None:
    """y = cap * tanh(x / cap)."""
    for t in range(first, last):
        for j in range(n):
            y[y0 + t * ys + j] = F(cap * fp.tanh(F(x[x0 + t * xs + j] / cap)))


@kernel
def rope(
    first: int,
    last: int,
    mode: int,
    positions: Any,
    heads: int,
    width: int,
    n_rot: int,
    x: Any,
    x0: int,
    xs: int,
    cos: Any,
    sin: Any,
) -> None:
    """Rotate the first n_rot of each `width` numbers; mode 0 pairs (2i, 2i+1), 1 (i, i + n_rot / 2)."""
    half = n_rot // 2
    step, apart = (2, 1) if mode == 0 else (1, half)
    for t in range(first, last):
        p = positions[t] * half
        for h in range(heads):
            o = x0 + t * xs + h * width
            for i in range(half):
                a, b = x[o + step * i], x[o + step * i + apart]
                c, s = cos[p + i], sin[p + i]
                x[o + step * i] = fma(a, c, F(-F(b * s)))
                x[o + step * i + apart] = fma(a, s, F(b * c))


@kernel
def softmax(x: Any, i: int, n: int) -> None:
    """exp(x - max) / fold16 of them, in place."""
    top = x[i]
    for j in range(1, n):
        top = max(top, x[i + j]) if x[i + j] > top else top
    sums = np.zeros(16, np.float32)
    for j in range(n):
        e = fp.exp(F(x[i + j] - top))
        x[i + j] = e
        sums[j % 16] = F(sums[j % 16] + e)
    total = fold16(load(sums, 0))
    for j in range(n):
        x[i + j] = F(x[i + j] / total)


@kernel
def route(
    first: int,
    last: int,
    func: int,
    n: int,
    k: int,
    divide: int,
    scale: F,
    bias: Any,
    x: Any,
    x0: int,
    xs: int,
    ids: Any,
    i0: int,
    ids_stride: int,
    y: Any,
    y0: int,
    ys: int,
) -> None:
    """The k experts of each row and what they weigh; func: ROUTERS of lower.py."""
    value, choice = np.empty(n, np.float32), np.empty(n, np.float32)
    taken = np.empty(n, np.int8)
    for t in range(first, last):
        for i in range(n):
            v = x[x0 + t * xs + i]
            value[i] = fp.activate(6, v) if func == 1 else v
        if func == 0:
            softmax(value, 0, n)
        for i in range(n):
            choice[i] = F(value[i] + bias[i]) if len(bias) else value[i]
            taken[i] = 0
        o = y0 + t * ys
        for j in range(k):
            best = -1
            for i in range(n):
                if taken[i] == 0 and (best < 0 or choice[i] > choice[best]):
                    best = i
            taken[best] = 1
            ids[i0 + t * ids_stride + j] = best
            y[o + j] = value[best]
        if func == 2:
            softmax(y, o, k)
        if divide:
            total = y[o]
            for j in range(1, k):
                total = F(total + y[o + j])
            total = total if total > LEAST_SUM else LEAST_SUM
            for j in range(k):
                y[o + j] = F(y[o + j] / total)
        if scale != ONE:
            for j in range(k):
                y[o + j] = F(y[o + j] * scale)


@kernel
def combine(
    first: int,
    last: int,
    n: int,
    k: int,
    x: Any,
    x0: int,
    xs: int,
    w: Any,
    w0: int,
    ws: int,
    other: Any,
    r0: int,
    rs: int,
    y: Any,
    y0: int,
    ys: int,
) -> None:
    """y = (other +) sum over j ascending of w[j] * x[j * n : (j + 1) * n], each by fma but the first."""
    for t in range(first, last):
        for i in range(n):
            v = F(x[x0 + t * xs + i] * w[w0 + t * ws])
            for j in range(1, k):
                v = fma(x[x0 + t * xs + j * n + i], w[w0 + t * ws + j], v)
            y[y0 + t * ys + i] = F(other[r0 + t * rs + i] + v) if len(other) else v


@kernel
def deal(
    n: int,
    k: int,
    n_experts: int,
    ids: Any,
    i0: int,
    ids_stride: int,
    starts: Any,
    x0: int,
    x_token: int,
    x_rank: int,
    xs: Any,
    y0: int,
    y_token: int,
    y_rank: int,
    to: Any,
) -> None:
    """Deal the pairs of n tokens and k ranks out to their experts, in order: those of expert e are columns
    starts[e] .. starts[e + 1] - 1 of a matmul, which read from xs[c] and write to to[c]."""
    for e in range(n_experts + 1):
        starts[e] = 0
    for t in range(n):
        for j in range(k):
            starts[ids[i0 + t * ids_stride + j] + 1] += 1
    for e in range(n_experts):
        starts[e + 1] += starts[e]
    for t in range(n):
        for j in range(k):
            e = ids[i0 + t * ids_stride + j]
            c = starts[e]
            starts[e] = c + 1
            xs[c] = x0 + t * x_token + j * x_rank
            to[c] = y0 + t * y_token + j * y_rank
    for e in range(n_experts, 0, -1):
        starts[e] = starts[e - 1]
    starts[0] = 0


# ---- selection -----------------------------------------------------------------------------------------------------


@function
def adjust(x: Any, n_vocab: int, broken: Any, row: Any, token: Any, rep: Any, added: Any) -> None:
    """Sparse edits of logits [R, n_vocab], in order; broken rows stay as they are."""
    for i in range(len(row)):
        if not broken[row[i]]:
            at = row[i] * n_vocab + token[i]
            v = x[at]
            v = F(v / rep[i]) if v > ZERO else F(v * rep[i])
            x[at] = F(v + added[i])


@function
def top_k(x: Any, n_vocab: int, broken: Any, k: int, ids: Any, values: Any) -> None:
    """The k largest of each row, equal ones by lower id; what is missing is -1 and -inf. Flat [R, k]."""
    for r in range(len(broken)):
        o, have = r * k, 0
        for j in range(k):
            ids[o + j] = -1
            values[o + j] = -INF
        if broken[r] or k == 0:
            continue
        least = F(-INF)  # of a full list
        for i in range(n_vocab):
            v = x[r * n_vocab + i]
            if have == k and not v > least:
                continue
            j = have if have < k else k - 1
            while j > 0 and v > values[o + j - 1]:
                ids[o + j], values[o + j] = ids[o + j - 1], values[o + j - 1]
                j -= 1
            ids[o + j], values[o + j] = i, v
            have = min(have + 1, k)
            least = values[o + k - 1]


@function
def log_sum_exp(x: Any, n_vocab: int, broken: Any, out: Any) -> None:
    """log of the sum of exp over each row: segments of 1,024 relative to their maxima, folded in order."""
    for r in range(len(broken)):
        if broken[r]:
            out[r] = fp.NAN
            continue
        M, L = ZERO, ZERO
        for first in range(0, n_vocab, TOP_SEGMENT):
            n = min(TOP_SEGMENT, n_vocab - first)
            top = F(-INF)
            for i in range(first, first + n):
                v = x[r * n_vocab + i]
                top = v if v > top else top
            if top == -INF:
                continue
            sums = np.zeros(16, np.float32)
            for i in range(n):
                e = fp.exp(F(x[r * n_vocab + first + i] - top))
                sums[i % 16] = F(sums[i % 16] + e)
            total = fold16(load(sums, 0))
            if total == ZERO:
                continue
            if L == ZERO:
                M, L = top, total
                continue
            n_top = top if top > M else M
            L = fma(total, fp.exp(F(top - n_top)), F(L * fp.exp(F(M - n_top))))
            M = n_top
        out[r] = F(M + fp.log(L))

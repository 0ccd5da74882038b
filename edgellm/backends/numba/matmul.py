"""Matmul kernels over panels of 16 rows (pack.py), with the formulas of native/kernels/kernels.h.

Each does panels first .. last-1 of every matrix of a stack, of n_panels panels and n_rows rows each. Columns (tokens,
or tokens and ranks) starts[g] .. starts[g + 1] - 1 are matrix g's. Column c reads row `rows[c]` of the activations and
writes to y from `to[c]` on; what it adds to, where there is a residual, begins at `other[c]`. factors and bias, where
there are any, have a number and n_rows numbers for each matrix.

A panel's blocks are walked in ascending order; a block is unpacked once and applied to up to COLUMNS columns. Inside a
block everything is exact integer arithmetic; `sums` [COLUMNS, 16] holds the one float chain of each (row, column).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgellm.backends.numba.compiled import kernel
from edgellm.backends.numba.vectors import (
    add,
    dot_high,
    dot_low,
    fma,
    load,
    load_ints,
    load_pairs,
    load_weights,
    madd,
    mul,
    neg,
    no_ints,
    prefetch,
    splat,
    splat_at,
    splat_pair,
    store,
    to_floats,
)

F = np.float32
ZERO, ONE = F(0), F(1)
COLUMNS = 64
LINE = 64
"""Bytes of a cache line."""


@kernel
def finish(
    sums: Any,
    g: int,
    start: int,
    n: int,
    row: int,
    n_rows: int,
    y: Any,
    to: Any,
    factors: Any,
    bias: Any,
    residual: Any,
    other: Any,
) -> None:
    """`v * scale`, `+ bias`, `residual + v`, each where there is one, into rows row .. of y."""
    scale = factors[g] if len(factors) else ONE
    for c in range(n):
        for r in range(min(16, n_rows - row)):
            v = sums[16 * c + r]
            if scale != ONE:
                v = F(v * scale)
            if len(bias):
                v = F(v + bias[g * n_rows + row + r])
            if len(residual):
                v = F(residual[other[start + c] + row + r] + v)
            y[to[start + c] + row + r] = v


@kernel
def mm_a16(
    first: int,
    last: int,
    w: tuple[Any, ...],
    n_panels: int,
    n_rows: int,
    k: int,
    starts: Any,
    x: tuple[Any, ...],
    rows: Any,
    y: Any,
    to: Any,
    factors: Any,
    bias: Any,
    residual: Any,
    other: Any,
    sums: Any,
) -> None:
    """32-block types. t = fma(i1, dx1, i0 * dx0); acc = fma(t, d, acc); with minima acc = fma(m, s, acc)."""
    q, d, m = w
    xq, xd, xs = x
    blocks = k // 32
    size = len(q) // len(d) * 16
    for g in range(len(starts) - 1):
        for start in range(starts[g], starts[g + 1], COLUMNS):
            n = min(COLUMNS, starts[g + 1] - start)
            for p in range(first, last):
                if n == 1:
                    acc, row = splat(ZERO), rows[start] * k
                    for b in range(blocks):
                        at, i = (g * n_panels + p) * blocks + b, row + 32 * b
                        for line in range(0, size, LINE // q.itemsize):
                            prefetch(q, at * size + line)
                        prefetch(d, 16 * at)
                        prefetch(m, 16 * at)
                        weights = load_weights(q, at * size)
                        low, high = to_floats(dot_low(weights, xq, i)), to_floats(dot_high(weights, xq, i + 16))
                        t = fma(high, splat_at(xd, i // 16 + 1), mul(low, splat_at(xd, i // 16)))
                        acc = fma(t, load(d, 16 * at), acc)
                        if len(m):
                            acc = fma(load(m, 16 * at), splat_at(xs, i // 32), acc)
                    store(sums, 0, acc)
                    finish(sums, g, start, n, 16 * p, n_rows, y, to, factors, bias, residual, other)
                    continue
                for c in range(n):
                    store(sums, 16 * c, splat(ZERO))
                for b in range(blocks):
                    at = (g * n_panels + p) * blocks + b
                    weights = load_weights(q, at * size)
                    scales = load(d, 16 * at)
                    minima = load(m, 16 * at) if len(m) else scales
                    for c in range(n):
                        i = rows[start + c] * k + 32 * b
                        low, high = to_floats(dot_low(weights, xq, i)), to_floats(dot_high(weights, xq, i + 16))
                        t = fma(high, splat_at(xd, i // 16 + 1), mul(low, splat_at(xd, i // 16)))
                        acc = fma(t, scales, load(sums, 16 * c))
                        if len(m):
                            acc = fma(minima, splat_at(xs, i // 32), acc)
                        store(sums, 16 * c, acc)
                finish(sums, g, start, n, 16 * p, n_rows, y, to, factors, bias, residual, other)


@kernel
def mm_nvfp4(
    first: int,
    last: int,
    w: tuple[Any, ...],
    n_panels: int,
    n_rows: int,
    k: int,
    starts: Any,
    x: tuple[Any, ...],
    rows: Any,
    y: Any,
    to: Any,
    factors: Any,
    bias: Any,
    residual: Any,
    other: Any,
    sums: Any,
) -> None:
    """A scale per 16 weights: acc = fma(i, e * dx, acc) for each 16."""
    q, d, _ = w
    xq, xd, _ = x
    blocks = k // 32
    size = len(q) // len(d) * 32
    for g in range(len(starts) - 1):
        for start in range(starts[g], starts[g + 1], COLUMNS):
            n = min(COLUMNS, starts[g + 1] - start)
            for p in range(first, last):
                for c in range(n):
                    store(sums, 16 * c, splat(ZERO))
                for b in range(blocks):
                    at = (g * n_panels + p) * blocks + b
                    weights = load_weights(q, at * size)
                    e0, e1 = load(d, 32 * at), load(d, 32 * at + 16)
                    for c in range(n):
                        i = rows[start + c] * k + 32 * b
                        low, high = to_floats(dot_low(weights, xq, i)), to_floats(dot_high(weights, xq, i + 16))
                        acc = fma(low, mul(e0, splat_at(xd, i // 16)), load(sums, 16 * c))
                        store(sums, 16 * c, fma(high, mul(e1, splat_at(xd, i // 16 + 1)), acc))
                finish(sums, g, start, n, 16 * p, n_rows, y, to, factors, bias, residual, other)


@kernel
def mm_a256(
    first: int,
    last: int,
    w: tuple[Any, ...],
    n_panels: int,
    n_rows: int,
    k: int,
    starts: Any,
    x: tuple[Any, ...],
    rows: Any,
    y: Any,
    to: Any,
    factors: Any,
    bias: Any,
    residual: Any,
    other: Any,
    sums: Any,
) -> None:
    """256-block types. S = sum of scale * i over groups of 16, M = sum of minimum * sum16, of a block;
    acc = fma(S, d * dx, acc); with minima acc = fma(M, -(dmin * dx), acc)."""
    q, d, m, scales, minima = w
    xq, xd, x16 = x
    blocks = k // 256
    size = len(q) // len(d) * 2  # of 32 weights of each row
    totals = np.empty(32 * COLUMNS, np.int32)
    for g in range(len(starts) - 1):
        for start in range(starts[g], starts[g + 1], COLUMNS):
            n = min(COLUMNS, starts[g + 1] - start)
            for p in range(first, last):
                if n == 1:
                    acc = splat(ZERO)
                    for b in range(blocks):
                        at = (g * n_panels + p) * blocks + b
                        total, less = no_ints(), no_ints()
                        for j in range(8):
                            i = rows[start] * k + 256 * b + 32 * j
                            for line in range(0, size, LINE // q.itemsize):
                                prefetch(q, (8 * at + j) * size + line)
                            prefetch(scales, (16 * at + 2 * j) * 16)
                            weights = load_weights(q, (8 * at + j) * size)
                            total = add(total, mul(load_ints(scales, (16 * at + 2 * j) * 16), dot_low(weights, xq, i)))
                            s1 = load_ints(scales, (16 * at + 2 * j + 1) * 16)
                            total = add(total, mul(s1, dot_high(weights, xq, i + 16)))
                            if len(minima):
                                prefetch(minima, (8 * at + j) * 32)
                                pairs = madd(load_pairs(minima, (8 * at + j) * 32), splat_pair(x16, i // 16))
                                less = add(less, pairs)
                        dx = splat_at(xd, rows[start] * blocks + b)
                        acc = fma(to_floats(total), mul(load(d, 16 * at), dx), acc)
                        if len(minima):
                            acc = fma(to_floats(less), neg(mul(load(m, 16 * at), dx)), acc)
                    store(sums, 0, acc)
                    finish(sums, g, start, n, 16 * p, n_rows, y, to, factors, bias, residual, other)
                    continue
                for c in range(n):
                    store(sums, 16 * c, splat(ZERO))
                for b in range(blocks):
                    at = (g * n_panels + p) * blocks + b
                    for c in range(2 * n):
                        store(totals, 16 * c, no_ints())
                    for j in range(8):
                        weights = load_weights(q, (8 * at + j) * size)
                        s0 = load_ints(scales, (16 * at + 2 * j) * 16)
                        s1 = load_ints(scales, (16 * at + 2 * j + 1) * 16)
                        for c in range(n):
                            i = rows[start + c] * k + 256 * b + 32 * j
                            products = add(mul(s0, dot_low(weights, xq, i)), mul(s1, dot_high(weights, xq, i + 16)))
                            store(totals, 32 * c, add(load_ints(totals, 32 * c), products))
                            if len(minima):
                                products = madd(load_pairs(minima, (8 * at + j) * 32), splat_pair(x16, i // 16))
                                store(totals, 32 * c + 16, add(load_ints(totals, 32 * c + 16), products))
                    for c in range(n):
                        dx = splat_at(xd, rows[start + c] * blocks + b)
                        total = to_floats(load_ints(totals, 32 * c))
                        acc = fma(total, mul(load(d, 16 * at), dx), load(sums, 16 * c))
                        if len(minima):
                            total = to_floats(load_ints(totals, 32 * c + 16))
                            acc = fma(total, neg(mul(load(m, 16 * at), dx)), acc)
                        store(sums, 16 * c, acc)
                finish(sums, g, start, n, 16 * p, n_rows, y, to, factors, bias, residual, other)


@kernel
def mm_floats(
    first: int,
    last: int,
    w: tuple[Any, ...],
    n_panels: int,
    n_rows: int,
    k: int,
    starts: Any,
    x: Any,
    rows: Any,
    y: Any,
    to: Any,
    factors: Any,
    bias: Any,
    residual: Any,
    other: Any,
    sums: Any,
) -> None:
    """Float weights: a chain over k. x holds float rows; `rows` are their first elements."""
    q = w[0]
    for g in range(len(starts) - 1):
        for start in range(starts[g], starts[g + 1], COLUMNS):
            n = min(COLUMNS, starts[g + 1] - start)
            for p in range(first, last):
                at = (g * n_panels + p) * k * 16
                c = 0
                while c < n:
                    if c + 4 <= n:
                        a0, a1, a2, a3 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
                        r0, r1, r2, r3 = rows[start + c], rows[start + c + 1], rows[start + c + 2], rows[start + c + 3]
                        for i in range(k):
                            v = load(q, at + 16 * i)
                            a0 = fma(v, splat_at(x, r0 + i), a0)
                            a1 = fma(v, splat_at(x, r1 + i), a1)
                            a2 = fma(v, splat_at(x, r2 + i), a2)
                            a3 = fma(v, splat_at(x, r3 + i), a3)
                        store(sums, 16 * c, a0)
                        store(sums, 16 * c + 16, a1)
                        store(sums, 16 * c + 32, a2)
                        store(sums, 16 * c + 48, a3)
                        c += 4
                    else:
                        a0 = splat(ZERO)
                        r0 = rows[start + c]
                        for i in range(k):
                            a0 = fma(load(q, at + 16 * i), splat_at(x, r0 + i), a0)
                        store(sums, 16 * c, a0)
                        c += 1
                finish(sums, g, start, n, 16 * p, n_rows, y, to, factors, bias, residual, other)

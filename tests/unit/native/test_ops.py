"""Each op of the native core against its formula in float64: rows of a float table go in, logits come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm import _native
from edgellm._native import BufferSpec, CacheLayerSpec, Engine, EngineConfig, Matrix, NativeModel
from edgellm.core.types import Batch

F64 = NDArray[np.float64]
Record = Callable[..., NDArray[np.void]]
EMBED, NORM, LINEAR, GATED, GLU, ACT, ADD, SCALE, SOFTCAP = 1, 2, 4, 5, 6, 7, 8, 9, 10
ROPE, KV_WRITE, ATTENTION, ROUTE, EXPERT_LINEAR, EXPERT_GATED, COMBINE, SELECT_ROWS = range(11, 19)
VECTOR, NONE, T = 1_000_000, (-1, 0, 0), 7
ACTS: dict[int, Callable[[F64], F64]] = {
    0: lambda x: x,
    1: lambda x: x / (1 + np.exp(-x)),
    2: lambda x: x / (1 + np.exp(-1.5957691216057308 * x * (1 + 0.044715 * x * x))),
    4: lambda x: np.maximum(x, 0),
    5: lambda x: np.maximum(x, 0) ** 2,
    6: lambda x: 1 / (1 + np.exp(-x)),
}


@dataclass
class Case:
    """Buffer 0 holds the input rows; ops fill the others; `out` is the view whose columns become the logits."""

    ops: list[NDArray[np.void]]
    out: tuple[int, int, int]
    widths: Sequence[int]
    matrices: list[NDArray[np.float32]] = field(default_factory=list)
    vectors: list[NDArray[np.float32]] = field(default_factory=list)
    ropes: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = field(default_factory=list)
    layers: list[CacheLayerSpec] = field(default_factory=list)
    i32: Sequence[int] = ()


@pytest.fixture(scope="module")
def record() -> Record:
    """record(code, views, w, i, f): one op."""
    if not _native.available():
        pytest.skip(f"the native library is not here: {_native.why_not()}")

    def make(code: int, v: Any, w: Any = (), i: Any = (), f: Any = ()) -> NDArray[np.void]:
        r = np.zeros(1, _native.OP_DTYPE)
        r["code"], r["v"], r["w"] = code, -1, -1
        for k, view in enumerate(v):
            r["v"][0, k] = view
        r["w"][0, : len(w)], r["i"][0, : len(i)], r["f"][0, : len(f)] = w, i, f
        return r

    return make


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def run(record: Record, case: Case, x: NDArray[np.float32], n_threads: int = 2, status: int = 0) -> F64:
    """The columns `case.out` for the rows of x, all in one sequence, which ends with `status`."""
    n, width = x.shape
    result = len(case.widths)
    ops = [
        record(EMBED, [(0, 0, width)], [0], f=[1]),
        *case.ops,
        record(SELECT_ROWS, [case.out, (result, 0, case.out[2])]),
    ]
    buffers = [BufferSpec(w, 0, int(b in case.i32)) for b, w in enumerate(case.widths)]
    matrices = [Matrix(m, 0, *m.shape[-2:], *m.shape[:-2]) for m in (x, *case.matrices)]
    model = NativeModel(
        np.concatenate(ops), [*buffers, BufferSpec(case.out[2], 1)], matrices, case.vectors, case.ropes, case.layers,
        len(case.layers), 0, case.out[2], result,
    )  # fmt: skip
    engine = Engine(model, EngineConfig(n, n, 1, 64, [4] * len(case.layers), n_threads, "f32", "f32"))
    rows = np.arange(n, dtype=np.int32)
    pages = tuple(np.array([[2, 0]], np.int32) for _ in case.layers)
    out = engine.step(Batch(rows, rows, np.array([0, n], np.int32), pages, rows, 0, want_logits=True))
    engine.close()
    assert out.logits is not None
    assert out.status.tolist() == [status]
    return out.logits.astype(np.float64)


def close(ours: F64, expected: F64) -> None:
    np.testing.assert_allclose(ours, expected, rtol=3e-6, atol=3e-6 * float(np.abs(expected).max()))


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("per_row", [0, 1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_norm(record: Record, kind: int, groups: int, per_row: int, with_bias: bool) -> None:
    x, n = random(T, 96), 96 if per_row else 96 // groups
    w, b, eps = random(n, seed=1), random(n, seed=2), 0.01
    op = record(
        NORM, [(0, 0, 96), (1, 2, 96)], [VECTOR, VECTOR + 1 if with_bias else -1], [kind, groups, per_row], [eps]
    )
    y = x.reshape(T, groups, -1).astype(np.float64)
    if kind == 0:
        y = y / np.sqrt((y**2).mean(-1, keepdims=True) + np.float32(eps))
    elif kind == 1:
        y = y - y.mean(-1, keepdims=True)
        y = y / np.sqrt((y**2).mean(-1, keepdims=True) + np.float32(eps))
    else:
        y = y / np.maximum(np.sqrt((y**2).sum(-1, keepdims=True)), np.float32(eps))
    shape = (groups, -1) if per_row else (1, -1)
    y = y * w.reshape(shape) + (b.reshape(shape) if with_bias else 0)
    close(run(record, Case([op], (1, 2, 96), [96, 100], vectors=[w, b]), x), y.reshape(T, 96))


@pytest.mark.parametrize("act", sorted(ACTS))
def test_acts_and_gates(record: Record, act: int) -> None:
    x = random(T, 64)
    a, b = x[:, :32].astype(np.float64), x[:, 32:].astype(np.float64)
    plain = Case([record(ACT, [(0, 0, 32), (1, 0, 32)], i=[act])], (1, 0, 32), [64, 32])
    close(run(record, plain, x), ACTS[act](a))
    gated = Case([record(GLU, [(0, 0, 32), (0, 32, 32), (0, 32, 32)], i=[act])], (0, 32, 32), [64])
    close(run(record, gated, x), ACTS[act](a) * b)


def test_the_clamped_gate(record: Record) -> None:
    x = 6 * random(T, 64)
    g, u = np.minimum(x[:, :32], 7).astype(np.float64), np.clip(x[:, 32:], -7, 7).astype(np.float64)
    case = Case([record(GLU, [(0, 0, 32), (0, 32, 32), (1, 0, 32)], i=[7])], (1, 0, 32), [64, 32])
    close(run(record, case, x), g / (1 + np.exp(-1.702 * g)) * (u + 1))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("code", "i", "f"), [(SOFTCAP, (), [30.0]), (ACT, [4], ()), (ACT, [6], ()), (ACT, [1], ())])
def test_a_bounding_op_does_not_hide_what_is_not_finite(record: Record, bad: float, code: int, i: Any, f: Any) -> None:
    x = random(T, 32)
    x[3, 5] = bad
    run(record, Case([record(code, [(0, 0, 32), (1, 0, 32)], i=i, f=f)], (1, 0, 32), [32, 32]), x, status=1)


@pytest.mark.parametrize("width", [40, 6000])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_elementwise(record: Record, width: int, n_threads: int) -> None:
    """The wide one is cut into pieces of columns."""
    x = random(T, width)
    whole = (0, 0, width)
    wide = x.astype(np.float64)
    added = Case([record(ADD, [whole, whole, (1, 0, width)])], (1, 0, width), [width, width])
    close(run(record, added, x, n_threads), wide + wide)
    scaled = Case([record(SCALE, [whole, whole], f=[0.3])], whole, [width])
    close(run(record, scaled, x, n_threads), wide * np.float32(0.3))
    capped = Case([record(SOFTCAP, [whole, whole], f=[2.0])], whole, [width])
    close(run(record, capped, x, n_threads), 2 * np.tanh(wide / 2))


@pytest.mark.parametrize("mode", [0, 1])
def test_rope_on_a_part_of_each_head(record: Record, mode: int) -> None:
    x, heads, dim, n_rot, offset = random(T, 48), 4, 12, 6, 3
    cos, sin = random(64, 3, seed=1), random(64, 3, seed=2)
    op = record(ROPE, [(0, 0, 48)], i=[heads, n_rot, offset, mode, 0])
    y = x.reshape(T, heads, dim).astype(np.float64)
    part = y[..., offset : offset + n_rot]
    first, second = (part[..., ::2], part[..., 1::2]) if mode == 0 else (part[..., :3], part[..., 3:])
    c, s = cos[:T, None].astype(np.float64), sin[:T, None].astype(np.float64)
    first[...], second[...] = first * c - second * s, first * s + second * c
    close(run(record, Case([op], (0, 0, 48), [48], ropes=[(cos, sin)]), x), y.reshape(T, 48))


@pytest.mark.parametrize("with_residual", [False, True])
def test_linear_of_four_parts(record: Record, with_residual: bool) -> None:
    x, rows = random(T, 32), (5, 16, 33, 1)
    m = [random(n, 32, seed=n) for n in rows]
    bias = [random(n, seed=n) for n in rows]
    n_out = sum(rows)
    scales = [1.0, 0.5, 2.0, -1.0]
    weights = [k for p in range(4) for k in (1 + p, VECTOR + p if p % 2 else -1)]
    fill = record(LINEAR, [(0, 0, 32), (1, 3, n_out), NONE], [5, -1], [1, -1], [1])
    op = record(LINEAR, [(0, 0, 32), (1, 3, n_out), (1, 3, n_out) if with_residual else NONE], weights, [4, -1], scales)
    before = random(n_out, 32, seed=99)
    wide = x.astype(np.float64)
    parts = [
        np.float32(s) * (wide @ w.T) + (b if p % 2 else 0)
        for p, (w, b, s) in enumerate(zip(m, bias, scales, strict=True))
    ]
    expected = np.concatenate(parts, 1) + (wide @ before.T if with_residual else 0)
    case = Case([fill, op], (1, 3, n_out), [32, n_out + 5], matrices=[*m, before], vectors=bias)
    close(run(record, case, x), expected)


def test_gated_with_biases_and_scales(record: Record) -> None:
    x, gate, up = random(T, 32), random(40, 32, seed=1), random(40, 32, seed=2)
    bg, bu = random(40, seed=3), random(40, seed=4)
    op = record(GATED, [(0, 0, 32), (1, 0, 40)], [1, VECTOR, 2, VECTOR + 1], [1, -1], [0.5, 0.25])
    wide = x.astype(np.float64)
    expected = ACTS[1](0.5 * (wide @ gate.T) + bg) * (0.25 * (wide @ up.T) + bu)
    close(run(record, Case([op], (1, 0, 40), [32, 40], matrices=[gate, up], vectors=[bg, bu]), x), expected)


def attention(q: F64, k: F64, v: F64, scale: float, softcap: float, window: int, causal: bool, sinks: Any) -> F64:
    """q [T, H, E], k [T, G, E], v [T, G, Ev]."""
    group = q.shape[1] // k.shape[1]
    score = np.einsum("thd,shd->hts", q, np.repeat(k, group, 1)) * scale
    if softcap:
        score = softcap * np.tanh(score / softcap)
    i, j = np.arange(len(q))[:, None], np.arange(len(q))[None]
    seen = (j <= i) | (not causal)
    if window:
        seen = seen & (j > i - window)
    score = np.where(seen, score, -np.inf)
    if sinks is not None:
        score = np.concatenate([score, np.broadcast_to(sinks[:, None, None], (*score.shape[:2], 1))], -1)
    weight = np.exp(score - score.max(-1, keepdims=True))
    weight = (weight / weight.sum(-1, keepdims=True))[..., : len(k)]
    return np.einsum("hts,shd->thd", weight, np.repeat(v, group, 1))


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize(
    ("softcap", "window", "causal", "with_sinks"),
    [(0.0, 0, True, False), (1.5, 0, True, True), (0.0, 9, True, True), (0.0, 0, False, False)],
)
def test_attention(record: Record, n_threads: int, softcap: float, window: int, causal: bool, with_sinks: bool) -> None:
    n, heads, kv, e, ev = 40, 6, 2, 8, 12
    x = random(n, heads * e + kv * e + kv * ev)
    nq, nk = heads * e, kv * e
    q, k, v = (y.astype(np.float64) for y in np.split(x, [nq, nq + nk], 1))
    sinks = random(heads, seed=5) if with_sinks else None
    ops = [
        record(KV_WRITE, [(0, nq, nk), (0, nq + nk, kv * ev)]),
        record(ATTENTION, [(0, 0, nq), (1, 0, heads * ev)], [VECTOR if with_sinks else -1],
               [0, 0, heads, window, int(causal)], [0.4, softcap]),
    ]  # fmt: skip
    case = Case(ops, (1, 0, heads * ev), [x.shape[1], heads * ev], layers=[CacheLayerSpec(0, 0, kv, e, ev)])
    case.vectors = [] if sinks is None else [sinks]
    expected = attention(
        q.reshape(n, heads, e),
        k.reshape(n, kv, e),
        v.reshape(n, kv, ev),
        np.float32(0.4),
        softcap,
        window,
        causal,
        sinks,
    )
    close(run(record, case, x, n_threads), expected.reshape(n, -1))


def choose(logits: F64, k: int, func: int, bias: Any, norm: int, scale: float) -> tuple[NDArray[np.int64], F64]:
    value = logits
    if func == 0:
        value = np.exp(logits - logits.max(1, keepdims=True))
        value = value / value.sum(1, keepdims=True)
    elif func == 1:
        value = 1 / (1 + np.exp(-logits))
    ids = np.argsort(-(value + (0 if bias is None else bias)), axis=1, kind="stable")[:, :k]
    weights = np.take_along_axis(value, ids, 1)
    if func == 2:
        weights = np.exp(weights - weights.max(1, keepdims=True))
        weights = weights / weights.sum(1, keepdims=True)
    if norm:
        weights = weights / weights.sum(1, keepdims=True)
    return ids, weights * scale


@pytest.mark.parametrize("func", [0, 1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("norm", [0, 1])
@pytest.mark.parametrize("gated", [False, True])
def test_experts(record: Record, func: int, with_bias: bool, norm: int, gated: bool) -> None:
    """Router, experts of both kinds (x shared, then per rank), and the weighted sum."""
    n, d, f, experts, k = 30, 32, 24, 9, 3
    x = random(n, d + experts)
    bias = random(experts, seed=1) if with_bias else None
    first, up, down = random(experts, f, d, seed=2), random(experts, f, d, seed=3), random(experts, d, f, seed=4)
    b_first, b_down = random(experts, f, seed=5), random(experts, d, seed=6)
    s_first, s_down = random(experts, seed=7), random(experts, seed=8)
    vectors = [random(experts, seed=1), b_first, b_down, s_first, s_down]
    vx, ids, weights, hidden, outs = (0, 0, d), (1, 0, k), (2, 0, k), (3, 0, k * f), (4, 0, k * d)
    route = record(ROUTE, [(0, d, experts), ids, weights], [VECTOR if with_bias else -1], [k, func, norm], [1.5])
    into: NDArray[np.void]
    if gated:
        names = [1, VECTOR + 1, VECTOR + 3, 2, -1, -1]
        into = record(EXPERT_GATED, [vx, ids, hidden], names, [k, 1, -1])
    else:
        into = record(EXPERT_LINEAR, [vx, ids, hidden], [1, VECTOR + 1, VECTOR + 3], [k, 0, -1])
    back = record(EXPERT_LINEAR, [hidden, ids, outs], [3, VECTOR + 2, VECTOR + 4], [k, 1, -1])
    total = record(COMBINE, [outs, weights, vx, vx], i=[k])
    case = Case([route, into, back, total], vx, [d + experts, k, k, k * f, k * d], [first, up, down], vectors, i32=[1])

    wide = x.astype(np.float64)
    chosen, w = choose(wide[:, d:], k, func, None if bias is None else bias.astype(np.float64), norm, 1.5)
    expected = wide[:, :d].copy()
    for t in range(n):
        for j, e in enumerate(chosen[t]):
            h = s_first[e] * (first[e].astype(np.float64) @ wide[t, :d]) + b_first[e]
            if gated:
                h = ACTS[1](h) * (up[e].astype(np.float64) @ wide[t, :d])
            expected[t] += w[t, j] * (s_down[e] * (down[e].astype(np.float64) @ h) + b_down[e])
    close(run(record, case, x), expected)


def test_combine_without_residual(record: Record) -> None:
    x = random(T, 3 * 16 + 3)
    case = Case([record(COMBINE, [(0, 0, 48), (0, 48, 3), (1, 0, 16)], i=[3])], (1, 0, 16), [51, 16])
    wide = x.astype(np.float64)
    close(run(record, case, x), np.einsum("tjd,tj->td", wide[:, :48].reshape(T, 3, 16), wide[:, 48:]))

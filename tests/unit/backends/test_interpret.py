"""Ops, one by one, against the plainest formula: loops over Python floats."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.backends.base import BackendConfig
from edgellm.backends.reference import arith
from edgellm.backends.reference.interpret import Step, interpret
from edgellm.backends.reference.memory import Caches
from edgellm.core.types import Batch
from edgellm.models import ops as o
from edgellm.models.check import check_op
from edgellm.models.plan import Buffer, CacheClass, CacheLayer, Plan, Weight

Array = NDArray[Any]


def run(
    make: Any,
    inputs: dict[str, Array],
    outputs: dict[str, tuple[int, type]],
    weights: dict[str, Array] | None = None,
    caches: tuple[CacheClass, ...] = (),
    starts: tuple[int, ...] | None = None,
) -> dict[str, Array]:
    """Run make(views, weight indices) on these inputs; all buffers by name. One sequence unless starts say more."""
    weights = weights or {}
    n = len(next(iter(inputs.values())))
    arrays = {k: np.array(v) for k, v in inputs.items()}
    arrays |= {k: np.full((n, w), -1, t) for k, (w, t) in outputs.items()}
    dtypes = {"float32": "f32", "int32": "i32"}
    buffers = tuple(Buffer(k, v.shape[1], "T", dtypes[str(v.dtype)]) for k, v in arrays.items())
    roles = {k: "vector" if "vec" in k else "matrix" for k in weights}
    plan = Plan(
        "test", 1, 64, buffers, tuple(Weight(k, v.shape, roles[k]) for k, v in weights.items()), (), caches, (), 0
    )
    op = make(
        {k: o.View(i, 0, b.width) for i, (k, b) in enumerate(zip(arrays, buffers, strict=True))},
        {k: i for i, k in enumerate(weights)},
    )
    check_op(op, plan)
    starts = starts or (0, n)
    positions = np.concatenate([np.arange(b - a) for a, b in pairwise(starts)]).astype(np.int32)
    tables = tuple(np.arange(len(starts) - 1, dtype=np.int32)[::-1, None].copy() for _ in caches)
    batch = Batch(np.zeros(n, np.int32), positions, np.array(starts, np.int32), tables, np.arange(n, dtype=np.int32))
    config = BackendConfig(64, 64, 64, 8, (8,) * len(caches), "f32", "f32")
    failed = np.zeros(len(starts) - 1, np.int32)
    step = Step(plan, batch, list(weights.values()), Caches(plan, config), [], list(arrays.values()), failed)  # type: ignore[arg-type]
    interpret(op, step)
    return arrays


def rows(n: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


def close(a: Any, b: Any) -> bool:
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6))


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("kind", ["rms", "layer", "l2"])
def test_norm(kind: str, groups: int, wide: bool) -> None:
    x, n = rows(3, 32), 32 // groups
    w, b = rows(1, 32 if wide else n, 1)[0], rows(1, 32 if wide else n, 2)[0]
    out = run(
        lambda v, i: o.Norm(v["x"], v["y"], 0.01, i["w.vec"], i["b.vec"], kind, groups),
        {"x": x},
        {"y": (32, np.float32)},
        {"w.vec": w, "b.vec": b},
    )
    for t in range(3):
        for g in range(groups):
            s = [float(v) for v in x[t, g * n : (g + 1) * n]]
            mean = sum(s) / n if kind == "layer" else 0.0
            power = sum((v - mean) ** 2 for v in s)
            length = max(math.sqrt(power), 0.01) if kind == "l2" else math.sqrt(power / n + 0.01)
            at = slice(g * n, (g + 1) * n) if wide else slice(0, n)
            expected = [(v - mean) / length * float(p) + float(q) for v, p, q in zip(s, w[at], b[at], strict=True)]
            assert close(out["y"][t, g * n : (g + 1) * n], expected)


FORMULAS = {
    "none": lambda x: x,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("act", FORMULAS)
def test_activations(act: str) -> None:
    x, u = 4 * rows(2, 50), rows(2, 50, 1)
    out = run(lambda v, i: o.Act(v["x"], v["y"], act), {"x": x}, {"y": (50, np.float32)})
    expected = np.vectorize(FORMULAS[act])(x.astype(float))
    assert close(out["y"], expected)
    out = run(lambda v, i: o.Glu(v["x"], v["u"], v["y"], act), {"x": x, "u": u}, {"y": (50, np.float32)})
    assert close(out["y"], expected * u)


def test_clamped_swiglu() -> None:
    g, u = 8 * rows(2, 50), 8 * rows(2, 50, 1)
    out = run(lambda v, i: o.Glu(v["g"], v["u"], v["y"], "swiglu_oai"), {"g": g, "u": u}, {"y": (50, np.float32)})
    for a, b, y in zip(g.ravel(), u.ravel(), out["y"].ravel(), strict=True):
        a, b = min(float(a), 7.0), max(-7.0, min(float(b), 7.0))
        assert close(y, a / (1 + math.exp(-1.702 * a)) * (b + 1))


def test_copy_keeps_the_rest() -> None:
    x, y = rows(2, 12), rows(2, 20, 1)
    out = run(lambda v, i: o.Copy(v["x"], v["y"], 4, 1, 2, 2), {"x": x, "y": y}, {})
    expected = y.copy()
    for h in range(4):
        expected[:, 5 * h + 2 : 5 * h + 4] = x[:, 3 * h + 1 : 3 * h + 3]
    assert (out["y"] == expected).all()


def naive_route(logits: list[float], bias: list[float], op: o.Route) -> tuple[list[int], list[float]]:
    if op.func == "softmax":
        total = sum(math.exp(x) for x in logits)
        probs = [math.exp(x) / total for x in logits]
    elif op.func == "sigmoid":
        probs = [1 / (1 + math.exp(-x)) for x in logits]
    elif op.func == "sqrt_softplus":
        probs = [math.sqrt(math.log1p(math.exp(x))) for x in logits]
    else:
        probs = logits
    choice = [p + b for p, b in zip(probs, bias, strict=True)]
    size = len(logits) // op.groups
    score = [sum(sorted(choice[g * size : (g + 1) * size])[-2:]) for g in range(op.groups)]
    kept = sorted(range(op.groups), key=lambda g: (-score[g], g))[: op.groups_used]
    allowed = [e for e in range(len(logits)) if op.groups == 1 or e // size in kept]
    ids = sorted(allowed, key=lambda e: (-choice[e], e))[: op.k]
    weights = [probs[e] for e in ids]
    if op.func == "softmax_topk":
        total = sum(math.exp(w) for w in weights)
        weights = [math.exp(w) / total for w in weights]
    if op.norm:
        total = max(sum(weights), 6.103515625e-5)
        weights = [w / total for w in weights]
    return ids, [w * op.scale for w in weights]


@pytest.mark.parametrize("func", ["softmax", "sigmoid", "softmax_topk", "sqrt_softplus"])
@pytest.mark.parametrize(("groups", "used", "k"), [(1, 1, 3), (4, 2, 4), (4, 1, 3)])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_route(func: str, groups: int, used: int, k: int, norm: bool, biased: bool) -> None:
    x, bias = rows(40, 16), rows(1, 16, 1)[0] if biased else np.zeros(16, np.float32)
    made: list[o.Route] = []

    def make(v: Any, i: Any) -> o.Route:
        made.append(o.Route(v["x"], v["ids"], v["w"], k, func, i["b.vec"] if biased else None, norm, 2.5, groups, used))
        return made[0]

    out = run(make, {"x": x}, {"ids": (k, np.int32), "w": (k, np.float32)}, {"b.vec": bias})
    for t in range(40):
        ids, weights = naive_route(x[t].tolist(), bias.tolist(), made[0])
        assert out["ids"][t].tolist() == ids
        assert close(out["w"][t], weights)


def test_route_breaks_ties_by_index() -> None:
    x = np.array([[1, 2, 2, 1, 2, 1]], np.float32)
    out = run(
        lambda v, i: o.Route(v["x"], v["ids"], v["w"], 5, "softmax", None, True),
        {"x": x},
        {"ids": (5, np.int32), "w": (5, np.float32)},
    )
    assert out["ids"].tolist() == [[1, 2, 4, 0, 3]]


def test_experts_and_combination() -> None:
    n, k, d, f = 6, 2, 8, 4
    x, ids = rows(n, d), np.array([[0, 2], [2, 1], [1, 0], [0, 1], [2, 0], [1, 2]], np.int32)
    w, b, s = rows(3 * f, d, 1).reshape(3, f, d), rows(3, f, 2), rows(1, 3, 3)[0]
    weights = {"w": w, "b.vec": b, "s.vec": s}
    out = run(
        lambda v, i: o.ExpertLinear(v["x"], v["ids"], v["y"], o.Experts(i["w"], i["b.vec"], i["s.vec"]), k),
        {"x": x, "ids": ids},
        {"y": (k * f, np.float32)},
        weights,
    )["y"]
    for t in range(n):
        for j in range(k):
            e = ids[t, j]
            assert close(out[t, j * f : (j + 1) * f], s[e] * (w[e] @ x[t]) + b[e])
    back = rows(3 * d, f, 4).reshape(3, d, f)
    per_rank = run(
        lambda v, i: o.ExpertLinear(v["x"], v["ids"], v["y"], o.Experts(i["w"]), k, per_rank=True),
        {"x": out, "ids": ids},
        {"y": (k * d, np.float32)},
        {"w": back},
    )["y"]
    assert close(per_rank[3, d:], back[1] @ out[3, f:])
    share, residual = rows(n, k, 5), rows(n, d, 6)
    y = run(
        lambda v, i: o.Combine(v["x"], v["w"], v["y"], k, v["r"]),
        {"x": per_rank, "w": share, "r": residual},
        {"y": (d, np.float32)},
    )["y"]
    assert close(y, residual + share[:, :1] * per_rank[:, :d] + share[:, 1:] * per_rank[:, d:])


def test_attention_sees_what_it_should() -> None:
    """Window, sinks, softcap and the direction of time, against a loop."""
    n, heads, groups, e = 9, 4, 2, 4
    q, k, v, sinks = rows(n, heads * e), rows(n, groups * e, 1), rows(n, groups * e, 2), rows(1, heads, 3)[0]
    for window, softcap, use_sinks, causal in [
        (0, 0, False, True),
        (4, 5, True, True),
        (0, 0, True, False),
        (3, 0, False, False),
    ]:
        seen = np.array(
            [[(j <= i or not causal) and (not window or j > i - window) for j in range(n)] for i in range(n)]
        )
        ours = arith.attention(
            q.reshape(n, heads, e), k.reshape(n, groups, e), v.reshape(n, groups, e), seen, 0.5, softcap,
            sinks if use_sinks else None,
        )  # fmt: skip
        for t in range(n):
            for h in range(heads):
                g = h // (heads // groups)
                total = math.exp(sinks[h]) if use_sinks else 0.0
                y = np.zeros(e)
                for j in np.flatnonzero(seen[t]):
                    s = 0.5 * float(q[t, h * e : (h + 1) * e] @ k[j, g * e : (g + 1) * e])
                    s = softcap * math.tanh(s / softcap) if softcap else s
                    total += math.exp(s)
                    y += math.exp(s) * v[j, g * e : (g + 1) * e]
                assert close(ours[t, h], y / total)


@pytest.mark.parametrize("head_map", ["tiled", "grouped"])
def test_delta_net_against_the_plain_recurrence(head_map: str) -> None:
    n, hv, hk, ek, ev = 7, 4, 2, 3, 5
    q, k, v = rows(n, hk * ek), rows(n, hk * ek, 1), rows(n, hv * ev, 2)
    g, beta = -np.abs(rows(n, hv, 3)), np.abs(rows(n, hv, 4))
    cache = (CacheClass("state", (CacheLayer(0, 0, 0, ((hv, ek, ev),)),)),)
    out = run(
        lambda w, i: o.DeltaNet(w["q"], w["k"], w["v"], w["g"], w["b"], w["y"], hv, hk, head_map, o.Slot(0, 0)),
        {"q": q, "k": k, "v": v, "g": g, "b": beta},
        {"y": (hv * ev, np.float32)},
        caches=cache,
        starts=(0, 3, 7),
    )["y"]
    for start, stop in ((0, 3), (3, 7)):
        for h in range(hv):
            key = h % hk if head_map == "tiled" else h // (hv // hk)
            s = np.zeros((ek, ev))
            for t in range(start, stop):
                kt, vt = k[t, key * ek : (key + 1) * ek], v[t, h * ev : (h + 1) * ev]
                s = math.exp(g[t, h]) * s
                s = s + np.outer(kt, beta[t, h] * (vt - s.T @ kt))
                assert close(out[t, h * ev : (h + 1) * ev], s.T @ q[t, key * ek : (key + 1) * ek])


def test_scan_against_the_plain_recurrence() -> None:
    n, heads, groups, e, s_n = 6, 4, 2, 3, 5
    x, b, c, dt = rows(n, heads * e), rows(n, groups * s_n, 1), rows(n, groups * s_n, 2), rows(n, heads, 3)
    a, d, bias = -np.abs(rows(1, heads, 4)[0]), rows(1, heads, 5)[0], rows(1, heads, 6)[0]
    out = run(
        lambda w, i: o.Ssm(
            w["x"], w["B"], w["C"], w["dt"], w["y"], i["a.vec"], i["d.vec"], i["t.vec"], heads, groups, o.Slot(0, 0)
        ),
        {"x": x, "B": b, "C": c, "dt": dt},
        {"y": (heads * e, np.float32)},
        {"a.vec": a, "d.vec": d, "t.vec": bias},
        (CacheClass("state", (CacheLayer(0, 0, 0, ((heads, e, s_n),)),)),),
        (0, 2, 6),
    )["y"]
    for start, stop in ((0, 2), (2, 6)):
        for h in range(heads):
            g = h // (heads // groups)
            s = np.zeros((e, s_n))
            for t in range(start, stop):
                step = math.log1p(math.exp(dt[t, h] + bias[h]))
                xt, bt, ct = x[t, h * e : (h + 1) * e], b[t, g * s_n : (g + 1) * s_n], c[t, g * s_n : (g + 1) * s_n]
                s = math.exp(step * a[h]) * s + step * np.outer(xt, bt)
                assert close(out[t, h * e : (h + 1) * e], s @ ct + d[h] * xt)


def test_convolution_keeps_sequences_apart() -> None:
    n, c, taps = 8, 3, 4
    x, w, b = rows(n, c), rows(c, taps, 1), rows(1, c, 2)[0]
    out = run(
        lambda v, i: o.Conv1d(v["x"], v["y"], i["w.vec"], i["b.vec"], "relu", o.Slot(0, 0)),
        {"x": x},
        {"y": (c, np.float32)},
        {"w.vec": w, "b.vec": b},
        (CacheClass("state", (CacheLayer(0, 0, 0, ((taps - 1, c),)),)),),
        (0, 2, 8),
    )["y"]
    for start, stop in ((0, 2), (2, 8)):
        for t in range(start, stop):
            for ch in range(c):
                total = sum(w[ch, j] * x[t - taps + 1 + j, ch] for j in range(taps) if t - taps + 1 + j >= start)
                assert close(out[t, ch], max(total + b[ch], 0.0))

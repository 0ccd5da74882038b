"""Every op refuses sizes that do not fit, and says which two places disagree."""

from __future__ import annotations

import dataclasses
import typing
from types import SimpleNamespace
from typing import Any

import pytest

from edgellm.models import ops as o
from edgellm.models.check import check_op, reads, writes
from edgellm.models.plan import Buffer, CacheClass, CacheLayer, PlanError, RopeTable, Weight

V = o.View
BUFFERS = [
    Buffer("x", 64),  # 0
    Buffer("y", 64),  # 1
    Buffer("out", 64, "R"),  # 2
    Buffer("ids", 2, dtype="i32"),  # 3
    Buffer("probs", 2),  # 4
    Buffer("logits", 8),  # 5
    Buffer("wide", 128),  # 6
]
X, Y, OUT, IDS, PROBS, LOGITS, WIDE = (V(i, 0, b.width) for i, b in enumerate(BUFFERS))
SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "square": ((64, 64), "matrix"),
    "tall": ((96, 64), "matrix"),
    "narrow": ((64, 32), "matrix"),
    "embd": ((100, 64), "embedding"),
    "v64": ((64,), "vector"),
    "v16": ((16,), "vector"),
    "v8": ((8,), "vector"),
    "v4": ((4,), "vector"),
    "experts": ((8, 64, 64), "matrix"),
    "experts_b": ((8, 64), "vector"),
    "heads": ((4, 16, 16), "matrix"),
    "conv": ((64, 4), "vector"),
    "short": ((64, 1), "vector"),
}
W = {name: i for i, name in enumerate(SHAPES)}


TABLES: Any = SimpleNamespace(
    buffers=BUFFERS,
    weights=[Weight(name, shape, role) for name, (shape, role) in SHAPES.items()],
    ropes=[RopeTable(16, 10000.0), RopeTable(8, 10000.0)],
    caches=[
        CacheClass("full", (CacheLayer(2, 16, 16),)),
        CacheClass("window", (CacheLayer(2, 16, 16),), 32),
        CacheClass("latent", (CacheLayer(1, 16, 12),)),
        CacheClass("state", (CacheLayer(0, 0, 0, ((3, 64),)), CacheLayer(0, 0, 0, ((4, 16, 16),)))),
    ],
)
FULL, WINDOW, LATENT, CONV, SCAN = o.Slot(0, 0), o.Slot(1, 0), o.Slot(2, 0), o.Slot(3, 0), o.Slot(3, 1)
Q = V(0, 0, 64)
PART = o.Part(W["square"])
EXPERTS = o.Experts(W["experts"], W["experts_b"], W["v8"])
K32 = V(0, 0, 32)

SOUND: list[o.Op] = [
    o.Embed(X, W["embd"]),
    o.Norm(X, X, 1e-5, W["v64"]),
    o.Norm(X, Y, 1e-5, W["v16"], None, "l2", 4),
    o.Norm(X, Y, 1e-5, W["v64"], W["v64"], "layer", 4),
    o.Linear(X, V(6, 0, 64), (PART,), V(6, 0, 64)),
    o.Linear(V(0, 0, 32), V(6, 0, 64), (o.Part(W["narrow"], W["v64"], 0.5),)),
    o.Gated(X, Y, PART, PART, "silu"),
    o.Glu(X, Y, X, "sigmoid"),
    o.Act(X, X, "relu2"),
    o.Add(X, Y, X),
    o.Copy(X, WIDE, 4, 0, 16, 16),
    o.Scale(OUT, OUT, 2.0),
    o.Softcap(OUT, OUT, 30.0),
    o.Rope(X, 4, 16, 0, "neox", 0),
    o.Rope(X, 4, 8, 8, "norm", 1),
    o.KVWrite(K32, V(1, 0, 32), FULL),
    o.KVWrite(V(0, 0, 16), None, LATENT),
    o.Attention(Q, Y, FULL, 4, 0.25),
    o.Attention(Q, Y, WINDOW, 4, 0.25, 32, 50.0, W["v4"]),
    o.Attention(Q, V(1, 0, 48), LATENT, 4, 0.25),
    o.Route(LOGITS, IDS, PROBS, 2, "softmax", W["v8"], True, 2.5, 4, 2),
    o.ExpertLinear(X, IDS, WIDE, EXPERTS, 2),
    o.ExpertGated(X, IDS, WIDE, EXPERTS, EXPERTS, 2, "swiglu_oai"),
    o.Combine(WIDE, PROBS, Y, 2, Y),
    o.SelectRows(X, OUT),
    o.HeadLinear(X, Y, W["heads"], 4),
    o.Conv1d(X, Y, W["conv"], W["v64"], "silu", CONV),
    o.DeltaNet(V(0, 0, 32), V(0, 32, 32), X, V(5, 0, 4), V(5, 4, 4), Y, 4, 2, "tiled", SCAN),
    o.Decay(LOGITS, LOGITS, W["v8"], W["v8"]),
    o.Ssm(X, V(1, 0, 32), V(1, 32, 32), V(5, 0, 4), V(6, 0, 64), W["v4"], W["v4"], W["v4"], 4, 2, SCAN),
]


def test_sound_ops_pass_and_cover_all() -> None:
    for op in SOUND:
        check_op(op, TABLES)
    assert {type(op) for op in SOUND} == set(typing.get_args(o.Op))


def sound(kind: type, n: int = 0) -> Any:
    return [op for op in SOUND if type(op) is kind][n]


BROKEN: list[tuple[type, dict[str, Any], str]] = [
    (o.Embed, {"y": V(0, 0, 32)}, r"D is 32 from y \(buffer 'x'\) but 64 in embd"),
    (o.Embed, {"y": OUT}, "has axis R, expected T"),
    (o.Embed, {"w": W["square"]}, "square is used as embedding but declared as matrix"),
    (o.Embed, {"scale": float("inf")}, "scale is inf"),
    (o.Norm, {"y": V(1, 0, 32)}, r"N is 64 from x \(buffer 'x'\) but 32 in y \(buffer 'y'\)"),
    (o.Norm, {"w": W["v16"]}, "N / groups is 64 from x but 16 in v16"),
    (o.Norm, {"groups": 5}, "64 columns, not a multiple of 5 groups"),
    (o.Norm, {"groups": 0}, "groups is 0"),
    (o.Norm, {"kind": "batch"}, "kind is 'batch', expected one of rms, layer, l2"),
    (o.Norm, {"eps": -1.0}, "eps is -1.0"),
    (o.Norm, {"w": 99}, "weight 99 does not exist"),
    (o.Linear, {"x": V(0, 0, 60)}, r"K is 60 from x \(buffer 'x'\) but 64 in square"),
    (o.Linear, {"y": V(6, 0, 32), "residual": None}, "y has 32 columns but square give 64"),
    (o.Linear, {"residual": V(1, 0, 32)}, "N is 64 from y .* but 32 in residual"),
    (o.Linear, {"residual": OUT}, r"residual \(buffer 'out'\) has axis R, expected T"),
    (o.Linear, {"parts": ()}, "has no parts"),
    (o.Linear, {"parts": (o.Part(W["square"], W["v16"]),)}, "N0 is 64 from square but 16 in v16"),
    (o.Linear, {"parts": (o.Part(W["v64"]),)}, "v64 is used as matrix but declared as vector"),
    (o.Linear, {"parts": (o.Part(W["experts"]),)}, r"experts has shape \[8, 64, 64\], expected \[N0, K\]"),
    (o.Linear, {"y": X, "residual": None}, "x and y overlap"),
    (o.Gated, {"up": o.Part(W["tall"])}, r"F is 64 from y .* but 96 in tall"),
    (o.Gated, {"act": "tanh"}, "act is 'tanh'"),
    (o.Glu, {"up": V(1, 0, 32)}, "N is 64 from gate"),
    (o.Act, {"act": "swiglu_oai"}, "act is 'swiglu_oai'"),
    (o.Add, {"b": V(1, 0, 32)}, "N is 64 from a"),
    (o.Add, {"b": V(1, 8, 64)}, "takes columns 8..71 of buffer 'y', which has 64"),
    (o.Add, {"b": V(1, 0, 0)}, "takes columns 0..-1"),
    (o.Add, {"b": V(99, 0, 64)}, "b: buffer 99 does not exist"),
    (o.Add, {"b": V(-1, 0, 64)}, "b: buffer -1 does not exist"),
    (o.Copy, {"y_offset": 17}, "y has segments of 32 columns, too few for 16 from 17"),
    (o.Copy, {"heads": 3}, "not a multiple of 3"),
    (o.Copy, {"n": 17}, "x has segments of 16 columns, too few for 17"),
    (o.Copy, {"y": X, "y_offset": 0}, "x and y overlap"),
    (o.Scale, {"factor": float("nan")}, "factor is nan"),
    (o.Softcap, {"cap": 0.0}, "cap is 0.0"),
    (o.Rope, {"n_rot": 8}, "n_rot is 16 from rope table 0 but 8 in the op"),
    (o.Rope, {"offset": 1}, "segments have 16 columns, too few for 16 from 1"),
    (o.Rope, {"table": 5}, "rope table 5 does not exist"),
    (o.Rope, {"mode": "mrope"}, "mode is 'mrope'"),
    (o.Rope, {"x": OUT}, "works on the token axis only"),
    (o.KVWrite, {"k": V(0, 0, 64)}, r"Ek is 16 from the cache but 32 in k \(buffer 'x'\)"),
    (o.KVWrite, {"v": None}, "v must be absent exactly where the cache is latent"),
    (o.KVWrite, {"cache": LATENT}, "v must be absent|Ek is"),
    (o.KVWrite, {"cache": CONV}, "cache class 3 is state, expected full or window or latent"),
    (o.KVWrite, {"cache": o.Slot(0, 1)}, "layer of cache class 0 1 does not exist"),
    (o.KVWrite, {"cache": o.Slot(9, 0)}, "cache class 9 does not exist"),
    (o.Attention, {"heads": 3}, "3 query heads are not a multiple of the cache's 2 heads"),
    (o.Attention, {"q": V(0, 0, 32)}, r"Ek is 16 from the cache but 8 in q"),
    (o.Attention, {"sinks": W["v8"]}, "H is 4 from heads but 8 in v8"),
    (o.Attention, {"y": X}, "q and y overlap"),
    (o.Attention, {"cache": WINDOW}, "window is 0, but the cache keeps 32 positions"),
    (o.Attention, {"cache": WINDOW, "window": 33}, "window is 33, but the cache keeps 32 positions"),
    (o.Attention, {"window": -1}, "window is -1"),
    (o.Route, {"k": 9}, r"k is 9, expected 1..8"),
    (o.Route, {"ids": V(4, 0, 2)}, "has type f32, expected i32"),
    (o.Route, {"weights": V(4, 0, 1)}, "k is 2 from k but 1 in weights"),
    (o.Route, {"func": "max"}, "func is 'max'"),
    (o.Route, {"bias": W["v4"]}, "X is 8 from logits .* but 4 in v4"),
    (o.Route, {"groups": 3}, "8 experts do not divide into 3 groups"),
    (o.Route, {"groups": 8}, "a group has 1 expert"),
    (o.Route, {"groups_used": 5}, "groups_used is 5"),
    (o.ExpertLinear, {"per_rank": True}, r"K is 32 from x .* but 64 in experts"),
    (o.ExpertLinear, {"k": 1}, "k is 1 from k but 2 in ids"),
    (o.ExpertLinear, {"experts": o.Experts(W["experts"], None, W["v4"])}, "X is 8 from experts but 4 in v4"),
    (o.ExpertGated, {"gate": o.Experts(W["heads"])}, "K is 64 from x .* but 16 in heads|F is 64"),
    (o.Combine, {"x": V(6, 0, 64)}, "D is 32 from x .* but 64 in y"),
    (o.Combine, {"residual": V(0, 0, 32)}, "D is 64"),
    (o.SelectRows, {"y": Y}, "has axis T, expected R"),
    (o.SelectRows, {"x": OUT}, "has axis R, expected T"),
    (o.HeadLinear, {"heads": 2}, "H is 2 from heads but 4 in heads|K is"),
    (o.HeadLinear, {"y": V(1, 0, 32)}, "N is 8 from y .* but 16 in heads"),
    (o.Conv1d, {"w": W["short"]}, "a convolution over one token keeps no state"),
    (o.Conv1d, {"cache": SCAN}, r"has shapes \(\(4, 16, 16\),\), expected one of \[3, 64\]"),
    (o.Conv1d, {"cache": FULL}, "cache class 0 is full, expected state"),
    (o.DeltaNet, {"k_heads": 3}, "not a multiple of 3 key heads"),
    (o.DeltaNet, {"head_map": "mixed"}, "head_map is 'mixed'"),
    (o.DeltaNet, {"g": V(5, 0, 8)}, "Hv is 4 from heads but 8 in g"),
    (o.DeltaNet, {"cache": CONV}, "expected one of"),
    (o.Decay, {"b": W["v4"]}, "Hv is 8"),
    (o.Ssm, {"groups": 3}, "not a multiple of 3 groups"),
    (o.Ssm, {"dt": V(5, 0, 8)}, "H is 4 from heads but 8 in dt"),
    (o.Ssm, {"C": V(1, 32, 16)}, "N is 16 from B .* but 8 in C"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), BROKEN)
def test_broken_ops_say_what_clashes(kind: type, changes: dict[str, Any], message: str) -> None:
    op = dataclasses.replace(sound(kind), **changes)
    with pytest.raises(PlanError, match=f"^{kind.__name__}: .*({message})"):
        check_op(op, TABLES)


def test_every_op_has_a_broken_case() -> None:
    assert {kind for kind, _, _ in BROKEN} == set(typing.get_args(o.Op))


def test_views_that_ops_read_and_write() -> None:
    assert list(reads(sound(o.Route))) == [LOGITS]
    assert list(writes(sound(o.Route))) == [IDS, PROBS]
    assert list(reads(sound(o.Rope))) == list(writes(sound(o.Rope))) == [X]
    assert list(writes(sound(o.KVWrite))) == []
    assert list(reads(sound(o.KVWrite))) == [K32, V(1, 0, 32)]
    assert list(reads(sound(o.Combine))) == [WIDE, PROBS, Y]
    assert list(reads(sound(o.Embed))) == []

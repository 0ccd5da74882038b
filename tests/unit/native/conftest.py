"""A one-layer float model made of arrays, for the native engine and for plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm import _native
from edgellm._native import BufferSpec, CacheLayerSpec, Engine, EngineConfig, Matrix, NativeModel
from edgellm.core.types import F32, Batch

D, HEADS, KV_HEADS, HEAD, VOCAB, CONTEXT, WINDOW = 32, 4, 2, 8, 50, 96, 20
Q, KV = HEADS * HEAD, KV_HEADS * HEAD
F32_TYPE = 0
EMBED, NORM, LINEAR, ROPE, KV_WRITE, ATTENTION, SELECT_ROWS = 1, 2, 4, 11, 12, 13, 18
VECTOR = 1_000_000


def op(
    code: int, v: Sequence[tuple[int, int, int]], w: Sequence[int] = (), i: Sequence[int] = (), f: Sequence[float] = ()
) -> NDArray[np.void]:
    """One record of OP_DTYPE: absent views and weights are -1."""
    record = np.zeros(1, _native.OP_DTYPE)
    record["v"], record["w"] = -1, -1
    for k, view in enumerate(v):
        record["v"][0, k] = view
    record["w"][0, : len(w)] = w
    record["i"][0, : len(i)] = i
    record["f"][0, : len(f)] = f
    record["code"] = code
    return record


@dataclass(frozen=True)
class Tiny:
    """The weights; `model()` for the engine, `logits(tokens)` by NumPy in float64."""

    embedding: F32
    wq: F32
    wk: F32
    wv: F32
    wo: F32
    head: F32
    norm: F32
    cos: F32
    sin: F32

    def model(self, pack: bool = True) -> NativeModel:
        x, n, qkv, att, xr, out = range(6)
        linear = [0, 0, 0, 1.0]
        matrices = (self.embedding, self.wq, self.wk, self.wv, self.wo, self.head)
        ops = [
            op(EMBED, [(x, 0, D)], [0], f=[1]),
            op(NORM, [(x, 0, D), (n, 0, D)], [VECTOR], [0, 1], [1e-5]),
            op(LINEAR, [(n, 0, D), (qkv, 0, Q + 2 * KV), (-1, 0, 0)], [1, -1, 2, -1, 3], [3, -1], [1, 1, 1]),
            op(ROPE, [(qkv, 0, Q)], i=[HEADS, HEAD, 0, 1, 0]),
            op(ROPE, [(qkv, Q, KV)], i=[KV_HEADS, HEAD, 0, 1, 0]),
            op(KV_WRITE, [(qkv, Q, KV), (qkv, Q + KV, KV)]),
            op(ATTENTION, [(qkv, 0, Q), (att, 0, Q)], i=[0, 0, HEADS, WINDOW, 1], f=[HEAD**-0.5, 0]),
            op(LINEAR, [(att, 0, Q), (x, 0, D), (x, 0, D)], [4], [1, -1], linear[3:]),
            op(SELECT_ROWS, [(x, 0, D), (xr, 0, D)]),
            op(LINEAR, [(xr, 0, D), (out, 0, VOCAB), (-1, 0, 0)], [5], [1, -1], linear[3:]),
        ]
        return NativeModel(
            ops=np.concatenate(ops),
            buffers=[BufferSpec(w) for w in (D, D, Q + 2 * KV, Q)] + [BufferSpec(D, 1), BufferSpec(VOCAB, 1)],
            matrices=[Matrix(m, F32_TYPE, *m.shape, pack=pack) for m in matrices],
            vectors=[self.norm],
            ropes=[(self.cos, self.sin)],
            cache_layers=[CacheLayerSpec(0, 0, KV_HEADS, HEAD, HEAD)],
            n_classes=1,
            n_act_slots=0,
            n_vocab=VOCAB,
            logits=5,
        )

    def logits(self, tokens: list[int]) -> NDArray[np.float64]:
        f = {k: getattr(self, k).astype(np.float64) for k in self.__dataclass_fields__}
        x = f["embedding"][tokens]
        h = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * f["norm"]
        q, k, v = (h @ f[m].T for m in ("wq", "wk", "wv"))
        t = len(tokens)

        def rotate(y: NDArray[np.float64], heads: int) -> NDArray[np.float64]:
            y = y.reshape(t, heads, HEAD)
            a, b, c, s = y[..., : HEAD // 2], y[..., HEAD // 2 :], f["cos"][:t, None], f["sin"][:t, None]
            return np.concatenate([a * c - b * s, a * s + b * c], -1)

        q, k, v = rotate(q, HEADS), rotate(k, KV_HEADS), v.reshape(t, KV_HEADS, HEAD)
        k, v = (np.repeat(y, HEADS // KV_HEADS, axis=1) for y in (k, v))
        score = np.einsum("thd,shd->hts", q, k) * HEAD**-0.5
        i, j = np.arange(t)[:, None], np.arange(t)[None]
        score = np.where((j <= i) & (j > i - WINDOW), score, -np.inf)
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        return (x + np.einsum("hts,shd->thd", weight, v).reshape(t, Q) @ f["wo"].T) @ f["head"].T


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    if not _native.available():
        pytest.skip(f"the native library is not here: {_native.why_not()}")
    rng = np.random.default_rng(1)

    def random(*shape: int) -> F32:
        return (0.3 * rng.standard_normal(shape)).astype(np.float32)

    angles = np.arange(CONTEXT)[:, None] / 100.0 ** (np.arange(HEAD // 2) * 2 / HEAD)
    return Tiny(
        random(VOCAB, D), random(Q, D), random(KV, D), random(KV, D), random(D, Q), random(VOCAB, D), random(D),
        np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32),
    )  # fmt: skip


CONFIG = EngineConfig(
    max_tokens=128, max_rows=64, max_seqs=3, n_ctx=CONTEXT, n_pages=[9], n_threads=2, k_type="f32", v_type="f32"
)


@pytest.fixture
def engine(tiny: Tiny) -> Iterator[Engine]:
    e = Engine(tiny.model(), CONFIG)
    yield e
    e.close()


def make_batch(*sequences: tuple[list[int], int, list[int]], rows: list[int] | None = None, **options: object) -> Batch:
    """A batch of (tokens, first position, pages) each; rows: all by default."""
    tokens = [t for s in sequences for t in s[0]]
    starts = np.cumsum([0] + [len(s[0]) for s in sequences])
    width = max(len(s[2]) for s in sequences)
    pages = [s[2] + [-1] * (width - len(s[2])) for s in sequences]
    positions = [s[1] + i for s in sequences for i in range(len(s[0]))]
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        seq_start=starts.astype(np.int32),
        pages=(np.array(pages, np.int32),),
        rows=np.array(range(len(tokens)) if rows is None else rows, np.int32),
        **{"want_logits": True, **options},  # type: ignore[arg-type]
    )


@pytest.fixture(name="make_batch", scope="session")
def make_batch_fixture() -> Callable[..., Batch]:
    return make_batch


@pytest.fixture(name="config", scope="session")
def config_fixture() -> EngineConfig:
    return CONFIG

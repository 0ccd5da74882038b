"""Same bits on tiny models of every family with quantised weights: each axis alone and all at once, with ==.

Needs only the repository: the F32 weights of a parity case are quantised here. They are random, so are the logits, but
every kernel, layout and phase that the family uses is run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from golden.materialize import materialize
from invariance.machine import Setup, logits
from numpy.typing import NDArray

from edgellm import _native
from edgellm.backends.select import numba_why_not
from edgellm.gguf.qtypes import QType
from edgellm.gguf.quantize import dequantize, quantize
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.writer import Tensor, write

CASES = [
    "llama-yarn",
    "llama-moe",
    "gemma2-dense",
    "gemma3-dense",
    "qwen2-dense",
    "qwen3-dense",
    "qwen3moe-moe",
    "phi3-longrope",
    "smollm3-nope",
    "mistral3-yarn",
    "phi2-sharp",
    "qwen2moe-sharp",
]
FOLDERS = (GOLDEN / "archs", Path(__file__).parents[1] / "parity" / "data")
TYPES = [QType.Q8_0, QType.Q4_K]
SHORT_ROWS = QType.Q4_1
"""Instead of Q4_K where a row is not whole blocks of 256."""
KEPT = ("ffn_gate_inp.weight", "norm.weight")
"""Matrices and vectors that converters never quantise."""

LEVELS = [name for name, usable, _ in _native.isa_levels() if usable] if _native.available() else []
BEST = _native.usable_level(None) if LEVELS else None
SETUPS = [
    Setup(threads=1),
    Setup(threads=4),
    Setup(chunk=1),
    Setup(chunk=7),
    Setup(chunk=96),
    Setup(weights="mmap"),
    Setup(weights="cache"),
    Setup(others=5),
    Setup(parts=True),
    Setup(threads=1, chunk=96, parts=True),
    *(Setup(isa=level) for level in LEVELS if level != BEST),
    Setup(threads=4, chunk=7, weights="mmap", others=3),
    Setup(threads=4, chunk=96, weights="mmap", others=3, parts=True),
    Setup(threads=1, chunk=7, weights="cache", others=3),
    *([Setup(backend="numba"), Setup(threads=3, chunk=7, others=3, backend="numba")] if not numba_why_not() else []),
]


def describe(setup: Setup) -> str:
    name = f"{setup.threads}t-{setup.chunk}-{setup.weights}-{setup.others}others-{setup.isa or 'best'}-{setup.backend}"
    return f"{name}-parts" if setup.parts else name


def quantized(source: Path, path: Path, qtype: QType) -> Path:
    """A copy of a file of F32 weights with its matrices in this type, or in the one for short rows."""
    with GGUFFile(source) as file:
        tensors = []
        for name, info in file.tensors.items():
            raw = file.data(name)
            chosen = info.qtype
            if len(info.shape) > 1 and not name.endswith(KEPT):
                chosen = qtype if info.shape[-1] % qtype.block == 0 else SHORT_ROWS
            data = raw if chosen == info.qtype else quantize(dequantize(raw, info.qtype, info.shape), chosen)
            tensors.append(Tensor(name, info.shape, chosen, data))
        write(path, dict(file.metadata), tensors)
    return path


@pytest.fixture(scope="module", params=[(c, t) for c in CASES for t in TYPES], ids=lambda p: f"{p[0]}-{p[1].name}")
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[int], NDArray[np.float32]]:
    """A quantised model with a text and its logits in the default setup."""
    if not _native.available():
        pytest.skip(f"the native library is not here: {_native.why_not()}")
    name, qtype = request.param
    folder = tmp_path_factory.mktemp("tiny")
    case = materialize(next(f / f"{name}.json" for f in FOLDERS if (f / f"{name}.json").exists()), folder / "f32.gguf")
    path = quantized(folder / "f32.gguf", folder / "quantized.gguf", qtype)
    return path, case["tokens_long"], logits(path, case["tokens_long"], Setup())


@pytest.mark.parametrize("setup", SETUPS, ids=describe)
def test_same_bits(model: tuple[Path, list[int], NDArray[np.float32]], setup: Setup) -> None:
    path, tokens, expected = model
    assert np.array_equal(logits(path, tokens, setup).view(np.int32), expected.view(np.int32))


def test_the_copies_are_quantised(model: tuple[Path, list[int], NDArray[np.float32]]) -> None:
    path, _, expected = model
    with GGUFFile(path) as file:
        types = {t.qtype for t in file.tensors.values() if len(t.shape) > 1 and not t.name.endswith(KEPT)}
    assert types in ({QType.Q8_0}, {QType.Q4_K}, {QType.Q4_K, SHORT_ROWS})
    assert np.isfinite(expected).all()
    assert (expected.std(axis=1) > 0).all()

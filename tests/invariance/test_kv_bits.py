"""Same bits with every format of the KV cache: levels, threads, chunks, neighbours and weight layouts, with ==.

Texts of more than 256 tokens: attention has more than one segment. Tiny models for all formats, the real ones for
q8_0 and for K in q8_0 beside V in f16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden.materialize import materialize
from invariance.machine import Setup, logits
from invariance.test_tiny_bits import BEST, FOLDERS, LEVELS, describe, quantized
from numpy.typing import NDArray

from edgellm import _native
from edgellm.core.kv import KV_FORMATS
from edgellm.gguf.qtypes import QType

PAIRS = [
    *((kind, kind) for kind in KV_FORMATS),
    ("q8_0", "f16"),
    ("f16", "q8_0"),
    ("fp8_e4m3", "q4_0"),
    ("q4_0", "bf16"),
]
CASES = ["llama-yarn", "gemma3-dense", "phi2-sharp"]
"""K and V heads of their own, a sliding window, one KV head for two query heads."""

SETUPS = [
    Setup(threads=1, chunk=300),
    Setup(chunk=1),
    Setup(threads=4, chunk=7, weights="mmap", others=3),
    *(Setup(isa=level) for level in LEVELS if level != BEST),
]
N_TOKENS = 300
N_REAL = 264
N_SCALAR = 64
"""Tokens of the slow level."""

REAL_SETUPS = [Setup(threads=1, chunk=300), Setup(threads=4, chunk=7, weights="mmap", others=1)]

Model = tuple[Path, list[int], tuple[str, str], NDArray[np.float32]]


@pytest.fixture(scope="module", params=CASES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A quantised tiny model and a text of N_TOKENS."""
    folder = tmp_path_factory.mktemp("tiny")
    json = next(f / f"{request.param}.json" for f in FOLDERS if (f / f"{request.param}.json").exists())
    tokens = materialize(json, folder / "f32.gguf")["tokens_long"]
    text = [tokens[(i * i + i) % len(tokens)] for i in range(N_TOKENS)]
    return quantized(folder / "f32.gguf", folder / "quantized.gguf", QType.Q8_0), text


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def model(request: pytest.FixtureRequest, tiny: tuple[Path, list[int]]) -> Model:
    """That with a pair of formats and the logits of the default setup."""
    if not _native.available():
        pytest.skip(f"the native library is not here: {_native.why_not()}")
    path, tokens = tiny
    return path, tokens, request.param, logits(path, tokens, Setup(), *request.param)


@pytest.mark.parametrize("setup", SETUPS, ids=describe)
def test_same_bits(model: Model, setup: Setup) -> None:
    path, tokens, kinds, expected = model
    if setup.isa == "scalar":
        tokens, expected = tokens[:N_SCALAR], expected[:N_SCALAR]
    got = logits(path, tokens, setup, *kinds)
    assert np.array_equal(got.view(np.int32), expected.view(np.int32))


def test_the_format_is_used(model: Model) -> None:
    """Other logits than with float32, and not far from them."""
    path, tokens, kinds, got = model
    exact = logits(path, tokens, Setup(), "f32")
    assert np.isfinite(got).all()
    assert np.array_equal(got, exact) == (kinds == ("f32", "f32"))
    error = float(((got - exact) ** 2).mean() / exact.var())
    assert error < (0.3 if "q4_0" in kinds else 0.05)


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def real(request: pytest.FixtureRequest) -> tuple[Path, list[int]]:
    """A real model and the start of its long text."""
    if not _native.available():
        pytest.skip(f"the native library is not here: {_native.why_not()}")
    path: Path = request.getfixturevalue(f"{request.param}_path")
    golden: Path = request.getfixturevalue("golden_dir")
    return path, np.load(golden / "real" / f"{request.param}_long.npz")["tokens"][:N_REAL].tolist()


@pytest.mark.real
@pytest.mark.parametrize("kinds", [("q8_0", "q8_0"), ("q8_0", "f16")], ids="-".join)
def test_same_bits_on_real_models(real: tuple[Path, list[int]], kinds: tuple[str, str]) -> None:
    path, tokens = real
    expected = logits(path, tokens, Setup(), *kinds)
    for setup in REAL_SETUPS:
        got = logits(path, tokens, setup, *kinds)
        assert np.array_equal(got.view(np.int32), expected.view(np.int32)), describe(setup)

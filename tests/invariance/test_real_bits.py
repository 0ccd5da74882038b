"""Same bits on the real models: one 300-token text, every axis alone and eight random combinations, with ==.

bits.json pins the SHA-256 of the logits: changing it bumps edgellm.numerics_version.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from invariance.machine import Setup, logits
from numpy.typing import NDArray

import edgellm
from edgellm import _native
from edgellm.backends.select import numba_why_not

N_TOKENS = 300
N_SCALAR = 100
"""Tokens of the slow level; all of them with EDGELLM_LONG_TESTS=1."""
LEVELS = [name for name, usable, _ in _native.isa_levels() if usable] if _native.available() else []
AXES: dict[str, list[object]] = {
    "threads": [1, 4],
    "chunk": [1, 7, 300],
    "weights": ["mmap", "cache"],
    "others": [7],
    "isa": list(LEVELS),
}
ALONE = [Setup(**{axis: value}) for axis, values in AXES.items() for value in values]  # type: ignore[arg-type]

NUMBA = [Setup(chunk=100, backend="numba")] if not numba_why_not() else []


def _combinations() -> list[Setup]:
    rng = random.Random(20)
    return [
        Setup(
            rng.choice([1, 2, 4]), rng.choice([7, 32, 300]), rng.choice(["mmap", "tiles", "cache"]), rng.choice([0, 7])
        )
        for _ in range(8)
    ]


def describe(setup: Setup) -> str:
    return f"{setup.threads}t-{setup.chunk}-{setup.weights}-{setup.others}others-{setup.isa or 'best'}-{setup.backend}"


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(request: pytest.FixtureRequest) -> tuple[str, Path, list[int], NDArray[np.float32]]:
    """A real model with the logits of the default setup."""
    if not _native.available():
        pytest.skip(f"the native library is not here: {_native.why_not()}")
    path: Path = request.getfixturevalue(f"{request.param}_path")
    golden: Path = request.getfixturevalue("golden_dir")
    tokens = np.load(golden / "real" / f"{request.param}_long.npz")["tokens"][:N_TOKENS].tolist()
    return request.param, path, tokens, logits(path, tokens, Setup())


@pytest.mark.real
def test_the_hash_is_pinned(model: tuple[str, Path, list[int], NDArray[np.float32]], golden_dir: Path) -> None:
    name, _, _, expected = model
    pinned = json.loads((golden_dir / "bits.json").read_text())
    assert pinned["numerics_version"] == edgellm.numerics_version
    assert hashlib.sha256(expected.tobytes()).hexdigest() == pinned["logits_sha256"][name]


@pytest.mark.real
@pytest.mark.parametrize("setup", [*ALONE, *_combinations(), *NUMBA], ids=describe)
def test_same_bits(model: tuple[str, Path, list[int], NDArray[np.float32]], setup: Setup) -> None:
    _, path, tokens, expected = model
    if setup.isa == "scalar" and not os.environ.get("EDGELLM_LONG_TESTS"):  # two minutes for all of them
        tokens, expected = tokens[:N_SCALAR], expected[:N_SCALAR]
    got = logits(path, tokens, setup)
    assert got.shape == expected.shape
    assert np.array_equal(got.view(np.int32), expected.view(np.int32))


@pytest.mark.real
def test_a_fast_math_library_changes_nothing(
    model: tuple[str, Path, list[int], NDArray[np.float32]], tmp_path: Path
) -> None:
    _, path, tokens, expected = model
    program = f"""
import hashlib, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from invariance.machine import Setup, flush_to_zero_in_this_process, logits
if not flush_to_zero_in_this_process(Path({str(tmp_path)!r})):
    print("no flushing here"); sys.exit()
print(hashlib.sha256(logits(Path({str(path)!r}), {tokens!r}, Setup()).tobytes()).hexdigest())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if "no flushing" in done.stdout:
        pytest.skip("no C compiler, or its fast-math start-up code does not set flush-to-zero")
    assert done.stdout.strip() == hashlib.sha256(expected.tobytes()).hexdigest()


@pytest.mark.real
@pytest.mark.skipif(not NUMBA or not LEVELS, reason="needs Numba and the native library")
def test_numba_writes_the_native_text(smollm2_path: Path) -> None:
    texts = []
    for backend in ("native", "numba"):
        with edgellm.LLM(str(smollm2_path), n_ctx=128, backend=backend) as llm:
            answer = llm.generate("The capital of France is", temperature=0, max_tokens=64, ignore_eos=True)
            texts.append(answer.token_ids)
    assert len(texts[0]) == 64
    assert texts[0] == texts[1]

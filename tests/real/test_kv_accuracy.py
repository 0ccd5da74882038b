"""What the KV formats cost on the real models, as KL(exact model || edgellm) in nats.

On the reference backend, whose arithmetic is exact, only the format differs: f16 adds less than 2e-5, q8_0 less than
1e-3. On the native backend, where activations are quantised too, q8_0 has at most 1.5 times the KL of f16.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from golden.kl import kl_top

import edgellm

ADDS = {"f16": 2e-5, "q8_0": 1e-3}
NATIVE = 1.5
TEXTS = range(5)
EXACT = ["smollm2", "gemma3"] if os.environ.get("EDGELLM_LONG_TESTS") else ["smollm2"]
"""Models for exact arithmetic: Gemma's vocabulary takes 45 seconds."""


def divergence(path: Path, data: np.lib.npyio.NpzFile, backend: str, kind: str | tuple[str, str]) -> float:
    """Mean over all positions of the five texts."""
    with edgellm.LLM(path, backend=backend, kv_type=kind, n_ctx=256) as llm:
        kl = [kl_top(data[f"ids{i}"], data[f"logp{i}"], llm.logits(data[f"tokens{i}"].tolist())) for i in TEXTS]
    return float(np.concatenate(kl).mean())


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("name", EXACT)
def test_what_a_format_adds(name: str, kind: str, request: pytest.FixtureRequest, golden_dir: Path) -> None:
    """With f32 the reference's KL is below 1e-6 (tests/parity/test_real.py), so all of it is the format's."""
    path: Path = request.getfixturevalue(f"{name}_path")
    with np.load(golden_dir / "real" / f"{name}.npz") as data:
        added = divergence(path, data, "reference", kind)
    print(f"{name} {kind}: adds {added:.2e}")
    assert added < ADDS[kind]


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_q8_0_on_the_native_backend(name: str, request: pytest.FixtureRequest, golden_dir: Path) -> None:
    path: Path = request.getfixturevalue(f"{name}_path")
    with np.load(golden_dir / "real" / f"{name}.npz") as data:
        half = divergence(path, data, "native", "f16")
        for kind in ("q8_0", ("q8_0", "f16")):
            found = divergence(path, data, "native", kind)
            print(f"{name} {kind}: KL {found:.5f}, f16 {half:.5f}")
            assert found < NATIVE * half

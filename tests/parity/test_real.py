"""Real models: the reference is the exact model; the native core is as close to it as llama.cpp is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from golden.kl import kl_top
from parity.driver import Timeline, compiled, teacher_forced, usable

from edgellm.gguf.reader import GGUFFile
from edgellm.models import load_plan

MODELS = {"smollm2": "smollm2_path", "gemma3": "gemma3_path"}
EXACT = {"smollm2": 1e-9, "gemma3": 1e-6}
"""Largest mean KL of the reference. Gemma's answers were computed with GELU from a half-precision table."""
BAR = 1.05
SIZES = {"n_ctx": 2048, "max_tokens": 512, "max_rows": 512, "n_pages": (64, 64)}


def divergence(path: Path, name: str, backend: str, texts: list[int], kv: str) -> tuple[float, float]:
    """Mean KL(exact || backend) over the texts, and that of llama.cpp over the same ones."""
    ours, peer = [], []
    with GGUFFile(path) as file, np.load(GOLDEN / "real" / f"{name}.npz") as data:
        plan, _ = load_plan(file)
        sizes = {**SIZES, "n_pages": (64,) * len(plan.caches), "k_type": kv, "v_type": kv}
        executable, pages = compiled(usable(backend), plan, file, **sizes)
        for i in texts:
            logits = teacher_forced(executable, plan, data[f"tokens{i}"].tolist(), (512,), Timeline(pages))
            ours.append(kl_top(data[f"ids{i}"], data[f"logp{i}"], logits))
            peer.append(data[f"peer_kl{i}"])
        executable.close()
    return float(np.concatenate(ours).mean()), float(np.concatenate(peer).mean())


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_reference_is_the_exact_model(name: str, request: pytest.FixtureRequest) -> None:
    ours, _ = divergence(request.getfixturevalue(MODELS[name]), name, "reference", [0], "f32")
    assert ours < EXACT[name]


@pytest.mark.real
@pytest.mark.parametrize("name", MODELS)
def test_the_native_core_is_as_exact_as_llama_cpp(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(MODELS[name])
    texts = json.loads((GOLDEN / "real" / f"{name}.json").read_text(encoding="utf-8"))["texts"]
    ours, peer = divergence(path, name, "native", list(range(len(texts))), "f16")
    assert ours < BAR * peer

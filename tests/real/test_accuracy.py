"""Accuracy on the real models: KL(exact model || edgellm) at most 1.05 times llama.cpp's, in both weight modes.

Exact = dequantised weights, float32 arithmetic; texts and llama.cpp's own figures: tests/golden/README.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden.kl import kl_top

import edgellm

LIMIT = 1.05


@pytest.mark.real
@pytest.mark.parametrize("weights", ["tiles", "mmap"])
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_kl_to_the_exact_model(
    name: str, weights: str, request: pytest.FixtureRequest, golden_dir: Path, record_property: pytest.RecordProperty
) -> None:
    path: Path = request.getfixturevalue(f"{name}_path")
    short, long = np.load(golden_dir / "real" / f"{name}.npz"), np.load(golden_dir / "real" / f"{name}_long.npz")
    with edgellm.LLM(path, weights=weights, n_ctx=2048) as llm:
        ours, peers, top1 = [], [], []
        for i in range(5):
            logits = llm.logits(short[f"tokens{i}"].tolist())
            ours.append(kl_top(short[f"ids{i}"], short[f"logp{i}"], logits))
            peers.append(short[f"peer_kl{i}"])
            top1.append(logits.argmax(-1) == short[f"ids{i}"][:, 0])
        rows = long["rows"]
        logits = llm.logits(long["tokens"].tolist(), slice(int(rows[0]), int(rows[-1]) + 1))[rows - rows[0]]
    kl = float(np.concatenate(ours).mean())
    kl_long = float(kl_top(long["ids"], long["logp"], logits).mean())
    record_property("kl", kl)
    record_property("kl_long", kl_long)
    record_property("top1", float(np.concatenate(top1).mean()))
    print(
        f"{name} {weights}: KL {kl:.5f} (llama.cpp {np.concatenate(peers).mean():.5f}), "
        f"long {kl_long:.5f} (llama.cpp {long['peer_kl'].mean():.5f}), top-1 {np.concatenate(top1).mean():.4f}"
    )
    assert kl <= LIMIT * float(np.concatenate(peers).mean())
    assert kl_long <= LIMIT * float(long["peer_kl"].mean())

"""The golden data is whole: every case has its answers, can be written as a file, and says what the README says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.kl import kl_top

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
CASES = sorted(p.stem for p in (GOLDEN / "archs").glob("*.json"))


def test_the_readme_lists_exactly_the_cases() -> None:
    assert len(CASES) == 8
    text = (GOLDEN / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"`([a-z0-9-]+-(?:dense|moe|e2b))`", text)
    assert sorted(listed) == CASES


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_complete(name: str, golden_case: Callable[[str], Any]) -> None:
    case = golden_case(name)
    vocab = case.description["n_vocab"]
    assert case.path.read_bytes()[:4] == b"GGUF"
    assert len(case.tokens) == 24
    assert len(case.tokens_long) == 96
    assert case.logits.shape == (24, vocab)
    assert case.logits_long.shape[1] == vocab
    assert 16 <= case.logits_long.shape[0] <= 96
    assert case.logits.dtype == case.logits_long.dtype == np.float32
    assert np.isfinite(case.logits).all()
    assert max(case.tokens + case.tokens_long) < vocab


@pytest.mark.parametrize(
    ("name", "mean", "mean_long"), [("smollm2", "0.00274", "0.00293"), ("gemma3", "0.00667", "0.00397")]
)
def test_the_peer_figures_are_those_of_the_readme(name: str, mean: str, mean_long: str) -> None:
    text = (GOLDEN / "README.md").read_text(encoding="utf-8")
    assert mean in text
    assert mean_long in text
    texts = json.loads((GOLDEN / "real" / f"{name}.json").read_text(encoding="utf-8"))["texts"]
    with np.load(GOLDEN / "real" / f"{name}.npz") as data:
        kl = np.concatenate([data[f"peer_kl{i}"] for i in range(len(texts))])
    with np.load(GOLDEN / "real" / f"{name}_long.npz") as data:
        kl_long = data["peer_kl"]
        assert data["ids"].shape == data["logp"].shape == (len(data["rows"]), 64)
    assert f"{kl.mean():.5f}" == mean
    assert f"{kl_long.mean():.5f}" == mean_long


def test_kl_of_equal_distributions_is_zero_and_of_others_is_known() -> None:
    logits = np.array([[0.0, 1.0, 2.0, -1.0]])
    logp = logits - np.log(np.exp(logits).sum())
    ids = np.array([[2, 1]])
    top = np.take_along_axis(logp, ids, -1).astype(np.float32)
    assert abs(kl_top(ids, top, logits + 5.0)[0]) < 1e-7
    p = np.exp(logp[0])
    q = np.full(4, 0.25)
    expected = p[2] * np.log(p[2] / q[2]) + p[1] * np.log(p[1] / q[1])
    expected += (p[0] + p[3]) * np.log((p[0] + p[3]) / (q[0] + q[3]))
    assert kl_top(ids, top, np.zeros((1, 4)))[0] == pytest.approx(expected, rel=1e-6)


def test_nmse(nmse: Callable[[Any, Any], float]) -> None:
    assert nmse(np.array([3.0, 4.0]), np.array([3.0, 4.0])) == 0.0
    assert nmse(np.array([3.0, 4.0]), np.array([3.0, 5.0])) == pytest.approx(1 / 25)

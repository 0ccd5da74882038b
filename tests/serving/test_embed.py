"""Embeddings and scores: what they are made of, and that neighbours do not change them."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving.conftest import OpenLLM
from serving.tiny import END, START, D, write_tiny

from edgellm import LLM, AsyncLLM, CapacityError, ContextOverflow, NumericsError, RequestError
from edgellm.backends.fake import FakeBackend, chain_logits, chain_of
from edgellm.core.types import F32

TEXTS = [[(7 * i + j) % 250 for j in range(1 + 11 * i % 100)] for i in range(64)]


def states(ids: list[int]) -> F32:
    """The fake's hidden states after each token."""
    return np.stack([chain_logits(chain_of(ids[: i + 1]), D) for i in range(len(ids))])


def unit(x: Any) -> F32:
    out: F32 = (x / math.sqrt(float((x.astype(np.float64) ** 2).sum()))).astype(np.float32)
    return out


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_what_is_pooled(llm: LLM, pooling: str) -> None:
    ids = TEXTS[5]
    x = states(ids)
    expected = {"mean": x.astype(np.float64).mean(0), "last": x[-1], "cls": x[0]}[pooling]
    got = llm.embed([ids], pooling=pooling)
    assert (got.shape, got.dtype) == ((1, D), np.float32)
    np.testing.assert_allclose(got[0], unit(expected), rtol=1e-6)
    raw = llm.embed([ids], pooling=pooling, normalize=False)
    np.testing.assert_allclose(raw[0], expected.astype(np.float32), rtol=1e-6)
    assert abs(float(np.linalg.norm(got.astype(np.float64))) - 1) < 1e-6


@pytest.mark.parametrize("backend", ["fake", "native", "reference"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_text_is_the_same_alone_and_among_63_others(
    open_llm: OpenLLM, tiny_path: Path, backend: str, pooling: str
) -> None:
    options: dict[str, Any] = {"max_seqs": 16, "n_batch": 96}
    with open_llm(**options) if backend == "fake" else LLM(tiny_path, backend=backend, **options) as llm:
        together = llm.embed(TEXTS, pooling=pooling)
        assert together.shape == (64, D)
        for i in (0, 9, 33, 63):
            alone = llm.embed(TEXTS[i], pooling=pooling)
            if backend == "reference":  # NumPy sums in another order for another size
                np.testing.assert_allclose(alone[0], together[i], atol=2e-6)
            else:
                assert np.array_equal(alone[0], together[i])


def test_beside_requests_that_generate(open_llm: OpenLLM) -> None:
    """One step computes hidden states for some, logits for others."""
    llm = open_llm(FakeBackend(multi_step=False), max_seqs=8)
    alone = llm.embed(TEXTS)
    expected = llm.generate([1, 2], max_tokens=100, temperature=1.5, seed=1, logprobs=2)
    stream = llm.generate([1, 2], max_tokens=100, temperature=1.5, seed=1, logprobs=2, stream=True)
    chunks = [next(stream)]
    assert np.array_equal(llm.embed(TEXTS), alone)
    chunks += list(stream)
    assert [t for c in chunks for t in c.token_ids] == expected.token_ids


def test_the_backends_agree_and_the_head_is_left_out(tiny_path: Path) -> None:
    ids = TEXTS[20]
    with LLM(tiny_path, backend="reference") as reference, LLM(tiny_path, backend="native", n_batch=16) as native:
        a, b = reference.embed([ids], normalize=False), native.embed([ids], normalize=False)
    np.testing.assert_allclose(a, b, atol=2e-3 * float(np.abs(a).max()))  # the KV cache is float16


def test_a_pool_that_is_too_small_preempts_and_changes_nothing(open_llm: OpenLLM) -> None:
    texts = [[i] * 200 for i in range(12)]
    with open_llm() as llm:
        expected = llm.embed(texts)
    page = 2 * 2 * 16 * 2 * 32
    llm = open_llm(n_ctx=256, kv_memory=10 * page, max_seqs=6, n_batch=40)
    assert llm.stats.pages == 10
    assert np.array_equal(llm.embed(texts), expected)


def test_the_file_says_how(open_llm: OpenLLM, tmp_path: Path) -> None:
    ids = TEXTS[3]
    x = states(ids)
    for number, expected in (
        (0, x.astype(np.float64).mean(0)),
        (1, x.astype(np.float64).mean(0)),
        (2, x[0]),
        (3, x[-1]),
    ):
        path = write_tiny(tmp_path / f"{number}.gguf", **{"llama.pooling_type": number})
        got = open_llm(path=path).embed([ids])
        np.testing.assert_allclose(got[0], unit(expected), rtol=1e-6)
    path = write_tiny(tmp_path / "rank.gguf", **{"llama.pooling_type": 4})
    llm = open_llm(path=path)
    with pytest.raises(RequestError, match=r"llama.pooling_type = 4.*pass pooling="):
        llm.embed(["x"])
    assert llm.embed(["x"], pooling="last").shape == (1, D)


def test_texts_and_what_is_refused(llm: LLM) -> None:
    assert np.array_equal(llm.embed("hello world"), llm.embed([llm.tokenize("hello world")]))
    assert llm.embed([]).shape == (0, D)
    assert llm.embed(("a", [1, 2])).shape == (2, D)
    with pytest.raises(RequestError, match=r"texts\[1\] has no tokens"):
        llm.embed(["x", ""])
    with pytest.raises(ContextOverflow):
        llm.embed([[1] * 257])
    with pytest.raises(RequestError, match="2 of 3 texts cannot be used"):
        llm.embed([[1] * 257, [1], [999]])
    with pytest.raises(RequestError, match="pooling must be one of"):
        llm.embed(["x"], pooling="max")
    with pytest.raises(TypeError, match="texts must be"):
        llm.embed(5)  # type: ignore[arg-type]
    assert llm.stats.tokens == 7  # nothing of those that were refused


def test_a_text_that_fails_raises(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(failing=lambda past: past[0] == 3))
    with pytest.raises(NumericsError):
        llm.embed([[1, 2], [3, 4], [5, 6]])
    assert llm.embed([[1, 2]]).shape == (1, D)


# -- scores ----------------------------------------------------------------------------------------------------


def test_a_score_is_the_sum_of_log_probabilities(llm: LLM) -> None:
    prompt, continuation = [5, 6, 7], [8, 9, 10, 11]
    got = llm.score(prompt, continuation)
    logits = llm.logits(prompt + continuation).astype(np.float64)
    expected = []
    for i, token in enumerate(continuation):
        row = logits[len(prompt) - 1 + i]
        expected.append(row[token] - row.max() - math.log(np.exp(row - row.max()).sum()))
    assert [t.id for t in got.tokens] == continuation
    np.testing.assert_allclose([t.logprob for t in got.tokens], expected, atol=1e-5)
    assert got.logprob == math.fsum(t.logprob for t in got.tokens)
    assert [t.token for t in got.tokens] == [llm.detokenize([i]) for i in continuation]


def test_continuations_of_one_prompt(llm: LLM) -> None:
    many = llm.score("the world", [" hello", " world", "!"])
    assert [s.tokens[0].offset for s in many] == [len("the world")] * 3
    assert many == [llm.score("the world", c) for c in (" hello", " world", "!")]
    assert llm.score([1], []) == []
    ids = llm.tokenize("the world")
    assert llm.score(ids, llm.tokenize(" hello")) == many[0]


def test_a_token_across_the_border_is_scored_whole(llm: LLM) -> None:
    """ "hel" + "lo" is one token, which the prompt alone does not have."""
    got = llm.score("the hel", "lo")
    assert [t.id for t in got.tokens] == llm.tokenize("the hello")[len(llm.tokenize("the ")) :]
    whole = llm.generate("the hello", max_tokens=0, prompt_logprobs=0).prompt_logprobs
    assert whole is not None
    assert got.tokens == whole[-len(got.tokens) :]


def test_scores_beside_others_are_the_same(open_llm: OpenLLM) -> None:
    llm = open_llm(max_seqs=16, n_batch=64)
    prompts = [(ids, [(3 * i) % 250 for i in ids]) for ids in TEXTS[:20]]
    alone = [llm.score(p, c) for p, c in prompts]

    async def together() -> list[Any]:
        return list(await asyncio.gather(*(asyncio.to_thread(llm.score, p, c) for p, c in prompts)))

    assert asyncio.run(together()) == alone


def test_scores_that_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the prompt has no tokens"):
        llm.score("", "x")
    with pytest.raises(RequestError, match="the continuation has no tokens"):
        llm.score("x", "")
    with pytest.raises(RequestError, match=r"continuation\[1\] has no tokens"):
        llm.score([1], [[1], []])
    with pytest.raises(TypeError, match="both"):
        llm.score("x", [1])  # type: ignore[call-overload]
    with pytest.raises(ContextOverflow):
        llm.score([1] * 200, [1] * 57)
    assert START < END


def test_the_same_under_asyncio(open_llm: OpenLLM, tiny_path: Path) -> None:
    sync = open_llm()

    async def run() -> None:
        async with AsyncLLM(tiny_path) as llm:
            assert np.array_equal(await llm.embed(TEXTS), sync.embed(TEXTS))
            assert await llm.score("the", [" hello", " world"]) == sync.score("the", [" hello", " world"])
            assert await llm.score("the", " hello") == sync.score("the", " hello")

    asyncio.run(run())


def test_memory_is_asked_for_rows_not_for_the_vocabulary(open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = open_llm()
    monkeypatch.setattr("edgellm.core.memory.available", lambda: 1000)
    assert llm.embed([[1] * 200]).shape == (1, D)
    with pytest.raises(CapacityError):
        llm.logits([1] * 200)

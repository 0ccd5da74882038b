"""Speculative decoding changes nothing but time: the same tokens, texts and log-probabilities, pages in order."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving.conftest import OpenLLM
from serving.tiny import END, N_VOCAB, TOKENS, ids, write_tiny

from edgellm import LLM, ConfigError, GGUFFile, ModelNotFound
from edgellm.backends.fake import FakeBackend, chain_logits, chain_of
from edgellm.core.types import F32
from edgellm.engine.speculation import Costs, Index, PromptLookup, Record, best_length
from edgellm.gguf.writer import Tensor, write


def spec(llm: LLM) -> Any:
    return llm._loaded.engine._speculation


def eager(llm: LLM) -> LLM:
    """Guess whatever can be guessed."""
    spec(llm)._always = True
    return llm


def repeating(history: Sequence[int]) -> F32:
    """Logits of a model that likes to go on as its text went on before, mostly."""
    past = list(history)
    logits = chain_logits(chain_of(past), N_VOCAB)
    for i in range(len(past) - 1, 2, -1):
        if past[i - 3 : i] == past[-3:] and i < len(past):
            logits[past[i]] += 14.0
            break
    return logits


PROMPTS = [ids("the cat sat on the mat and the cat sat on the "), ids("abcabcabc"), ids("xyz"), [1, 2] * 40, [7] * 33]

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "seed": 11},
    "hot": {"temperature": 1.8, "seed": 5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "penalties": {"temperature": 0.7, "seed": 2, "repeat_penalty": 1.3, "frequency_penalty": 0.4, "repeat_last_n": 20},
    "bias": {"temperature": 0.5, "seed": 3, "logit_bias": {65: 3.0, 66: -5.0}, "min_tokens": 30},
    "dry": {"temperature": 0.5, "seed": 4, "dry_multiplier": 0.8, "dry_sequence_breakers": ()},
    "mirostat": {"temperature": 1.0, "seed": 6, "mirostat": 2},
    "rare": {"temperature": 1.0, "seed": 7, "typical_p": 0.9, "xtc_probability": 0.4},
    "sigma": {"temperature": 1.0, "seed": 8, "top_n_sigma": 1.5},
    "logprobs": {"temperature": 0.8, "seed": 9, "logprobs": 3},
    "prompt logprobs": {"temperature": 0.8, "seed": 9, "prompt_logprobs": 1},
    "allowed": {"temperature": 0.8, "seed": 10, "allowed_token_ids": list(range(40, 120))},
    "stops": {"temperature": 0, "stop": ["at o", "bb"]},
    "choices": {"temperature": 1.2, "seed": 12, "n": 3},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_answers(open_llm: OpenLLM, way: str) -> None:
    options = {"max_tokens": 70, **WAYS[way]}
    with open_llm(FakeBackend(repeating), max_seqs=4) as plain:
        expected = plain.generate(PROMPTS, **options)
    llm = eager(open_llm(FakeBackend(repeating), max_seqs=4, draft="prompt"))
    got = llm.generate(PROMPTS, **options)
    assert [c.choices for c in got] == [c.choices for c in expected]
    assert [c.prompt_logprobs for c in got] == [c.prompt_logprobs for c in expected]
    streamed = [list(llm.generate(p, stream=True, **options))[-1].completion for p in PROMPTS]
    assert [c.choices for c in streamed if c] == [c.choices for c in expected]
    assert spec(llm).stats.guesses > 0
    assert llm.stats.pages_used == 0


def test_guesses_that_are_right_save_steps(open_llm: OpenLLM) -> None:
    text = ids("The quick brown fox jumps over the lazy dog; 0123456789 and so on, said he.")
    llm = eager(open_llm(FakeBackend(lambda past: (text * 4)[len(past)], multi_step=False), draft="prompt"))
    before = llm.stats.steps
    assert llm.generate(text, max_tokens=len(text) * 2, temperature=0).token_ids == text * 2
    assert llm.stats.steps - before < len(text) * 2 / 8
    stats = llm.stats
    assert stats.accepted == sum(spec(llm).stats.accepted)
    assert 0 < stats.accepted <= stats.guessed
    assert sum(n * i for i, n in enumerate(spec(llm).stats.lengths)) == stats.accepted


@pytest.mark.parametrize("pages", [8, 9, 13])
def test_a_pool_that_is_too_small(open_llm: OpenLLM, pages: int) -> None:
    """Sequences are preempted between guesses, and none is harmed."""
    options: dict[str, Any] = {"max_tokens": 120, "temperature": 0.8, "seed": 3}
    with open_llm(FakeBackend(repeating)) as plain:
        expected = [c.token_ids for c in plain.generate(PROMPTS, **options)]
    page = 2 * 2 * 16 * 2 * 32
    llm = eager(open_llm(FakeBackend(repeating), kv_memory=pages * page, n_batch=16, draft="prompt"))
    assert llm.stats.pages == pages
    assert [c.token_ids for c in llm.generate(PROMPTS, **options)] == expected


def test_the_context_ends_within_a_guess(open_llm: OpenLLM) -> None:
    llm = eager(open_llm(FakeBackend(lambda past: 65), draft="prompt", n_ctx=40))
    out = llm.generate([65] * 10, temperature=0)
    assert (out.finish_reason, len(out.token_ids)) == ("length", 30)


def test_an_answer_that_ends_within_a_guess(open_llm: OpenLLM) -> None:
    text = [*ids("abcdefgh"), END]
    llm = eager(open_llm(FakeBackend(lambda past: text[len(past) % len(text)]), draft="prompt"))
    out = llm.generate(text * 2, temperature=0)
    assert (out.token_ids, out.finish_reason) == (text, "stop")


def test_many_at_once_with_some_that_leave(open_llm: OpenLLM) -> None:
    rng = random.Random(5)
    prompts = [[rng.randrange(6) for _ in range(rng.randrange(1, 60))] for _ in range(24)]
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0.7}
    with open_llm(FakeBackend(repeating), max_seqs=6) as plain:
        expected = [plain.generate(p, seed=i, **options).token_ids for i, p in enumerate(prompts)]
    llm = eager(open_llm(FakeBackend(repeating), max_seqs=6, n_batch=48, draft="prompt"))
    wrong: list[int] = []

    def work(i: int) -> None:
        if i % 3 == 0:
            stream = llm.generate(prompts[i], seed=i, stream=True, **options)
            got = [t for _ in range(4) for t in next(stream).token_ids]
            stream.close()
            if got != expected[i][: len(got)]:
                wrong.append(i)
        elif llm.generate(prompts[i], seed=i, **options).token_ids != expected[i]:
            wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert wrong == []


def test_a_failure_in_one_harms_no_other(open_llm: OpenLLM) -> None:
    fake = FakeBackend(repeating, failing=lambda past: past[0] == 7 and len(past) > 50)
    llm = eager(open_llm(fake, draft="prompt", max_seqs=5))
    out = llm.generate(PROMPTS, max_tokens=40, temperature=0)
    assert [c.finish_reason for c in out] == ["length"] * 4 + ["error"]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_on_a_real_core(tiny_path: Path, backend: str) -> None:
    options: dict[str, Any] = {"max_tokens": 60, "seed": 1}
    for temperature in (0.0, 0.6):
        with LLM(tiny_path, backend=backend) as plain:
            expected = plain.generate(PROMPTS, temperature=temperature, **options)
        with LLM(tiny_path, backend=backend, draft="prompt") as llm:
            eager(llm)
            got = llm.generate(PROMPTS, temperature=temperature, **options)
            assert spec(llm).stats.guesses > 0
        assert [c.token_ids for c in got] == [c.token_ids for c in expected]


# -- a draft model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_same_answers_with_a_draft_model(open_llm: OpenLLM, tiny_path: Path, way: str) -> None:
    """The fake guesses as it answers: most guesses are right, fewer where edits or rare samplers move the answer."""
    options = {"max_tokens": 60, **WAYS[way]}
    with open_llm(FakeBackend(repeating), max_seqs=4) as plain:
        expected = plain.generate(PROMPTS, **options)
    llm = eager(open_llm(FakeBackend(repeating), max_seqs=4, draft=str(tiny_path)))
    assert [c.choices for c in llm.generate(PROMPTS, **options)] == [c.choices for c in expected]
    stats = spec(llm).stats
    assert stats.guesses > 0
    if way in ("greedy", "sampled", "logprobs"):
        assert sum(stats.accepted) == sum(stats.guessed)
    assert [pool.n_held for pool in spec(llm).guesser._ledger.pools] == [0]


def test_a_draft_model_that_is_mostly_wrong(tiny_path: Path) -> None:
    """Two real models: every token that is kept is the large one's."""
    other = write_tiny(tiny_path.with_name("other.gguf"), **{"llama.attention.layer_norm_rms_epsilon": 3e-2})
    for temperature in (0.0, 1.0):
        options: dict[str, Any] = {"max_tokens": 50, "temperature": temperature, "seed": 4}
        with LLM(tiny_path, backend="native") as plain:
            expected = [c.token_ids for c in plain.generate(PROMPTS, **options)]
        with LLM(tiny_path, backend="native", draft=str(other), n_batch=24) as llm:
            eager(llm)
            assert [c.token_ids for c in llm.generate(PROMPTS, **options)] == expected
            assert 0 < llm.stats.accepted < llm.stats.guessed


def test_a_draft_of_the_first_layers(tiny_path: Path, tmp_path: Path, repository: Path) -> None:
    """scripts/cut_layers.py: the same file with fewer layers, which serves as a draft."""
    with GGUFFile(tiny_path) as file:
        tensors = [Tensor(n, t.shape, t.qtype, bytes(file.data(n))) for n, t in file.tensors.items()]
        metadata = {**file.metadata, "llama.block_count": 3, "llama.attention.head_count": [2, 2, 2]}
    more = [
        Tensor(t.name.replace("blk.0", f"blk.{i}"), t.shape, t.qtype, t.data)
        for i in (1, 2)
        for t in tensors
        if t.name.startswith("blk.0")
    ]
    large = write(tmp_path / "large.gguf", metadata, [*tensors, *more])
    small = tmp_path / "small.gguf"
    command = [sys.executable, str(repository / "scripts" / "cut_layers.py"), str(large), str(small)]
    subprocess.run([*command, "1"], check=True, capture_output=True)
    with GGUFFile(small) as file:
        assert file.metadata["llama.block_count"] == 1
        assert list(file.metadata["llama.attention.head_count"]) == [2]
        assert set(file.tensors) == {t.name for t in tensors}
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0}
    with LLM(large, backend="native") as plain:
        expected = [c.token_ids for c in plain.generate(PROMPTS, **options)]
    with LLM(large, backend="native", draft=str(small)) as llm:
        eager(llm)
        assert [c.token_ids for c in llm.generate(PROMPTS, **options)] == expected
    failed = subprocess.run([*command, "3"], capture_output=True, text=True)
    assert (failed.returncode, failed.stderr) == (1, f"{large} has 3 layers: expected a number from 1 to 2, found 3\n")


def test_what_draft_may_be(tiny_path: Path, tmp_path: Path, open_llm: OpenLLM) -> None:
    assert spec(open_llm()) is None
    with pytest.raises(ModelNotFound):
        LLM(tiny_path, draft=str(tmp_path / "nothing.gguf"))
    tokens = [*TOKENS[:-3], "another", *TOKENS[-2:]]
    path = write_tiny(tmp_path / "words.gguf", **{"tokenizer.ggml.tokens": tokens})
    with pytest.raises(ConfigError, match=r"words\.gguf has another vocabulary"):
        open_llm(draft=str(path))


# -- the parts ---------------------------------------------------------------------------------------------------


def brute(tokens: list[int]) -> int:
    """The longest match of the end of a text that something follows, up to 16."""
    best = 0
    for at in range(1, len(tokens)):
        length = 0
        while length < min(16, at) and tokens[at - 1 - length] == tokens[-1 - length]:
            length += 1
        best = max(best, length)
    return best


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_a_place_that_is_found_matches(tokens: list[int], data: st.DataObject) -> None:
    index, past = Index(), list(tokens[: data.draw(st.integers(0, len(tokens)))])
    for token in [*tokens[len(past) :], *tokens]:
        past.append(token)
        length = index.find(past)
        assert length <= brute(past)
        assert (length >= 3) == (brute(past) >= 3)
        if length:
            assert past[index.at - length : index.at] == past[len(past) - length :]
            assert index.at < len(past)


def test_a_copy_goes_on_where_it_was(open_llm: OpenLLM) -> None:
    """Although the last three tokens came elsewhere too, and later."""
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 4, 5, 6, 70, 71, 1, 2, 3, 4]
    index = Index()
    assert index.find(tokens) == 4
    assert index.find([*tokens, 5, 6]) == 6
    assert index.at == 6


def test_a_guess_goes_on_with_itself() -> None:
    lookup, text = PromptLookup(), SimpleNamespace(tokens=[5, 1, 2, 3, 1, 2, 3], guesser=None)
    assert lookup.kind(text) == 0  # type: ignore[arg-type]
    assert lookup.guess([(text, 8)]) == [[1, 2, 3, 1, 2, 3, 1, 2]]  # type: ignore[list-item]


def test_the_policy_follows_costs_and_luck() -> None:
    cheap, dear = Costs(), Costs()
    for n in (1, 2, 4, 8, 17):
        cheap.add(n, 1.0)
        dear.add(n, float(n))
    assert best_length(0.9, 16, 1, 1.0, cheap) == 16
    assert best_length(0.9, 16, 1, 1.0, dear) == 0
    assert best_length(0.01, 16, 1, 1.0, cheap) == 0
    record = Record((0.5,))
    for _ in range(30):
        record.learn(0, 8, 0)
    bad = record.chance(0)
    assert bad < 0.12
    for _ in range(200):
        record.fade(0)
    assert record.chance(0) > 0.45
    for _ in range(30):
        record.learn(0, 8, 8)
    assert record.chance(0) > 0.95


def test_costs_between_and_beyond_what_is_known() -> None:
    costs = Costs()
    assert costs.of(2) > costs.of(1)
    costs.add(1, 2.0)
    assert costs.of(1) == 2.0
    assert costs.of(11) == pytest.approx(2.0 * (1 + 1.0 / 1.1))
    costs.add(5, 4.0)
    assert costs.of(3) == 3.0
    costs.add(5, 400.0)  # once, when something else ran
    assert costs.of(5) < 50
    for _ in range(30):
        costs.add(5, 4.0)
    assert costs.of(5) == pytest.approx(4.0, rel=0.02)
    assert np.isfinite(costs.of(500))

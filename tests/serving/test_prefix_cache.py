"""The prefix cache: what was computed once is found again, the answers stay the same, and the books balance.

The fake backend raises when a page does not hold what its sequence expects there: shared wrongly, or not copied.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from serving.conftest import OpenLLM
from serving.test_invariance import PLAIN, SAMPLED

from edgellm.backends.fake import FakeBackend
from edgellm.core.results import Completion
from edgellm.core.types import Batch
from edgellm.engine.request import Done
from edgellm.llm import LLM

Golden = Callable[[str], Any]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 5}
KINDS = ["llama-dense", "gemma3-dense", "deepseek2-moe", "mamba2-dense"]
"""Caches that keep every token; sliding windows too; latent; recurrent state."""


def text(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(100) for _ in range(n)]


class Counting(FakeBackend):
    """Counts the tokens that are computed."""

    def __init__(self, **options: Any) -> None:
        self.n_tokens = 0
        super().__init__(on_step=self._count, **options)

    def _count(self, batch: Batch) -> None:
        self.n_tokens += len(batch.tokens)

    def taken(self) -> int:
        n, self.n_tokens = self.n_tokens, 0
        return n


@pytest.mark.parametrize("name", KINDS)
def test_a_second_turn_computes_what_is_new(open_llm: OpenLLM, golden_case: Golden, name: str) -> None:
    fake = Counting()
    llm = open_llm(fake, path=golden_case(name).path)
    prompt = text(77)
    first = llm.generate(prompt, **GREEDY)
    assert first.usage.cached_tokens == 0
    assert fake.taken() == 77 + 4
    turn = [*prompt, *first.token_ids, *text(9, 1)]
    second = llm.generate(turn, **GREEDY)
    assert second.usage.cached_tokens == 81  # all but the last token of the answer, which nobody had to compute
    assert fake.taken() == len(turn) - 81 + 4
    assert (
        second.token_ids == open_llm(path=golden_case(name).path, prefix_cache=False).generate(turn, **GREEDY).token_ids
    )


@pytest.mark.parametrize(("name", "found"), [("llama-dense", 70), ("gemma3-dense", 70), ("deepseek2-moe", 70)])
def test_a_prompt_that_departs_within_a_page(open_llm: OpenLLM, golden_case: Golden, name: str, found: int) -> None:
    fake = Counting()
    llm = open_llm(fake, path=golden_case(name).path)
    llm.generate(text(100), **GREEDY)
    fake.taken()
    other = [*text(100)[:70], 101, *text(20, 5)]
    assert llm.generate(other, **GREEDY).usage.cached_tokens == found
    assert fake.taken() == len(other) - found + 4
    again = llm.generate(text(100), **GREEDY)
    assert again.usage.cached_tokens == 99
    assert (
        again.token_ids
        == open_llm(path=golden_case(name).path, prefix_cache=False).generate(text(100), **GREEDY).token_ids
    )


@pytest.mark.parametrize("name", KINDS)
def test_choices_share_their_prompt(open_llm: OpenLLM, golden_case: Golden, name: str) -> None:
    options: dict[str, Any] = {**PLAIN, "max_tokens": 20, "seed": 3, "n": 4}
    fake = Counting()
    llm = open_llm(fake, path=golden_case(name).path)
    out = llm.generate(text(90), **options)
    again = 90 - 64 if name.startswith("mamba2") else 1  # a state is kept where a page ends
    assert fake.taken() == 90 + 3 * again + 4 * 19
    assert out.usage.cached_tokens == 0
    alone = open_llm(path=golden_case(name).path, prefix_cache=False).generate(text(90), **options)
    assert [c.token_ids for c in out.choices] == [c.token_ids for c in alone.choices]


def test_a_prompt_that_many_send_at_once_is_computed_once(open_llm: OpenLLM) -> None:
    fake = Counting()
    llm = open_llm(fake, n_batch=32)
    shared = text(150)
    out = llm.generate([[*shared, i, i + 1] for i in range(6)], **GREEDY)
    assert fake.taken() <= 160 + 6 * (24 + 4)
    alone = open_llm(prefix_cache=False).generate([[*shared, i, i + 1] for i in range(6)], **GREEDY)
    assert [c.token_ids for c in out] == [c.token_ids for c in alone]
    assert sum(c.usage.cached_tokens >= 128 for c in out) == 5


def test_switched_off_nothing_is_found(open_llm: OpenLLM) -> None:
    fake = Counting()
    llm = open_llm(fake, prefix_cache=False)
    for _ in range(2):
        assert llm.generate(text(50), **GREEDY).usage.cached_tokens == 0
        assert fake.taken() == 54
    ledger = llm._loaded.engine._state.ledger
    assert all(pool.n_held == 0 for pool in ledger.pools)


def test_salts_share_nothing(open_llm: OpenLLM) -> None:
    fake = Counting()
    llm = open_llm(fake)
    prompt = text(80)

    def cached(salt: str) -> int:
        request = llm._request(list(prompt), llm._options(None, dict(GREEDY), 1, "return"), 1)
        request.salt = salt
        llm._loaded.engine.submit(request)
        assert isinstance(request.events, SimpleQueue)
        assert isinstance(request.events.get(timeout=60), Done)
        return request.cached_tokens

    assert [cached(s) for s in ("a", "b", "a", "", "b", "")] == [0, 0, 79, 0, 79, 79]


def test_logits_and_prompt_logprobs_are_computed(open_llm: OpenLLM) -> None:
    fake = Counting()
    llm = open_llm(fake)
    plain = open_llm(prefix_cache=False)
    llm.generate(text(80), **GREEDY)
    fake.taken()
    np.testing.assert_array_equal(llm.logits(text(80)), plain.logits(text(80)))
    assert fake.taken() == 80
    out = llm.generate(text(80), prompt_logprobs=2, **GREEDY)
    assert fake.taken() == 84
    assert out.usage.cached_tokens == 0
    assert out.prompt_logprobs == plain.generate(text(80), prompt_logprobs=2, **GREEDY).prompt_logprobs


def test_the_least_recently_used_goes_first(open_llm: OpenLLM) -> None:
    page = open_llm(max_seqs=1).info.kv_bytes // 8
    llm = open_llm(max_seqs=2, kv_memory=12 * page)
    prompts = [text(96, s) for s in range(4)]  # with an answer of one token each takes three pages
    for p in prompts[:3]:
        llm.generate(p, temperature=0, max_tokens=1)
    assert llm.generate(prompts[0], temperature=0, max_tokens=1).usage.cached_tokens == 95
    llm.generate(prompts[3], temperature=0, max_tokens=1)
    llm.generate(text(64, 9), temperature=0, max_tokens=1)
    ledger = llm._loaded.engine._state.ledger
    assert ledger.pools[0].n_free == 0
    found = [llm.generate(p, temperature=0, max_tokens=1).usage.cached_tokens for p in (prompts[0], prompts[3])]
    assert found == [95, 95]
    assert llm.generate(prompts[1], temperature=0, max_tokens=1).usage.cached_tokens < 95


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("way", ["several steps in a call", "step by step", "guessing"])
def test_fifty_users(open_llm: OpenLLM, golden_case: Golden, name: str, way: str) -> None:
    """Mixed lengths, prompts that begin alike, second turns, cancelling at random, and too few pages: every answer that
    ends is that of the same request alone."""
    if way == "guessing" and name == "mamba2-dense":
        pytest.skip("a recurrent state cannot take back what it has read: such models are refused")
    draft = "prompt" if way == "guessing" else None
    rng = random.Random(name)
    path = golden_case(name).path
    alone = open_llm(path=path, prefix_cache=False, max_seqs=1)
    n_ctx = alone.info.n_ctx
    systems = [text(n, 50 + n) for n in (20, 64, 75)]
    options: list[dict[str, Any]] = [
        {**PLAIN, "max_tokens": 25}, {**SAMPLED, "max_tokens": 12}, {"temperature": 0, "max_tokens": 18},
    ]  # fmt: skip
    for o in options:
        o.pop("logit_bias", None)

    def ask(llm: LLM, prompt: list[int], i: int, leave: int) -> list[int] | None:
        o = {**options[i % 3], "seed": i}
        if not leave:
            done: Completion = llm.generate(prompt, on_error="raise", **o)
            return done.token_ids
        stream = llm.generate(prompt, stream=True, on_error="raise", **o)
        for k, _ in enumerate(stream, 1):
            if k == leave:
                stream.close()
                break
        return None

    work = []
    for i in range(50):
        begin = rng.choice([*systems, []])
        first = [*begin, *text(rng.randrange(1, 60), 100 + i)]
        work.append((first, text(rng.randrange(1, 20), 200 + i), rng.choice([0, 0, 0, 1, 2])))

    def user(llm: LLM, i: int, results: dict[int, Any]) -> None:
        first, then, leave = work[i]
        said = ask(llm, first, i, leave)
        second = None
        if said is not None:
            turn = [*first, *said, *then][: n_ctx - 30]
            second = ask(llm, turn, i + 1, 0)
        results[i] = (said, second)

    expected: dict[int, Any] = {}
    for i in range(50):
        user(alone, i, expected)
    one = alone.info.kv_bytes
    llm = open_llm(
        FakeBackend(multi_step=way != "step by step"),
        path=path,
        draft=draft,
        n_ctx=n_ctx,
        max_seqs=6,
        n_batch=40,
        kv_memory=int(one * 4.2),
    )
    state = llm._loaded.engine._state
    ledger = state.ledger
    hostage = []
    if ledger.classes[0].kind != "state":  # what is left of the pool holds hardly more than one long sequence
        for _ in range(ledger.pools[0].n_pages - n_ctx // 32 - 1):
            hostage.append(ledger.new_table())
            hostage[-1].place(0, 0)
        state.pinned.update(hostage)
    got: dict[int, Any] = {}
    threads = [threading.Thread(target=user, args=(llm, i, got)) for i in range(50)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads)
    assert got == expected
    assert ledger.classes[0].kind == "state" or state.preemptions > 0
    for tables in hostage:
        state.pinned.discard(tables)
        tables.release()
    assert not any(ledger.n_in_use(c) for c in range(len(ledger.pools)))


@pytest.mark.parametrize("kv_type", ["f16", ("q8_0", "q4_0")], ids=str)
@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_the_bits_of_the_core(golden_case: Golden, name: str, kv_type: str | tuple[str, str]) -> None:
    """Log-probabilities, equal to the last bit, whatever was shared or copied."""
    path = golden_case(name).path
    options: dict[str, Any] = {"max_tokens": 8, "logprobs": 5, "temperature": 0.9, "seed": 1}
    prompts = [text(90), text(90)[:70], [*text(90)[:45], 101, 8, 9], [*text(90), *text(30, 1)], text(90)]
    with LLM(path, backend="native", kv_type=kv_type, prefix_cache=False) as plain:
        expected = [plain.generate(p, **options) for p in prompts]
    with LLM(path, backend="native", kv_type=kv_type) as llm:
        found = []
        for prompt, alone in zip(prompts, expected, strict=True):
            answer = llm.generate(prompt, **options)
            assert answer.logprobs == alone.logprobs
            found.append(answer.usage.cached_tokens)
        assert found == [0, 69, 45, 90, 89]

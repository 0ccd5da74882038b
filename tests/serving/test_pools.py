"""Latent and recurrent caches with real arithmetic: golden models on the reference backend.

Its sums depend on how NumPy cuts them (docs/numerics.md), so log-probabilities are compared within a tolerance that a
page of another past, or a state that was moved on, exceeds by far; tokens are compared one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving.test_prefix_cache import text

from edgellm.core.results import Completion
from edgellm.engine import scheduler
from edgellm.llm import LLM

Golden = Callable[[str], Any]
POOLS = {"deepseek2-moe": "latent", "mamba2-dense": "state", "qwen35-dense": "state and full"}
OPTIONS: dict[str, Any] = {"max_tokens": 6, "logprobs": 3, "temperature": 0, "ignore_eos": True, "on_error": "raise"}
TOLERANCE = 1e-3


def open_it(path: Path, **options: Any) -> LLM:
    llm = LLM(path, backend="reference", kv_type="f32", **options)
    object.__setattr__(llm._loaded.engine.spec, "check", True)
    return llm


def same(a: Completion, b: Completion) -> bool:
    if a.logprobs is None or b.logprobs is None or a.token_ids != b.token_ids:
        return False
    pairs = zip(a.logprobs.content, b.logprobs.content, strict=True)
    return all(abs(x.logprob - y.logprob) < TOLERANCE for x, y in pairs)


@pytest.mark.parametrize("name", POOLS)
def test_prefixes_are_found(golden_case: Golden, name: str, tmp_path: Path) -> None:
    """In memory, within a page where that is possible, and from files after a restart."""
    path = golden_case(name).path
    prompts = [text(90), [*text(90), *text(9, 1)], [*text(90)[:70], 5, 6, 7], text(90)]
    with open_it(path, prefix_cache=False) as plain:
        expected = [plain.generate(p, **OPTIONS) for p in prompts]
    for first in (0, 64):
        with open_it(path, prefix_cache_dir=tmp_path) as llm:
            answers = [llm.generate(p, **OPTIONS) for p in prompts]
        assert [same(a, b) for a, b in zip(answers, expected, strict=True)] == [True] * 4
        cached = [a.usage.cached_tokens for a in answers]
        assert cached[0] == first
        assert min(cached[1:]) >= 64
        assert cached[2] == (70 if POOLS[name] == "latent" else 64)  # a state is that behind the last token of a page
    assert not same(expected[0], expected[2])


@pytest.mark.parametrize("name", POOLS)
def test_preempted_and_computed_again(golden_case: Golden, name: str) -> None:
    path = golden_case(name).path
    prompts = [text(50 + i, 10 + i) for i in range(4)]
    options = {**OPTIONS, "max_tokens": 24}
    with open_it(path, max_seqs=1, prefix_cache=False) as plain:
        expected = [plain.generate(p, **options) for p in prompts]
    with open_it(path, n_ctx=96, max_seqs=4) as llm:
        state = llm._loaded.engine._state
        ledger, hostages = state.ledger, []
        for c, pool in enumerate(ledger.pools):
            room = 3 if ledger.classes[c].kind == "state" else 5  # of four sequences that need three pages each
            for _ in range(pool.n_pages - room):
                hostages.append(ledger.new_table())
                hostages[-1].place(c, 0)
        state.pinned.update(hostages)
        answers: list[Any] = [None] * 4

        def ask(i: int) -> None:
            answers[i] = llm.generate(prompts[i], **options)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        assert [same(a, b) for a, b in zip(answers, expected, strict=True)] == [True] * 4
        assert POOLS[name] == "state" or state.preemptions > 0  # a state does not grow: who waits has not begun
        llm.generate([1], max_tokens=1)
        scheduler.check(state)

"""The same request gives the same tokens whatever chunks, budgets, companions, page pools and preemption do.

The fake backend raises when a page does not hold what its sequence put there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from serving.conftest import OpenLLM
from serving.tiny import N_VOCAB

from edgellm.backends.fake import FakeBackend

SAMPLED: dict[str, Any] = {
    "temperature": 2.5,
    "top_k": 0,
    "top_p": 0.99,
    "min_p": 0.0,
    "repeat_penalty": 1.1,
    "presence_penalty": 0.2,
    "logit_bias": {3: 1.5, 5: -2.0},
}


PLAIN: dict[str, Any] = {"temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.01}
"""Without edits of the logits: several decode steps may be one call of the backend."""


def requests(seed: int, n: int = 12) -> list[tuple[list[int], dict[str, Any]]]:
    rng = random.Random(seed)
    out = []
    for i in range(n):
        prompt = [rng.randrange(N_VOCAB) for _ in range(rng.choice([1, 2, 31, 32, 33, 64, 100, 200]))]
        options = {**(PLAIN if i % 2 else SAMPLED), "seed": i, "max_tokens": rng.choice([1, 5, 33, 60])}
        out.append((prompt, {**options, "temperature": 0} if i % 3 == 0 else options))
    return out


@pytest.fixture(params=[0, 1, 5], ids="{}-parts".format)
def answers(open_llm: OpenLLM, request: pytest.FixtureRequest) -> Callable[..., list[list[int]]]:
    """answers(work, **options): tokens of every request, all of them in flight together; prompts beside decode steps
    in the same steps, or computed in parts between them."""

    def run(
        work: list[tuple[list[int], dict[str, Any]]], together: bool = True, multi_step: bool = True, **options: Any
    ) -> list[list[int]]:
        llm = open_llm(FakeBackend(multi_step=multi_step, parts=request.param), **options)
        results: list[list[int]] = [[] for _ in work]

        def one(i: int) -> None:
            prompt, o = work[i]
            results[i] = llm.generate(prompt, on_error="raise", **o).token_ids

        if not together:
            for i in range(len(work)):
                one(i)
            return results
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(work))]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert not any(t.is_alive() for t in threads)
        assert not any(
            llm._loaded.engine._state.ledger.n_in_use(c) for c in range(len(llm._loaded.engine._state.ledger.pools))
        )
        return results

    return run


@pytest.mark.parametrize("n_batch", [1, 7, 32, 300])
def test_chunks(answers: Callable[..., list[list[int]]], n_batch: int) -> None:
    work = requests(1)
    assert answers(work, together=False, n_batch=n_batch, max_seqs=1) == answers(work, together=False)


@pytest.mark.parametrize("together", [False, True])
def test_steps_of_a_call(answers: Callable[..., list[list[int]]], together: bool) -> None:
    work = [(prompt, {**PLAIN, "seed": i, "max_tokens": 20 + i}) for i, (prompt, _) in enumerate(requests(5))]
    one_by_one = answers(work, together=False, multi_step=False)
    assert answers(work, together=together) == one_by_one
    stopping = [(prompt, {**o, "stop": ["a", "the"]}) for prompt, o in work]
    stopped = answers(stopping, together=together)
    assert stopped == answers(stopping, together=False, multi_step=False)
    assert stopped != one_by_one


@pytest.mark.parametrize("max_seqs", [1, 2, 8, 20])
@pytest.mark.parametrize("n_batch", [3, 512])
def test_companions(answers: Callable[..., list[list[int]]], max_seqs: int, n_batch: int) -> None:
    work = requests(2)
    assert answers(work, max_seqs=max_seqs, n_batch=n_batch) == answers(work, together=False)


def test_preemption(answers: Callable[..., list[list[int]]], open_llm: OpenLLM) -> None:
    """A cache that holds hardly more than one long sequence: others are computed again and again."""
    work = requests(3)
    page = open_llm(max_seqs=1).info.kv_bytes // 8  # 256 tokens are 8 pages
    assert answers(work, kv_memory=10 * page) == answers(work, together=False)


def test_windows(answers: Callable[..., list[list[int]]], golden_case: Callable[[str], Any]) -> None:
    """A model with full and sliding-window layers."""
    path = golden_case("gemma3-dense").path
    work = [([t % 128 for t in p], {**o, "logit_bias": {3: 1.5}}) for p, o in requests(4)]
    alone = answers(work, together=False, path=path)
    for options in ({"n_batch": 5}, {"max_seqs": 3, "n_batch": 40}, {"max_seqs": 20}):
        assert answers(work, path=path, **options) == alone

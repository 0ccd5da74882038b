"""Thousands of prompts, many threads, and what Python costs in a step."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limits import seconds
from serving.conftest import OpenLLM
from serving.tiny import install

from edgellm import LLM, AsyncLLM
from edgellm.backends.fake import FakeBackend
from edgellm.core.types import Batch, StepOutput


def test_thousands_of_prompts_in_a_list(open_llm: OpenLLM) -> None:
    llm = open_llm(max_seqs=32)
    object.__setattr__(llm._loaded.engine.spec, "check", False)
    prompts = [[i % 250, i // 250] for i in range(3000)]
    out = llm.generate(prompts, max_tokens=2, temperature=0)
    assert len(out) == 3000
    again = {i: llm.generate(prompts[i], max_tokens=2, temperature=0).token_ids for i in (0, 1, 1234, 2999)}
    assert all(out[i].token_ids == tokens for i, tokens in again.items())
    assert llm._loaded.engine.stats.steps < 3000  # they ran side by side


def test_a_long_list_enters_the_engine_a_few_at_a_time(open_llm: OpenLLM) -> None:
    most = 0

    def look(batch: Batch) -> None:
        nonlocal most
        most = max(most, llm.stats.requests)

    llm = open_llm(FakeBackend(on_step=look), max_seqs=4)
    seen: list[tuple[int, int]] = []
    out = llm.generate([[i % 250] for i in range(500)], max_tokens=2, progress=lambda done, n: seen.append((done, n)))
    assert len(out) == 500
    assert most <= 64
    assert seen == [(i, 500) for i in range(501)]


def test_a_bar_goes_to_stderr(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate([[1], [2], [3]], max_tokens=1, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "3/3" in captured.err


def test_progress_under_asyncio(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeBackend())
    seen: list[int] = []

    async def run() -> None:
        async with AsyncLLM(tiny_path) as llm:
            await llm.generate([[1]] * 100, max_tokens=1, progress=lambda done, n: seen.append(done))

    asyncio.run(run())
    assert seen == list(range(101))


def test_many_threads_at_once(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 10, "temperature": 2.0}
    expected = [llm.generate([i], seed=i, **options).token_ids for i in range(32)]
    wrong: list[int] = []

    def work(i: int) -> None:
        for k in range(4):
            if (i + k) % 3 == 0:
                got = [t for c in llm.generate([i], seed=i, stream=True, **options) for t in c.token_ids]
            elif (i + k) % 3 == 1:
                got = llm.generate([[i], [i]], seed=i, **options)[1].token_ids
            else:
                got = llm.generate([i], seed=i, **options).token_ids
            if got != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    assert wrong == []


def test_no_request_starves(open_llm: OpenLLM) -> None:
    """A short request ends while longer ones, sent before and after, go on."""
    llm = open_llm(FakeBackend(lambda past: 65, step_seconds=0.002), max_seqs=4, n_batch=16)
    endless: dict[str, Any] = {"temperature": 0, "context_shift": True, "max_tokens": 10**6}
    long = [threading.Thread(target=llm.generate, args=([1] * 100,), kwargs=endless) for _ in range(3)]
    for t in long:
        t.start()
    while llm._loaded.engine.stats.steps < 5 or len(llm._loaded.engine._requests) < 3:
        time.sleep(0.001)
    short = threading.Thread(target=llm.generate, args=([2],), kwargs={"max_tokens": 3, "temperature": 0})
    short.start()
    short.join(60)
    assert not short.is_alive()
    assert all(t.is_alive() for t in long)
    llm.close()
    for t in long:
        t.join(60)


class Instant:
    """A runner that costs nothing: one answer, always. Notes the engine thread's processor time."""

    def __init__(self, n_vocab: int) -> None:
        self.at: list[float] = []
        self._out = {
            k: StepOutput(np.arange(k, dtype=np.int32)[None], -np.arange(k, dtype=np.float32)[None], _FINE)
            for k in range(n_vocab + 1)
        }

    def run(self, batch: Batch) -> StepOutput:
        self.at.append(time.thread_time())
        return self._out[batch.top_k]

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        pass

    def close(self) -> None:
        pass


_FINE = np.zeros(1, np.int32)


@pytest.mark.timing
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8}], ids=["greedy", "sampled"])
def test_pythons_share_of_a_decode_step(open_llm: OpenLLM, options: dict[str, Any]) -> None:
    """Everything in a step but the executable, scheduling included, in processor time: other programs do not count.
    Step by step: with several steps in a call it is a fraction of this.
    """
    llm = open_llm(n_ctx=2048)
    engine = llm._loaded.engine
    object.__setattr__(engine.spec, "check", False)
    runner = Instant(64)
    engine._executable, engine._multi = runner, None
    medians, begin = [], time.perf_counter()
    for _ in range(5):
        runner.at.clear()
        llm.generate([1], max_tokens=1000, seed=1, **options)
        medians.append(float(np.median(np.diff(runner.at))))
    print(f"\nPython's share of a decode step: {min(medians) * 1e6:.1f} µs")
    assert 1e-6 < min(medians) < seconds(50e-6)
    stats = engine.stats
    assert stats.steps == stats.tokens == 5000
    assert stats.seconds_python > sum(medians) * 900
    assert stats.seconds_native > 0
    assert stats.seconds_python + stats.seconds_native < time.perf_counter() - begin

"""AsyncLLM: the answers of LLM, streams, cancelling, and one wake-up of the event loop for all of a step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving.tiny import install, saying

from edgellm import AsyncLLM, Completion, ContextOverflow, EngineError, RequestError, SamplingParams
from edgellm.async_llm import Mailbox
from edgellm.backends.fake import FakeBackend
from edgellm.core.types import Batch
from edgellm.engine.request import Request

OpenAsync = Callable[..., AsyncLLM]


@pytest.fixture
def open_async(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAsync]:
    """As `open_llm`."""
    opened: list[AsyncLLM] = []

    def open_it(fake: FakeBackend | None = None, **options: Any) -> AsyncLLM:
        install(monkeypatch, fake or FakeBackend())
        llm = AsyncLLM(tiny_path, **options)
        object.__setattr__(llm._loaded.engine.spec, "check", True)
        opened.append(llm)
        return llm

    yield open_it
    for llm in opened:
        asyncio.run(llm.close())


async def quiet(llm: AsyncLLM) -> int:
    """Steps made once the engine has nothing left to do; fails when it does not come to rest."""

    async def rest() -> None:
        while llm.stats.requests:
            await asyncio.sleep(0.001)

    await asyncio.wait_for(rest(), 60)
    return steps(llm)


def steps(llm: AsyncLLM) -> int:
    executable: Any = llm._loaded.engine._executable
    return int(executable.n_steps)


def test_the_answers_are_those_of_llm(open_async: OpenAsync, open_llm: Any) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.5, "seed": 3}
    prompts = [[1], [2, 3], [4] * 40]
    with open_llm() as llm:
        one, many = llm.generate("hello", **options), llm.generate(prompts, n=2, **options)
        chat, logits = llm.chat("hello", logprobs=2, **options), llm.logits([1, 2, 3])
        texts = (llm.render("x"), llm.chat_tokens("x"), llm.tokenize("x y"), llm.detokenize([1, 2, 3]))

    async def run() -> None:
        async with open_async() as a:
            assert (await a.generate("hello", **options)).choices == one.choices
            got = await a.generate(prompts, n=2, **options)
            assert [c.choices for c in got] == [c.choices for c in many]
            assert (await a.chat("hello", SamplingParams(logprobs=2, **options))).choices == chat.choices
            assert np.array_equal(await a.logits([1, 2, 3]), logits)
            written = (await a.render("x"), await a.chat_tokens("x"))
            assert (*written, await a.tokenize("x y"), await a.detokenize([1, 2, 3])) == texts
            assert await a.chat_prompt("x") == (texts[1], ())
            assert a.info.architecture == "llama"
            assert await a.generate([]) == []

    asyncio.run(run())


def test_a_stream_is_the_answer(open_async: OpenAsync) -> None:
    async def run() -> None:
        llm = open_async(FakeBackend(saying("abcdefghijklmnop")))
        text = ""
        async for chunk in llm.chat("x", stream=True, temperature=0):
            text += chunk.text
        assert text == "abcdefghijklmnop"
        assert chunk.completion is not None
        assert chunk.completion.text == text
        assert chunk.completion.timings.first_token > 0

    asyncio.run(run())


def test_streams_with_several_choices_and_log_probabilities(open_async: OpenAsync) -> None:
    async def run() -> None:
        llm = open_async()
        stream = llm.generate("x", stream=True, n=3, max_tokens=9, seed=5, temperature=2.0, logprobs=1)
        chunks = [c async for c in stream]
        last = chunks[-1].completion
        assert last is not None
        for choice in last.choices:
            mine = [c for c in chunks if c.index == choice.index]
            assert "".join(c.text for c in mine) == choice.text
            assert [t for c in mine for t in c.token_ids] == choice.token_ids
            said = [entry for c in mine if c.logprobs is not None for entry in c.logprobs.content]
            assert choice.logprobs is not None
            assert said == choice.logprobs.content

    asyncio.run(run())


def test_errors_come_at_the_call_or_when_awaited(open_async: OpenAsync) -> None:
    async def run() -> None:
        llm = open_async()
        with pytest.raises(RequestError, match="temperature"):
            llm.generate("x", temperature=-1)  # type: ignore[unused-coroutine]
        with pytest.raises(RequestError, match="one prompt"):
            llm.generate(["x", "y"], stream=True)  # type: ignore[call-overload]
        with pytest.raises(ContextOverflow):
            await llm.generate([1] * 257)
        with pytest.raises(ContextOverflow):
            await llm.generate([1] * 257, stream=True).__anext__()
        with pytest.raises(RequestError, match="2 of 3 prompts"):
            await llm.generate([[1], [], [999]])
        assert llm.stats.steps == 0

    asyncio.run(run())


def test_a_failure_is_in_the_answer_or_raised(open_async: OpenAsync) -> None:
    async def run() -> None:
        llm = open_async(FakeBackend(failing=lambda past: past[0] == 1))
        good, bad = await llm.generate([[2], [1]], max_tokens=3)
        assert (good.finish_reason, bad.finish_reason) == ("length", "error")
        with pytest.raises(type(bad.error) if bad.error else AssertionError):
            await llm.generate([[2], [1]], max_tokens=3, on_error="raise")
        with pytest.raises(type(bad.error) if bad.error else AssertionError):
            [c async for c in llm.generate([1], stream=True, on_error="raise")]
        await quiet(llm)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["aclose", "aclosing", "break", "cancel"])
def test_leaving_a_stream_stops_the_work_within_a_step(open_async: OpenAsync, how: str) -> None:
    async def read(llm: AsyncLLM, n: int) -> None:
        stream = llm.generate([1], stream=True, temperature=0)
        if how == "aclosing":
            async with aclosing(stream):
                await stream.__anext__()
            return
        async for _ in stream:
            n -= 1
            if n == 0:
                break
        if how == "aclose":
            await stream.aclose()

    async def run() -> None:
        llm = open_async(FakeBackend(lambda past: 65, step_seconds=0.01))
        engine, told = llm._loaded.engine, list[int]()
        cancel = engine.cancel

        def noted(request: Request) -> None:
            cancel(request)
            told.append(steps(llm))

        engine.cancel = noted  # type: ignore[method-assign]
        if how == "cancel":
            task = asyncio.create_task(read(llm, -1))
            while steps(llm) < 3:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await read(llm, 3)
        while not told:  # a stream that was left without closing is closed by the loop
            await asyncio.sleep(0.001)
        assert await quiet(llm) <= told[0] + 2
        assert llm._loaded.engine.load.pages_used == 0

    asyncio.run(run())


def test_cancelling_a_task_that_waits_for_a_list(open_async: OpenAsync) -> None:
    async def run() -> None:
        llm = open_async(FakeBackend(lambda past: 65, step_seconds=0.01))
        task = asyncio.create_task(llm.generate([[i] for i in range(200)], temperature=0))
        while steps(llm) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        at = steps(llm)
        assert await quiet(llm) <= at + 2
        assert (await llm.generate([1], max_tokens=1, temperature=0)).token_ids == [65]

    asyncio.run(run())


def test_a_stream_that_nobody_reads_costs_nothing(open_async: OpenAsync) -> None:
    async def run() -> None:
        llm = open_async()
        streams = [llm.generate([1, 2, 3], stream=True) for _ in range(20)]
        await streams[0].aclose()
        del streams
        await asyncio.sleep(0)
        assert await quiet(llm) == 0

    asyncio.run(run())


def test_one_wake_up_for_all_of_a_step(open_async: OpenAsync, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many streams have news; and no thread waits for any of them."""
    wakes = []
    call = Mailbox._call
    monkeypatch.setattr(Mailbox, "_call", lambda self: (wakes.append(self), call(self))[1])

    async def run() -> None:
        def wait(batch: Batch) -> None:
            """The first step goes on once all have arrived."""
            assert here.wait(60)

        llm = open_async(FakeBackend(lambda past: 65, multi_step=False, on_step=wait), max_seqs=32)
        here = threading.Event()

        async def read() -> int:
            return sum([len(c.token_ids) async for c in llm.generate([1], stream=True, max_tokens=40, temperature=0)])

        before = threading.active_count()
        tasks = [asyncio.create_task(read()) for _ in range(32)]
        engine = llm._loaded.engine
        while engine._inbox.qsize() + llm.stats.requests < 32:
            await asyncio.sleep(0.001)
        here.set()
        in_text = [t for t in threading.enumerate() if t.name.startswith("asyncio")]
        assert threading.active_count() <= before + len(in_text)
        assert await asyncio.gather(*tasks) == [40] * 32
        assert 40 <= len(wakes) <= steps(llm) + 1
        await quiet(llm)

    asyncio.run(run())


def test_several_event_loops_share_one_model(open_async: OpenAsync) -> None:
    llm = open_async()
    expected = [asyncio.run(llm.generate([i], max_tokens=8, seed=i)).token_ids for i in range(4)]
    got: list[Completion] = []

    def work() -> None:
        async def run() -> list[Completion]:
            return list(await asyncio.gather(*(llm.generate([i], max_tokens=8, seed=i) for i in range(4))))

        got.extend(asyncio.run(run()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert [c.token_ids for c in got] == expected * 4


def test_a_loop_that_ended_harms_nobody(open_async: OpenAsync) -> None:
    """Its streams are closed with it, and what still arrives for them goes nowhere."""
    llm = open_async(FakeBackend(lambda past: 65, step_seconds=0.002))

    async def leave() -> Any:
        stream = llm.generate([1], stream=True, temperature=0)
        await stream.__anext__()
        return stream

    kept = asyncio.run(leave())
    assert asyncio.run(llm.generate([2], max_tokens=2, temperature=0)).token_ids == [65, 65]
    del kept


def test_closing_ends_what_runs(open_async: OpenAsync) -> None:
    async def run() -> None:
        llm = open_async(FakeBackend(lambda past: 65, step_seconds=0.01))
        endless: Any = {"temperature": 0, "context_shift": True, "max_tokens": 10**6}
        stream: Any = llm.generate([1], stream=True, **endless)
        await stream.__anext__()
        task = asyncio.create_task(llm.generate([2], **endless))
        while llm.stats.requests < 2:
            await asyncio.sleep(0.001)
        await llm.close()
        await llm.close()
        chunks = [c async for c in stream]
        assert chunks[-1].finish_reason == "cancelled"
        done = await task
        assert done.finish_reason == "cancelled"
        assert isinstance(done.error, EngineError)
        with pytest.raises(EngineError, match="closed"):
            llm.generate([1])  # type: ignore[unused-coroutine]
        with pytest.raises(EngineError, match="closed"):
            await llm.tokenize("x")

    asyncio.run(run())


def test_what_the_engine_is_doing(open_async: OpenAsync) -> None:
    async def run() -> None:
        held, gate = threading.Event(), threading.Event()

        def wait(batch: Batch) -> None:
            """Once all have arrived and two have a place, in a step: their pages are theirs by then."""
            if llm.stats.requests == 5 and llm.stats.running == 2:
                held.set()
                assert gate.wait(60)

        llm = open_async(FakeBackend(lambda past: 65, step_seconds=0.002, on_step=wait), max_seqs=2)
        tasks = [asyncio.create_task(llm.generate([i] * 40, max_tokens=80, temperature=0)) for i in range(5)]
        assert await asyncio.to_thread(held.wait, 60)
        stats = llm.stats
        assert (stats.running, stats.requests) == (2, 5)
        assert 4 <= stats.pages_used <= stats.pages
        gate.set()
        await asyncio.gather(*tasks)
        stats = llm.stats
        assert (stats.running, stats.waiting, stats.requests, stats.pages_used) == (0, 0, 0, 0)
        assert stats.tokens == 5 * 119

    asyncio.run(run())

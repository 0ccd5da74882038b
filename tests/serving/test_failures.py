"""What goes wrong in one request stays in it; what kills the engine ends everything, with an error and no hang."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from serving.conftest import OpenLLM
from serving.tiny import N_VOCAB, write_tiny

from edgellm import LLM, CapacityError, EngineError, NumericsError, RequestError
from edgellm.backends.fake import FakeBackend
from edgellm.sampling.sampler import Sampler

OPTIONS: dict[str, Any] = {"max_tokens": 12, "seed": 3, "temperature": 2.0}


def poison(past: Any) -> bool:
    """Sequences that begin with token 13 fail after three tokens of answer."""
    return past[0] == 13 and len(past) >= 5


def test_a_value_that_is_not_finite_fails_its_request_alone(open_llm: OpenLLM) -> None:
    alone = open_llm().generate([7, 8], **OPTIONS).token_ids
    llm = open_llm(FakeBackend(failing=poison))
    good1, bad, good2 = llm.generate([[7, 8], [13, 1], [7, 8]], **OPTIONS)
    assert good1.token_ids == good2.token_ids == alone
    assert (bad.finish_reason, len(bad.token_ids)) == ("error", 3)
    assert isinstance(bad.error, NumericsError)
    assert isinstance(bad.error, ArithmeticError)
    with pytest.raises(NumericsError):
        llm.generate([[7, 8], [13, 1]], on_error="raise", **OPTIONS)
    with pytest.raises(NumericsError):
        llm.logits([13, 1, 2, 3, 4, 5])
    assert llm.generate([7, 8], **OPTIONS).token_ids == alone


def test_in_a_stream_the_failure_is_the_last_chunk_or_raised(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(failing=poison))
    chunks = list(llm.generate([13, 1], stream=True, **OPTIONS))
    assert chunks[-1].finish_reason == "error"
    assert chunks[-1].completion is not None
    assert isinstance(chunks[-1].completion.error, NumericsError)
    stream = llm.generate([13, 1], stream=True, on_error="raise", **OPTIONS)
    got: list[int] = []
    with pytest.raises(NumericsError):
        got.extend(t for chunk in stream for t in chunk.token_ids)
    assert got == [t for c in chunks for t in c.token_ids]
    assert len(got) == 3


def test_a_failing_choice_ends_its_request_and_nothing_follows(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(failing=lambda past: len(past) == 6 and past[-1] % 2 == 0))
    chunks = list(llm.generate([13, 1], n=6, stream=True, temperature=9, top_k=0, min_p=0, top_p=1, seed=2))
    assert chunks[-1].completion is not None
    assert isinstance(chunks[-1].completion.error, NumericsError)
    ended: set[int] = set()
    for chunk in chunks:
        assert chunk.index not in ended, "a chunk after the last one of its choice"
        if chunk.finish_reason:
            ended.add(chunk.index)
    assert ended == set(range(6))
    for choice in chunks[-1].completion.choices:
        assert [t for c in chunks if c.index == choice.index for t in c.token_ids] == choice.token_ids


@pytest.mark.parametrize("where", ["pick", "adjustments", "pick_from_row"])
def test_a_sampler_that_raises_fails_its_request_alone(
    open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    options = {**OPTIONS, "logit_bias": {5: 0.5}, "presence_penalty": 0.1}
    alone = open_llm().generate([7, 8], **options).token_ids
    original = getattr(Sampler, where)

    def broken(self: Sampler, *args: Any) -> Any:
        if self.params.presence_penalty == 0.25:
            raise ZeroDivisionError("a bug in the sampler")
        return original(self, *args)

    monkeypatch.setattr(Sampler, where, broken)
    if where == "pick_from_row":
        monkeypatch.setattr("edgellm.sampling.sampler.MAX_TOP_K", 16)
    llm = open_llm(prefix_cache=False)  # a prompt of two tokens is no decode step, and its edits are Python's
    results: dict[float, Any] = {}

    def work(penalty: float) -> None:
        results[penalty] = llm.generate([7, 8], **{**options, "presence_penalty": penalty})

    threads = [threading.Thread(target=work, args=(p,)) for p in (0.1, 0.25)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert results[0.1].token_ids == alone
    assert results[0.25].finish_reason == "error"
    assert isinstance(results[0.25].error, EngineError)
    assert "a bug in the sampler" in str(results[0.25].error)
    assert llm.generate([7, 8], **options).token_ids == alone


def test_values_that_float32_cannot_hold_stay_in_their_request(open_llm: OpenLLM) -> None:
    llm = open_llm()
    for bias in (1e39, 10**400, -1e39, float("nan"), float("inf")):
        with pytest.raises(RequestError, match=r"logit_bias\[1\]"):
            llm.generate([1], logit_bias={1: bias})
    for temperature in (5e-324, 1e-300, 1e6):
        assert llm.generate([1], temperature=temperature, max_tokens=3, seed=1).finish_reason == "length"
    c = llm.generate([1], presence_penalty=1e6, frequency_penalty=1e6, repeat_penalty=1e6, max_tokens=9, seed=1)
    assert c.finish_reason == "length"


def test_a_broken_vocabulary_leaves_token_ids(open_llm: OpenLLM, tmp_path: Any) -> None:
    """The vocabulary looks usable until its tables are built."""
    from edgellm import TokenizerError

    path = write_tiny(tmp_path / "broken.gguf", **{"tokenizer.ggml.token_type": [1, 2, 3]})
    llm = open_llm(path=path)
    c = llm.generate([7, 8], **OPTIONS)
    assert c.token_ids == open_llm().generate([7, 8], **OPTIONS).token_ids
    assert (c.text, c.error) == ("", None)
    with pytest.raises(TokenizerError):
        llm.generate("x")
    with pytest.raises(TokenizerError):
        llm.chat("x")


def test_a_file_without_vocabulary_runs_on_ids(open_llm: OpenLLM, tmp_path: Any) -> None:
    keys = ("tokens", "token_type", "merges", "eos_token_id", "bos_token_id", "add_bos_token", "pre")
    gone: dict[str, Any] = {f"tokenizer.ggml.{k}": None for k in keys}
    path = write_tiny(
        tmp_path / "ids.gguf", **gone, **{"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": N_VOCAB}
    )
    c = open_llm(path=path).generate([7, 8], **OPTIONS)
    assert c.token_ids == open_llm().generate([7, 8], **OPTIONS).token_ids
    assert c.text == ""


# -- the engine dies -------------------------------------------------------------------------------------------


def dying(at_step: int) -> FakeBackend:
    n = [0]

    def on_step(batch: Any) -> None:
        n[0] += 1
        if n[0] == at_step:
            raise MemoryError("out of memory in a step")

    return FakeBackend(on_step=on_step)


def test_a_dead_engine_fails_every_request_and_every_later_call(
    open_llm: OpenLLM, caplog: pytest.LogCaptureFixture
) -> None:
    fake = dying(4)
    llm, die = open_llm(fake, max_seqs=2), fake.on_step

    def on_step(batch: Any) -> None:
        """The first step waits until all ten have been sent."""
        engine, until = llm._loaded.engine, time.monotonic() + 60
        while engine._inbox.qsize() + len(engine._requests) < 10 and time.monotonic() < until:
            time.sleep(0.001)
        die(batch)  # type: ignore[misc]

    fake.on_step = on_step
    out = llm.generate([[i] for i in range(10)], max_tokens=50, temperature=0)
    assert [c.finish_reason for c in out] == ["error"] * 10
    assert all(isinstance(c.error, EngineError) and "out of memory in a step" in str(c.error) for c in out)
    assert isinstance(out[0].error.__cause__, MemoryError)  # type: ignore[union-attr]
    for _ in range(3):
        with pytest.raises(EngineError, match="the engine has died: MemoryError"):
            llm.generate([1])
        with pytest.raises(EngineError, match="the engine has died"):
            next(llm.generate([1], stream=True))
        with pytest.raises(EngineError, match="the engine has died"):
            llm.logits([1])
    assert "the engine thread failed" in caplog.text
    llm.close()


def test_a_dead_engine_ends_streams(open_llm: OpenLLM) -> None:
    llm = open_llm(dying(4))
    chunks = list(llm.generate([1], stream=True))
    assert chunks[-1].finish_reason == "error"
    assert chunks[-1].completion is not None
    assert isinstance(chunks[-1].completion.error, EngineError)


def test_later_errors_do_not_pile_up_on_the_first(open_llm: OpenLLM) -> None:
    llm = open_llm(dying(1))
    llm.generate([1])
    errors = []
    for _ in range(3):
        with pytest.raises(EngineError) as caught:
            llm.generate([1])
        errors.append(caught.value)
    assert len({id(e) for e in errors}) == 3


# -- memory ----------------------------------------------------------------------------------------------------


def test_logits_larger_than_memory_are_refused_before_work(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgellm.core.memory.available", lambda: 100_000)
    with pytest.raises(CapacityError, match=r"200 rows of 273 logits need 0\.2 MB.*91 rows"):
        llm.logits([1] * 200)
    assert llm.logits([1] * 200, rows="last").shape == (1, N_VOCAB)
    assert llm.logits([1] * 200, rows=slice(109, 200)).dtype == np.float32

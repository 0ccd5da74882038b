"""The same promises with a real model on the native backend: no leaks, ends within a step, refusals in a child."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from limits import seconds

from edgellm import LLM, EngineError
from edgellm.engine import engine


@pytest.mark.slow
def test_two_hundred_cycles_of_load_generate_close_level_off(smollm2_path: Path) -> None:
    process = psutil.Process()

    def cycles(n: int) -> int:
        for i in range(n):
            llm = LLM(smollm2_path, n_ctx=256)
            if i % 2:
                llm.generate("Hello", max_tokens=2, seed=i)
                llm.close()
            else:
                stream = llm.generate("Hello", stream=True, max_tokens=50)
                next(stream)
                del llm, stream
        gc.collect()
        if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)  # what the allocator keeps for later varies by a few megabytes
        return process.memory_info().rss

    cycles(100)
    descriptors = process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
    middle = cycles(50)
    end = cycles(50)
    assert end - middle < 16 << 20, f"{middle >> 20} MB after 150 cycles, {end >> 20} MB after 200"
    assert (process.num_fds() if hasattr(process, "num_fds") else process.num_handles()) <= descriptors


def test_leaving_a_stream_and_closing_stop_the_work_within_a_step(smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, n_ctx=1024)
    engine = llm._loaded.engine
    multi = engine._multi
    for engine._multi in (None, multi):
        stream = llm.generate("Once upon a time", stream=True, temperature=0)
        for _ in range(5):
            next(stream)
        stream.close()
        at = engine.stats.steps  # of a call of several steps the count comes when it ends
        while engine._requests:
            time.sleep(0.001)
        assert engine.stats.steps <= at + (2 if engine._multi is None else 100)  # of a thousand
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(llm.generate("Once", temperature=0))) for _ in range(3)]
    for t in threads:
        t.start()
    requests: list[Any] = []
    while len(requests) < 3 or not any(s.n_generated > 5 for r in requests for s in r.sequences):
        time.sleep(0.001)
        requests = list(llm._loaded.engine._requests)
    llm.close()
    for t in threads:
        t.join(60)
    assert [c.finish_reason for c in results] == ["cancelled"] * 3
    assert all(isinstance(c.error, EngineError) for c in results)


FORK = """
import os, sys
from pathlib import Path
from edgellm import LLM, EngineError
llm = LLM(Path(sys.argv[1]), n_ctx=256)
stream = llm.generate("Once upon a time", stream=True, temperature=0)
next(stream)
pid = os.fork()
if pid == 0:
    refused = 0
    for call in (lambda: llm.generate("x"), lambda: llm.chat("x"), lambda: llm.logits([1]), lambda: next(stream)):
        try:
            call()
        except EngineError:
            refused += 1
    sys.exit(refused)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), list(stream)[-1].finish_reason)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_refused_and_ends(smollm2_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, str(smollm2_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout in ("4 length\n", "4 stop\n")


def test_many_requests_at_once_give_what_each_gives_alone(smollm2_path: Path) -> None:
    prompts = ["The sky is", "One, two, three,", "My favourite food is", "In the year 1900"] * 3
    options: dict[str, Any] = {"max_tokens": 12, "seed": 7, "temperature": 1.0}
    with LLM(smollm2_path, n_ctx=512, max_seqs=5, n_batch=16) as llm:
        together = [c.token_ids for c in llm.generate(prompts, **options)]
        alone = [llm.generate(p, **options).token_ids for p in prompts[:4]]
    assert together == alone * 3


EDITED: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 3, "repeat_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.1},
    {"temperature": 0, "repeat_penalty": 1.2, "repeat_last_n": -1, "logit_bias": {28: 1.5, 29: -math.inf, 49151: 3.0}},
    {"temperature": 1.5, "seed": 3, "ignore_eos": True, "repeat_penalty": 1.1, "repeat_last_n": 5},
    {"temperature": 1.0, "seed": 5, "min_tokens": 60, "stop_token_ids": [28, 30]},
]


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.2, "seed": 3}, *EDITED], ids=str)
def test_several_steps_in_a_call_say_what_single_steps_say(smollm2_path: Path, options: dict[str, Any]) -> None:
    with LLM(smollm2_path, n_ctx=512) as llm:
        several = llm.generate("Once upon a time", max_tokens=80, **options).token_ids
        chunks = list(llm.generate("Once upon a time", max_tokens=80, stream=True, **options))
        llm._loaded.engine._multi = None
        single = llm.generate("Once upon a time", max_tokens=80, **options).token_ids
    assert several == single
    assert [t for c in chunks for t in c.token_ids] == single


@pytest.mark.timing
@pytest.mark.parametrize("options", EDITED[:2], ids=str)
def test_pythons_share_of_a_step_with_edits(
    smollm2_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the engine thread's processor time, so that other programs do not count: they still share its caches."""
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=time.thread_time))
    shares = []
    with LLM(smollm2_path, n_ctx=512) as llm:
        stats = llm._loaded.engine.stats
        for _ in range(5):
            steps, before = stats.steps, stats.seconds_python
            llm.generate("Once upon a time", max_tokens=100, min_tokens=100, **options)
            shares.append((stats.seconds_python - before) / (stats.steps - steps))
    print(f"\nPython's share of a decode step: {min(shares) * 1e6:.1f} µs")
    assert 0 < min(shares) < seconds(50e-6)


def test_log_probabilities_are_those_of_the_logits(smollm2_path: Path) -> None:
    with LLM(smollm2_path, n_ctx=512) as llm:
        prompt = llm.tokenize("Once upon a time, there was a little girl")
        logits = llm.logits(prompt).astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        expected -= logits.max(1, keepdims=True)
        c = llm.generate(prompt, max_tokens=1, seed=1, logprobs=3, prompt_logprobs=2, repeat_penalty=1.5)
    assert c.prompt_logprobs is not None
    assert c.logprobs is not None
    entries = [*c.prompt_logprobs[1:], c.logprobs.content[0]]
    for row, entry in zip(expected, entries, strict=True):
        assert entry is not None
        assert entry.logprob == pytest.approx(row[entry.id], abs=2e-5)
        assert [x.id for x in entry.top] == np.argsort(-row, kind="stable")[: len(entry.top)].tolist()
    assert [t.token for t in c.prompt_logprobs[1:4] if t] == [" upon", " a", " time"]
    assert [t.offset for t in c.prompt_logprobs[1:4] if t] == [4, 9, 11]

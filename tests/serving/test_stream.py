"""Streams: an unread one costs nothing, one that is left stops within a step, an interrupt cancels."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from serving.conftest import OpenLLM
from serving.tiny import saying

from edgellm import LLM
from edgellm.backends.fake import FakeBackend
from edgellm.core.types import Batch


def steps(llm: LLM) -> int:
    """Steps that the executable has ended, those of a call that goes on included."""
    executable: Any = llm._loaded.engine._executable
    return int(executable.n_steps)


def settled(llm: LLM) -> int:
    """Steps once the engine has nothing left to do; fails when it does not come to rest."""
    engine = llm._loaded.engine
    deadline = time.monotonic() + 60
    while engine._requests or not engine._inbox.empty():  # pages are back when a request has left the former
        assert time.monotonic() < deadline, "the engine goes on"
        time.sleep(0.001)
    return steps(llm)


def test_a_stream_that_nobody_reads_costs_nothing(llm: LLM) -> None:
    streams = [llm.generate([1, 2, 3], stream=True) for _ in range(50)]
    streams[0].close()
    del streams
    gc.collect()
    assert settled(llm) == 0
    assert llm._loaded.engine._requests == set()


@pytest.mark.parametrize("how", ["close", "forget", "break"])
def test_leaving_a_stream_stops_the_work_within_a_step(open_llm: OpenLLM, how: str) -> None:
    llm = open_llm(FakeBackend(lambda past: 65, step_seconds=0.01))
    stream = llm.generate([1], stream=True, temperature=0)
    for _ in range(5):
        next(stream)
    if how == "close":
        stream.close()
    elif how == "break":
        for _ in stream:
            break
    del stream
    gc.collect()
    at = steps(llm)  # read when it has been left: before that, the engine may go on for as long as this thread sleeps
    assert settled(llm) <= at + 2  # the step that was running, and one that had been scheduled
    assert not any(
        llm._loaded.engine._state.ledger.n_in_use(c) for c in range(len(llm._loaded.engine._state.ledger.pools))
    )


def test_leaving_one_stream_leaves_the_others_alone(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(saying("abcdefghijklmnop")))
    kept = llm.generate("k", stream=True, temperature=0)
    left = llm.generate("left", stream=True, temperature=0)
    text = str(next(kept))
    next(left)
    left.close()
    assert text + "".join(map(str, kept)) == "abcdefghijklmnop"


def test_leaving_during_the_prompt(open_llm: OpenLLM, tiny_path: Path) -> None:
    begun, left = threading.Event(), threading.Event()

    def wait(batch: Batch) -> None:
        begun.set()
        assert left.wait(60)

    llm = open_llm(FakeBackend(on_step=wait), n_batch=8)
    stream = llm.generate([1] * 250, stream=True)
    reader = threading.Thread(target=lambda: next(stream))
    reader.start()
    assert begun.wait(60)
    (request,) = llm._loaded.engine._requests
    llm._loaded.engine.cancel(request)
    left.set()
    reader.join(60)
    assert not reader.is_alive()
    assert settled(llm) <= 2  # of 32 that the prompt needs


def test_a_stream_read_slowly_is_whole(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(saying("abcdefgh")))
    text = ""
    for chunk in llm.generate("x", stream=True, temperature=0):
        text += chunk.text
        time.sleep(0.003)
    assert text == "abcdefgh"


INTERRUPT = """
import _thread, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from edgellm import LLM
from edgellm.backends import select
from edgellm.backends.fake import FakeBackend

struck = threading.Event()

def wait(batch):
    assert engine._executable.n_steps < 3 or struck.wait(60)

select.BACKENDS["native"] = lambda: FakeBackend(lambda past: 65, step_seconds=0.01, on_step=wait)
llm = LLM(Path(sys.argv[1]))
engine = llm._loaded.engine

def interrupt():
    while engine._executable.n_steps < 3:
        time.sleep(0.001)
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        import signal
        signal.raise_signal(signal.SIGINT)
    struck.set()

def quiet():
    deadline = time.monotonic() + 60
    while engine._requests:
        assert time.monotonic() < deadline, "the work goes on"
        time.sleep(0.001)

for call in (
    lambda: llm.generate([1]),
    lambda: llm.generate([[1], [2], [3]]),
    lambda: list(llm.generate([1], stream=True)),
    lambda: llm.chat("x"),
    lambda: llm.logits([1] * 250),
):
    engine._executable.n_steps = 0
    struck.clear()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        call()
        raise SystemExit("no interrupt")
    except KeyboardInterrupt:
        thread.join()
        at = engine._executable.n_steps
        quiet()
        assert engine._executable.n_steps <= at + 2, (engine._executable.n_steps, at)
print(llm.generate([1], max_tokens=2, temperature=0).token_ids)
llm.close()
"""


def test_an_interrupt_in_the_consumer_cancels(tiny_path: Path, repository: Path) -> None:
    command = [sys.executable, "-c", INTERRUPT, str(tiny_path), str(repository / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[65, 65]\n", "")

"""Opening and closing: while requests run, twice, from other threads, in a forked child, by the garbage collector."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from serving.conftest import OpenLLM
from serving.tiny import install, write_tiny

from edgellm import (
    LLM,
    CapacityError,
    Completion,
    ConfigError,
    EngineError,
    ModelNotFound,
    SamplingParams,
    UnsupportedModel,
)
from edgellm.backends.fake import FakeBackend

FOREVER: dict[str, Any] = {"temperature": 0, "context_shift": True, "max_tokens": 10**6}
"""However long it takes until such a request is closed, it has not ended."""


def slow() -> FakeBackend:
    return FakeBackend(lambda past: 65, step_seconds=0.02)


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    result: list[Any] = []

    def work() -> None:
        try:
            result.append(call())
        except BaseException as e:
            result.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, result


def wait_for_steps(llm: LLM, n: int = 2) -> None:
    deadline = time.monotonic() + 60
    while llm._loaded.engine.stats.steps < n:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_progress_of_opening_begins_before_the_weights_are_loaded(open_llm: OpenLLM) -> None:
    events: list[object] = []

    class Watched(FakeBackend):
        def compile(self, *args: Any) -> Any:
            events.append("compile")
            return super().compile(*args)

    open_llm(Watched(), progress=lambda *told: events.append(told))
    assert events == [("weights", 0.0), "compile", ("weights", 1.0)]


def test_text_works_before_the_tables_are_built(open_llm: OpenLLM) -> None:
    def built(llm: LLM) -> bool:
        llm._loaded.warming.join()
        return llm.tokenizer._encoder is not None

    expected = open_llm()
    assert built(expected)
    cold = open_llm(warm=False)
    assert not built(cold)
    assert cold.chat("Hi", seed=1, max_tokens=4).token_ids == expected.chat("Hi", seed=1, max_tokens=4).token_ids
    later = open_llm(warm=False)
    later.warm()
    later.warm()
    assert built(later)
    open_llm(warm=False).close()


# -- close -----------------------------------------------------------------------------------------------------


def test_closing_while_a_request_runs_ends_it_with_an_error_in_place(open_llm: OpenLLM) -> None:
    llm = open_llm(slow())
    thread, result = in_thread(lambda: llm.generate([1], **FOREVER))
    wait_for_steps(llm)
    llm.close()
    thread.join(60)
    assert not thread.is_alive()
    (c,) = result
    assert isinstance(c, Completion)
    assert c.finish_reason == "cancelled"
    assert isinstance(c.error, EngineError)
    assert "closed" in str(c.error)
    assert c.text == "b" * len(c.token_ids)


def test_closing_raises_where_errors_are_to_be_raised(open_llm: OpenLLM) -> None:
    llm = open_llm(slow())
    thread, result = in_thread(lambda: llm.generate([[1], [2]], on_error="raise", **FOREVER))
    wait_for_steps(llm)
    llm.close()
    thread.join(60)
    assert isinstance(result[0], EngineError)


def test_closing_ends_streams_with_a_last_chunk(open_llm: OpenLLM) -> None:
    llm = open_llm(slow())
    stream = llm.generate([1], stream=True, **FOREVER)
    next(stream)
    llm.close()
    chunks = list(stream)
    assert chunks[-1].finish_reason == "cancelled"
    assert chunks[-1].completion is not None
    assert isinstance(chunks[-1].completion.error, EngineError)
    assert list(stream) == []


def test_closing_never_hands_out_half_filled_logits(open_llm: OpenLLM) -> None:
    half, deadline = threading.Event(), time.monotonic() + 60

    def wait(batch: Any) -> None:
        if llm._loaded.engine.stats.steps == 16:
            half.set()
            while not llm._loaded.engine._closing:
                assert time.monotonic() < deadline
                time.sleep(0.001)

    llm = open_llm(FakeBackend(on_step=wait), n_batch=8)
    thread, result = in_thread(lambda: llm.logits([1] * 250))
    assert half.wait(60)
    llm.close()
    thread.join(60)
    assert isinstance(result[0], EngineError)


def test_closing_ends_requests_that_wait_for_their_turn(open_llm: OpenLLM) -> None:
    llm = open_llm(slow(), max_seqs=1)
    threads = [in_thread(lambda: llm.generate([[1]] * 20, **FOREVER)) for _ in range(4)]
    deadline = time.monotonic() + 60
    while len(llm._loaded.engine._requests) < 80:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    llm.close()
    for thread, result in threads:
        thread.join(60)
        assert not thread.is_alive()
        assert [c.finish_reason for c in result[0]] == ["cancelled"] * 20
        assert all(isinstance(c.error, EngineError) for c in result[0])


def test_closing_from_many_threads(open_llm: OpenLLM) -> None:
    for _ in range(20):
        llm = open_llm(slow())
        stream = llm.generate([1], stream=True, **FOREVER)
        next(stream)
        threads = [threading.Thread(target=llm.close) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert not any(t.is_alive() for t in threads)
        assert list(stream)[-1].finish_reason == "cancelled"


def test_calls_race_with_closing(open_llm: OpenLLM) -> None:
    """Whatever the moment, a call returns or raises EngineError; none hangs."""
    for delay in range(30):
        llm = open_llm(FakeBackend())
        workers = [in_thread(lambda llm=llm: llm.generate([1], max_tokens=3)) for _ in range(6)]  # type: ignore[misc]
        time.sleep(delay * 1e-4)
        llm.close()
        for thread, result in workers:
            thread.join(60)
            assert not thread.is_alive()
            assert isinstance(result[0], Completion | EngineError)


def test_everything_but_info_refuses_after_closing(open_llm: OpenLLM) -> None:
    llm = open_llm()
    stream = llm.generate([1], stream=True)
    llm.close()
    llm.close()
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate([1]),
        lambda: llm.generate("x", stream=True),
        lambda: llm.chat("x"),
        lambda: llm.logits([1]),
        lambda: llm.tokenize("x"),
        lambda: llm.detokenize([1]),
        lambda: llm.render("x"),
        lambda: next(stream),
        lambda: llm.__enter__(),
    ]
    for call in calls:
        with pytest.raises(EngineError, match="this LLM is closed"):
            call()
    assert llm.info.architecture == "llama"


def test_the_context_manager_closes(open_llm: OpenLLM) -> None:
    with open_llm() as llm:
        pass
    with pytest.raises(EngineError):
        llm.generate([1])


# -- the garbage collector -------------------------------------------------------------------------------------


def engines() -> set[threading.Thread]:
    gc.collect()
    return {t for t in threading.enumerate() if t.name == "edgellm-engine"}


def test_a_forgotten_llm_closes_its_engine(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = engines()
    install(monkeypatch, FakeBackend())
    llm = LLM(tiny_path)
    llm.generate([1], max_tokens=2)
    executable = weakref.ref(llm._loaded.engine._executable)
    assert len(engines() - before) == 1
    del llm
    assert engines() <= before
    assert executable() is None


def test_a_forgotten_llm_in_a_cycle_collected_by_its_own_engine_thread(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def on_step(batch: Any) -> None:
        if armed:
            gc.collect()
            deadline = time.monotonic() + 60
            while not executable._halted:  # another thread has told the engine to end, and waits for it
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(0.05)  # long enough for one that does not wait
            open_in_step.append(all(s.data is not None for s in file._shards))

    armed: list[bool] = []
    open_in_step: list[bool] = []
    install(monkeypatch, FakeBackend(lambda past: 65, on_step=on_step))
    llm = LLM(tiny_path)
    engine, file = llm._loaded.engine, llm._loaded.file
    executable: Any = engine._executable
    cycle: dict[str, Any] = {"llm": llm}
    cycle["self"] = cycle
    request = llm._request([1], SamplingParams(temperature=0), 1, False)
    weakref.finalize(llm, closed.append, True)
    gc.disable()
    try:
        del llm, cycle
        armed.append(True)
        engine.submit(request)
        engine._thread.join(60)
    finally:
        gc.enable()
    assert not engine._thread.is_alive()
    assert closed == [True]
    assert open_in_step == [True]
    deadline = time.monotonic() + 60
    while any(s.data is not None for s in file._shards):
        assert time.monotonic() < deadline, "the file stays open"
        time.sleep(0.005)


def test_the_switch_interval_is_short_while_any_engine_lives(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeBackend())
    before = sys.getswitchinterval()
    a, b = LLM(tiny_path), LLM(tiny_path)
    assert sys.getswitchinterval() == pytest.approx(1e-4)
    a.close()
    assert sys.getswitchinterval() == pytest.approx(1e-4)
    b.close()
    assert sys.getswitchinterval() == before


# -- fork ------------------------------------------------------------------------------------------------------

FORK = """
import os, sys
from pathlib import Path
from edgellm import LLM, EngineError
from edgellm.backends import select
from edgellm.backends.fake import FakeBackend

select.BACKENDS["native"] = lambda: FakeBackend(lambda past: 65, step_seconds=0.002)
llm = LLM(Path(sys.argv[1]))
stream = llm.generate([1], stream=True, temperature=0)
first = next(stream)
assert len(first.token_ids) == 1, first
pid = os.fork()
if pid == 0:
    calls = (
        lambda: llm.generate("x"), lambda: llm.generate([1], stream=True), lambda: llm.chat("x"),
        lambda: llm.logits([1]), lambda: llm.tokenize("x"), lambda: llm.detokenize([1]), lambda: llm.render("x"),
        lambda: next(stream),
    )
    refused = 0
    for call in calls:
        try:
            call()
        except EngineError as e:
            refused += "parent process" in str(e)
    print("child", refused, "of", len(calls), flush=True)
    llm.close()
    sys.exit(7)
_, status = os.waitpid(pid, 0)
rest = list(stream)
n_tokens = sum(len(c.token_ids) for c in rest)
print("parent", os.waitstatus_to_exitcode(status), n_tokens, rest[-1].finish_reason, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("end", ["sys.exit(7)", "del llm, stream, calls, call; import gc; gc.collect(); sys.exit(7)"])
def test_a_forked_child_gets_errors_and_the_parent_goes_on(tiny_path: Path, end: str) -> None:
    code = FORK.replace("sys.exit(7)", end)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(tiny_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout == "child 8 of 8\nparent 7 254 length\n"
    assert done.returncode == 0


def test_a_program_that_forgets_to_close_ends_by_itself(tiny_path: Path) -> None:
    code = FORK.partition("pid = os.fork()")[0] + "print('end')"
    done = subprocess.run([sys.executable, "-c", code, str(tiny_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.parametrize("stream", [False, True])
def test_closing_stops_the_work_within_a_step(open_llm: OpenLLM, stream: bool) -> None:
    late: list[Any] = []  # steps that begin once the engine has been told
    told = threading.Event()

    def note(batch: Any) -> None:
        if told.is_set():
            late.append(batch)

    for attempt in range(12):
        llm = open_llm(FakeBackend(lambda past: 65, step_seconds=0.004, on_step=note))
        late.clear()
        told.clear()
        engine = llm._loaded.engine
        executable: Any = engine._executable

        def send(call: Any, engine: Any = engine, send: Any = engine._send) -> None:
            send(call)
            if engine._closing:
                told.set()

        engine._send = send  # type: ignore[method-assign]
        thread = threading.Thread(
            target=lambda llm=llm: (
                list(llm.generate([[1], [2]], stream=stream, **FOREVER))  # type: ignore[misc]
                if not stream
                else list(llm.generate([1], stream=True, **FOREVER))
            )
        )
        thread.start()
        while executable.n_steps < 3 + attempt * 4 or len(engine._requests) < 2 - stream:
            time.sleep(0.0005)
        llm.close()
        assert told.is_set()
        assert len(late) <= 2
        thread.join(60)
        assert not thread.is_alive()


# -- opening ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"kv_type": "q5_1"},
            ConfigError,
            "kv_type must be one of f16, bf16, q8_0, q4_0, fp8_e4m3, fp8_e5m2, f32, fp8",
        ),
        ({"kv_type": ("f16", "int3")}, ConfigError, "found 'int3'"),
        ({"kv_type": ("f16",)}, ConfigError, "kv_type"),
        ({"kv_type": None}, ConfigError, "kv_type"),
        ({"draft": "x"}, ModelNotFound, "no model is called 'x'"),
        ({"weights": "ram"}, ConfigError, "weights must be"),
        ({"backend": "cuda"}, ConfigError, "backend must be auto"),
        ({"n_ctx": 0}, ConfigError, "n_ctx must be an integer from 1"),
        ({"n_ctx": "big"}, ConfigError, "n_ctx must be an integer"),
        ({"n_batch": 0}, ConfigError, "n_batch must be"),
        ({"max_seqs": 0}, ConfigError, "max_seqs must be"),
        ({"max_seqs": True}, ConfigError, "max_seqs must be"),
        ({"kv_memory": -1}, ConfigError, "kv_memory must be"),
        ({"kv_memory": "2G"}, ConfigError, "kv_memory must be"),
        ({"n_threads": 0}, ConfigError, "n_threads must be"),
        ({"n_threads": 1.5}, ConfigError, "n_threads must be"),
        ({"n_ctx": 1 << 20, "kv_memory": 1 << 16}, CapacityError, r"n_ctx=\d+ would fit"),
        ({"kv_memory": 1}, CapacityError, "kv_memory"),
    ],
)
def test_options_that_cannot_be_honoured(
    open_llm: OpenLLM, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_llm(**options)


def test_what_would_fit_does_fit(open_llm: OpenLLM) -> None:
    with pytest.raises(CapacityError) as caught:
        open_llm(n_ctx=4096, kv_memory=100_000)
    found = re.search(r"n_ctx=(\d+) would fit", str(caught.value))
    assert found is not None
    fits = int(found[1])
    assert 32 <= fits < 4096
    assert open_llm(n_ctx=fits, kv_memory=100_000).info.n_ctx == fits


def test_memory_that_ends_at_the_start_is_said_with_what_would_fit(golden_case: Callable[[str], Any]) -> None:
    """The C core asks for more than a limit on this process's address space allows."""
    resource = pytest.importorskip("resource", reason="limits of a process are set by the resource module")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, limits[1]))
    try:
        with pytest.raises(CapacityError) as caught:
            LLM(golden_case("llama-dense").path, backend="native", n_ctx=1 << 22, max_seqs=512, kv_memory=1 << 49)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    for words in (
        r"out of memory: \d+ bytes for the caches",
        "MiB are available",
        "kv_memory below",
        "max_seqs below 512",
    ):
        assert re.search(words, str(caught.value)), words


def test_a_context_that_memory_limits_is_said_once(open_llm: OpenLLM, caplog: pytest.LogCaptureFixture) -> None:
    llm = open_llm(kv_memory=20_000)
    assert llm.info.n_ctx < 256
    assert llm.info.kv_bytes <= 20_000
    said = [r.getMessage() for r in caplog.records if "context is limited" in r.getMessage()]
    assert len(said) == 1
    assert f"{llm.info.n_ctx} of 256 tokens" in said[0]
    c = llm.generate([1], temperature=0)
    assert len(c.token_ids) <= llm.info.n_ctx - 1


def test_a_context_beyond_the_trained_one_is_said(open_llm: OpenLLM, caplog: pytest.LogCaptureFixture) -> None:
    assert open_llm(n_ctx=512).info.n_ctx == 512
    assert any("trained for 256" in r.getMessage() for r in caplog.records)


def test_a_failure_while_opening_closes_what_was_opened(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed, before = [], engines()
    fake = install(monkeypatch, FakeBackend())
    original = fake.compile

    def compile_it(*args: Any, **kwargs: Any) -> Any:
        executable = original(*args, **kwargs)
        close = executable.close
        executable.close = lambda: (close(), closed.append(1))  # type: ignore[method-assign]
        return executable

    monkeypatch.setattr(fake, "compile", compile_it)
    monkeypatch.setattr("edgellm.engine.loader._sampling_defaults", lambda file: 1 / 0)  # the last thing done
    with pytest.raises(ZeroDivisionError):
        LLM(tiny_path)
    assert engines() <= before
    assert closed


def test_unknown_metadata_is_refused_or_marked(open_llm: OpenLLM, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "odd.gguf", **{"llama.future_scale": 2.0})
    with pytest.raises(UnsupportedModel, match=r"llama\.future_scale.*strict=False"):
        open_llm(path=path)
    llm = open_llm(path=path, strict=False)
    assert llm.info.fingerprint.endswith("-lax")


def test_info(open_llm: OpenLLM, tiny_path: Path) -> None:
    info = open_llm(kv_type=("f32", "f16"), n_ctx=100).info
    assert info.path == str(tiny_path)
    assert (info.architecture, info.n_vocab, info.n_ctx, info.n_ctx_train) == ("llama", 273, 100, 256)
    assert info.bits_per_weight == 32
    assert info.kv_type == "f32+f16"
    assert info.fingerprint.endswith("-f32+f16")
    pages = info.kv_bytes // (6 * 32 * 32)
    info = open_llm(kv_type=("q8_0", "fp8"), n_ctx=100).info
    assert info.kv_type == "q8_0+fp8_e4m3"
    assert info.fingerprint.endswith("-q8_0+fp8_e4m3")
    assert info.kv_bytes == pages * 32 * (2 * 34 + 32)  # two heads of 16 dimensions: half blocks
    assert info.has_chat_template
    assert info.backend == "fake"


def test_progress_is_reported(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeBackend())
    seen: list[tuple[str, float]] = []
    LLM(tiny_path, progress=lambda stage, fraction: seen.append((stage, fraction))).close()
    assert seen[-1] == ("weights", 1.0)


# -- leaks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_cycles_of_load_generate_close_level_off(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    if backend == "native":
        install(monkeypatch, FakeBackend())
    process = psutil.Process()

    def cycles(n: int) -> int:
        for i in range(n):
            llm = LLM(tiny_path, backend=backend)
            llm.generate("hello world", max_tokens=4, seed=i)
            if i % 2:
                llm.close()
            else:
                stream = llm.generate("hello", stream=True, max_tokens=50)
                next(stream)
                del llm, stream
        gc.collect()
        return process.memory_info().rss

    cycles(40)
    descriptors, threads = _descriptors(process), process.num_threads()
    middle = cycles(80)
    end = cycles(80)
    assert _descriptors(process) <= descriptors
    deadline = time.monotonic() + 60
    while process.num_threads() > threads:  # the system's end of a thread comes a moment after Python's
        assert time.monotonic() < deadline
    assert end - middle < 4 << 20


def _descriptors(process: psutil.Process) -> int:
    return process.num_fds() if hasattr(process, "num_fds") else process.num_handles()

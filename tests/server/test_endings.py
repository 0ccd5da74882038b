"""Ends of real processes: SIGTERM under load, kill -9 and a new start. What the fingerprint of answers depends on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.test_chat_completions import HI
from server.test_program import Program
from serving.tiny import write_tiny

from edgellm import LLM
from edgellm.core import version
from edgellm.engine import loader
from edgellm.gguf.reader import GGUFFile

CHAT = "/v1/chat/completions"
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no signals and unix sockets")


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Servers that the test has started; none is left behind."""
    started: list[Program] = []
    yield started
    for one in started:
        one.http.close()
        one.process.kill()
        one.process.communicate()


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a context that takes a while to fill."""
    return write_tiny(tmp_path_factory.mktemp("long") / "long.gguf", 16384)


@posix
def test_sigterm_under_load_ends_every_stream_in_order(programs: list[Program], long_model: Path) -> None:
    program = Program(str(long_model), "--drain-timeout", "0.2")
    programs.append(program)
    program.wait()
    begun, streams, faults = threading.Barrier(9, timeout=60), list[str](), list[str]()

    def ask(i: int) -> None:
        body = {**HI, "stream": True, "ignore_eos": True, "max_tokens": -1 if i % 2 else 200, "seed": i}
        waits = True
        with httpx.Client(base_url=program.url, timeout=60, trust_env=False) as http:
            while True:
                try:
                    with http.stream("POST", CHAT, json=body) as answer:
                        if answer.status_code != 200:
                            assert answer.status_code == 503
                            return
                        text = ""
                        for part in answer.iter_text():
                            text += part
                            if waits:
                                waits = False
                                begun.wait()
                        streams.append(text)
                except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError) as e:
                    if isinstance(e, httpx.RemoteProtocolError) and "incomplete" in str(e):
                        faults.append(str(e))  # a stream that had begun was cut off
                    return

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    begun.wait()
    code, said = program.end()
    for thread in threads:
        thread.join()
    assert code == 0, said
    assert "Traceback" not in said
    assert faults == []
    assert len(streams) >= 8
    for text in streams:
        *_, last, done = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
        assert done == "[DONE]"
        event = json.loads(last)
        assert (
            "shutting down" in event["error"]["message"] if "error" in event else event["choices"][0]["finish_reason"]
        )


@posix
def test_kill_9_leaves_nothing_that_stops_the_next_one(
    programs: list[Program], long_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    first = Program(str(long_model))
    programs.append(first)
    first.wait()
    body = {**HI, "stream": True, "ignore_eos": True, "max_tokens": -1}
    with first.http.stream("POST", CHAT, json=body) as answer:
        next(answer.iter_bytes())
        first.process.kill()
        first.process.wait()
    port = first.url.rpartition(":")[2]
    again = Program(str(long_model), "--port", port)  # the last --port counts
    programs.append(again)
    again.wait()
    assert again.url == first.url
    assert again.http.post(CHAT, json={**HI, "max_tokens": 2}).status_code == 200
    code, said = again.end()
    assert code == 0, said
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix in (".lock", ".pid", ".sock", ".tmp")] == []


@posix
def test_kill_9_leaves_a_unix_socket_that_the_next_one_takes(long_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    command = [sys.executable, "-m", "edgellm", "serve", str(long_model), "--uds", str(path)]

    def begin() -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert any(f"unix:{path}" in line for line in process.stderr)
        return process

    def answers() -> bool:
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=60
        ) as http:
            while http.get("/health").status_code == 503:
                pass
            return http.post(CHAT, json={**HI, "max_tokens": 2}).status_code == 200

    first = begin()
    try:
        assert answers()
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 2
        assert "another server listens there" in second.stderr
    finally:
        first.kill()
        first.communicate()
    assert path.is_socket()
    third = begin()
    try:
        assert answers()
    finally:
        third.send_signal(signal.SIGTERM)
        _, said = third.communicate(timeout=60)
    assert third.returncode == 0, said
    assert not path.exists()


# -- what the fingerprint depends on -------------------------------------------------------------------------------


def seen(path: Path, **options: Any) -> tuple[str, bytes]:
    """The fingerprint of a model that is opened so, and its logits of a few tokens."""
    with LLM(str(path), **options) as llm:
        return llm.info.fingerprint, llm.logits(list(range(5, 45))).tobytes()


def test_g_20_the_fingerprint_is_the_same_where_the_logits_are(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = seen(tiny_model)
    same: list[dict[str, Any]] = [
        {}, {"n_threads": 1}, {"n_threads": 3}, {"max_seqs": 1}, {"n_batch": 7}, {"weights": "mmap"},
        {"weights": "tiles"}, {"backend": "numba"}, {"draft": "prompt"}, {"prefix_cache": False},
        {"isa": "scalar"}, {"n_ctx": 64},
    ]  # fmt: skip
    for options in same:
        assert seen(tiny_model, **options) == one, options
    monkeypatch.setenv("EDGELLM_ISA", "scalar")
    assert seen(tiny_model) == one
    copy = tmp_path / "another-name.gguf"
    copy.write_bytes(tiny_model.read_bytes())
    assert seen(copy) == one


def test_g_20_the_fingerprint_is_another_where_the_logits_may_be(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = seen(tiny_model)
    other = tmp_path / "other.gguf"
    data = bytearray(tiny_model.read_bytes())
    with GGUFFile(tiny_model) as file:
        last = max(file.tensors.values(), key=lambda t: t.offset)
    data[last.offset + last.n_bytes - 1] ^= 1  # one bit of the last weight
    other.write_bytes(data)
    kinds = [seen(tiny_model, kv_type=kv) for kv in ("q8_0", "q4_0", ("q8_0", "f16"), ("f16", "q8_0"), "f32")]
    assert len({name for name, _ in [one, *kinds]}) == 6
    assert len({bits for _, bits in [one, *kinds]}) == 6
    assert seen(other)[0] != one[0]
    assert seen(other)[1] != one[1]
    numpy = seen(tiny_model, backend="reference")
    assert numpy[0] == f"{one[0]}-reference"
    assert numpy[1] != one[1]
    monkeypatch.setattr(loader, "NUMERICS_VERSION", version.NUMERICS_VERSION + 1)
    assert seen(tiny_model)[0] != one[0]


@posix
def test_g_20_a_server_says_the_same_fingerprint_after_a_restart(
    programs: list[Program], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {**HI, "seed": 3, "max_tokens": 8}
    answers = []
    for words, isa in (((), None), (("-t", "1", "-np", "2", "-ub", "8"), "scalar"), (("--weights", "mmap"), None)):
        if isa is not None:
            monkeypatch.setenv("EDGELLM_ISA", isa)
        program = Program(str(tiny_model), *words)
        monkeypatch.delenv("EDGELLM_ISA", raising=False)
        programs.append(program)
        program.wait()
        answer = program.http.post(CHAT, json=body).json()
        answers.append((answer["system_fingerprint"], answer["choices"][0]["message"]["content"]))
        program.end()
    assert answers == [answers[0]] * 3
    changed = Program(str(tiny_model), "-ctk", "q8_0")
    programs.append(changed)
    changed.wait()
    assert changed.http.post(CHAT, json=body).json()["system_fingerprint"] != answers[0][0]

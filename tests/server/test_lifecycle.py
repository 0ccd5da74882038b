"""Loading, leaving, stopping, and too many at once. Named by the lines of the conformance list."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.conftest import Running, Start, parse_events
from server.test_chat_completions import HI, error_of
from serving.tiny import saying

from edgellm.backends.fake import FakeBackend
from edgellm.core.errors import ConfigError
from edgellm.server import serve
from edgellm.server.settings import Settings

CHAT = "/v1/chat/completions"


def stats(s: Running) -> Any:
    """The engine's books."""
    served = s.context.models.entries[0].served
    assert served is not None
    return served.llm.stats


def settle(s: Running) -> None:
    """Return when the engine has nothing to do and all pages are back."""
    while stats(s).requests or stats(s).running:
        time.sleep(0.001)
    assert stats(s).pages_used == 0
    assert s.context.models.entries[0].served.active == 0  # type: ignore[union-attr]


class Held:
    """A backend whose steps wait until `go` is set, after the first `free` ones."""

    def __init__(self, free: int = 0, answer: str = "hello there") -> None:
        self.go, self.reached, self._free = threading.Event(), threading.Event(), free
        self.fake = FakeBackend(saying(answer), on_step=self._step, multi_step=False)

    def _step(self, batch: object) -> None:
        if self._free:
            self._free -= 1
            return
        self.reached.set()
        assert self.go.wait(60)


def test_g_10_503_while_loading(start: Start) -> None:
    s = start(FakeBackend(saying("ok")), held=True)
    for answer in (s.chat(), s.post("/v1/completions", {"prompt": "a"}), s.http.get("/props"), s.http.get("/health")):
        error = error_of(answer, 503)
        assert (error["code"], error["message"], error["type"]) == (503, "Loading model", "unavailable_error")
        assert int(answer.headers["retry-after"]) > 0
    while (error := s.http.get("/health").json()["error"])["stage"] != "weights":
        time.sleep(0.001)
    assert error["progress"] == 0.5
    assert s.http.get("/v1/models").json()["data"][0]["meta"] is None  # MOD-01
    s.loading.set()
    s.wait()
    assert s.chat().status_code == 200


def test_a_model_that_cannot_be_loaded_ends_the_server(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF, but not really")
    s = start(path=path, held=True)
    s.loading.set()
    s.thread.join()
    assert "broken.gguf" in str(s.context.models.entries[0].error)


def test_g_14_a_client_that_goes_stops_a_stream(start: Start) -> None:
    held = Held(free=3)
    s = start(held.fake)
    with s.http.stream("POST", CHAT, json={**HI, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert "role" in next(lines)
        held.reached.wait(60)
        before = stats(s).steps
    while s.context.models.entries[0].served.active:  # type: ignore[union-attr]
        time.sleep(0.001)
    held.go.set()
    settle(s)
    assert stats(s).steps <= before + 2
    assert s.chat().status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_g_14_a_client_that_goes_stops_an_answer(start: Start, path: str) -> None:
    held = Held()
    s = start(held.fake)
    sock = socket.create_connection(("127.0.0.1", int(s.url.rpartition(":")[2])))
    body = json.dumps({**HI, "prompt": ["a", "b"]}).encode()
    sock.sendall(
        b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
    )
    held.reached.wait(60)
    sock.close()
    while s.context.models.entries[0].served.active:  # type: ignore[union-attr]
        time.sleep(0.001)
    held.go.set()
    settle(s)
    assert stats(s).tokens < 60


def test_g_12_an_error_before_the_first_token_has_its_status(start: Start) -> None:
    s = start(FakeBackend(failing=lambda history: True))
    for stream in (False, True):
        assert error_of(s.chat(stream=stream), 500)["type"] == "server_error"
    settle(s)


def test_g_12_an_error_in_mid_stream_is_an_event(start: Start) -> None:
    s = start(FakeBackend(saying("hello there"), failing=lambda history: len(history) > 30, multi_step=False))
    events = parse_events(s.chat(stream=True).text)
    assert events[-1] == "[DONE]"
    assert "non-finite" in events[-2]["error"]["message"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    settle(s)


def test_g_13_pings_while_nothing_is_said(start: Start) -> None:
    held = Held()
    s = start(held.fake, ping_seconds=0.05)
    with s.http.stream("POST", CHAT, json={**HI, "stream": True}) as answer:
        assert answer.status_code == 200
        chunks = answer.iter_raw()
        assert next(chunks) == b":\n\n"
        assert next(chunks) == b":\n\n"
        held.go.set()
        text = b"".join(chunks).decode()
    assert parse_events(text)[-1] == "[DONE]"


def test_g_21_requests_queue_and_too_many_are_told_to_come_back(start: Start) -> None:
    held = Held()
    s = start(held.fake, n_parallel=1, max_queue=2)
    answers: list[httpx.Response] = []

    def ask() -> None:
        with httpx.Client(base_url=s.url, timeout=60, trust_env=False) as http:
            answers.append(http.post(CHAT, json=HI))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for t in threads:
        t.start()
    served = s.context.models.entries[0].served
    while served.active < 3:  # type: ignore[union-attr]
        time.sleep(0.001)
    refused = s.chat()
    assert error_of(refused, 503)["type"] == "unavailable_error"
    assert int(refused.headers["retry-after"]) > 0
    assert s.http.get("/health").status_code == 200
    held.go.set()
    for t in threads:
        t.join()
    assert [a.json()["choices"][0]["message"]["content"] for a in answers] == ["hello there"] * 3


def test_sigterm_lets_streams_finish(start: Start) -> None:
    held = Held(free=2)
    s = start(held.fake)
    with s.http.stream("POST", CHAT, json={**HI, "stream": True}) as answer:
        held.reached.wait(60)
        s.server.should_exit = True
        while not s.context.draining:
            time.sleep(0.001)
        held.go.set()
        events = parse_events("".join(answer.iter_text()))
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    s.thread.join()


def test_sigterm_ends_what_takes_too_long_with_an_event(start: Start) -> None:
    held = Held(free=2)
    s = start(held.fake, drain_seconds=0.0)
    with s.http.stream("POST", CHAT, json={**HI, "stream": True}) as answer:
        held.reached.wait(60)
        s.server.should_exit = True
        events = parse_events("".join(answer.iter_text()))
    assert "shutting down" in events[-2]["error"]["message"]
    held.go.set()
    s.thread.join()


def test_a_busy_port_is_named_with_a_free_one(start: Start) -> None:
    s = start()
    port = int(s.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"port {port} is in use by another program: choose another with --port"):
        serve.bind(Settings(port=port))


def test_a_unix_socket(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)  # as a server that was killed leaves it
    left.close()
    settings = Settings(uds=path)
    sock = serve.bind(settings)
    with pytest.raises(ConfigError, match="another server listens there"):
        serve.bind(settings)
    sock.close()
    assert serve.address_of(sock, settings) == f"unix:{path}"


def test_other_requests_are_not_disturbed_by_one_that_fails(start: Start) -> None:
    s = start(FakeBackend(failing=lambda history: history[-3] == 1234 or len(history) > 200))
    wrong = s.post("/v1/completions", {"prompt": [5] * 250, "max_tokens": 2})
    assert wrong.status_code == 500
    assert s.chat(max_tokens=3).status_code == 200
    settle(s)


def test_chat_07_priority_and_salt(start: Start) -> None:
    s = start(FakeBackend(saying("ok")), api_keys=("k", "l"))
    text = "x" * 100

    def cached(key: str, **more: Any) -> int:
        body = {"messages": [{"role": "user", "content": text}], **more}
        answer = s.post(CHAT, body, headers={"authorization": f"Bearer {key}"})
        n: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return n

    assert cached("k") == 0
    assert cached("k", priority=5) > 0
    assert cached("l") == 0
    assert cached("k", cache_salt="other") == 0
    assert cached("k", cache_salt="other", priority=-3) > 0
    wrong = s.post(CHAT, {**HI, "priority": "high"}, headers={"authorization": "Bearer k"})
    assert "priority" in error_of(wrong, 400)["message"]

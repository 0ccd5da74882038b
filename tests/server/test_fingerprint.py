"""The server finds its fingerprint out beside the requests: only those that say it wait, and nothing stands still."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.conftest import Start
from serving.tiny import saying

from edgellm.backends.fake import FakeBackend
from edgellm.core.errors import GGUFError
from edgellm.gguf import digest

MESSAGES = [{"role": "user", "content": "Hi"}]
SAYING_IT: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/completions", {"prompt": "a", "stream": True}),
    ("/v1/responses", {"input": "a"}),
    ("/v1/responses", {"input": "a", "stream": True}),
    ("/completion", {"prompt": "a"}),
]


class Disk:
    """Stands before the hash of models: reading waits until it may, and fails while `error` is set."""

    def __init__(self, real: Any) -> None:
        self._real, self.may, self.begun = real, threading.Event(), threading.Event()
        self.error: GGUFError | None = None

    def digest(self, files: Any, n_threads: int = 0) -> str:
        self.begun.set()
        assert self.may.wait(60)
        if self.error is not None:
            raise self.error
        return str(self._real(files, n_threads))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Disk]:
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path))  # or what other tests have found out is remembered
    disk = Disk(digest.digest)
    monkeypatch.setattr(digest, "digest", disk.digest)
    yield disk
    disk.may.set()


def test_only_who_says_it_waits(start: Start, disk: Disk) -> None:
    server = start(FakeBackend(saying("ok")))
    assert disk.begun.wait(60)
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/v1/models").json()["data"][0]["meta"]["fingerprint"] is None
    assert server.http.get("/props").json()["system_fingerprint"] is None
    with ThreadPoolExecutor(len(SAYING_IT)) as pool:

        def ask(path: str, body: dict[str, Any]) -> httpx.Response:
            with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
                return http.post(path, json=body)

        answers = [pool.submit(ask, path, body) for path, body in SAYING_IT]
        for path in ("/v1/messages", "/api/chat"):  # these do not say it
            body = {"model": "tiny", "max_tokens": 4, "messages": MESSAGES, "stream": False}
            assert server.post(path, body).status_code == 200
        assert server.http.get("/health").status_code == 200
        assert not any(a.done() for a in answers)
        disk.may.set()
        known = server.chat().json()["system_fingerprint"]
        for answer in answers:
            assert answer.result().status_code == 200
            assert known in answer.result().text
    assert server.http.get("/v1/models").json()["data"][0]["meta"]["fingerprint"] == known
    assert server.http.get("/props").json()["system_fingerprint"] == known


def test_what_cannot_be_read(start: Start, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    server = start(FakeBackend(saying("ok")))
    disk.error = GGUFError("/secret/place: cannot be read at byte 5: Input/output error")
    disk.may.set()
    for path, body in SAYING_IT:
        answer = server.post(path, body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")
        assert "secret" not in answer.text
        assert answer.json()["error"]["type"] == "unavailable_error"
    assert "the fingerprint cannot be told: /secret/place: cannot be read" in caplog.text
    assert server.http.get("/props").json()["system_fingerprint"] is None
    disk.error = None
    assert server.chat().json()["system_fingerprint"].startswith("el1-")


def test_the_end_does_not_wait_for_it(start: Start, disk: Disk) -> None:
    server = start(FakeBackend(saying("ok")))
    assert disk.begun.wait(60)
    server.stop()
    assert not server.thread.is_alive()

"""A real server on a port of its own, over the fake backend or a real model: `start(...)` gives a Running."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving.tiny import install, saying, write_tiny

from edgellm.backends.fake import FakeBackend
from edgellm.server import serve
from edgellm.server.app import build
from edgellm.server.context import Context
from edgellm.server.models import Entry
from edgellm.server.served import ServedLLM
from edgellm.server.settings import Settings

Start = Callable[..., "Running"]


class Running:
    """A server that runs in a thread. `http` is a client with its address."""

    def __init__(self, server: serve.Server, context: Context, sock: Any, loading: threading.Event) -> None:
        self.server, self.context, self.loading = server, context, loading
        self.url = serve.address_of(sock, context.settings)
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.thread = threading.Thread(target=self._run, args=(sock,), name="server")
        self.thread.start()

    def _run(self, sock: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(serve.serve_until_told(self.server, self.context, sock))
        self.loop.close()

    def wait(self) -> Running:
        """Return when it is ready."""
        while self.http.get("/health").status_code == 503:
            time.sleep(0.001)
        return self

    def stop(self) -> None:
        """End it as SIGTERM does."""
        self.server.should_exit = True
        self.thread.join()
        self.http.close()

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """A POST with a JSON body."""
        return self.http.post(path, json=body, **more)

    def chat(self, text: str = "Hi", **more: Any) -> httpx.Response:
        """A chat request of one user message."""
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of a stream's events, parsed; "[DONE]" as it is. Every event ends with an empty line."""
        answer = self.post(path, {"stream": True, **body})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return parse_events(answer.text)

    def chat_events(self, text: str = "Hi", **more: Any) -> list[Any]:
        """The events of a streamed chat request."""
        return self.events("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})


def parse_events(text: str) -> list[Any]:
    """The data of unnamed server-sent events."""
    assert text.endswith("\n\n")
    found = []
    for block in text[:-2].split("\n\n"):
        if block == ":":
            continue
        assert block.startswith("data: ")
        assert "\n" not in block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model: 273 tokens, context 256, a ChatML template."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def new_starter(tiny: Path, monkeypatch: pytest.MonkeyPatch, running: list[Running]) -> Start:
    """What the fixture `start` gives; servers it starts are added to `running`."""

    def start_it(
        fake: FakeBackend | None = None,
        *,
        path: Path | None = None,
        paths: dict[str, Path] | None = None,
        name: str = "tiny",
        aliases: tuple[str, ...] = (),
        real: bool = False,
        held: bool = False,
        n_parallel: int = 8,
        most_loaded: int = 1,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Running:
        if not real:
            install(monkeypatch, fake or FakeBackend())
        loading = threading.Event()
        if not held:
            loading.set()

        def open_model(entry: Entry, progress: Callable[[str, float], None]) -> ServedLLM:
            progress("weights", 0.5)
            assert loading.wait(60)
            llm = ServedLLM(entry.source, max_seqs=n_parallel, **(options or {}))
            if not real:
                object.__setattr__(llm._loaded.engine.spec, "check", True)
            return llm

        entries = [Entry(n, str(p)) for n, p in paths.items()] if paths else []
        chosen = Settings(port=0, **{"log_requests": False, **settings})
        app, context = build(
            chosen,
            entries or [Entry(name, str(path or tiny), aliases)],
            open_model,
            n_parallel=n_parallel,
            most_loaded=most_loaded,
            wait=len(entries) > 1,
        )
        sock = serve.bind(chosen)
        one = Running(serve.new_server(app, context), context, sock, loading)
        running.append(one)
        return one if held or len(entries) > 1 else one.wait()

    return start_it


def end(running: list[Running]) -> None:
    """Stop servers; none of their threads is left."""
    for one in running:
        one.loading.set()
        one.stop()
    assert [t for one in running for t in (one.thread,) if t.is_alive()] == []


@pytest.fixture
def start(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """start(fake, path=..., settings...): a server over the fake backend, ready unless held=True."""
    running: list[Running] = []
    yield new_starter(tiny_model, monkeypatch, running)
    end(running)


@pytest.fixture(scope="module")
def shared(tiny_model: Path) -> Iterator[Running]:
    """One server for all tests of a file that change nothing in it. It answers "ok"."""
    running: list[Running] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield new_starter(tiny_model, monkeypatch, running)(FakeBackend(saying("ok")))
        end(running)

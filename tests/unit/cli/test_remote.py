"""`chat --url`: the chat with a model on a server, over one that misbehaves on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from unit.cli.conftest import CLI

from edgellm import ConfigError, EngineError, ModelNotFound, RequestError, SamplingParams
from edgellm.cli.remote import Remote

CARD = {"id": "m", "aliases": ["alias"], "meta": {"n_ctx": 512}}
ROLE: dict[str, Any] = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
END: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "system_fingerprint": "fp"}
COUNTS: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}}


def text(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}


@dataclass
class Server:
    """What it answers, and what it was asked."""

    url: str = ""
    models: Any = field(default_factory=lambda: {"object": "list", "data": [CARD, {"id": "other"}]})
    events: list[Any] = field(default_factory=lambda: [ROLE, text("Hé"), text("llo"), END, COUNTS, "[DONE]"])
    status: int = 200
    error: Any = None
    asked: list[tuple[str, Any, str | None]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.asked(None)
            self.reply(json.dumps(state.models).encode())

        def do_POST(self) -> None:
            self.asked(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            events = [e if isinstance(e, str) else json.dumps(e) for e in state.events]
            self.reply(b": waiting\n\n" + "".join(f"data: {e}\n\n" for e in events).encode())

        def asked(self, body: Any) -> None:
            state.asked.append((self.path, body, self.headers["Authorization"]))

        def reply(self, data: bytes) -> None:
            if state.status != 200:
                data = json.dumps(state.error).encode()
            self.send_response(state.status)
            self.end_headers()
            self.wfile.write(data)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}"
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


ASK = [{"role": "user", "content": "Hi"}]


def test_an_answer(server: Server) -> None:
    remote = Remote(server.url + "/v1/", key="secret")
    assert (remote.name, remote.info.n_ctx, remote.url) == ("m", 512, server.url)
    *pieces, last = remote.chat(ASK, SamplingParams(temperature=0.5, seed=3))
    assert [c.text for c in pieces] == ["Hé", "llo"]
    done = last.completion
    assert done is not None
    assert (done.text, done.finish_reason, done.seed, done.fingerprint) == ("Héllo", "stop", 3, "fp")
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (7, 2)
    path, body, key = server.asked[-1]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert (body["messages"], body["temperature"], body["seed"], body["stream"]) == (ASK, 0.5, 3, True)


def test_a_seed_is_drawn_here(server: Server) -> None:
    remote = Remote(server.url)
    seeds = set()
    for _ in range(3):
        *_, last = remote.chat(ASK, SamplingParams())
        assert last.completion is not None
        assert last.completion.seed == server.asked[-1][1]["seed"]
        seeds.add(last.completion.seed)
    assert len(seeds) > 1


def test_models_by_name(server: Server) -> None:
    assert Remote(server.url, "other").name == "other"
    assert Remote(server.url, "other").info.n_ctx == 0
    assert Remote(server.url, "alias").name == "m"
    with pytest.raises(ModelNotFound, match=r"has no model 'x'; it has: m, other"):
        Remote(server.url, "x")
    server.models = {"data": []}
    with pytest.raises(ModelNotFound, match="it has: none"):
        Remote(server.url)


@pytest.mark.parametrize(
    ("events", "error", "words"),
    [
        ([ROLE, text("a")], EngineError, "in the middle"),
        ([ROLE, {"error": {"message": "it broke", "type": "server_error"}}], RequestError, "it broke"),
        (["not json"], EngineError, "no JSON"),
        (["[1]"], EngineError, "no object"),
    ],
)
def test_streams_that_go_wrong(server: Server, events: list[Any], error: type[Exception], words: str) -> None:
    server.events = events
    with pytest.raises(error, match=words):
        list(Remote(server.url).chat(ASK, SamplingParams()))


@pytest.mark.parametrize(
    ("status", "answer", "error", "words"),
    [
        (400, {"error": {"message": "too long"}}, RequestError, "too long"),
        (401, {"error": {"message": "no key"}}, RequestError, r"no key \(give the server's key in EDGELLM_API_KEY\)"),
        (503, {"error": {"message": "loading"}}, EngineError, "loading"),
        (404, {"detail": "gone"}, RequestError, "gone"),
        (500, "x", EngineError, "HTTP 500"),
        (404, [1], RequestError, "HTTP 404"),
    ],
)
def test_refusals(server: Server, status: int, answer: Any, error: type[Exception], words: str) -> None:
    server.status, server.error = status, answer
    with pytest.raises(error, match=words):
        Remote(server.url)


def test_addresses() -> None:
    for wrong in ("", "ftp://x", "http://", "http://a:b", "http://u:p@x", "http://x:99999"):
        with pytest.raises(ConfigError, match="--url must be"):
            Remote(wrong)
    with pytest.raises(EngineError, match="does not answer"):
        Remote("127.0.0.1:9")


def test_the_chat(server: Server, cli: CLI) -> None:
    typed = "Hi\n/show info\n/show license\n/set parameter num_ctx 5\nAgain\n"
    done = cli("chat", "--url", server.url, "--temp", "0", "-sys", "S", stdin=typed)
    assert (done.code, done.out.count("Héllo")) == (0, 2)
    for words in (server.url, "512 tokens", "the model's file is on the server", "decided when the server was started"):
        assert words in done.err
    answers = [body for path, body, _ in server.asked if path.endswith("completions")]
    assert [len(b["messages"]) for b in answers] == [2, 4]
    assert answers[0]["messages"][0] == {"role": "system", "content": "S"}


def test_options_of_the_server_are_refused(server: Server, cli: CLI) -> None:
    done = cli("chat", "--url", server.url, "-c", "100", "--isa", "scalar")
    assert done.code == 2
    assert "--ctx-size, --isa: with --url this was decided when the server was started" in done.err


def test_the_key_comes_from_the_environment(server: Server, cli: CLI, clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("EDGELLM_API_KEY", "first,second")
    assert cli("chat", "--url", server.url, stdin="Hi\n").code == 0
    assert {key for _, _, key in server.asked} == {"Bearer first"}


def test_proxies_are_for_other_machines(server: Server, cli: CLI, clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("http_proxy", "http://127.0.0.1:9")
    clean_environment.delenv("no_proxy", raising=False)
    clean_environment.delenv("NO_PROXY", raising=False)
    assert cli("chat", "--url", server.url, stdin="Hi\n").code == 0
    server.models["models"] = [{"name": "m", "size": 10**6, "context_length": 512}]
    done = cli("ps", "--url", server.url)
    assert (done.code, done.out.splitlines()[1].split()) == (0, ["m", "1", "MB", "512"])

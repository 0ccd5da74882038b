"""What holds for every route: bodies, errors, keys, origins, hosts, paths. Named by conformance lines."""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import socket
from typing import Any

import pytest
from server.conftest import Running, Start
from server.test_chat_completions import HI, error_of
from serving.tiny import saying

from edgellm.backends.fake import FakeBackend
from edgellm.core.record import replace
from edgellm.server import serve

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "text/plain"])
def test_g_01_content_types(shared: Running, kind: str) -> None:
    answer = shared.http.post(CHAT, content=json.dumps(HI), headers={"content-type": kind})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b'"x"', b"null", b"{'messages': 1}", b'{"messages": [}', b"\xff\xfe", b'{"seed": NaN}',
        b'{"a": "\\ud800"}', b'{"seed": ' + b"9" * 5000 + b"}", b"[" * 100000, b'{"a":' * 100000,
    ],
)  # fmt: skip
def test_g_01_02_malformed_bodies(shared: Running, raw: bytes) -> None:
    error = error_of(shared.http.post(CHAT, content=raw), 400)
    assert error["type"] == "invalid_request_error"
    assert error["code"] == 400
    assert error["param"] is None


def test_g_04_unknown_paths_and_methods(shared: Running) -> None:
    assert error_of(shared.http.get("/v1/nothing"), 404)["type"] == "not_found_error"
    wrong = shared.http.get(CHAT)
    error_of(wrong, 405)
    assert "POST" in wrong.headers["allow"]


@pytest.mark.parametrize("path", ["/v1//models", "/v1/models/", "/models", "//v1/models"])
def test_careless_addresses(shared: Running, path: str) -> None:
    assert shared.http.get(shared.url + path).json()["object"] == "list"


def test_routes_without_v1(shared: Running) -> None:
    assert shared.post("/chat/completions", HI).status_code == 200
    assert shared.post("/completions", {"prompt": "a"}).json()["object"] == "text_completion"
    assert shared.post("/v1/completions/", {"prompt": "a"}).status_code == 200


def test_413_too_long(start: Start) -> None:
    s = start(max_body=1000)
    assert s.post(CHAT, HI).status_code == 200
    error_of(s.post(CHAT, {**HI, "user": "x" * 1000}), 413)

    def parts() -> object:
        for _ in range(100):
            yield b" " * 100

    error_of(s.http.post(CHAT, content=parts()), 413)  # type: ignore[arg-type]
    assert s.post(CHAT, HI).status_code == 200
    with socket.create_connection(("127.0.0.1", int(s.url.rpartition(":")[2]))) as sock:
        sock.sendall(raw("POST", CHAT, b" " * 3900))  # all of it is taken, so that the sender reads why it was too long
        assert sock.recv(100).startswith(b"HTTP/1.1 413")


def test_slow_senders_do_not_hold_connections(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit is short for those alone who go beyond it: this client may be slow itself."""
    s = start()
    address = ("127.0.0.1", int(s.url.rpartition(":")[2]))
    with monkeypatch.context() as short:
        short.setattr(s.server.config.http_protocol_class, "head_seconds", 0.05)
        with socket.create_connection(address) as sock, contextlib.suppress(ConnectionError):  # it may be cut already
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc")
            assert sock.recv(100) == b""
    with monkeypatch.context() as short:
        short.setattr(s.context, "settings", replace(s.context.settings, body_seconds=0.05))
        with socket.create_connection(address) as sock:
            sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
            assert sock.recv(100).startswith(b"HTTP/1.1 408")
    assert s.chat(max_tokens=2).status_code == 200
    s = start(head_seconds=7.0, body_seconds=9.0)
    assert s.server.config.http_protocol_class.head_seconds == 7.0  # type: ignore[union-attr]
    assert s.context.settings.body_seconds == 9.0


def test_connections_that_have_ended_are_forgotten(start: Start) -> None:
    s = start(FakeBackend(saying("ok")))
    for _ in range(20):
        exchange(s, raw("GET", "/health", b"", "connection: close"))
    while sum(isinstance(o, serve.Protocol) for o in gc.get_objects()) > 2:  # the one of s.http is still open
        gc.collect()


def exchange(s: Running, data: bytes) -> list[bytes]:
    """The answers to raw requests on one connection; the last request asks for its end."""
    with socket.create_connection(("127.0.0.1", int(s.url.rpartition(":")[2]))) as sock:
        sock.sendall(data)
        parts = []
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts).split(b"HTTP/1.1 ")[1:]


def raw(method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
    """A request as it goes over the wire."""
    head = [f"{method} {path} HTTP/1.1", "host: localhost", *lines, f"content-length: {len(body)}"]
    return "\r\n".join((*head, "", "")).encode() + body


def test_requests_in_one_piece_are_answered_in_turn(shared: Running) -> None:
    body, last = json.dumps({**HI, "max_tokens": 2}).encode(), "connection: close"
    streamed = json.dumps({**HI, "max_tokens": 2, "stream": True}).encode()
    sent = raw("POST", CHAT, body) + raw("POST", CHAT, streamed) + raw("GET", "/health") + raw("POST", CHAT, body, last)
    answers = exchange(shared, sent)
    assert [a[:3] for a in answers] == [b"200"] * 4
    assert b"[DONE]" in answers[1]
    assert b'{"status":"ok"}' in answers[2]


def test_unusual_requests(shared: Running) -> None:
    body, last = json.dumps({**HI, "max_tokens": 2}).encode(), "connection: close"
    chunked = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{last}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    for sent, status in (
        (chunked + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), b"200"),
        (chunked + b"zz\r\n", b"400"),
        (raw("POST", CHAT, body, last, "content-type: text/plain"), b"200"),
        (raw("POST", CHAT, gzip.compress(body), last, "content-encoding: gzip"), b"400"),
        (raw("POST", CHAT, body.decode().encode("utf-16"), last), b"200"),  # JSON says in its first bytes what it is
        (raw("POST", CHAT, b'{"messages":[{"role":"user","content":"\xff"}]}', last), b"400"),
        (raw("POST", CHAT, b'{"messages":[{"role":"user","content":"\\ud800"}]}', last), b"400"),
        (raw("POST", CHAT, b"[" * 100_000, last), b"400"),
        (raw("GET", "http://localhost/health", b"", last), b"200"),
        (raw("GET", "/v1/models/%ff%00", b"", last), b"404"),
        (raw("GET", "/../../etc/passwd", b"", last), b"404"),
        (raw("GET", "/health", b"", last, *(f"x-{i}: y" for i in range(500))), b"200"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    ):
        assert [a[:3] for a in exchange(shared, sent)] == [status], sent[:80]


@pytest.mark.parametrize("name", ["temperature", "top_p", "repeat_penalty", "presence_penalty", "logit_bias", "seed",
                                  "top_k", "max_tokens", "n", "min_tokens", "embd_normalize"])  # fmt: skip
@pytest.mark.parametrize("value", [10**400, -(10**400), 1e300, -1e300])
def test_g_06_numbers_without_measure(shared: Running, name: str, value: float) -> None:
    given: Any = {"5": value} if name == "logit_bias" else value
    path, body = ("/v1/embeddings", {"input": "a"}) if name == "embd_normalize" else (CHAT, {**HI, "max_tokens": 2})
    answer = shared.post(path, {**body, name: given})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["param"].startswith(name)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Bearer first"}, 200),
        ({"authorization": "bearer second"}, 200),
        ({"authorization": "first"}, 200),
        ({"x-api-key": "second"}, 200),
        ({"x-api-key": "secon"}, 401),
    ],
)
def test_g_07_08_keys(keyed: Running, headers: dict[str, str], status: int) -> None:
    answer = keyed.http.post(CHAT, json=HI, headers=headers)
    assert answer.status_code == status
    if status == 401:
        error = error_of(answer, 401)
        assert (error["code"], error["message"], error["type"]) == (401, "Invalid API Key", "authentication_error")


def test_g_07_what_needs_no_key(keyed: Running) -> None:
    for path in ("/health", "/v1/health"):
        assert keyed.http.get(path).status_code == 200
    for path in ("/v1/models", "/metrics", "/props", "/slots", "/v1/nothing"):
        assert keyed.http.get(path).status_code == 401


@pytest.fixture
def keyed(start: Start) -> Running:
    """A server with two keys."""
    return start(FakeBackend(saying("ok")), api_keys=("first", "second"))


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:5173", 200),
        ("http://app.localhost", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        ("chrome-extension://abc", 403),
        ("http://[", 403),
    ],
)
def test_g_09_pages_of_this_machine_may_call(shared: Running, origin: str, status: int) -> None:
    answer = shared.http.post(CHAT, json=HI, headers={"origin": origin})
    assert answer.status_code == status
    assert answer.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
    assert "access-control-allow-credentials" not in answer.headers
    before = shared.http.options(CHAT, headers={"origin": origin, "access-control-request-method": "POST"})
    assert before.status_code == (204 if status == 200 else 403)
    if status == 200:
        assert "POST" in before.headers["access-control-allow-methods"]
        assert "authorization" in before.headers["access-control-allow-headers"]


def test_g_09_origins_by_option(start: Start) -> None:
    s = start(cors_origins=("chrome-extension://abc",), cors_credentials=True)
    answer = s.http.get("/health", headers={"origin": "chrome-extension://abc"})
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert s.http.get("/health", headers={"origin": "chrome-extension://abd"}).status_code == 403
    s = start(cors_origins=("*",), cors_credentials=True)
    answer = s.http.get("/health", headers={"origin": "https://anyone.example"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


def test_g_09_the_servers_own_page_may_call(shared: Running) -> None:
    assert shared.http.get("/health", headers={"origin": shared.url}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("192.168.1.7:8080", 200),
        ("host.docker.internal:8080", 200), ("rebound.example", 403), ("rebound.example:8080", 403),
    ],
)  # fmt: skip
def test_hosts(shared: Running, host: str, status: int) -> None:
    assert shared.http.get("/health", headers={"host": host}).status_code == status


def test_hosts_by_option(start: Start) -> None:
    s = start(allowed_hosts=("my.example",))
    assert s.http.get("/health", headers={"host": "my.example:80"}).status_code == 200
    assert s.http.get("/health", headers={"host": "other.example"}).status_code == 403


def test_g_16_request_ids(shared: Running) -> None:
    assert shared.http.get("/health", headers={"x-request-id": "abc"}).headers["x-request-id"] == "abc"
    drawn = {shared.http.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(drawn) == 3


def test_mod_01_02(shared: Running) -> None:
    listed = shared.http.get("/v1/models").json()
    assert listed["object"] == "list"
    card = listed["data"][0]
    assert (card["id"], card["object"]) == ("tiny", "model")
    assert isinstance(card["created"], int)
    assert isinstance(card["owned_by"], str)
    assert {"vocab_type", "n_vocab", "n_ctx_train", "n_params", "size"} <= card["meta"].keys()
    assert card["max_model_len"] == card["meta"]["n_ctx"] == 256
    assert shared.http.get("/v1/models/tiny").json() == card
    error_of(shared.http.get("/v1/models/other"), 404)


def test_g_15_the_only_model_answers_to_any_name(shared: Running) -> None:
    assert shared.post(CHAT, {**HI, "model": "gpt-4o"}).json()["model"] == "tiny"
    error_of(shared.post(CHAT, {**HI, "model": 4}), 400)


def test_version_and_health(shared: Running) -> None:
    from edgellm import __version__

    assert shared.http.get("/version").json() == {"version": __version__}
    for path in ("/health", "/v1/health", "/ping"):
        assert shared.http.get(path).json() == {"status": "ok"}  # HLT-01


def test_root_path(start: Start) -> None:
    s = start(root_path="/llm")
    assert s.http.get("/llm/v1/models").status_code == 200


def test_a_fault_of_ours_is_a_500_without_details(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgellm.server import conversation

    s = start()

    def broken(*_: object, **__: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(conversation, "read", broken)
    answer = s.post(CHAT, HI)
    assert error_of(answer, 500)["type"] == "server_error"
    assert "secret" not in answer.text
    assert answer.headers["x-should-retry"] == "false"


def test_docs_describe_every_route(shared: Running) -> None:
    from edgellm.server import app

    schema = shared.http.get("/openapi.json").json()
    described = {(method, path.replace("{name}", "{name:path}")) for path, m in schema["paths"].items() for method in m}
    page = ("/", "/page.css", "/page.js", "/markdown.js", "/docs", "/openapi.json")
    doubled = ("/chat/completions", "/completions", "/responses", "/embeddings", "/models", "/models/{name:path}",
               "/v1/health", "/ping", "/rerank", "/v1/reranking", "/reranking", "/v2/rerank")  # fmt: skip
    routes = {("post", p) for p in app.POST} | {("get", p) for p in app.GET}
    assert described == {(m, p) for m, p in routes if p not in (*page, *doubled)}
    assert "/v1/chat/completions" in shared.http.get("/docs").text

"""Wrong requests as they go over a wire: bodies, values, framing, and clients that leave. Functions of an `rng`."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from server.fuzzing import BODIES, FIELDS, GET, POST, TALK, VALUES, mutate

READ, END, CLOSE, RESET, STALL = "read", "end", "close", "reset", "stall"


@dataclass(slots=True)
class Attack:
    """What a client sends, and how it goes on.

    pieces: written one after the other. n: requests in them. then: READ an answer to each of them, END what is sent and
    read what comes, CLOSE or RESET after `read` bytes of answers, or STALL until much later. framing: whether this is
    no HTTP, to which an answer may be the protocol's own. methods: of the requests, where answers are read.
    """

    kind: str
    pieces: list[bytes]
    n: int = 1
    then: str = READ
    read: int = 0
    framing: bool = False
    methods: tuple[str, ...] = ("POST",)


BODY_OF: dict[str, dict[str, Any]] = {
    "/v1/messages": {"messages": TALK, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": TALK},
    "/apply-template": {"messages": TALK},
    "/tokenize": BODIES["content"],
    "/detokenize": BODIES["tokens"],
    "/embedding": BODIES["content"],
    "/api/chat": BODIES["ollama"],
    "/api/generate": BODIES["generate"],
    "/api/show": {"model": "tiny"},
    "/api/embed": BODIES["generate"],
    "/api/embeddings": BODIES["generate"],
}
"""A sound body of each path; of others by what their names end with."""

PLACES: tuple[tuple[str | int, ...], ...] = (
    ("messages", 0), ("messages", 0, "role"), ("messages", 0, "content"), ("messages", 0, "name"),
    ("messages", 0, "tool_calls"), ("messages", 0, "tool_call_id"), ("messages", 0, "reasoning_content"),
    ("options", "num_predict"), ("options", "temperature"), ("options", "stop"), ("options", "seed"),
    ("options", "num_ctx"), ("stream_options", "include_usage"), ("response_format", "type"),
    ("response_format", "json_schema"), ("reasoning", "effort"), ("text", "format"), ("text", "format", "type"),
    ("tools", 0), ("tools", 0, "type"), ("tools", 0, "function"), ("tools", 0, "function", "name"),
    ("tools", 0, "function", "parameters"), ("tool_choice", "function"), ("input", 0, "role"), ("input", 0, "content"),
    ("input", 0, "type"), ("chat_template_kwargs", "enable_thinking"), ("logit_bias", "5"), ("metadata", "a"),
)  # fmt: skip


def body_of(path: str) -> dict[str, Any]:
    """A sound body for a path."""
    if path in BODY_OF:
        return BODY_OF[path]
    if "rerank" in path:
        return {"query": "a", "documents": ["a", "b"]}
    last = path.rpartition("/")[2]
    if path.endswith("chat/completions"):
        return BODIES["messages"]
    return BODIES["prompt" if last.startswith("completion") else "input"]


def put(body: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """A copy of a body with a value at a place, which is made on the way."""
    body = json.loads(json.dumps(body))
    at = body
    for name, after in zip(place, (*place[1:], None), strict=True):
        fresh: Any = value if after is None else [{}] if isinstance(after, int) else {}
        if isinstance(at, list):
            at += [{}] * (int(name) + 1 - len(at))
        kept = at[name] if isinstance(at, list) else at.get(name)
        if after is None or not isinstance(kept, list if isinstance(after, int) else dict) or not kept:
            at[name] = fresh
        at = at[name]
    return body


def grid(rng: random.Random) -> Iterator[Attack]:
    """A wrong value (most are) for every field of every endpoint, in any order, again and again."""
    places = [(path, place) for path in POST for place in (*((name,) for name in FIELDS), *PLACES)]
    while True:
        rng.shuffle(places)
        for path, place in places:
            body = put(body_of(path), place, rng.choice(VALUES))
            if rng.random() < 0.2:
                body["stream"] = True
            yield whole("field", rng, "POST", path, json.dumps(body).encode())


# -- framing -----------------------------------------------------------------------------------------------------------


def head(method: str, path: str, *lines: str, version: str = "HTTP/1.1") -> bytes:
    """A request's head, host and the blank line included."""
    return "\r\n".join((f"{method} {path} {version}", "host: localhost", *lines, "", "")).encode("latin-1", "replace")


def chunks(rng: random.Random, raw: bytes, last: bytes = b"0\r\n\r\n") -> bytes:
    """A body in chunks of any size."""
    out, at = b"", 0
    while at < len(raw):
        n = rng.choice((1, 2, 7, 100, 5000))
        piece = raw[at : at + n]
        size = rng.choice((b"%x", b"%X", b"000%x")) % len(piece)
        out += size + rng.choice((b"", b"", b";a=b", b';x="y"')) + b"\r\n" + piece + b"\r\n"
        at += n
    return out + last


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Bytes in a few pieces."""
    if rng.random() < 0.7:
        return [data]
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 5)))
    return [data[a:b] for a, b in zip((0, *places), (*places, len(data)), strict=True)]


def whole(kind: str, rng: random.Random, method: str, path: str, raw: bytes, *lines: str) -> Attack:
    """A request whose framing is right."""
    if rng.random() < 0.15:
        data = head(method, path, "transfer-encoding: chunked", *lines) + chunks(rng, raw)
    else:
        data = head(method, path, f"content-length: {len(raw)}", *lines) + raw
    return Attack(kind, cut(rng, data), methods=(method,))


def sound(rng: random.Random, **more: Any) -> bytes:
    """A sound chat request."""
    return json.dumps({**BODIES["messages"], "max_tokens": rng.randrange(1, 6), **more}).encode()


def broken(kind: str, rng: random.Random, data: bytes) -> Attack:
    """Bytes that are no sound requests; the client ends them."""
    return Attack(kind, cut(rng, data), then=rng.choice((END, END, END, CLOSE, RESET)), framing=True)


CHAT = "/v1/chat/completions"
HEX = (b"zz", b"-5", b"+5", b"0x5", b"", b"5 5", b"ffffffffffffffffff", b"7fffffffffffffff", b"\xff", b"1e3",
       b"5;" + b"a" * 20_000)  # fmt: skip
LENGTHS = ("-1", "+5", "abc", "", "1e3", "0x10", "5, 6", "1.0", "9" * 30, "\u0665", " 5 5", "18446744073709551616")
LINES = (
    "no colon", ": no name", "a b: c", "name : value", " folded: x", "x: y\r\n\tz", "x: a\0b", "x: \x01\x7f", "x: \xff",
    "transfer-encoding: gzip", "transfer-encoding: chunked, chunked", "transfer-encoding: identity",
    "host: other", "connection: upgrade\r\nupgrade: websocket", "upgrade: h2c", "expect: 100-continue",
    "expect: the-unexpected", "content-encoding: gzip", "content-type: \x00", "authorization: Bearer \xff",
    "content-length: 3\r\ncontent-length: 4", "x-request-id: " + "\xff" * 20, "origin: http://[", "origin: null",
)  # fmt: skip
STARTS = (
    b"", b"\r\n", b"\r\n\r\n", b"\n", b"\0", b"GET", b"GET /", b"GET / HTTP/1.1", b"GET / HTTP/1.1\r\n",
    b"GET /health\r\n\r\n",
    b"GET /health HTTP/0.9\r\n\r\n", b"GET /health HTTP/9.9\r\nhost: a\r\n\r\n", b"GET /health HTTP/1.1\n\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"GET  /health  HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /health HTTP/1.1\r\nhost: \xff\r\n\r\n",
    b"get /health HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n", b"{}\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n",
)  # fmt: skip


def any_body(rng: random.Random) -> Attack:
    """A body with wrong members, at any depth."""
    path = rng.choice([*POST, *GET, "/v1/nothing", "/%00", "/v1/models/x/../y"])
    method = "POST" if path in POST else "GET"
    if rng.random() < 0.02:
        method = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "M" * 300))
    raw = json.dumps(mutate(rng, rng.choice((body_of(path), *BODIES.values())))).encode()
    return whole("body", rng, method, path.replace("{name:path}", "tiny"), raw)


def no_json(rng: random.Random) -> Attack:
    """A body that is no JSON object of sound text."""
    raw, n = sound(rng), rng.choice((10, 1000, 100_000))
    at = rng.randrange(len(raw) + 1)
    text = rng.choice(
        (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b"-" + b"9" * 4000, b"01", b"0x1", b"tru")
    )
    made: tuple[Callable[[], bytes], ...] = (
        lambda: b"", lambda: raw[:at], lambda: raw[:at] + rng.randbytes(3) + raw[at:], lambda: raw + b"x",
        lambda: rng.randbytes(n),
        lambda: b"[" * n, lambda: b'{"a":' * n, lambda: b'{"messages":' + b"[" * n + b"]" * n + b"}",
        lambda: b'"' + b"\\" * n,
        lambda: b'{"messages":' + b'[{"a":' * n + b"1" + b"}]" * n + b"}", lambda: raw.replace(b"Hi", b"\\ud800"),
        lambda: raw.replace(b"Hi", rng.choice((b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf8\x88\x80\x80\x80", b"\0"))),
        lambda: raw[:-1] + b',"temperature":' + text + b"}", lambda: raw[:-1] + b',"max_tokens":' + text + b"}",
        lambda: raw[:-1] + b',"logit_bias":{"5":' + text + b"}}", lambda: raw[:-1] + b',"seed":' + text + b"}",
        lambda: b"\xef\xbb\xbf" + raw, lambda: raw.decode().encode(rng.choice(("utf-16", "utf-32", "utf-16-be"))),
        lambda: gzip.compress(raw), lambda: raw[:-1] + b',"x":1' * n + b"}", lambda: b"[" + raw + b"]",
        lambda: raw.replace(b"Hi", b"a" * n), lambda: b"null", lambda: b"5",
    )  # fmt: skip
    return whole(
        "no JSON", rng, "POST", rng.choice(list(POST)), rng.choice(made)(), f"content-type: {rng.choice(TYPES)}"
    )


TYPES = (
    "application/json",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/json; charset=utf-7",
    "",
    "\xff",
)


def bad_chunks(rng: random.Random) -> Attack:
    """Chunks that are none."""
    raw = sound(rng)
    begin = head("POST", CHAT, "transfer-encoding: chunked")
    good = chunks(rng, raw[: rng.randrange(len(raw))], b"")
    return broken("chunks", rng, begin + rng.choice((
        good + rng.choice(HEX) + b"\r\n" + raw, good, good + b"5\r\nab", good + b"2\r\nabcd\r\n0\r\n\r\n",
        good + b"2\nab\n0\n\n",
        good + b"0\r\n" + b"trailer: x\r\n" * rng.choice((1, 5000)) + b"\r\n", good + b"0\r\nno colon\r\n\r\n",
        good + b"0\r\n\0\r\n\r\n",
        raw, b"\r\n", good + rng.randbytes(50), good + b"0\r\n", b"0\r\n\r\n" * 3,
    )))  # fmt: skip


def bad_length(rng: random.Random) -> Attack:
    """A length that is not the body's."""
    raw = sound(rng)
    n = len(raw) + rng.choice((-len(raw), -5, -1, 1, 5, 1000, 10**6, 10**9))
    lines = rng.choice((
        [f"content-length: {n}"], [f"content-length: {rng.choice(LENGTHS)}"], [],
        [f"content-length: {len(raw)}", f"content-length: {n}"],
        [f"content-length: {n}", "transfer-encoding: chunked"], [f"content-length: {len(raw)}"] * 2,
    ))  # fmt: skip
    return broken("length", rng, head("POST", CHAT, *lines) + raw)


def bad_head(rng: random.Random) -> Attack:
    """A head that is none, or a strange one."""
    raw = sound(rng)
    kind = rng.random()
    if kind < 0.3:
        data = rng.choice(STARTS) + rng.choice((b"", raw))
    elif kind < 0.4:
        n = rng.choice((100, 5000, 70_000, 300_000))
        line = rng.choice((f"x: {'a' * n}", "\r\n".join(f"x-{i}: y" for i in range(n // 20)), "a" * n, "a" * n + ": b"))
        data = head("POST", CHAT, line, f"content-length: {len(raw)}") + raw
    elif kind < 0.5:
        n = rng.choice((100, 5000, 70_000, 300_000))
        path = rng.choice(
            ("/" + "a" * n, "/health?" + "a=b&" * (n // 4), "/" + "%ff" * (n // 3), "/v1/models/" + "../" * (n // 3))
        )
        data = head("GET", path)
    elif kind < 0.55:
        data = rng.randbytes(rng.choice((1, 10, 1000, 100_000)))
    elif kind < 0.65:
        data = bytearray(head("POST", CHAT, f"content-length: {len(raw)}") + raw)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = bytes(data)
    else:
        lines = [rng.choice(LINES), f"content-length: {len(raw)}"]
        rng.shuffle(lines)
        data = head("POST", CHAT, *lines, version=rng.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0"))) + raw
    return broken("head", rng, data)


def half(rng: random.Random) -> Attack:
    """The beginning of a sound request."""
    raw = sound(rng, stream=rng.random() < 0.5)
    data = head("POST", CHAT, f"content-length: {len(raw)}") + raw
    data = data[: rng.randrange(len(data))]
    return Attack("half", cut(rng, data), then=rng.choice((END, CLOSE, RESET, STALL)), framing=True)


def several(rng: random.Random) -> Attack:
    """Requests in one piece, sound and wrong ones; all are answered, in order."""
    data, methods, n = b"", list[str](), rng.randrange(2, 6)
    for _ in range(n):
        kind = rng.random()
        if kind < 0.4:
            raw, path = sound(rng, stream=rng.random() < 0.3), CHAT
        elif kind < 0.8:
            path = rng.choice(list(POST))
            raw = json.dumps(mutate(rng, body_of(path))).encode()
        else:
            raw, path = b"", rng.choice(("/health", "/v1/models", "/nothing", "/version"))
        methods.append("POST" if raw else "GET")
        if rng.random() < 0.2 and raw:
            data += head("POST", path, "transfer-encoding: chunked") + chunks(rng, raw)
        else:
            data += head(methods[-1], path, f"content-length: {len(raw)}") + raw
    return Attack("several", cut(rng, data), n, methods=tuple(methods))


def leaving(rng: random.Random) -> Attack:
    """A long answer that nobody reads to its end."""
    path, more = rng.choice((
        (CHAT, {"messages": TALK, "stream": True}), ("/v1/completions", {"prompt": "a", "stream": True}),
        ("/v1/messages", {"messages": TALK, "stream": True}), ("/v1/responses", {"input": "a", "stream": True}),
        ("/api/chat", {"model": "tiny", "messages": TALK}), ("/completion", {"prompt": "a", "stream": True}),
        (CHAT, {"messages": TALK}), ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 3, "stream": True}),
    ))  # fmt: skip
    raw = json.dumps({"max_tokens": 200, "max_output_tokens": 200, "ignore_eos": True, **more}).encode()
    read = rng.choice((0, 1, 1, 400, 3000, 20_000))
    data = head("POST", path, "connection: close", f"content-length: {len(raw)}") + raw
    return Attack("leaving", [data], then=rng.choice((CLOSE, RESET, END)), read=read)


KINDS: dict[Callable[[random.Random], Attack], int] = {
    any_body: 30, no_json: 12, bad_chunks: 6, bad_length: 6, bad_head: 10, half: 5, several: 4, leaving: 5,
}  # fmt: skip
"""How often each comes; fields of the grid are as many again as bodies."""


def attacks(seed: int) -> Iterator[Attack]:
    """Wrong requests without end."""
    rng = random.Random(seed)
    fields = grid(rng)
    made, weights = [*KINDS], [*KINDS.values()]
    while True:
        if rng.random() < 0.35:
            yield next(fields)
        else:
            yield rng.choices(made, weights)[0](rng)

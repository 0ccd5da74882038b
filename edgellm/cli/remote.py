"""A model on a running server, with what the chat asks of one: `edgellm chat --url`.

Any server that speaks OpenAI's chat completions will do: edgellm serve, llama-server, vLLM, Ollama.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.parse
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from edgellm.cli import sampling
from edgellm.core.config import SamplingParams
from edgellm.core.errors import ConfigError, EngineError, ModelNotFound, RequestError
from edgellm.core.record import dataclass
from edgellm.core.results import Choice, Chunk, Completion, Timings, Usage
from edgellm.core.version import __version__

CONNECT_SECONDS = 10.0
"""How long a server may take to accept a connection. Answers may take any time: prompts can be long."""

MAX_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class RemoteInfo:
    """What a server says about a model. n_ctx: 0 where it does not say; path: the server's address."""

    path: str
    n_ctx: int
    fingerprint: str


class Remote:
    """A model of the server at `url`. model: its name there; "" for the first one.

    Raises ConfigError for an address that is none, EngineError where nobody answers, ModelNotFound, RequestError.
    """

    is_base = False

    def __init__(self, url: str, model: str = "", key: str | None = None) -> None:
        self.url = _address(url)
        self._key = key
        self._open: http.client.HTTPConnection | None = None
        with closing(self._connection()) as connection:
            listed = _json(self._send(connection, "GET", "/models", None))
        cards = [c for c in _list(listed, "data") if isinstance(c, dict) and isinstance(c.get("id"), str)]
        names = [c["id"] for c in cards]
        found = [c for c in cards if model in ("", c["id"], *_list(c, "aliases"))]
        if not found:
            raise ModelNotFound(f"{self.url} has no model {model!r:.80}; it has: {', '.join(names) or 'none'}")
        self.name: str = found[0]["id"]
        self.info = RemoteInfo(self.url, _context(found[0]), "")

    def chat(
        self, messages: list[dict[str, str]], params: SamplingParams, *, stream: bool = True, on_error: str = "raise"
    ) -> Generator[Chunk, None, None]:
        """Answer a conversation, as LLM.chat with stream=True and on_error="raise".

        A seed is drawn here where none is given, so that the answer can be asked for again.
        """
        fields = sampling.given_fields(params)
        seed = fields.setdefault("seed", int.from_bytes(os.urandom(4), "little") >> 1)
        body = {"model": self.name, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        body["reasoning_format"] = "none"  # thoughts are shown as they are written, as those of a model in this process
        begun = time.monotonic()
        first = 0.0
        reason, text, usage = "", "", Usage(0, 0)
        connection = self._connection()
        with closing(connection):
            for event in _events(self._send(connection, "POST", "/chat/completions", {**body, **fields})):
                counts = event.get("usage")
                if isinstance(counts, dict):
                    usage = Usage(_int(counts.get("prompt_tokens")), _int(counts.get("completion_tokens")))
                if isinstance(event.get("system_fingerprint"), str):
                    self.info = RemoteInfo(self.url, self.info.n_ctx, event["system_fingerprint"])
                for choice in _list(event, "choices"):
                    piece = choice.get("delta", {}).get("content") or ""
                    reason = choice.get("finish_reason") or reason
                    if piece:
                        first = first or time.monotonic()
                        text += piece
                        yield Chunk(piece, [])
        if not reason:
            raise EngineError(f"{self.url} stopped in the middle of the answer")
        ended = time.monotonic()
        first = first or ended
        timings = Timings(0.0, first - begun, ended - first, first - begun)
        done = Completion([Choice(0, text, [], reason)], usage, timings, seed, self.info.fingerprint)
        yield Chunk("", [], 0, reason, done)

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """RequestError: the server has the vocabulary."""
        raise RequestError("tokens are counted by the server")

    def chat_tokens(self, messages: list[dict[str, str]]) -> list[int]:
        """RequestError: the server has the vocabulary."""
        raise RequestError("tokens are counted by the server")

    def close(self) -> None:
        """Nothing is kept open between answers."""

    # -- inside ----------------------------------------------------------------------------------------------------

    def _connection(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
        except OSError as e:
            raise EngineError(f"{self.url} does not answer: {e.strerror or e}. Is the server running?") from None
        connection.sock.settimeout(None)
        return connection

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None
    ) -> http.client.HTTPResponse:
        """The answer to a request below /v1. EngineError and RequestError, in the server's own words."""
        headers = {"Accept": "*/*", "User-Agent": f"edgellm/{__version__}"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode("utf-8", "surrogatepass")
        try:
            connection.request(method, urllib.parse.urlsplit(self.url).path + "/v1" + path, data, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as e:
            raise EngineError(f"{self.url} does not answer: {e}") from None
        if response.status == 200:
            return response
        text = response.read(MAX_LINE).decode("utf-8", "replace")
        try:
            said = _message(json.loads(text))
        except ValueError:
            said = ""
        said = said or f"HTTP {response.status} {response.reason}"
        if response.status == 401:
            said += " (give the server's key in EDGELLM_API_KEY)"
        raise (RequestError if response.status < 500 else EngineError)(f"{self.url}: {said}")


def _address(url: str) -> str:
    """The address without a trailing slash or /v1, with a scheme."""
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urllib.parse.urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or parts.username is not None:
        raise ConfigError(f"--url must be the address of a server, as http://127.0.0.1:8080, found {url!r:.80}")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/v1").rstrip("/")


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The objects of an event stream, up to [DONE] or its end. RequestError for an event that is an error."""
    while True:
        try:
            line = response.readline(MAX_LINE)
        except (OSError, http.client.HTTPException) as e:
            raise EngineError(f"the connection to the server broke: {e}") from None
        if not line:
            return
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise EngineError(f"the server sent no JSON: {data[:80]!r}") from None
        if not isinstance(event, dict):
            raise EngineError(f"the server sent no object: {data[:80]!r}")
        if event.get("error"):
            raise RequestError(_message(event) or "the server failed")
        yield event


def _json(response: http.client.HTTPResponse) -> Any:
    try:
        return json.loads(response.read())
    except (ValueError, OSError, http.client.HTTPException) as e:
        raise EngineError(f"the server did not answer with JSON: {e}") from None


def _message(answer: Any) -> str:
    """The text of an error, in the shapes that servers give it."""
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    found = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return found if isinstance(found, str) else ""


def _list(answer: Any, key: str) -> list[Any]:
    found = answer.get(key) if isinstance(answer, dict) else None
    return found if isinstance(found, list) else []


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _context(card: dict[str, Any]) -> int:
    """The context size that a model's card states, 0 where it states none."""
    meta = card.get("meta")
    places = [card.get("max_model_len"), card.get("context_length"), (meta or {}).get("n_ctx")]
    return next((n for n in places if isinstance(n, int) and n > 0), 0)

"""`edgellm serve` as a program under wrong requests over real sockets, while well-formed ones go on beside them.

What is a complaint: a 500, 502, 503 or 504 (the load is far below the queue's limit), a 501 for anything but a field
that is not supported, an error without its shape, an answer that does not come within DEADLINE seconds, a well-formed
request whose answer is not the one it has when it is alone, /health that is not 200, a traceback in the log; and, at
the end, a process that is gone, keeps requests, pages or descriptors, has grown, or does not end with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from server.attacks import END, READ, RESET, STALL, Attack, attacks, head
from server.fuzzing import complaint

DEADLINE = 60.0
STALLED = 24
"""Connections that are left open in the middle of a request, at most."""
GROWTH_PERCENT, LONG = 5.0, 10_000
"""Memory after the first half may grow by so much to the end, in runs of so many requests."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "16384"}
"""For the server: glibc gives large blocks back when they are freed, so that what memory grows by is in use."""


class Answer(NamedTuple):
    """One response. closes: whether the connection ends with it. whole: whether it came to its end."""

    status: int
    kind: str
    body: bytes
    closes: bool
    whole: bool


async def read_answer(reader: asyncio.StreamReader, method: str) -> Answer | None:
    """The next answer of a connection; None where it has ended. ValueError where it is no HTTP."""
    while True:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError as e:
            if e.partial:
                return Answer(0, "", e.partial, True, False)
            return None
        found = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", lines[0])
        if found is None:
            raise ValueError(f"not a status line: {lines[0]!r:.80}")
        status = int(found[1])
        if status >= 200:
            break
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    kind, closes = headers.get("content-type", ""), headers.get("connection", "") == "close"
    if method == "HEAD" or status in (204, 304):
        return Answer(status, "", b"", closes, True)
    body, whole = b"", True
    try:
        if headers.get("transfer-encoding") == "chunked":
            while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body, closes = await reader.read(), True
    except asyncio.IncompleteReadError as e:
        body, whole = body + e.partial, False
    return Answer(status, kind, body, closes, whole)


def judge(answer: Answer, attack: Attack) -> str | None:
    """What is wrong with an answer to an attack."""
    if answer.status == 400 and attack.framing and answer.body == b"Invalid HTTP request received.":
        return None
    if answer.status in (0, 502, 503, 504):
        return f"status {answer.status}: {answer.body[:300]!r}"
    if not answer.kind and not answer.body:  # of HEAD
        return None if answer.status != 500 else "status 500"
    if (wrong := complaint(answer.status, answer.body)) is not None:
        return wrong
    if answer.status == 501:
        error = json.loads(answer.body)["error"]
        known = ("not_supported_error", "invalid_request_error")  # the second one is Anthropic's word for it
        if isinstance(error, dict) and error["type"] not in known:
            return f"a 501 of another kind: {answer.body[:300]!r}"
    if answer.status == 200 and answer.whole and answer.kind.startswith("application/json"):
        try:
            json.loads(answer.body)
        except ValueError:
            return f"no JSON: {answer.body[:300]!r}"
    if answer.status == 200 and answer.whole and not answer.body.endswith(b"\n\n") and "event-stream" in answer.kind:
        return f"a stream that ends in an event: {answer.body[-300:]!r}"
    return None


# -- well-formed requests ----------------------------------------------------------------------------------------------

TALKS = ("Hi", "hello world, the STOP world", "Tell me of the world. " * 4, "\u00e9\U0001f600 the world")


def good_requests() -> list[tuple[str, dict[str, Any]]]:
    """Path and body of requests in every dialect, streamed and not, greedy and seeded."""
    found: list[tuple[str, dict[str, Any]]] = []
    for i, text in enumerate(TALKS):
        talk = [{"role": "user", "content": text}]
        how: dict[str, Any] = {"temperature": 0, "seed": 1} if i % 2 else {"temperature": 0.9, "seed": 10 + i}
        options = {**how, "num_predict": 14}
        for stream in (False, True):
            found += [
                ("/v1/chat/completions", {"messages": talk, "max_tokens": 12 + i, "logprobs": True, **how}),
                ("/v1/completions", {"prompt": text, "max_tokens": 10, "n": 2, **how}),
                ("/v1/responses", {"input": text, "max_output_tokens": 9, **how}),
                ("/v1/messages", {"messages": talk, "max_tokens": 8, **how}),
                ("/completion", {"prompt": text, "n_predict": 11, **how}),
                ("/api/chat", {"model": "tiny", "messages": talk, "options": options}),
                ("/api/generate", {"model": "tiny", "prompt": text, "options": options}),
            ]
            for _, body in found[-7:]:
                body["stream"] = stream
        found += [("/v1/embeddings", {"input": text}), ("/tokenize", {"content": text})]
    return found


VOLATILE = frozenset(
    "id created created_at completed_at timings item_id total_duration load_duration prompt_eval_duration "
    "eval_duration cached_tokens tokens_cached input_tokens cache_read_input_tokens cache_creation_input_tokens "
    "prompt_eval_count".split()
)
"""What differs from one answer to the same request to the next: names, times, what the cache had."""


def lasting(value: Any) -> Any:
    """A JSON value without what is volatile."""
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in VOLATILE}
    return [lasting(v) for v in value] if isinstance(value, list) else value


def essence(answer: Answer) -> Any:
    """What of an answer has to be the same each time. ValueError where it is not whole."""
    if answer.status != 200 or not answer.whole:
        raise ValueError(f"{answer.status}, {'whole' if answer.whole else 'cut off'}: {answer.body[-300:]!r}")
    if answer.kind.startswith("application/json"):
        return lasting(json.loads(answer.body))
    lines = [line.removeprefix("data: ") for line in answer.body.decode().split("\n")]
    if lines[-1] or not any(word in answer.body for word in ENDS):
        raise ValueError(f"a stream without its end: {answer.body[-300:]!r}")
    pieces: dict[int, str] = {}
    ends: dict[int, list[Any]] = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        if "error" in event and event["error"] is not None:
            raise ValueError(f"an error in a stream: {line:.300}")
        for where, piece, end in texts_of(event):
            pieces[where] = pieces.get(where, "") + piece
            if end is not None:
                ends.setdefault(where, []).append(end)
    return sorted(pieces.items()), sorted(ends.items(), key=lambda item: item[0])


ENDS = (
    b"data: [DONE]\n\n",
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.incomplete",
    b'"done":true',
    b'"stop":true',
)


def texts_of(event: dict[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """(choice, text, how it ends) of an event, in any dialect."""
    for choice in event.get("choices", ()):
        delta = choice.get("delta")
        piece = choice["text"] if delta is None else delta.get("content") or ""
        yield choice["index"], piece, choice["finish_reason"]
    kind = event.get("type", "")
    if kind == "response.output_text.delta":
        yield 0, event["delta"], None
    elif kind in ("response.completed", "response.incomplete"):
        yield 0, "", lasting(event["response"])
    elif kind == "content_block_delta":
        yield 0, event["delta"]["text"], None
    elif kind == "message_delta":
        yield 0, "", [event["delta"]["stop_reason"], event["usage"]["output_tokens"]]
    if "done" in event:  # Ollama's
        end = [event.get("done_reason"), event.get("eval_count")] if event["done"] else None
        yield 0, event["message"]["content"] if "message" in event else event["response"], end
    if "stop" in event and "content" in event:  # llama.cpp's
        end = [event["stop_type"], event["tokens_predicted"]] if event["stop"] else None
        yield event["index"], event["content"], end


# -- the server --------------------------------------------------------------------------------------------------------


class Server:
    """`edgellm serve` in a process of its own; its log is read as it comes, and tracebacks are kept."""

    def __init__(self, model: str, *words: str) -> None:
        command = [sys.executable, "-m", "edgellm", "serve", model, "--port", "0", *words]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **ALLOCATOR}
        )
        self.faults: list[str] = []
        self.port = 0
        log = self.process.stderr
        assert log is not None
        said = []
        for line in log:
            said.append(line)
            if found := re.search(r"at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            self.process.wait()
            log.close()
            raise AssertionError(f"the server did not start: {''.join(said)}")
        self._log = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._log.start()

    def _read(self, log: Any) -> None:
        left = 0
        for line in log:
            if any(word in line for word in ("Traceback", "ERROR", "socket.send()")):
                left = 40
            if left:
                self.faults.append(line)
                left -= 1

    def descriptors(self) -> int:
        """Open ones; 0 where the system does not say."""
        with contextlib.suppress(OSError):
            return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))
        return 0

    def resident(self) -> int:
        """Bytes of memory of its own; 0 where the system does not say."""
        with contextlib.suppress(OSError):
            found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(), re.M)
            return int(found[1]) * 1024 if found else 0
        return 0

    def end(self) -> int:
        """SIGTERM (the end of it on Windows); the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._log.join()
        return code

    def close(self) -> None:
        """Let go of the log of a process that has ended."""
        self._log.join()
        if self.process.stderr is not None:
            self.process.stderr.close()


@dataclass
class Report:
    """What was sent and what was seen."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    good: int = 0
    health: list[float] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


class Siege:
    """The clients of one run."""

    def __init__(self, server: Server, source: Iterator[Attack], n: int) -> None:
        self.server, self.source, self.n, self.report = server, source, n, Report()
        self.expected: list[tuple[str, dict[str, Any], Any]] = []
        self.stalled: deque[asyncio.StreamWriter] = deque()
        self.over = asyncio.Event()
        self.memory: list[int] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 20)

    async def ask(self, path: str, body: dict[str, Any] | None, close: bool = True) -> Answer:
        """The answer to a request on a connection of its own. OSError, ValueError."""
        raw = b"" if body is None else json.dumps(body).encode()
        reader, writer = await self.connect()
        try:
            method = "GET" if body is None else "POST"
            writer.write(head(method, path, "connection: close", f"content-length: {len(raw)}") + raw)
            answer = await read_answer(reader, method)
            if answer is None:
                raise ValueError("no answer")
            return answer
        finally:
            writer.transport.abort()

    # -- who attacks -----------------------------------------------------------------------------------------------

    async def attacker(self) -> None:
        """Send wrong requests until there have been enough."""
        kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while self.report.requests < self.n:
            attack = next(self.source)
            self.report.requests += attack.n
            self.report.kinds[attack.kind] += attack.n
            connection = kept if kept is not None and attack.then == READ else await self.connect()
            if kept is not None and connection is not kept:
                kept[1].transport.abort()
            kept = None
            try:
                if await asyncio.wait_for(self.send(attack, *connection), DEADLINE):
                    kept = connection
            except asyncio.TimeoutError:
                self.complain(attack, f"no end after {DEADLINE:g} s")
            except ValueError as e:
                self.complain(attack, str(e))
            except OSError:  # it was closed while we wrote: what is wrong with a head is said before its end
                self.report.statuses[0] += 1
                if attack.then == READ:
                    self.complain(attack, "the connection was cut")
            if kept is None and connection[1] not in self.stalled:
                connection[1].transport.abort()
        if kept is not None:
            kept[1].transport.abort()

    async def send(self, attack: Attack, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One attack; whether the connection can be used again."""
        for piece in attack.pieces:
            writer.write(piece)
            await writer.drain()
            if len(attack.pieces) > 1:
                await asyncio.sleep(0)
        if attack.then == STALL:
            self.stalled.append(writer)
            if len(self.stalled) > STALLED:
                self.stalled.popleft().transport.abort()
            return False
        if attack.then == READ:
            return await self.read_all(attack, reader)
        if attack.read:
            with contextlib.suppress(asyncio.IncompleteReadError):
                await reader.readexactly(attack.read)
        if attack.then == END:
            writer.write_eof()
            await self.read_rest(attack, reader)
        elif attack.then == RESET:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    async def read_all(self, attack: Attack, reader: asyncio.StreamReader) -> bool:
        for method in attack.methods:
            answer = await read_answer(reader, method)
            if answer is None:
                raise ValueError("the connection ended without an answer")
            self.take(attack, answer)
            if not answer.whole:
                raise ValueError(f"an answer was cut off: {answer.body[-300:]!r}")
            if answer.closes:
                if method is not attack.methods[-1]:
                    raise ValueError(f"the connection ended before the last answer, with {answer.status}")
                return False
        return True

    async def read_rest(self, attack: Attack, reader: asyncio.StreamReader) -> None:
        """Whatever comes to an end of what was sent: the client counts as gone, so that answers may be cut off."""
        if attack.read:
            await reader.read()
            return
        while (answer := await read_answer(reader, "GET")) is not None:
            if answer.whole:
                self.take(attack, answer)

    def take(self, attack: Attack, answer: Answer) -> None:
        self.report.statuses[answer.status] += 1
        if (wrong := judge(answer, attack)) is not None:
            self.complain(attack, wrong)

    def complain(self, attack: Attack, text: str) -> None:
        sent = b"".join(attack.pieces)
        self.report.complaints.append(f"{attack.kind}, {attack.then}: {sent[:600]!r} ({len(sent)} bytes): {text}")

    # -- who is well-behaved ---------------------------------------------------------------------------------------

    async def well_behaved(self, first: int, step: int) -> None:
        """Send well-formed requests, one after the other, until the attackers have ended."""
        at = first
        while not self.over.is_set():
            path, body, expected = self.expected[at % len(self.expected)]
            at += step
            self.report.good += 1
            try:
                found = essence(await asyncio.wait_for(self.ask(path, body), DEADLINE))
                if found != expected:
                    raise ValueError(f"another answer: {found!r:.500} instead of {expected!r:.500}")
            except (ValueError, OSError, asyncio.TimeoutError) as e:
                self.report.complaints.append(f"a well-formed request was disturbed: {path} {body}: {e!r:.1200}")

    async def healthy(self) -> None:
        """Ask /health again and again."""
        while not self.over.is_set():
            begin = time.perf_counter()
            try:
                status = (await asyncio.wait_for(self.ask("/health", None), DEADLINE)).status
                self.report.health.append(time.perf_counter() - begin)
                if status != 200:
                    raise ValueError(str(status))
            except (ValueError, OSError, asyncio.TimeoutError) as e:
                self.report.complaints.append(f"/health: {e!r:.300}")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.over.wait(), 0.05)

    async def figure(self, name: str) -> float:
        """One of /metrics."""
        found = re.search(rf"^edgellm:{name} (\S+)$", (await self.ask("/metrics", None)).body.decode(), re.M)
        return float(found[1]) if found else -1.0

    # -- all of it -------------------------------------------------------------------------------------------------

    async def run(self, n_attackers: int = 16, n_good: int = 4) -> Report:
        """Everything but the end of the process."""
        report, server = self.report, self.server
        while (await self.ask("/health", None)).status == 503:
            pass
        for path, body in good_requests():
            self.expected.append((path, body, essence(await self.ask(path, body))))
        descriptors, begin = await self.settled(), time.perf_counter()
        beside = [asyncio.ensure_future(self.well_behaved(i, n_good)) for i in range(n_good)]
        beside.append(asyncio.ensure_future(self.healthy()))
        attackers = [asyncio.ensure_future(self.attacker()) for _ in range(n_attackers)]
        watching = asyncio.ensure_future(self.watch())
        try:
            await asyncio.gather(*attackers)
        finally:
            self.over.set()
        await asyncio.gather(*beside)
        await watching
        memory = [*self.memory, server.resident()]
        for writer in self.stalled:
            writer.transport.abort()
        seconds = time.perf_counter() - begin
        for path, body, expected in self.expected:
            if essence(await self.ask(path, body)) != expected:
                report.complaints.append(f"afterwards, alone: another answer to {path} {body}")
        left = await self.settled(descriptors)
        growth = (memory[-1] / memory[4] - 1) * 100 if memory[4] else 0.0
        busy = await self.figure("requests_processing") + await self.figure("requests_deferred")
        pages = await self.figure("kv_cache_usage_perc")
        report.figures = {
            "seconds": round(seconds, 1), "descriptors": [descriptors, left],
            "resident_mb": [round(m / 1e6, 1) for m in memory],
            "memory_growth_percent": round(growth, 2), "requests_left": busy, "pages_left": pages,
            "health_p99_ms": round(sorted(report.health)[int(0.99 * len(report.health))] * 1e3, 1),
        }  # fmt: skip
        for name, wrong in (
            ("requests_left", busy != 0), ("pages_left", pages != 0), ("descriptors", left > descriptors),
            ("memory_growth_percent", growth > GROWTH_PERCENT and self.n >= LONG),
        ):  # fmt: skip
            if wrong:
                report.complaints.append(f"at the end: {name} is {report.figures[name]}")
        return report

    async def settled(self, at_most: int = 0) -> int:
        """Descriptors, when as few as before are open and no requests are left, or after a while."""
        end = time.monotonic() + DEADLINE / 2
        while True:
            busy = await self.figure("requests_processing") + await self.figure("requests_deferred")
            now = self.server.descriptors()
            if (busy == 0 and (now <= at_most or not at_most)) or time.monotonic() > end:
                return now
            await asyncio.sleep(0.05)

    async def watch(self) -> None:
        """Memory after each tenth of the requests."""
        for tenth in range(1, 10):
            while self.report.requests < tenth * self.n / 10 and not self.over.is_set():
                await asyncio.sleep(0.05)
            self.memory.append(self.server.resident())


def run(model: str, n: int, seed: int, *words: str, n_attackers: int = 16, n_good: int = 4) -> Report:
    """Serve a model, send it n wrong requests, end it; everything that was seen."""
    server = Server(model, *words)
    try:

        async def go() -> Report:
            return await Siege(server, attacks(seed), n).run(n_attackers, n_good)

        report = asyncio.run(go())
        if server.process.poll() is not None:
            report.complaints.append(f"the process has ended: {server.process.returncode}")
        if (code := server.end()) != 0:
            report.complaints.append(f"exit code {code}")
        if server.faults:
            report.complaints.append("the log: " + "".join(server.faults[:80]))
        return report
    finally:
        server.process.kill()
        server.process.wait()
        server.close()

"""What serving costs: figures of `edgellm serve` under load, each beside what it has to be. Linux only (/proc).

python scripts/serve_load.py clients MODEL [--streams 64] [--seconds 300] [--leave 0.1]
    Streaming clients, some of which leave at random: errors of the others (0), p99 of /health (50 ms), resident memory
    at a tenth of the time and at the end (+3 %), pages and requests that are left (0).
python scripts/serve_load.py loop MODEL [--streams 8]
    Processor time of the event loop for each token (60 us).
python scripts/serve_load.py drain MODEL [--streams 8]
    Tokens a second through raw sockets, of those of the bare engine in a process of its own (90 %).
python scripts/serve_load.py bursts MODEL
    Decoding in a process where another thread computes in Python for 20 ms of every 40, of that where none does (85 %).
    The engine leaves it a core (-t), so that what is lost is lost to the interpreter's lock.
python scripts/serve_load.py start MODEL
    Seconds from the command to the first 200 of /health (0.8), and resident memory over the bare engine's (60 MB).

--json prints one object. Exit code 1 where a figure misses its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = "river stone window garden letter winter market silver bridge captain morning shadow lantern forest".split()
LIMITS: dict[str, tuple[str, float]] = {
    "errors": ("<=", 0), "health_p99_ms": ("<=", 50), "memory_growth_percent": ("<=", 3), "pages_left": ("<=", 0),
    "requests_left": ("<=", 0), "loop_us_per_token": ("<=", 60), "drain_percent": (">=", 90),
    "bursts_percent": (">=", 85), "ready_seconds": ("<=", 0.8), "memory_over_engine_mb": ("<=", 60),
}  # fmt: skip
"""What each figure has to be; others are told beside."""


class Server:
    """`edgellm serve MODEL` in a process of its own."""

    def __init__(self, model: str, *words: str) -> None:
        self.begun = time.perf_counter()
        command = [sys.executable, "-m", "edgellm", "serve", model, "--port", "0", "--log-disable", *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"at http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        else:
            raise SystemExit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # its log must not fill the pipe
        while self.get("/health") is None:
            time.sleep(0.005)
        self.ready = time.perf_counter() - self.begun

    def get(self, path: str) -> str | None:
        """The body of a GET; None for anything but 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def figure(self, name: str) -> float:
        """A figure of /metrics."""
        found = re.search(rf"^edgellm:{name} (\S+)$", self.get("/metrics") or "", re.M)
        return float(found[1]) if found else 0.0

    @property
    def resident(self) -> int:
        """Bytes of memory that are the process's own, files that it maps left out."""
        return resident(self.process.pid)

    @property
    def loop_seconds(self) -> float:
        """Processor time of the main thread, where the event loop runs."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def end(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def resident(pid: int) -> int:
    """Bytes of anonymous memory of a process."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


def request(prompt: str, max_tokens: int, seed: int, ignore_eos: bool) -> bytes:
    """A streamed chat request as it goes over the wire."""
    body = json.dumps(
        {"messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": max_tokens, "seed": seed,
         "ignore_eos": ignore_eos}
    ).encode()  # fmt: skip
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        "host: localhost",
        "connection: close",
        f"content-length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


# -- clients that come and go --------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What the clients saw."""

    finished: int = 0
    left: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    health: list[float] = field(default_factory=list)


def jobs(rng: random.Random, n: int) -> Iterator[bytes]:
    """The same n requests again and again: memory that the prefix cache takes by design is taken when each has been
    answered once, and what still grows is lost."""
    prompts = [" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) for _ in range(n)]
    return itertools.cycle([request(prompt, rng.randint(16, 128), i, False) for i, prompt in enumerate(prompts)])


async def client(port: int, work: Iterator[bytes], rng: random.Random, end: float, leave: float, tally: Tally) -> None:
    """Send requests one after the other; leave some of them in the middle."""
    while time.monotonic() < end:
        leaves = rng.random() < leave
        leave_after = rng.expovariate(1 / 0.5) if leaves else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(next(work))
            if leave_after is not None:
                try:
                    await asyncio.wait_for(reader.read(), leave_after)
                except asyncio.TimeoutError:
                    tally.left += 1
                    continue
                tally.finished += 1
                continue
            answer = await reader.read()
            if b" 200 " not in answer[:20]:
                tally.errors[answer[9:12].decode("latin-1") or "no answer"] += 1
            elif b'"finish_reason":"' not in answer or b"data: [DONE]" not in answer or b'"error"' in answer:
                tally.errors["a stream that ends badly"] += 1
            else:
                tally.finished += 1
        except OSError as e:
            tally.errors[type(e).__name__] += 1
        finally:
            writer.close()


async def health(port: int, end: float, tally: Tally) -> None:
    """Ask /health ten times a second, each time over a new connection."""
    while time.monotonic() < end:
        begin = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        tally.health.append(time.perf_counter() - begin)
        if b" 200 " not in answer[:20]:
            tally.errors["/health"] += 1
        await asyncio.sleep(0.1)


async def come_and_go(server: Server, args: argparse.Namespace, tally: Tally) -> list[int]:
    """Resident memory after each tenth of the time."""
    end = time.monotonic() + args.seconds
    rng = random.Random(args.seed)
    work = jobs(rng, args.jobs)
    tasks = [
        asyncio.ensure_future(client(server.port, work, random.Random(rng.random()), end, args.leave, tally))
        for _ in range(args.streams)
    ]
    probing = asyncio.ensure_future(health(server.port, end, tally))
    memory = []
    for tenth in range(9, -1, -1):
        await asyncio.sleep(max(0.0, end - tenth * args.seconds / 10 - time.monotonic()))
        memory.append(server.resident)
    await asyncio.gather(probing, *tasks)
    return memory


def clients(args: argparse.Namespace) -> dict[str, Any]:
    server, tally = Server(args.model, *args.words), Tally()
    memory = asyncio.run(come_and_go(server, args, tally))
    deadline = time.monotonic() + 10
    while server.figure("requests_processing") + server.figure("requests_deferred") and time.monotonic() < deadline:
        time.sleep(0.05)
    left = server.figure("requests_processing") + server.figure("requests_deferred")
    pages = server.figure("kv_cache_usage_perc")
    code = server.end()
    if code:
        tally.errors[f"exit code {code}"] += 1
    quantiles = statistics.quantiles(tally.health, n=100)
    return {
        "errors": sum(tally.errors.values()), "which": dict(tally.errors), "finished": tally.finished,
        "left": tally.left, "health_p50_ms": quantiles[49] * 1e3, "health_p99_ms": quantiles[98] * 1e3,
        "resident_mb": [round(m / 1e6, 1) for m in memory],
        "memory_growth_percent": (memory[-1] / memory[0] - 1) * 100, "pages_left": pages, "requests_left": left,
    }  # fmt: skip


# -- draining sockets ----------------------------------------------------------------------------------------------


def prompts_of(args: argparse.Namespace) -> list[str]:
    """A prompt a stream, none of which begins as another."""
    rng = random.Random(args.seed)
    return [" ".join(rng.choices(WORDS, k=16)) for _ in range(args.streams)]


def drained(port: int, args: argparse.Namespace) -> float:
    """Seconds in which all streams are read to their ends, by one thread that only counts."""
    selector, n = selectors.DefaultSelector(), 0
    begin = time.perf_counter()
    for i, prompt in enumerate(prompts_of(args)):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(request(prompt, args.tokens, i, True))
        selector.register(sock, selectors.EVENT_READ, [])
        n += 1
    while n:
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            key.data.append(data)
            if not data:
                n -= 1
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
                answer = b"".join(key.data)
                if b"[DONE]" not in answer or b'"length"' not in answer:
                    raise SystemExit(f"a stream ended badly: {answer[-300:]!r}")
    return time.perf_counter() - begin


def loop(args: argparse.Namespace) -> dict[str, Any]:
    server = Server(args.model, *args.words)
    drained(server.port, args)
    costs = []
    for _ in range(args.rounds):
        before = server.loop_seconds
        drained(server.port, args)
        costs.append((server.loop_seconds - before) * 1e6 / (args.streams * args.tokens))
    server.end()
    return {"loop_us_per_token": statistics.median(costs), "each": costs}


ENGINE = """
import asyncio, json, sys, time
from edgellm import AsyncLLM, SamplingParams
from edgellm.cli.serve import N_PARALLEL
model, prompts, tokens, rounds = json.loads(sys.argv[1])
async def main():
    llm = AsyncLLM(model, max_seqs=N_PARALLEL)
    params = [SamplingParams(max_tokens=tokens, seed=i, ignore_eos=True) for i in range(len(prompts))]
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        await asyncio.gather(*(llm.chat(p, q) for p, q in zip(prompts, params)))
        print(time.perf_counter() - begin, flush=True)
        sys.stdin.readline()
    await llm.close()
asyncio.run(main())
"""
"""The bare engine: the same answers, in one piece each. A line of input starts the next round."""


@contextmanager
def engine(args: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """The bare engine, after its first round."""
    words = json.dumps([args.model, prompts_of(args), args.tokens, args.rounds])
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE, words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def drain(args: argparse.Namespace) -> dict[str, Any]:
    server = Server(args.model, *args.words)
    drained(server.port, args)
    ours, bare = [], []
    with engine(args) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(args.rounds):  # in turns: what else the machine does falls on both
            ours.append(drained(server.port, args))
            process.stdin.write("\n")
            process.stdin.flush()
            bare.append(float(process.stdout.readline()))
    server.end()
    n = args.streams * args.tokens
    return {
        "drain_percent": statistics.median(bare) / statistics.median(ours) * 100,
        "server_tokens_per_second": n / statistics.median(ours),
        "engine_tokens_per_second": n / statistics.median(bare),
        "each": {"server": ours, "engine": bare},
    }


# -- a busy neighbour in the same process --------------------------------------------------------------------------


BURSTS = """
import time
while on():
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass
    time.sleep(0.02)
"""
"""Python that computes for 20 ms of every 40."""


@contextmanager
def neighbour(kind: str) -> Iterator[None]:
    """Somebody busy: a "thread" of this process, a "process" (which takes a core, but not the lock), or "none"."""
    if kind == "thread":
        leave = threading.Event()
        thread = threading.Thread(target=exec, args=(BURSTS, {"on": lambda: not leave.is_set()}))
        thread.start()
        yield
        leave.set()
        thread.join()
    elif kind == "process":
        process = subprocess.Popen([sys.executable, "-c", BURSTS.replace("on()", "True")])
        yield
        process.kill()
        process.wait()
    else:
        yield


def bursts(args: argparse.Namespace) -> dict[str, Any]:
    from edgellm import LLM

    rates: dict[str, list[float]] = {"none": [], "thread": [], "process": []}
    with LLM(args.model, n_threads=args.threads) as llm:

        def decode() -> float:
            n, first = 0, 0.0
            for chunk in llm.chat("Tell me a story.", max_tokens=args.tokens, ignore_eos=True, seed=1, stream=True):
                if not first:
                    first = time.perf_counter()
                else:
                    n += len(chunk.token_ids)
            return n / (time.perf_counter() - first)

        decode()
        for _ in range(args.rounds):
            for kind, found in rates.items():
                with neighbour(kind):
                    found.append(decode())
    middle = {kind: statistics.median(found) for kind, found in rates.items()}
    return {
        "bursts_percent": middle["thread"] / middle["none"] * 100,
        "beside_a_process_percent": middle["process"] / middle["none"] * 100,
        "tokens_per_second": middle,
    }


# -- the start -----------------------------------------------------------------------------------------------------


def start(args: argparse.Namespace) -> dict[str, Any]:
    seconds, memory = [], []
    for _ in range(args.rounds):
        server = Server(args.model, *args.words)
        seconds.append(server.ready)
        drained(server.port, args)
        memory.append(server.resident)
        server.end()
    with engine(args) as process:
        bare = resident(process.pid)
    return {
        "ready_seconds": statistics.median(seconds),
        "memory_over_engine_mb": (statistics.median(memory) - bare) / 1e6,
        "server_mb": statistics.median(memory) / 1e6,
        "engine_mb": bare / 1e6,
        "each": seconds,
    }


MODES = {"clients": clients, "loop": loop, "drain": drain, "bursts": bursts, "start": start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--streams", type=int, help="clients at once (8; of `clients`: 64; of `start`: 1)")
    parser.add_argument(
        "-t", "--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="of the engine, for `bursts`"
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--leave", type=float, default=0.1, help="share of requests whose client leaves")
    parser.add_argument("--jobs", type=int, default=64, help="different requests of `clients`")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer, where that is fixed")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions, of which the median counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args, args.words = parser.parse_known_args()
    args.streams = args.streams or {"clients": 64, "start": 1}.get(args.mode, 8)
    if sys.platform != "linux":
        parser.error("the figures come from /proc: run it on Linux")
    os.environ.setdefault("EDGELLM_LOG", "warning")
    figures = MODES[args.mode](args)
    missed = [
        name for name, (sign, limit) in LIMITS.items()
        if name in figures and not (figures[name] <= limit if sign == "<=" else figures[name] >= limit)
    ]  # fmt: skip
    if args.json:
        print(json.dumps({**figures, "missed": missed}))
    else:
        for name, value in figures.items():
            limit = " ".join(map(str, LIMITS[name])) if name in LIMITS else ""
            shown = f"{value:.2f}" if isinstance(value, float) else value
            print(f"{name:28} {shown} {f'({limit})' if limit else ''}{' MISSED' if name in missed else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Load test: simulated users against edgellm in this process, any OpenAI-compatible server, or static batches.

python scripts/load.py MODEL [--users 50] [--requests 200] [--think 1.0]    continuous batching, in this process
python scripts/load.py MODEL --static 8 [--shrinking]                       our engine, batches that end together
python scripts/load.py MODEL --url http://127.0.0.1:8080                    llama-server, llama-cpp-python, vLLM, ...
python scripts/load.py MODEL --transformers                                 transformers' generate(), PyTorch on the CPU

Each user sends a request, reads its stream, thinks for an exponentially distributed time, and sends the next: the
arrivals of many users are a Poisson process. Prompts begin with one of a few shared system texts; lengths of prompts
and answers are log-normal. All of it follows from --seed: every target gets the same load. --json prints one object.

A static batch is one as transformers' generate() computes it: rows whose answer is complete are computed on until the
longest answer of the batch is. With --shrinking they leave, a stronger rival: what is left then of the difference is
that nobody joins before all have left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

WORDS = (
    "river stone window garden letter winter market silver bridge captain morning shadow lantern forest engine paper "
    "island summer doctor valley copper mirror harbor station candle thunder orchard village compass feather granite "
    "blanket whistle journey teacher cottage meadow rocket pepper saddle ribbon anchor basket cellar dragon echo fabric"
).split()


@dataclass(frozen=True)
class Job:
    """What a user asks: think, then send. Lengths in words and tokens."""

    think: float
    prompt: str
    max_tokens: int
    seed: int


@dataclass
class Outcome:
    """What came of a job. sent: seconds; arrivals: (seconds, tokens) of each piece of the answer."""

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""

    @property
    def n_tokens(self) -> int:
        return self.completion_tokens or sum(n for _, n in self.arrivals)

    def note(self, usage: dict[str, int]) -> None:
        self.prompt_tokens, self.cached_tokens = usage["prompt_tokens"], usage["cached_tokens"]
        self.completion_tokens = usage["completion_tokens"]


Piece = tuple[int, "dict[str, int] | None"]
Target = Callable[[Job], AsyncIterator[Piece]]
"""Sends a job: yields (tokens, usage or None) as the answer arrives; usage has prompt, cached and
completion tokens."""


def plan(args: argparse.Namespace) -> list[list[Job]]:
    """The jobs of each user."""
    rng = random.Random(args.seed)
    systems = [" ".join(rng.choices(WORDS, k=args.system_words)) for _ in range(args.systems)]

    def about(mean: float, most: int) -> int:
        sigma = 0.8
        return min(most, max(4, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))

    users: list[list[Job]] = [[] for _ in range(args.users)]
    for i in range(args.requests):
        question = " ".join(rng.choices(WORDS, k=about(args.prompt_words, 2000)))
        text = f"{rng.choice(systems)}\n\nQuestion: {question}\nAnswer:"
        users[i % args.users].append(
            Job(rng.expovariate(1 / args.think) if args.think else 0.0, text, about(args.answer_tokens, 1000), i)
        )
    return users


async def drive(users: list[list[Job]], target: Target) -> tuple[list[Outcome], float]:
    """Let all users work through their jobs; the outcomes and the seconds it took."""
    outcomes: list[Outcome] = []

    async def user(jobs: list[Job]) -> None:
        for job in jobs:
            await asyncio.sleep(job.think)
            outcome = Outcome(time.perf_counter())
            outcomes.append(outcome)
            try:
                async for n, usage in target(job):
                    if n:
                        outcome.arrivals.append((time.perf_counter(), n))
                    if usage is not None:
                        outcome.note(usage)
            except (OSError, RuntimeError, ValueError) as e:
                outcome.error = f"{type(e).__name__}: {e}"

    begin = time.perf_counter()
    await asyncio.gather(*(user(jobs) for jobs in users))
    return outcomes, time.perf_counter() - begin


def tokens(prompt: int, cached: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion}


# -- targets -------------------------------------------------------------------------------------------------------


def in_process(llm: Any) -> Target:
    """An AsyncLLM."""

    async def send(job: Job) -> AsyncIterator[Piece]:
        options = {"max_tokens": job.max_tokens, "seed": job.seed, "ignore_eos": True}
        async for chunk in llm.generate(job.prompt, stream=True, on_error="raise", **options):
            usage = None
            if chunk.completion is not None:
                u = chunk.completion.usage
                usage = tokens(u.prompt_tokens, u.cached_tokens, u.completion_tokens)
            yield len(chunk.token_ids), usage

    return send


def in_batches(target: Target, size: int, shrinking: bool) -> Target:
    """Static batches: up to `size` of those who wait go in together, the next ones when the last of them is done.

    shrinking: a row leaves when its answer is complete; else it is computed on until the longest one is.
    """
    waiting: asyncio.Queue[tuple[Job, asyncio.Future[int]]] = asyncio.Queue()
    left = asyncio.Semaphore(0)

    async def gate() -> None:
        while True:
            batch = [await waiting.get()]
            while len(batch) < size and not waiting.empty():
                batch.append(waiting.get_nowait())
            longest = max(job.max_tokens for job, _ in batch)
            for job, turn in batch:
                turn.set_result(job.max_tokens if shrinking else longest)
            for _ in batch:
                await left.acquire()

    keeper = asyncio.get_running_loop().create_task(gate())

    async def send(job: Job) -> AsyncIterator[Piece]:
        turn = asyncio.get_running_loop().create_future()
        waiting.put_nowait((job, turn))
        answer = replace(job, max_tokens=await turn)
        missing = job.max_tokens
        try:
            async for n, usage in target(answer):
                if usage is not None:
                    usage = {**usage, "completion_tokens": job.max_tokens}
                yield min(n, missing), usage
                missing -= min(n, missing)
        finally:
            left.release()

    send.keeper = keeper  # type: ignore[attr-defined]  # a task that nothing refers to may be collected
    return send


def over_http(url: str, model: str, key: str = "") -> Target:
    """POST /v1/completions with stream=true, on a connection of its own each."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise SystemExit(f"--url takes http://host:port, found {url}")
    path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/completions"

    async def send(job: Job) -> AsyncIterator[Piece]:
        body = json.dumps(
            {
                "model": model, "prompt": job.prompt, "max_tokens": job.max_tokens, "seed": job.seed, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True},
            }
        ).encode()  # fmt: skip
        auth = f"Authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n{auth}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 22)
        try:
            writer.write(head.encode() + body)
            status = (await reader.readline()).decode()
            if " 200 " not in status:
                raise ValueError(
                    f"{url} answered {status.strip()}: {(await reader.read(2000)).decode(errors='replace')[-300:]}"
                )
            while line := await reader.readline():  # lines of chunked encoding in between are no "data:"
                if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                    continue
                event = json.loads(line[5:])
                usage = event.get("usage")
                text = "".join(c.get("text") or "" for c in event.get("choices", ()))
                known = None
                if usage:
                    details = usage.get("prompt_tokens_details") or {}
                    cached = details.get("cached_tokens") or 0
                    known = tokens(usage["prompt_tokens"], cached, usage["completion_tokens"])
                yield (1 if text else 0), known
        finally:
            writer.close()

    return send


class NotHere(Exception):
    """A target cannot be measured on this machine."""


def over_transformers(model: str, threads: int | None = None) -> Target:
    """Hugging Face transformers' generate() on the same file, its weights made float32, one request at a time, as it is
    used. Raises NotHere without transformers, torch and gguf."""
    try:
        import torch
        import transformers
    except ImportError as e:
        raise NotHere(f"{e}: pip install torch transformers gguf") from e
    from edgellm.hub import resolve

    path = resolve(model).path
    if threads:
        torch.set_num_threads(threads)
    try:
        folder, name = str(path.parent), path.name
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
        lm = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name).eval()
    except (ImportError, ValueError, NotImplementedError) as e:  # no gguf, or an architecture that it cannot read
        raise NotHere(f"transformers cannot open {path}: {e}") from e
    turn = asyncio.Lock()

    async def send(job: Job) -> AsyncIterator[Piece]:
        loop, news = asyncio.get_running_loop(), asyncio.Queue[int]()

        class Streamer:
            """Told of the prompt, then of each token."""

            n_calls = 0

            def put(self, value: Any) -> None:
                self.n_calls += 1
                if self.n_calls > 1:
                    loop.call_soon_threadsafe(news.put_nowait, 1)

            def end(self) -> None:
                pass

        async with turn:
            inputs = tokenizer(job.prompt, return_tensors="pt")
            torch.manual_seed(job.seed)
            length = {"max_new_tokens": job.max_tokens, "min_new_tokens": job.max_tokens}
            work = loop.run_in_executor(
                None, lambda: lm.generate(**inputs, **length, do_sample=True, streamer=Streamer())
            )
            for _ in range(job.max_tokens):
                got = asyncio.ensure_future(news.get())
                await asyncio.wait({got, work}, return_when=asyncio.FIRST_COMPLETED)
                if not got.done() and news.empty():
                    got.cancel()
                    break
                yield await got, None
            await work
            yield 0, tokens(int(inputs["input_ids"].shape[1]), 0, job.max_tokens)

    return send


# -- the report ----------------------------------------------------------------------------------------------------


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99, by the nearest rank."""
    ranked = sorted(values) or [math.nan]
    return {f"p{p}": ranked[min(len(ranked) - 1, math.ceil(p / 100 * len(ranked)) - 1)] for p in (50, 95, 99)}


def report(outcomes: list[Outcome], seconds: float, slo_ttft: float, slo_itl: float) -> dict[str, Any]:
    """The figures. ttft: send to first text. itl: between pieces of an answer, by the tokens in the later one."""
    done = [o for o in outcomes if o.arrivals and not o.error]
    first = {id(o): o.arrivals[0][0] - o.sent for o in done}
    gaps = {
        id(o): [(b - a) / n for (a, _), (b, n) in zip(o.arrivals, o.arrivals[1:], strict=False) for _ in range(n)]
        for o in done
    }
    good = [o for o in done if first[id(o)] <= slo_ttft and statistics.fmean(gaps[id(o)] or [0.0]) <= slo_itl]
    prompt_tokens = sum(o.prompt_tokens for o in done)
    return {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(done),
        "seconds": seconds,
        "tokens_per_second": sum(o.n_tokens for o in done) / seconds,
        "requests_per_second": len(done) / seconds,
        "goodput_requests_per_second": len(good) / seconds,
        "ttft_seconds": percentiles(list(first.values())),
        "itl_seconds": percentiles([g for gs in gaps.values() for g in gs]),
        "cache_hit_rate": sum(o.cached_tokens for o in done) / prompt_tokens if prompt_tokens else math.nan,
        "errors": sorted({o.error for o in outcomes if o.error})[:5],
    }


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="path or name; with --url what the server calls it")
    parser.add_argument("--url", default="", help="an OpenAI-compatible server, http://host:port")
    parser.add_argument("--transformers", action="store_true", help="transformers' generate() on the same file")
    parser.add_argument("--key", default="", help="its API key")
    parser.add_argument(
        "--static", type=int, default=0, metavar="N", help="static batches of N instead of continuous ones"
    )
    parser.add_argument("--shrinking", action="store_true", help="rows of a static batch leave when they are done")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--think", type=float, default=1.0, help="mean seconds between an answer and the next request")
    parser.add_argument("--systems", type=int, default=4, help="shared system texts")
    parser.add_argument("--system-words", type=int, default=150)
    parser.add_argument("--prompt-words", type=int, default=60, help="mean")
    parser.add_argument("--answer-tokens", type=int, default=100, help="mean")
    parser.add_argument("--max-seqs", type=int, default=32)
    parser.add_argument("--n-ctx", type=int, default=4096)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--draft", help='speculative decoding in this process: "prompt"')
    parser.add_argument(
        "--slo-ttft", type=float, default=2.0, help="seconds within which the first text counts as good"
    )
    parser.add_argument("--slo-itl", type=float, default=0.1, help="mean seconds between tokens that count as good")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Drive the load and report."""
    users = plan(args)
    async with AsyncExitStack() as stack:
        if args.url:
            target = over_http(args.url, args.model, args.key)
        elif args.transformers:
            target = over_transformers(args.model, args.threads)
        else:
            from edgellm import AsyncLLM

            options = {"n_ctx": args.n_ctx, "max_seqs": args.max_seqs, "n_threads": args.threads, "draft": args.draft}
            llm = await stack.enter_async_context(AsyncLLM(args.model, **options))
            target = in_process(llm)
            warm: Awaitable[Any] = llm.generate("warm up", max_tokens=4)
            await warm
            if args.static:
                target = in_batches(target, args.static, args.shrinking)
        return report(*await drive(users, target), args.slo_ttft, args.slo_itl)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments().parse_args(argv)
    try:
        result = asyncio.run(run(args))
    except NotHere as e:
        print(json.dumps({"skipped": str(e)}) if args.json else f"skipped: {e}")
        return 0
    if args.json:
        print(json.dumps(result))
        return 1 if result["failed"] else 0
    for name, value in result.items():
        if isinstance(value, dict):
            print(f"{name:28}" + "  ".join(f"{k} {v * 1000:8.1f} ms" for k, v in value.items()))
        else:
            print(f"{name:28}{value:.2f}" if isinstance(value, float) else f"{name:28}{value}")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

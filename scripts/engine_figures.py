"""Figures of the engine: pauses of a stream, second turns, memory per sequence, memory over many requests; and that
many users at once get the answers of one, forks those of a prompt, and sessions those from before a restart.

python scripts/engine_figures.py MODEL gap turns memory soak users disk forks idle [--requests N] [--users N]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import random
import tempfile
import threading
import time
from typing import Any

import numpy as np
import psutil

import edgellm
from edgellm.backends.base import page_bytes
from edgellm.core.kv import KV_FORMATS
from edgellm.core.types import PAGE_TOKENS
from edgellm.engine import calls, scheduler
from edgellm.kvcache.spec import ClassSpec
from edgellm.kvcache.table import Ledger


def words(n: int, seed: int, n_vocab: int) -> list[int]:
    """Token ids at random."""
    rng = random.Random(seed)
    return [rng.randrange(n_vocab // 8, n_vocab * 7 // 8) for _ in range(n)]


def gap(model: str, depth: int, kv_type: str) -> None:
    """A stream of `depth` tokens while a prompt of 4,000 arrives: seconds between its tokens, before and during."""
    with edgellm.LLM(model, n_ctx=6144 + depth, max_seqs=4, prefix_cache=False, kv_type=kv_type) as llm:
        n_vocab = llm.info.n_vocab
        for n in (6000, 64):  # memory that is touched for the first time is another matter
            llm.generate(words(n, n, n_vocab), max_tokens=8, temperature=0)
        engine, sent = llm._loaded.engine, []
        other = threading.Thread(
            target=lambda: sent.append(llm.generate(words(4000, 2, n_vocab), max_tokens=1, temperature=0))
        )
        steps: list[tuple[float, bool]] = []
        run, run_steps = engine._executable.run, engine._executable.run_steps

        def note(since: float, n: int) -> None:
            busy = other.is_alive()
            steps.extend([((time.perf_counter() - since) / n, busy)] * n)

        last = [0.0]

        def timed_run(batch):  # type: ignore[no-untyped-def]
            out = run(batch)
            note(last[0] or time.perf_counter(), 1)
            last[0] = time.perf_counter()
            return out

        def timed_steps(batch, picks, n_steps, ends):  # type: ignore[no-untyped-def]
            out = run_steps(batch, picks, n_steps, ends)
            note(last[0] or time.perf_counter(), len(out.tokens[0]))
            last[0] = time.perf_counter()
            return out

        engine._executable.run, engine._executable.run_steps = timed_run, timed_steps
        stream = llm.generate(words(depth, 3, n_vocab), max_tokens=3000, temperature=0, ignore_eos=True, stream=True)
        n = 0
        for chunk in stream:
            n += len(chunk.token_ids)
            if n > 300 and not other.ident:
                other.start()
            if other.ident and not other.is_alive():
                break
        stream.close()
        before = [s for s, busy in steps[5:] if not busy]
        during = [s for s, busy in steps if busy]
        median = float(np.median(before))
        p99 = float(np.percentile(during, 99))
        print(
            f"gap ({llm.info.backend}, {llm.info.isa}, {kv_type}, {depth} tokens): median before "
            f"{median * 1e3:.2f} ms; during a prompt of "
            f"4,000 tokens median {np.median(during) * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms = {p99 / median:.2f}x, "
            f"{len(during)} tokens in {sum(during):.2f} s"
        )


def turns(model: str) -> None:
    """Time to the first token, cold and where 1,500 tokens of the prompt are known."""
    with edgellm.LLM(model, n_ctx=4096) as llm:
        n_vocab = llm.info.n_vocab
        llm.generate(words(64, 1, n_vocab), max_tokens=8, temperature=0)
        cold, warm, computed = [], [], []
        for i in range(5):
            system = words(1500, 10 + i, n_vocab)
            first = llm.generate([*system, *words(20, 50 + i, n_vocab)], max_tokens=8, temperature=0)
            then = llm.generate([*system, *words(20, 70 + i, n_vocab)], max_tokens=8, temperature=0)
            cold.append(first.timings.first_token)
            warm.append(then.timings.first_token)
            computed.append(then.usage.prompt_tokens - then.usage.cached_tokens)
        print(
            f"turns: time to the first token {np.median(cold) * 1e3:.1f} ms cold, {np.median(warm) * 1e3:.1f} ms with "
            f"a shared prompt of 1,500 tokens = {np.median(cold) / np.median(warm):.1f}x; computed {max(computed)} "
            f"tokens, 20 of them new"
        )


def memory(model: str) -> None:
    """Sequences of 2,048 tokens per GiB, and the share of taken pages that holds nothing, under mixed lengths."""
    with edgellm.LLM(model, n_ctx=2048, max_seqs=1) as llm:
        plan = llm._loaded.plan
    specs = tuple(ClassSpec(c.kind, c.window) for c in plan.caches)
    for name in ("f16", "q8_0", "q4_0"):
        per = 0
        for c, spec in enumerate(specs):
            pages = 2048 // PAGE_TOKENS - spec.first_page(2048)
            per += pages * page_bytes(plan, c, name, name)
        print(f"memory: {2**30 / per:.0f} sequences of 2,048 tokens per GiB in {name} ({per / 2**20:.2f} MiB each)")
    assert set(KV_FORMATS) >= {"f16", "q8_0", "q4_0"}
    rng = random.Random(1)
    lengths = [min(4096, int(rng.lognormvariate(6.3, 0.9)) + 16) for _ in range(2000)]
    ledger = Ledger((ClassSpec("full"),), (len(lengths) * 128,), 4096)
    for n in lengths:
        ledger.new_table().grow(n)
    taken = ledger.pools[0].n_held * PAGE_TOKENS
    print(
        f"memory: {1 - sum(lengths) / taken:.1%} of the positions in taken pages are empty, mean length "
        f"{np.mean(lengths):.0f}; contiguous room for 4,096 tokens each: {1 - sum(lengths) / 4096 / len(lengths):.1%}"
    )


def soak(model: str, n: int) -> None:
    """Many short requests, some of them cancelled: memory at the end against that after the first tenth."""
    process = psutil.Process()
    with edgellm.LLM(model, n_ctx=512, max_seqs=16, kv_memory=2**26) as llm:
        n_vocab, rng = llm.info.n_vocab, random.Random(1)
        todo, lock, marks = iter(range(n)), threading.Lock(), {}

        def user() -> None:
            while True:
                with lock:
                    i = next(todo, None)
                    if i is None:
                        return
                    length, leave = rng.randrange(2, 40), rng.random() < 0.05
                if i in (n // 10, n - 1):
                    marks[i] = (process.memory_info().rss, process.num_fds())
                stream = llm.generate(words(length, i, n_vocab), max_tokens=6, temperature=0.8, seed=i, stream=True)
                for _ in stream:
                    if leave:
                        break
                stream.close()

        begin = time.perf_counter()
        users = [threading.Thread(target=user) for _ in range(16)]
        for u in users:
            u.start()
        for u in users:
            u.join()
        llm.generate([1], max_tokens=1)
        engine = llm._loaded.engine
        engine._state.ledger.check([])
        (early, fds), (late, fds_late) = marks[n // 10], marks[n - 1]
        print(
            f"soak: {n} requests in {time.perf_counter() - begin:.0f} s; memory {early / 2**20:.1f} MiB after a tenth, "
            f"{late / 2**20:.1f} MiB at the end ({late / early - 1:+.2%}); descriptors {fds} and {fds_late}; "
            f"the pages add up"
        )


Talk = tuple[list[int], list[int], int]
"""A user's first prompt, what they add for the second one, and after how many pieces they leave (0: they do not)."""


def talks(n: int, n_vocab: int, longest: int, rng: random.Random) -> list[Talk]:
    """Prompts of up to about `longest` tokens; many begin with one of three shared texts."""
    systems = [words(longest * k // 4, 90 + k, n_vocab) for k in (1, 2, 3)]
    return [
        (
            [*rng.choice([*systems, []]), *words(rng.randrange(1, longest // 3), 100 + i, n_vocab)],
            words(rng.randrange(1, longest // 6), 500 + i, n_vocab),
            rng.choice([0, 0, 0, 1, 2]),
        )
        for i in range(n)
    ]


def ask(llm: edgellm.LLM, prompt: list[int], i: int, leave: int, answer: int) -> list[int] | None:
    """The token ids of an answer; None where the user leaves."""
    options = SAMPLING[i % len(SAMPLING)] | {"max_tokens": 2 + i * 7 % answer, "seed": i, "on_error": "raise"}
    if not leave:
        return llm.generate(prompt, **options).token_ids
    stream = llm.generate(prompt, stream=True, **options)
    for k, _ in enumerate(stream, 1):
        if k == leave:
            stream.close()
    return None


SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0, "ignore_eos": True},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "repeat_penalty": 1.1},
    {"temperature": 0.7, "logprobs": 2, "frequency_penalty": 0.3, "min_tokens": 3},
]


def users(model: str, n: int = 50, longest: int = 120, answer: int = 40, backend: str = "auto") -> None:
    """Many users at once and too few pages; some leave. Every answer that ends is that of the request alone."""
    n_ctx, results = 2 * longest + 2 * answer, []

    def serve(llm: edgellm.LLM, at_once: bool) -> dict[int, Any]:
        todo, said = talks(n, llm.info.n_vocab, longest, random.Random(n)), dict[int, Any]()

        def user(i: int) -> None:
            first, more, leave = todo[i]
            one = ask(llm, first, i, leave, answer)
            said[i] = (one, None if one is None else ask(llm, [*first, *one, *more], i + 1, 0, answer))

        threads = [threading.Thread(target=user, args=(i,)) for i in range(n)]
        for t in threads:
            t.start()
            if not at_once:
                t.join()
        for t in threads:
            t.join()
        return said

    with edgellm.LLM(model, n_ctx=n_ctx, max_seqs=1, prefix_cache=False, backend=backend) as llm:
        alone = serve(llm, False)
    for draft in (None, "prompt"):
        with edgellm.LLM(model, n_ctx=n_ctx, max_seqs=8, n_batch=96, draft=draft, backend=backend) as llm:
            engine = llm._loaded.engine
            state, ledger = engine._state, engine._state.ledger
            if engine.speculation is not None:
                engine.speculation._always = True
            hostages = [ledger.new_table() for _ in range(ledger.pools[0].n_pages - n_ctx // PAGE_TOKENS - 2)]
            for tables in hostages:  # what is left of the pool holds hardly more than one sequence
                tables.place(0, 0)
            state.pinned.update(hostages)
            begin = time.perf_counter()
            together = serve(llm, True)
            seconds = time.perf_counter() - begin
            wrong = [i for i in alone if together.get(i) != alone[i]]
            if wrong:
                raise AssertionError(f"users {wrong}: their answers are not those of the same requests alone")
            llm.generate([1], max_tokens=1)  # what was sent to the engine before has been done
            scheduler.check(state)
            guessed = engine.speculation.stats if engine.speculation is not None else None
            results.append(
                f"users ({llm.info.backend}, draft={draft}): {n} users at once, {state.arrivals} sequences in "
                f"{seconds:.1f} s, {state.preemptions} preemptions, "
                f"{'' if guessed is None else f'{sum(guessed.accepted)} of {sum(guessed.guessed)} guesses right, '}"
                f"{sum(one is None for one, _ in alone.values())} left: all answers are those of the request alone"
            )
    print("\n".join(results))


def five_sessions(model: str, n: int, folder: str) -> dict[str, Any]:
    """Five sessions in turn on a prompt of n tokens, and one after everything was evicted, with files in `folder`: what
    they computed, and their answers."""
    with edgellm.LLM(model, n_ctx=n + 64, max_seqs=2, prefix_cache_dir=folder) as llm:
        shared, computed, answers, seconds = words(n, 1, llm.info.n_vocab), [], [], []
        for i in range(5):
            with llm.session() as session:
                begin = time.perf_counter()
                computed.append(session.append(shared))
                seconds.append(time.perf_counter() - begin)
                answers.append(session.generate(words(8, 10 + i, llm.info.n_vocab), **COPYING).token_ids)
        engine = llm._loaded.engine
        store, cache = engine._tier.store, engine._state.ledger.cache
        assert store is not None
        stats = store.stats
        read, reading = stats.read_bytes, stats.seconds_reading

        def evict() -> None:
            for item in cache.whole_pages():
                engine._tier._save(item, wait=True)
            cache.clear()
            engine._tier.work()

        engine._call(evict)  # the memory that pages come back into has been in use before
        with llm.session() as session:
            computed.append(session.append(shared))
        read_again, reading_again = stats.read_bytes - read, stats.seconds_reading - reading
    return {
        "computed": computed,
        "answers": answers,
        "seconds": seconds,
        "read": read,
        "reading": reading,
        "again": read_again / 1e9 / reading_again,
        "written": stats.written_bytes,
    }


COPYING: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


def disk(model: str, n: int) -> None:
    """A long prompt, used by sessions in turn, evicted after five, then in a new process: computed once."""
    with tempfile.TemporaryDirectory() as folder:
        halves = []
        for _ in range(2):
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                halves.append(process.submit(five_sessions, model, n, folder).result())
    first, second = halves
    computed = [*first["computed"], *second["computed"]]
    if sum(computed) > n + 11 * PAGE_TOKENS or first["answers"] != second["answers"]:
        raise AssertionError(f"computed {computed} of {n} tokens; {first['answers']} and {second['answers']}")
    print(
        f"disk: a prompt of {n} tokens, five sessions in turn, everything evicted, one more, and all that again in a "
        f"new process: computed {computed} tokens; {first['seconds'][0]:.2f} s cold, "
        f"{max(second['seconds'][1:]) * 1e3:.1f} ms from memory, {second['seconds'][0]:.3f} s from files: "
        f"{second['read'] / 1e6:.0f} MB in {second['reading']:.3f} s = "
        f"{second['read'] / 1e9 / second['reading']:.2f} GB/s into new memory, and the rest of the prompt; "
        f"{first['again']:.2f} and {second['again']:.2f} GB/s into memory that was in use before; "
        f"{first['written'] / 1e6:.0f} MB written; the answers after the restart are those before it"
    )


def forks(model: str, n: int = 1500) -> None:
    """16 forks of a session of n tokens: what they compute, the pages they take, and what they say."""
    greedy, drawn = {"temperature": 0, "ignore_eos": True}, {"temperature": 0.8, "ignore_eos": True}
    with edgellm.LLM(model, n_ctx=n + 64, max_seqs=16) as llm:
        n_vocab, ledger = llm.info.n_vocab, llm._loaded.engine._state.ledger
        shared, asked = words(n, 1, n_vocab), [words(7, 20 + i, n_vocab) for i in range(16)]
        begin = time.perf_counter()
        session = llm.session(shared)
        cold = time.perf_counter() - begin

        def taken() -> list[int]:
            llm.generate([1], max_tokens=1)  # what was sent to the engine before has been done
            return [ledger.n_in_use(c) for c in range(len(ledger.pools))]

        before, begin = taken(), time.perf_counter()
        branches = [session.fork() for _ in asked]

        def side_by_side(question: slice, **options: Any) -> list[Any]:
            with concurrent.futures.ThreadPoolExecutor(len(branches)) as threads:
                return list(threads.map(lambda b, q: b.generate(q[question], **options), branches, asked))

        one = side_by_side(slice(1), max_tokens=4, **greedy)  # 1,500 tokens and these end with the same page
        seconds, after = time.perf_counter() - begin, taken()
        computed = max(c.usage.prompt_tokens - c.usage.cached_tokens for c in one)
        two = side_by_side(slice(1, None), max_tokens=16, seed=5, **drawn)
    with edgellm.LLM(model, n_ctx=n + 64, max_seqs=1, prefix_cache=False) as llm:
        for q, a, b in zip(asked, one, two, strict=True):
            alone = llm.generate([*shared, *q[:1]], max_tokens=4, **greedy).token_ids
            then = llm.generate([*shared, *q[:1], *alone, *q[1:]], max_tokens=16, seed=5, **drawn).token_ids
            if (alone, then) != (a.token_ids, b.token_ids):
                raise AssertionError(f"a fork said {a.token_ids} and {b.token_ids}; alone it is {alone} and {then}")
    more = [a - b for a, b in zip(after, before, strict=True)]
    if computed > 1 or max(more) > 16:
        raise AssertionError(f"16 forks computed {computed} tokens each and took {more} pages")
    print(
        f"forks: {n} tokens computed once in {cold:.2f} s; 16 forks of it, side by side, computed {computed} token "
        f"each, the new one, answered in {seconds:.3f} s and took {more} more pages in all, by class, of {before}; "
        f"they say what the same tokens say alone, greedy and drawn"
    )


def idle(model: str) -> None:
    """Memory that the cache has grown to, and what is left of it once the engine has been idle."""
    process, waits = psutil.Process(), calls.IDLE
    calls.IDLE = ((0.2, False), (0.2, True))
    try:
        with edgellm.LLM(model, n_ctx=4096, max_seqs=2) as llm:
            llm.generate(words(600, 1, llm.info.n_vocab), max_tokens=1)
            time.sleep(1.0)
            before = process.memory_info().rss
            llm.generate(words(3900, 2, llm.info.n_vocab), max_tokens=1)
            full = process.memory_info().rss
            time.sleep(1.0)
            after = process.memory_info().rss
    finally:
        calls.IDLE = waits
    print(
        f"idle: {before / 2**20:.1f} MiB, {full / 2**20:.1f} with 3,900 tokens in the cache, {after / 2**20:.1f} after "
        f"{sum(s for s, _ in waits):.0f} idle seconds (shortened here)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument(
        "parts", nargs="+", choices=["gap", "turns", "memory", "soak", "users", "disk", "forks", "idle"]
    )
    parser.add_argument("--requests", type=int, default=10000, help="of soak")
    parser.add_argument("--users", type=int, default=50, help="of users")
    parser.add_argument("--tokens", type=int, default=20000, help="of disk's prompt")
    parser.add_argument("--depth", type=int, default=32, help="of gap: tokens of the stream's own prompt")
    parser.add_argument("--kv-type", default="f16", help="of gap: format of the KV cache")
    args = parser.parse_intermixed_args()
    options = {"soak": [args.requests], "users": [args.users], "disk": [args.tokens], "gap": [args.depth, args.kv_type]}
    for part in args.parts:
        globals()[part](args.model, *options.get(part, []))


if __name__ == "__main__":
    main()

"""Measure speed as llama-bench does: ppN reads a prompt of N tokens, tgN generates N, nplN with N sequences at once.

@dN: with N tokens in the context already. GB/s: bytes of weights times passes over them, by the median time.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from queue import SimpleQueue

from edgellm.cli import bench_spec, options
from edgellm.core.config import SamplingParams
from edgellm.core.errors import CapacityError, ConfigError
from edgellm.core.record import dataclass
from edgellm.core.types import PAGE_TOKENS
from edgellm.engine.loader import PROMPT, Loaded, OpenOptions, open_model
from edgellm.engine.request import Done, Event, Request
from edgellm.hub import resolve

MAX_NUMBER = 1 << 20

JSON = {
    "test": "ppN, tgN or nplN, with @dN behind it at a depth",
    "tokens_per_second": "median over the repetitions",
    "stddev": "of tokens_per_second over the repetitions",
    "gb_per_second": "bytes of weights times passes over them",
    "n_threads": "threads that compute",
    "isa": "instruction set level",
    "speculation": "of --spec: plain speed, speed-up, guesses, those by right tokens, share right by place; else null",
}
"""The keys of each object of the list."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm bench`."""
    options.add_model(parser)
    parser.add_argument("-p", "--n-prompt", default="512", metavar="N,..", help="prompt lengths; 0: none (512)")
    parser.add_argument("-n", "--n-gen", default="128", metavar="N,..", help="generation lengths; 0: none (128)")
    parser.add_argument("-d", "--n-depth", default="0", metavar="N,..", help="tokens already in the context (0)")
    parser.add_argument("-npl", "--parallel", default="", metavar="N,..", help="sequences generating side by side")
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="runs of a test; median (5)")
    parser.add_argument(
        "--spec",
        metavar="DRAFT",
        help='measure speculative decoding, three temperatures, by "prompt" or a draft model',
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options.add_compute(parser.add_argument_group("model options"))


@dataclass(frozen=True, slots=True)
class Case:
    """One test: `n_seqs` sequences with `depth` tokens of context read `n_prompt` and generate `n_gen` tokens each."""

    name: str
    n_prompt: int
    n_gen: int
    depth: int
    n_seqs: int

    @property
    def n_ctx(self) -> int:
        """Context that one sequence needs: a first token is generated before the clock of a generation starts."""
        return self.length + self.n_gen + 1

    @property
    def length(self) -> int:
        """Tokens that are read. Two at least before a generation: a lone token would be a step of it."""
        return max(2 if self.n_gen else 1, self.depth + self.n_prompt)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    cases = read_cases(args)
    if args.spec is not None:
        cases = []
    n_gen = max(_numbers(args.n_gen, "-n"), default=0) or 128
    found = options.find(args)
    loaded = open_model(
        str(found.path),
        OpenOptions(
            n_ctx=max([c.n_ctx for c in cases], default=None),
            draft=args.spec if args.spec in (None, PROMPT) else str(resolve(args.spec).path),
            prefix_cache=True,  # for what is already in the context; else every run has a salt of its own
            n_threads=args.threads,
            k_type=args.cache_type_k,
            v_type=args.cache_type_v,
            weights=args.weights,
            backend=args.backend,
            isa=args.isa,
            max_seqs=max([c.n_seqs for c in cases], default=1),
            n_batch=options.ubatch(args),
        ),
    )
    gc.enable()  # see cli.main
    try:
        for case in cases:
            _check_room(loaded, case)
        results = [_result(loaded, case, args.repetitions, options.ubatch(args)) for case in cases]
        if args.spec is not None:
            results = _speculation(loaded, n_gen, args.repetitions)
    finally:
        loaded.engine.close()
        loaded.file.close()
    if args.json:
        print(json.dumps(results))
    elif args.spec is not None:
        print(bench_spec.table(results))
    else:
        _print_table(found.name, loaded, results)
    return 0


def read_cases(args: argparse.Namespace) -> list[Case]:
    """The tests that the options ask for, in llama-bench's order. Raises ConfigError."""
    cases = []
    prompts, gens = _numbers(args.n_prompt, "-p"), _numbers(args.n_gen, "-n")
    for depth in _numbers(args.n_depth, "-d") or [0]:
        at = f"@d{depth}" if depth else ""
        cases += [Case(f"pp{p}{at}", p, 0, depth, 1) for p in prompts if p]
        cases += [Case(f"tg{n}{at}", 0, n, depth, 1) for n in gens if n]
        n_gen = max(gens, default=0) or 128
        cases += [Case(f"npl{s}{at}", 0, n_gen, depth, s) for s in _numbers(args.parallel, "-npl") if s]
    if not cases:
        raise ConfigError("nothing to measure: give -p, -n or -npl a number above 0")
    if not 1 <= args.repetitions <= 1000:
        raise ConfigError(f"-r must be from 1 to 1000, found {args.repetitions}")
    return cases


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"{option} takes numbers separated by commas, found {text!r:.80}") from None
    if any(not 0 <= n <= MAX_NUMBER for n in numbers):
        raise ConfigError(f"{option} takes numbers from 0 to {MAX_NUMBER}, found {text!r:.80}")
    return numbers


def _check_room(loaded: Loaded, case: Case) -> None:
    """CapacityError where sequences would push each other out of the cache: that is not what is to be measured."""
    need = case.n_seqs * -(-case.n_ctx // PAGE_TOKENS)
    spec = loaded.engine.spec
    for cls, n in zip(spec.classes, spec.n_pages, strict=True):
        if cls.kind in ("full", "latent") and n < need:
            raise CapacityError(f"{case.name}: memory holds {n} pages of KV cache, {need} are needed; ask for less")


def _seconds(loaded: Loaded, case: Case, salt: str) -> tuple[float, int]:
    """(time, tokens) of the measured part of one run: a prompt, of which the cache has what another run of this salt
    has computed, or what is generated once every sequence has its first token."""
    params = SamplingParams(temperature=0.0, max_tokens=max(1, case.n_gen + 1)).resolved({})
    step = 7919  # a prime: consecutive tokens differ and stay inside any vocabulary
    prompts = [[(s + i * step) % loaded.plan.n_vocab for i in range(case.length)] for s in range(case.n_seqs)]
    events: SimpleQueue[Event] = SimpleQueue()  # one for all: the order of arrival counts
    requests = [
        Request(prompt, params, seed=0, stream=case.n_seqs > 1, events=events, salt=f"{salt}.{s}")
        for s, prompt in enumerate(prompts)
    ]
    for request in requests:
        loaded.engine.submit(request)
    ended = arrived = at_start = 0
    begin = end = 0.0
    while ended < case.n_seqs:
        event = events.get()
        if isinstance(event, Done):
            ended += 1
            if event.error is not None:
                raise event.error
            continue
        arrived, end = arrived + len(event.tokens), time.perf_counter()
        if not begin and all(r.first_token for r in requests):
            begin, at_start = end, arrived
    if case.n_seqs > 1:
        return end - begin, arrived - at_start
    (only,) = requests
    if case.n_gen:
        return only.finished - only.first_token, case.n_gen
    return only.first_token - only.started, len(only.prompt) - only.cached_tokens


def _result(loaded: Loaded, case: Case, repetitions: int, n_batch: int) -> dict[str, object]:
    """Measure a test. CapacityError where the cache has lost what a prompt at a depth begins with."""
    base = Case("", 0, 0, case.depth, 1)
    _seconds(loaded, Case("", min(case.n_prompt, 64), min(case.n_gen, 8), 0, case.n_seqs), "warm up")
    rates = []
    for i in range(repetitions):
        salt = f"{case.name} {i}"
        if case.n_prompt and case.depth:
            _seconds(loaded, base, salt)
        seconds, tokens = _seconds(loaded, case, salt)
        if case.n_prompt and tokens != case.n_prompt:
            raise CapacityError(
                f"{case.name}: the prompt cache kept {case.length - tokens} of the {case.depth} tokens that go before, "
                f"so this would be the rate of other tokens; ask for a smaller depth, or for one test at a time"
            )
        rates.append(tokens / max(seconds, 1e-9))
    rate = statistics.median(rates)
    passes = rate / case.n_seqs if case.n_gen else rate / case.n_prompt * -(-case.n_prompt // n_batch)
    return {
        "test": case.name,
        "tokens_per_second": round(rate, 3),
        "stddev": round(statistics.stdev(rates), 3) if len(rates) > 1 else 0.0,
        "gb_per_second": round(passes * loaded.backend.weight_bytes / 1e9, 3),
        "n_threads": loaded.backend.n_threads,
        "isa": loaded.backend.isa,
        "speculation": None,
    }


def _speculation(loaded: Loaded, n_gen: int, repetitions: int) -> list[dict[str, object]]:
    """The tests of --spec."""
    return [
        {
            "test": row["name"],
            "tokens_per_second": round(statistics.median(row["rates"]), 3),
            "stddev": round(statistics.stdev(row["rates"]), 3) if len(row["rates"]) > 1 else 0.0,
            "gb_per_second": None,
            "n_threads": loaded.backend.n_threads,
            "isa": loaded.backend.isa,
            "speculation": row["spec"],
        }
        for row in bench_spec.measure(loaded, n_gen, repetitions)
    ]


def _print_table(name: str, loaded: Loaded, results: list[dict[str, object]]) -> None:
    size = loaded.model.weight_bytes / 2**20
    print("| model | size | params | backend | threads | test | t/s | GB/s |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    for r in results:
        print(
            f"| {name} | {size:.2f} MiB | {loaded.model.n_params / 1e6:.2f} M | {r['isa']} | {r['n_threads']} "
            f"| {r['test']} | {r['tokens_per_second']:.2f} ± {r['stddev']:.2f} | {r['gb_per_second']:.2f} |"
        )
    sys.stdout.flush()

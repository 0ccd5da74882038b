"""Measure speed as llama-bench does: ppN reads a prompt of N tokens, tgN generates N, nplN with N sequences at once."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass

from edgellm import hub
from edgellm.cli import options
from edgellm.cli.progress import Download
from edgellm.core.config import SamplingParams
from edgellm.core.errors import ConfigError
from edgellm.engine.loader import Loaded, OpenOptions, open_model
from edgellm.engine.request import Done, Request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm bench`."""
    options.add_model(parser)
    parser.add_argument("-p", "--n-prompt", default="512", metavar="N,..", help="prompt lengths (0: none)")
    parser.add_argument("-n", "--n-gen", default="128", metavar="N,..", help="generation lengths (0: none)")
    parser.add_argument("-d", "--n-depth", default="0", metavar="N,..", help="tokens already in the context")
    parser.add_argument("-npl", "--parallel", default="", metavar="N,..", help="sequences generating side by side")
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="runs per test; median")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: physical cores)")
    parser.add_argument("-ub", "-b", "--batch-size", type=int, default=512, metavar="N", help="most tokens a step")
    parser.add_argument("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="K cache: f16 or f32")
    parser.add_argument("-ctv", "--cache-type-v", default="f16", metavar="TYPE", help="V cache: f16 or f32")
    parser.add_argument("--weights", default="auto", choices=["auto", "mmap", "tiles"], help="layout of the weights")
    parser.add_argument("--isa", metavar="LEVEL", help="highest instruction set level to use")
    parser.add_argument("--json", action="store_true", help="print a JSON list")


@dataclass(frozen=True, slots=True)
class Case:
    """One test: `n_seqs` sequences with `depth` tokens of context read `n_prompt` and generate `n_gen` tokens each."""

    name: str
    n_prompt: int
    n_gen: int
    depth: int
    n_seqs: int


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    cases = _cases(args)
    name = options.model_name(args)
    with Download() as bar:
        found = hub.resolve(name, offline=args.offline, progress=bar)
    n_ctx = max(c.depth + c.n_prompt + c.n_gen for c in cases) + 1
    max_seqs = max(c.n_seqs for c in cases)
    loaded = open_model(
        str(found.path),
        OpenOptions(
            n_ctx=n_ctx,
            n_threads=args.threads,
            k_type=args.cache_type_k,
            v_type=args.cache_type_v,
            weights=args.weights,
            isa=args.isa,
            max_seqs=max_seqs,
            n_batch=args.batch_size,
        ),
    )
    try:
        results = [_result(loaded, case, args.repetitions) for case in cases]
    finally:
        loaded.engine.close()
        loaded.file.close()
    if args.json:
        print(json.dumps(results))
    else:
        _print_table(name, loaded, results)
    return 0


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"{option} takes numbers separated by commas, found {text!r}") from None
    if any(not 0 <= n <= 1 << 20 for n in numbers):
        raise ConfigError(f"{option} takes numbers from 0 to {1 << 20}, found {text!r}")
    return numbers


def _cases(args: argparse.Namespace) -> list[Case]:
    cases = []
    for depth in _numbers(args.n_depth, "-d") or [0]:
        at = f"@d{depth}" if depth else ""
        cases += [Case(f"pp{p}{at}", p, 0, depth, 1) for p in _numbers(args.n_prompt, "-p") if p]
        cases += [Case(f"tg{n}{at}", 0, n, depth, 1) for n in _numbers(args.n_gen, "-n") if n]
        n_gen = max(_numbers(args.n_gen, "-n") or [0]) or 128
        cases += [Case(f"npl{s}{at}", 0, n_gen, depth, s) for s in _numbers(args.parallel, "-npl") if s]
    if not cases:
        raise ConfigError("nothing to measure: give -p, -n or -npl a number above 0")
    if args.repetitions < 1:
        raise ConfigError(f"-r must be at least 1, found {args.repetitions}")
    return cases


def _seconds(loaded: Loaded, case: Case) -> float:
    """Time of the measured part of one run: the prompt after `depth`, or the tokens after the first."""
    greedy = SamplingParams(temperature=0.0, max_tokens=max(1, case.n_gen + 1)).resolved({})
    length = max(1, case.depth + case.n_prompt)
    step = 7919  # a prime: consecutive tokens differ and stay inside any vocabulary
    prompts = [[(s + i * step) % loaded.plan.n_vocab for i in range(length)] for s in range(case.n_seqs)]
    requests = [Request(prompt, greedy, seed=0) for prompt in prompts]
    for request in requests:
        loaded.engine.submit(request)
    for request in requests:
        event = request.events.get()
        if isinstance(event, Done) and event.error is not None:
            raise event.error
    if case.n_gen:
        return max(r.finished for r in requests) - max(r.first_token for r in requests)
    return requests[0].first_token - requests[0].started


def _result(loaded: Loaded, case: Case, repetitions: int) -> dict[str, object]:
    base = Case("", 0, 0, case.depth, 1)
    _seconds(loaded, Case("", min(case.n_prompt, 64), min(case.n_gen, 8), 0, case.n_seqs))  # warm up
    rates = []
    for _ in range(repetitions):
        seconds = _seconds(loaded, case)
        if case.n_prompt and case.depth:
            seconds -= _seconds(loaded, base)
        rates.append(case.n_seqs * (case.n_gen or case.n_prompt) / seconds)
    rate = statistics.median(rates)
    steps = rate / case.n_seqs if case.n_gen else rate / case.n_prompt
    return {
        "test": case.name,
        "tokens_per_second": round(rate, 3),
        "stddev": round(statistics.stdev(rates), 3) if len(rates) > 1 else 0.0,
        "gb_per_second": round(steps * loaded.backend.weight_bytes / 1e9, 3),
        "n_threads": loaded.backend.n_threads,
        "isa": loaded.backend.isa,
    }


def _print_table(name: str, loaded: Loaded, results: list[dict[str, object]]) -> None:
    size = loaded.backend.weight_bytes / 2**20
    print("| model | size | params | backend | threads | test | t/s | GB/s |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    for r in results:
        print(
            f"| {name} | {size:.1f} MiB | {loaded.model.n_params / 1e6:.2f} M | {r['isa']} | {r['n_threads']} "
            f"| {r['test']} | {r['tokens_per_second']:.2f} ± {r['stddev']:.2f} | {r['gb_per_second']:.2f} |"
        )
    sys.stdout.flush()

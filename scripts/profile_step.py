#!/usr/bin/env python3
"""Where the time of a step goes: what its phases take, by what they do, for decode and prefill steps of a model.

    python scripts/profile_step.py model.gguf
    python scripts/profile_step.py model.gguf --tests tg64@d1024,pp512 -t 2 --isa avx2 --json

tgN times N decode steps of one sequence, ppN a step that reads N tokens; @dD with D tokens in the context. "of step"
is a phase's time from its beginning until the next one's; "busy" is the share of it, over all threads, in which a
thread was inside a chunk: the rest is handing over, waiting for others and what one thread does alone (all of a short
phase: 0 %). GB/s are of the weights as they stand in the file, GMAC/s of multiply-adds. Leave the machine alone while
this runs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm import _native
from edgellm.backends.base import BackendConfig
from edgellm.backends.lower import CODES, Program, lower
from edgellm.backends.native import NativeBackend
from edgellm.core.types import PAGE_TOKENS, Batch
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import Plan
from edgellm.models.spec import load_plan

TEST = re.compile(r"(pp|tg)(\d+)(?:@d(\d+))?")
NAMES = {number: name.lower() for name, number in CODES.items()}
MATRICES = {"linear": (0, 2, 4, 6), "gated": (0, 2), "expert_linear": (0,), "expert_gated": (0, 3)}
"""Where an op's matrices stand among its w."""


@dataclass
class Line:
    """Phases that do the same, per step: how many, ms, share of all threads' time in chunks, bytes of weights and
    multiply-adds."""

    what: str
    phases: float
    ms: float
    busy: float
    n_bytes: int = 0
    macs: int = 0


def describe(program: Program, plan: Plan, file: GGUFFile, first: int, n: int, tokens: int) -> tuple[str, int, int]:
    """What the ops first .. first+n-1 do in words, the bytes of their matrices, and their multiply-adds."""
    if n == 0:
        return "selection", 0, 0
    names, n_bytes, macs = [], 0, 0
    for op in program.ops[first : first + n]:
        name = NAMES[int(op["code"])]
        if name not in MATRICES:
            names.append(name)
            continue
        for at in MATRICES[name]:
            if name == "linear" and at >= 2 * op["i"][0]:
                continue
            weight = plan.weights[program.matrices[op["w"][at]]]
            info = file.tensors[weight.tensor]
            names.append(f"{weight.tensor.removesuffix('.weight').rpartition('.')[2]} {info.qtype.name}")
            size = int(np.prod(weight.shape))
            y = program.buffers[op["v"][1 if name in ("linear", "gated") else 2][0]]
            n_bytes += info.qtype.n_bytes(size)
            macs += size * (tokens if y.axis == "T" else 1)
    return " + ".join(dict.fromkeys(names)), n_bytes, macs


def profile(path: Path, kind: str, n: int, depth: int, threads: int, isa: str | None) -> tuple[list[Line], float]:
    """The lines of one test, and the milliseconds of one step as seen from outside."""
    total = depth + n
    pages = -(-total // PAGE_TOKENS)
    width = max(512, n) if kind == "pp" else 512
    with GGUFFile(path) as file:
        plan = load_plan(file).plan
        program = lower(plan, lambda tensor: file.tensors[tensor].qtype)
        config = BackendConfig(
            n_ctx=pages * PAGE_TOKENS, max_tokens=width, max_rows=1, max_seqs=1, n_pages=(pages,) * len(plan.caches),
            isa=isa, n_threads=threads,
        )  # fmt: skip
        executable = NativeBackend().compile(plan, file, config)
        try:

            def step(at: int, size: int) -> None:
                tables = tuple(i32([range(pages)]) for _ in plan.caches)
                tokens, positions = i32([i % plan.n_vocab for i in range(at, at + size)]), i32(range(at, at + size))
                executable.run(Batch(tokens, positions, i32([0, size]), tables, i32([size - 1])))

            for at in range(0, depth, width):
                step(at, min(width, depth - at))
            steps = [(depth, n)] if kind == "pp" else [(depth + i, 1) for i in range(n)]
            for at, size in steps[:4]:  # once to warm up
                step(at, size)
            times = executable.time_phases()
            start = time.perf_counter()
            for at, size in steps:
                step(at, size)
            wall = time.perf_counter() - start
            executable.time_phases(False)
        finally:
            executable.close()
        found: dict[str, Line] = {}
        for t in times:
            at, n_ops = int(t["first_op"]), int(t["n_ops"])
            add(found, t, len(steps), *describe(program, plan, file, at, n_ops, n if kind == "pp" else 1))
    for line in found.values():
        line.busy /= max(line.ms * executable.info.n_threads, 1e-9)
    return sorted(found.values(), key=lambda line: -line.ms), wall * 1e3 / len(steps)


def add(found: dict[str, Line], t: Any, steps: int, what: str, n_bytes: int, macs: int) -> None:
    """Add a phase to the line of those that do the same; busy still in ms."""
    line = found.setdefault(what, Line(what, 0, 0, 0))
    line.phases += int(t["n_runs"]) / steps
    line.ms += int(t["wall"]) / 1e6 / steps
    line.busy += int(t["busy"]) / 1e6 / steps
    line.n_bytes += n_bytes
    line.macs += macs


def i32(values: object) -> NDArray[np.int32]:
    """A vector or matrix of int32."""
    return np.array(values, np.int32)


def table(test: str, found: Sequence[Line], outside: float, tokens: int) -> str:
    """The lines as a table, with what the phases leave."""
    inside = sum(line.ms for line in found)
    out = [f"{test}: {outside:.3f} ms a step, {1e3 * tokens / outside:.1f} tokens/s", ""]
    out += ["| phase | a step | ms | of step | busy | GB/s | GMAC/s |", "|---|---:|---:|---:|---:|---:|---:|"]
    for x in found:
        rates = " | | |"
        if x.n_bytes:
            rates = f" | {x.n_bytes / x.ms / 1e6:.1f} | {x.macs / x.ms / 1e6:.0f} |"
        out.append(f"| {x.what} | {x.phases:.0f} | {x.ms:.3f} | {x.ms / outside:.1%} | {x.busy:.0%}{rates}")
    rest = outside - inside
    out.append(
        f"| outside of phases: the call, checks, waking and results | | {rest:.3f} | {rest / outside:.1%} | | | |"
    )
    return "\n".join(out)


def main(argv: list[str]) -> int:
    """Profile every test and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tests", default="tg64@d128,pp512", help="separated by commas (tg64@d128,pp512)")
    parser.add_argument("-t", "--threads", type=int, default=_native.default_threads())
    parser.add_argument("--isa", help="level")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    results = []
    for text in args.tests.split(","):
        match = TEST.fullmatch(text)
        if not match or not int(match[2]):
            raise SystemExit(f"no test is called {text!r}; examples: tg64 tg64@d4096 pp512")
        kind, n, depth = match[1], int(match[2]), int(match[3] or 0)
        found, outside = profile(args.model, kind, n, depth, args.threads, args.isa)
        if args.json:
            results.append({"test": text, "ms": outside, "phases": [asdict(line) for line in found]})
        else:
            print(table(text, found, outside, n if kind == "pp" else 1) + "\n")
    if args.json:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""edgellm against other runtimes on this machine: interleaved runs, medians, and the physical limit beside them.

    python scripts/duel.py --llama ~/llama.cpp/build/bin model.gguf
    python scripts/duel.py --llama ... --rival ik=~/ik_llama.cpp/build/bin --tests tg128,pp512,tg64@d4096,npl8 a.gguf
    python scripts/duel.py --llama ... --csv docs/perf/my-machine.csv a.gguf b.gguf

Tests are named as llama-bench does: ppN reads N tokens, tgN generates N, @dD with D tokens in the context, nplS
generates with S sequences side by side. A rival is a folder with `llama-bench` and, for npl, `llama-batched-bench`; it
runs with its weights repacked or not (and with --flash, flash attention on or off), and its better median counts. The
limit of a decode test is bytes read over measured bandwidth, of a prefill test multiply-adds over the measured int8
rate. Leave the machine alone while this runs: it warns when something else is busy.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TEST = re.compile(r"(pp|tg|npl)(\d+)(?:@d(\d+))?")
GENERATED = 64
"""Tokens that each sequence of an npl test generates."""


@dataclass(frozen=True)
class Test:
    """One figure: kind "pp" | "tg" | "npl", n tokens or sequences, tokens already in the context."""

    kind: str
    n: int
    depth: int

    def __str__(self) -> str:
        return f"{self.kind}{self.n}" + (f"@d{self.depth}" if self.depth else "")


def read_test(text: str) -> Test:
    """Raises SystemExit for a name that means nothing."""
    found = TEST.fullmatch(text.strip())
    if not found or not int(found[2]):
        raise SystemExit(f"no test is called {text!r}; examples: pp512 tg128 tg128@d4096 npl8")
    return Test(found[1], int(found[2]), int(found[3] or 0))


@dataclass
class Runtime:
    """A program under one setting."""

    name: str
    setting: str
    rates: dict[Test, list[float]] = field(default_factory=dict)

    def measure(self, model: Path, test: Test, threads: int) -> float:
        """Tokens a second of one run."""
        raise NotImplementedError


@dataclass
class EdgeLLM(Runtime):
    """`edgellm bench` of this checkout."""

    isa: str | None = None

    def measure(self, model: Path, test: Test, threads: int) -> float:
        argv = [sys.executable, "-m", "edgellm", "bench", str(model), "-r", "1", "-t", str(threads), "--json"]
        sizes = {"pp": ["-p", str(test.n), "-n", "0"], "tg": ["-p", "0", "-n", str(test.n)]}
        argv += sizes.get(test.kind, ["-p", "0", "-n", str(GENERATED), "-npl", str(test.n)])
        argv += ["-d", str(test.depth)] if test.depth else []
        argv += ["--isa", self.isa] if self.isa else []
        return float(json.loads(output(argv))[-1]["tokens_per_second"])


@dataclass
class Llama(Runtime):
    """llama.cpp or a fork of it: its benchmark programs in `folder`."""

    folder: Path = Path()
    flags: tuple[str, ...] = ()

    def measure(self, model: Path, test: Test, threads: int) -> float:
        if test.kind == "npl":
            return self._parallel(model, test, threads)
        sizes = {"pp": ["-p", str(test.n), "-n", "0"], "tg": ["-p", "0", "-n", str(test.n)]}[test.kind]
        argv = [str(self.folder / "llama-bench"), "-m", str(model), "-r", "1", "-t", str(threads), "-o", "json", *sizes]
        argv += ["-d", str(test.depth)] if test.depth else []
        return float(json.loads(output([*argv, *self.flags]))[-1]["avg_ts"])

    def _parallel(self, model: Path, test: Test, threads: int) -> float:
        flags = ["--no-repack"] if self.flags[:2] == ("--repack", "0") else []
        prompt, context = max(test.depth, 1), test.n * (max(test.depth, 1) + GENERATED + 8)
        argv = [str(self.folder / "llama-batched-bench"), "-m", str(model), "-c", str(context), "-t", str(threads)]
        argv += ["-npp", str(prompt), "-ntg", str(GENERATED), "-npl", str(test.n), "--output-format", "jsonl"]
        lines = [x for x in output([*argv, *flags]).splitlines() if x.startswith("{")]
        return float(json.loads(lines[-1])["speed_tg"])


def output(argv: Sequence[str]) -> str:
    """A program's standard output. Raises SystemExit with the end of what it said when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}\nended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def rivals(args: argparse.Namespace) -> Iterator[Llama]:
    """Every rival under each of its settings."""
    named = [("llama.cpp", args.llama)] if args.llama else []
    for given in args.rival:
        name, _, folder = given.partition("=")
        named.append((name, Path(folder)))
    for name, folder in named:
        bench = Path(folder).expanduser() / "llama-bench"
        if not bench.exists():
            raise SystemExit(f"{bench} does not exist")
        known = subprocess.run([bench, "--help"], capture_output=True, text=True).stdout
        repack = ["0", "1"] if "--repack" in known else [""]
        flash = ["0", "1"] if args.flash and "-fa" in known else [""]
        for r in repack:
            for f in flash:
                flags = (*(("--repack", r) if r else ()), *(("-fa", f) if f else ()))
                setting = " ".join([*([f"repack={r}"] if r else []), *([f"fa={f}"] if f else [])])
                yield Llama(name, setting, folder=bench.parent, flags=flags)


@dataclass(frozen=True)
class Machine:
    """What this machine can do with n threads: bytes/s of reading, int8 multiply-adds/s."""

    cpu: str
    threads: int
    bandwidth: float
    int8: float
    isa: str


def probe(threads: int, isa: str | None = None) -> Machine:
    """Measure it: the best of three, with the instructions of the best level up to `isa`."""
    from edgellm import _native

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        cpu = names[0] if names else cpu
    level = _native.usable_level(isa)
    bandwidth = max(_native.probe_bandwidth(threads, 1 << 30) for _ in range(3))
    int8 = max(_native.probe_int8(threads, level) for _ in range(3))
    return Machine(cpu, threads, bandwidth, int8, level)


@dataclass(frozen=True)
class Size:
    """What one token costs: bytes of weights read, multiply-adds without and of the head, bytes of f16 K and V."""

    n_bytes: float
    macs: float
    head_macs: float
    kv_bytes: float


def size_of(model: Path) -> Size:
    """Read from the file. Of a stack of experts the share that a token uses counts."""
    from edgellm.gguf.reader import GGUFFile
    from edgellm.models.spec import load_plan

    with GGUFFile(model) as file:
        plan, keys = load_plan(file).plan, file.metadata
        used = keys.get(f"{plan.arch}.expert_used_count", 0) / max(1, keys.get(f"{plan.arch}.expert_count", 0))
        n_bytes = macs = head = 0.0
        for t in file.tensors.values():
            if len(t.shape) < 2 or (t.name == "token_embd.weight" and "output.weight" in file.tensors):
                continue
            share = used if len(t.shape) == 3 and used else 1.0
            n_bytes += share * t.n_bytes
            if t.name in ("token_embd.weight", "output.weight"):
                head += t.n_elements
            else:
                macs += share * t.n_elements
    kv = sum(2.0 * x.heads * (x.k_dim + x.v_dim) for cache in plan.caches for x in cache.layers)
    return Size(n_bytes, macs, head, kv)


def limit(machine: Machine, size: Size, test: Test) -> float:
    """Tokens a second if nothing but the memory (decode) or the multipliers (prefill) took time."""
    kv = size.kv_bytes * (test.depth + GENERATED / 2)
    if test.kind == "tg":
        return machine.bandwidth / (size.n_bytes + kv)
    compute = machine.int8 / (size.macs + (size.head_macs if test.kind == "npl" else 0))
    if test.kind == "pp":
        return compute
    return min(compute, test.n * machine.bandwidth / (size.n_bytes + test.n * kv))


def busy() -> float:
    """Share of all cores that other programs have kept busy over a second."""
    import psutil

    return psutil.cpu_percent(interval=1.0) / 100


def duel(model: Path, tests: Sequence[Test], runtimes: Sequence[Runtime], threads: int, rounds: int) -> None:
    """Every test, every round, every runtime in turn."""
    for test in tests:
        for turn in range(rounds):
            order = list(runtimes) if turn % 2 == 0 else list(runtimes)[::-1]
            for runtime in order:
                rate = runtime.measure(model, test, threads)
                runtime.rates.setdefault(test, []).append(rate)
                print(f"  {test} {runtime.name} {runtime.setting}: {rate:.2f}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    """Run the duel and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--llama", type=Path, help="folder of llama.cpp's llama-bench and llama-batched-bench")
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=FOLDER", help="another one like it")
    parser.add_argument("--tests", default="tg128,pp512", help="separated by commas (tg128,pp512)")
    parser.add_argument("--flash", action="store_true", help="also compare flash attention on and off")
    parser.add_argument("--isa", help="level that edgellm may use at most")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--csv", type=Path, help="append the figures to this file")
    args = parser.parse_args(argv)
    tests = [read_test(t) for t in args.tests.split(",")]
    others = busy()
    if others > 0.1:
        print(f"warning: {others:.0%} of this machine is busy with something else", file=sys.stderr)
    machine = probe(args.threads, args.isa)
    print(f"{machine.cpu}, {args.threads} threads, level {machine.isa}")
    print(f"reads {machine.bandwidth / 1e9:.1f} GB/s, {machine.int8 / 1e9:.0f} G int8 multiply-adds/s")
    rows = []
    for model in args.models:
        size = size_of(model)
        ours = EdgeLLM("edgellm", "", isa=args.isa)
        theirs = list(rivals(args))
        duel(model, tests, [ours, *theirs], args.threads, args.rounds)
        for test in tests:
            best: dict[str, tuple[float, str]] = {}
            for r in theirs:
                best[r.name] = max(best.get(r.name, (0.0, "")), (statistics.median(r.rates[test]), r.setting))
            own, bound = statistics.median(ours.rates[test]), limit(machine, size, test)
            rows.append((model.stem, test, own, bound, best))
    names = list(dict.fromkeys(name for row in rows for name in row[4]))
    heads = "".join(f" {n} | ratio |" for n in names)
    print(f"\n| model | test | edgellm t/s | limit | of limit |{heads}")
    print("|---|---|---:|---:|---:|" + "---:|---:|" * len(names))
    for name, test, own, bound, best in rows:
        against = "".join(f" {best[n][0]:.1f} ({best[n][1]}) | {own / best[n][0]:.2f}x |" for n in names)
        print(f"| {name} | {test} | {own:.1f} | {bound:.0f} | {own / bound:.0%} |{against}")
    if args.csv:
        write_csv(args.csv, machine, args, rows)
    return 0


def write_csv(
    path: Path,
    machine: Machine,
    args: argparse.Namespace,
    rows: list[tuple[str, Test, float, float, dict[str, tuple[float, str]]]],
) -> None:
    """Append one line per figure."""
    new = not path.exists()
    with open(path, "a", newline="") as file:
        out = csv.writer(file)
        if new:
            out.writerow(
                "date cpu threads isa gb_per_s int8_gmacs model test runtime setting tokens_per_s limit".split()
            )
        day = time.strftime("%Y-%m-%d")
        common = [day, machine.cpu, machine.threads, machine.isa, f"{machine.bandwidth / 1e9:.1f}"]
        common.append(f"{machine.int8 / 1e9:.0f}")
        for name, test, own, bound, best in rows:
            for runtime, (rate, setting) in {"edgellm": (own, ""), **best}.items():
                out.writerow([*common, name, str(test), runtime, setting, f"{rate:.2f}", f"{bound:.0f}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

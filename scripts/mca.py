#!/usr/bin/env python3
"""How near the neon matmul loops come to what a processor's ports allow, by llvm-mca's models.

    python scripts/mca.py [--cpu neoverse-n2] [--kernel q4_k] [--llvm 19]

Compiles the kernels with Zig's clang (`pip install ziglang`) and follows one block of weights through each tile
function: the loop over blocks, straightened, its inner loops repeated as often as they run. Needs llvm-objdump and
llvm-mca (Debian: llvm-19, whose models include neoverse-v2). A line says, for one block:

    dots     sdot or smmla instructions
    cycles   as llvm-mca predicts them
    limit    what the busiest port has to do, in cycles, and its share of them
    peak     what the dots alone would take, as a share of the cycles

The models know nothing of caches: all loads hit the first level.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ISA = ROOT / "native" / "kernels" / "isa"
CPUS = ("apple-m1", "neoverse-n2", "neoverse-v2")
LEVELS = {"neon_dotprod": ("generic+dotprod", "sdot"), "neon_i8mm": ("generic+dotprod+i8mm", "smmla")}
KERNELS = {
    "legacy": ("q4_0", "q4_1", "q5_0", "q8_0", "iq4_nl"),
    "kquants": ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"),
}
OPERANDS = {"sdot": "v0.4s, v1.16b, v2.4b[0]", "smmla": "v0.4s, v1.16b, v2.16b"}
INDEPENDENT = 64
"""Dots of the block whose ports give the peak."""
PAIRS = 4
"""Times that the inner loop of a block of 256 runs."""


ROUNDS = 50
BRANCH = re.compile(r"(b|bl|br|ret|cbn?z|tbn?z|b\.\w+)\b")


class Line(NamedTuple):
    """An instruction and where it stands."""

    address: int
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cpu", choices=CPUS, action="append")
    parser.add_argument("--kernel", help="only tile functions whose name contains this")
    parser.add_argument("--llvm", default="19", help="version suffix of the LLVM tools")
    args = parser.parse_args()
    objdump, mca = (shutil.which(f"{tool}-{args.llvm}") or shutil.which(tool) for tool in ("llvm-objdump", "llvm-mca"))
    if not objdump or not mca:
        print(f"needs llvm-objdump and llvm-mca (Debian: apt install llvm-{args.llvm})", file=sys.stderr)
        return 2
    print("| level | function | processor | dots | cycles | limit | of the limit | of the peak |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for level, (features, dot) in LEVELS.items():
        for family, types in KERNELS.items():
            listing = disassemble(objdump, f"{level}_matmul_{family}", features)
            for name in [f"{t}_{form}" for t in types for form in forms(level)]:
                if args.kernel and args.kernel not in name:
                    continue
                block = one_block(listing[name], dot)
                dots = sum(line.split()[0] == dot for line in block)
                for cpu in args.cpu or CPUS:
                    cycles, limit = predict(mca, cpu, block)
                    least = dots * predict(mca, cpu, [f"{dot} {OPERANDS[dot]}"] * INDEPENDENT)[1] / INDEPENDENT
                    figures = f"{dots} | {cycles:.0f} | {limit:.0f} | {limit / cycles:.0%} | {least / cycles:.0%}"
                    print(f"| {level} | {name} | {cpu} | {figures} |")
    return 0


def forms(level: str) -> tuple[str, ...]:
    return ("packed_1", "packed_4", "expanded_4") if level == "neon_dotprod" else ("expanded_4",)


def disassemble(objdump: str, stem: str, features: str) -> dict[str, list[Line]]:
    """Function -> its instructions."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "kernels.o"
        includes = [f"-I{ROOT / 'native' / d}" for d in (".", "include", "core", "kernels")]
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", f"-mcpu={features}"]
        flags = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-DNDEBUG", *includes]
        subprocess.run([*zig, *flags, "-c", ISA / f"{stem}.c", "-o", compiled], check=True)
        return listing_of(objdump, compiled)


def listing_of(objdump: str, compiled: Path) -> dict[str, list[Line]]:
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", compiled], check=True, capture_output=True, text=True)
    functions: dict[str, list[Line]] = {}
    lines: list[Line] = []
    for line in text.stdout.splitlines():
        if found := re.match(r"[0-9a-f]+ <(\w+)>:", line):
            lines = functions.setdefault(found[1], [])
        elif found := re.match(r" *([0-9a-f]+):\s+(.*)", line):
            lines.append(Line(int(found[1], 16), found[2].replace("\t", " ")))
    return functions


def one_block(lines: list[Line], dot: str) -> list[str]:
    """The instructions of one round of the loop over blocks, which is the outermost one with dots."""
    place = {line.address: i for i, line in enumerate(lines)}
    loops = []
    for end, line in enumerate(lines):
        found = re.match(r"(?:b|[ct]bn?z).* 0x([0-9a-f]+)", line.text)
        start = place.get(int(found[1], 16), end) if found else end
        if start < end and any(x.text.startswith(dot) for x in lines[start:end]):
            loops.append((start, end))
    start, stop = max(loops, key=lambda loop: loop[1] - loop[0])
    inner = {a: b for a, b in loops if (a, b) != (start, stop)}
    block: list[str] = []
    at = start
    while at <= stop:
        end = inner.get(at, at)
        block += [line.text for line in lines[at : end + 1]] * (PAIRS if at in inner else 1)
        at = end + 1
    return [text for text in block if not BRANCH.match(text)]


def predict(mca: str, cpu: str, block: list[str]) -> tuple[float, float]:
    """Cycles of a block in a steady stream of them, and the busiest port's."""
    command = [mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={cpu}", "-mattr=+dotprod,+i8mm", f"-iterations={ROUNDS}"]
    done = subprocess.run(command, input="\n".join(block), capture_output=True, text=True, check=True)
    cycles = re.search(r"Total Cycles: +(\d+)", done.stdout)
    ports = re.search(r"Resource pressure per iteration:\n.*\n(.*)\n", done.stdout)
    if cycles is None or ports is None:
        raise SystemExit(f"llvm-mca said:\n{done.stdout[:2000]}")
    return int(cycles[1]) / ROUNDS, max(float(x) for x in ports[1].split() if x != "-")


if __name__ == "__main__":
    sys.exit(main())

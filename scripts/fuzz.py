#!/usr/bin/env python3
"""Fuzzing: damaged model files through everything edgellm does with one, and wrong requests to a server.

    python scripts/fuzz.py files --count 200000 --seed 1      # structure-aware damage; needs nothing else
    python scripts/fuzz.py files --first 4711 --count 1 --seed 1    # one file again, in full
    python scripts/fuzz.py cover --seconds 300                # coverage-guided, where atheris is installed
    python scripts/fuzz.py server --count 60000 --seed 1      # `edgellm serve` over real sockets

`files` opens, tokenises, loads and runs every file in a child process, with the native library under the address and
undefined-behaviour sanitizers where build/asan can be built (--library takes another). A file is a pure function of
seed and number. What counts as found: a crash, an error that is not one of edgellm's for bad models, more than a second
of CPU time, more than 64 MB of memory for one file, and memory that stays. Findings go to --out, with the file.

`server` sends wrong bodies, values, framing and clients that leave (`tests/server/attacks.py`), while well-formed
requests go on beside them; `tests/server/siege.py` says what counts as found. It prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "tests")  # not this folder, where `fuzz` would be this file
sys.path.insert(1, str(ROOT))

MAX_SECONDS = 1.0
MAX_BYTES = 64 << 20
STUCK_SECONDS = 60
"""Wall-clock time after which a file counts as hung: the machine may be busy with other things."""
GROWTH_BYTES = 32 << 20
WARM = 500
"""Files after which memory has settled."""
WITH_TEXT = 0.2
"""Share of the files that have a vocabulary: building its tables is most of the time."""


def build_library() -> Path:
    """The library with sanitizers, brought up to date."""
    sys.path.append(str(ROOT / "scripts"))
    import dev

    dev.check_compiler()
    options = ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 -g1")
    dev.compile_native("asan", ["edgellm"], *options, f"-DEDGELLM_SANITIZE={dev.SANITIZERS['asan']}")
    return ROOT / "build" / "asan" / "native" / "libedgellm.so"


def child_environment(library: Path | None) -> dict[str, str]:
    """Under the sanitizers the interpreter has to load their run time first; its own leaks are not ours."""
    env = dict(os.environ, PYTHONHASHSEED="0", HF_HUB_OFFLINE="1", EDGELLM_OFFLINE="1")
    if library is not None:
        env["EDGELLM_LIBRARY"] = str(library)
        if b"__asan_init" in library.read_bytes():
            # The C++ run time as well: extension modules throw exceptions through the sanitizers' hooks.
            named = [["gcc", f"-print-file-name={n}"] for n in ("libasan.so", "libstdc++.so.6")]
            found = [subprocess.run(c, capture_output=True, text=True).stdout.strip() for c in named]
            env["LD_PRELOAD"] = " ".join(found)
            env["ASAN_OPTIONS"] = "detect_leaks=0:quarantine_size_mb=4:allocator_may_return_null=1:abort_on_error=1"
            env["UBSAN_OPTIONS"] = "print_stacktrace=1"
    return env


# ---- the child: one file after the other -----------------------------------------------------------------


def case(seed: int, number: int) -> tuple[bytes, str, random.Random]:
    """File `number`: its bytes, how it came about, and the random numbers for what is done with it."""
    from fuzz.mutate import mutated
    from fuzz.seeds import SEEDS

    rng = random.Random(f"{seed}:{number}")
    name = rng.choice(sorted(SEEDS)) + ("" if rng.random() < WITH_TEXT else " without text")
    data, damage = mutated(_seed_image(name), rng)
    return data, f"{name}: {'+'.join(damage)}", rng


_images: dict[str, object] = {}


def _seed_image(name: str):  # type: ignore[no-untyped-def] # tests/ is not typed for callers
    from fuzz.seeds import SEEDS, without_text

    if name not in _images:
        seed, _, text = name.partition(" ")
        _images[name] = without_text(SEEDS[seed]()) if text else SEEDS[seed]()
    return _images[name]


def memory(field: bytes) -> int:
    """VmRSS or VmHWM of this process, in bytes; 0 where the system does not say."""
    try:
        with open("/proc/self/status", "rb") as f:
            return next((int(line.split()[1]) << 10 for line in f if line.startswith(field)), 0)
    except OSError:
        return 0


def reset_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def worker(args: argparse.Namespace) -> int:
    """Files first .. first+count-1. A line of JSON for every finding, and one at the end."""
    from fuzz import target

    target.quiet()
    path = args.folder / "case.gguf"
    settled = 0
    ends: Counter[str] = Counter()
    with open(args.folder / "progress", "r+b") as f:
        progress = mmap.mmap(f.fileno(), 8)
    for number in range(args.first, args.first + args.count):
        progress[:8] = struct.pack("<Q", number)
        data, how, rng = case(args.seed, number)
        path.write_bytes(data)
        if number - args.first == WARM:
            settled = memory(b"VmRSS")
        reset_peak()
        before, start = memory(b"VmRSS"), time.process_time()
        try:
            end = target.use(path, rng, "without text" not in how)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            end = f"fault: {type(e).__name__}"
            report(number, how, end, traceback.format_exc())
        seconds, peak = time.process_time() - start, memory(b"VmHWM") - before
        ends[end] += 1
        if args.verbose:
            print(f"# {number} {how}: {end}, {seconds * 1e3:.0f} ms, {peak >> 10} KiB", flush=True)
        if number % 100 == 0:  # what a crash would lose
            print(json.dumps({"ends": ends, "growth": 0}), flush=True)
            ends.clear()
        first_use = number - args.first < 20  # imports
        if seconds > MAX_SECONDS and not first_use:
            report(number, how, "slow", f"{seconds:.2f} s of CPU time, ended as {end}")
        if peak > MAX_BYTES and not first_use:
            report(number, how, "memory", f"{peak >> 20} MiB at the peak, ended as {end}")
    growth = memory(b"VmRSS") - settled if settled else 0
    if growth > GROWTH_BYTES:
        report(-1, "all files", "growth", f"{growth >> 20} MiB more memory than after {WARM} files")
    print(json.dumps({"ends": ends, "growth": growth}), flush=True)
    return 0


def report(number: int, how: str, kind: str, text: str) -> None:
    print(json.dumps({"finding": kind, "number": number, "how": how, "text": text}), flush=True)


# ---- the parent ------------------------------------------------------------------------------------------


def run_child(args: argparse.Namespace, first: int, count: int, folder: Path) -> tuple[list[dict], int | None]:  # type: ignore[type-arg]
    """What a child printed, and the number of the file that killed it, if one did."""
    (folder / "progress").write_bytes(bytes(8))
    numbers = {"--seed": args.seed, "--first": first, "--count": count}
    options = [word for name, number in numbers.items() for word in (name, str(number))]
    options += ["--folder", str(folder), *(["--verbose"] if args.verbose else [])]
    command = [sys.executable, "-X", "faulthandler", __file__, "worker", *options]
    with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, env=child_environment(args.library))
        last, since, stuck = -1, time.monotonic(), False
        while child.poll() is None:
            time.sleep(0.2)
            (now,) = struct.unpack("<Q", (folder / "progress").read_bytes())
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > STUCK_SECONDS:
                stuck = True
                child.kill()
        out.seek(0)
        err.seek(0)
        text = out.read()
        if args.verbose:
            print(text, end="")
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        if child.returncode == 0:
            return lines, None
        kind = "hang" if stuck else f"crash {child.returncode}"
        (last,) = struct.unpack("<Q", (folder / "progress").read_bytes())
        lines.append({"finding": kind, "number": last, "how": case(args.seed, last)[1], "text": err.read()[-6000:]})
        return lines, last


def verb_files(args: argparse.Namespace) -> int:
    """Damaged files, in portions, each in a fresh child."""
    if args.library is None and not args.release:
        args.library = build_library()
    findings: list[dict] = []  # type: ignore[type-arg]
    ends: Counter[str] = Counter()
    start, growth, at, stop = time.monotonic(), 0, args.first, args.first + args.count
    with _folder() as folder:
        while at < stop:
            lines, killed = run_child(args, at, min(args.portion, stop - at), folder)
            for line in lines:
                if "ends" in line:
                    ends.update(line["ends"])
                    growth = max(growth, line["growth"])
                    continue
                findings.append(line)
                keep(args, line)
            at = min(at + args.portion, stop) if killed is None else killed + 1
            say(f"{at - args.first} files, {len(findings)} findings, {time.monotonic() - start:.0f} s")
    summary = {
        "files": args.count, "seed": args.seed, "first": args.first, "seconds": round(time.monotonic() - start),
        "library": str(args.library or "release"), "growth_bytes": growth,
        "ends": dict(ends.most_common()), "findings": len(findings),
    }  # fmt: skip
    print(json.dumps(summary))
    return 1 if findings else 0


def keep(args: argparse.Namespace, finding: dict) -> None:  # type: ignore[type-arg]
    """The finding with its file, in --out; said on standard error."""
    say(f"FOUND {finding['finding']}: file {finding['number']}, {finding['how']}\n{finding['text'][-1500:]}")
    if args.out is not None and finding["number"] >= 0:
        args.out.mkdir(parents=True, exist_ok=True)
        stem = args.out / f"{args.seed}-{finding['number']}"
        stem.with_suffix(".gguf").write_bytes(case(args.seed, finding["number"])[0])
        stem.with_suffix(".txt").write_text(json.dumps(finding, indent=1))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder in memory where there is one: the files need not reach a disk."""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="edgellm-fuzz-", dir=shm))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- coverage-guided -------------------------------------------------------------------------------------


def verb_cover(args: argparse.Namespace) -> int:
    """libFuzzer through atheris: the reader on raw bytes, then vocabularies from what it accepts."""
    try:
        import atheris
    except ImportError as e:
        say(f"skipped: atheris is not installed ({e}); it is on the package index for Linux: pip install atheris")
        return 0
    import numpy as np

    # Modules that an editable install's own loader brings are not instrumented; this folder is on the path anyway.
    sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("ScikitBuild")]
    with atheris.instrument_imports(include=["edgellm.gguf", "edgellm.tokenizer", "edgellm.models"]):
        import edgellm.gguf.header as header
        import edgellm.tokenizer.bpe
        import edgellm.tokenizer.spm
        import edgellm.tokenizer.tokenizer  # noqa: F401
        from edgellm.core.errors import GGUFError, ModelError, RequestError
        from edgellm.gguf.values import StringArray
        from edgellm.tokenizer import Tokenizer
    from fuzz import target
    from fuzz.seeds import SEEDS

    target.quiet()
    images = [_seed_image(name) for name in sorted(SEEDS)]

    def one(data: bytes) -> None:
        try:
            found = header.parse_header(np.frombuffer(data, np.uint8), "x")
        except GGUFError:
            return
        try:
            for value in found.metadata.values():
                if isinstance(value, StringArray):
                    value.to_list("replace")
            target.text(Tokenizer.from_metadata(found.metadata))
        except (ModelError, RequestError):
            return

    def custom(data: bytes, max_size: int, seed: int) -> bytes:
        from fuzz.mutate import mutated

        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        image = rng.choice(images).copy()
        for tensor in image.tensors:  # data is not what is fuzzed here
            tensor.data, tensor.ne = tensor.data[:4], [1]
            tensor.type = 0
        return mutated(image, rng)[0][:max_size]

    corpus = args.corpus or Path(tempfile.mkdtemp(prefix="edgellm-corpus-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        small = image.copy()
        for tensor in small.tensors:
            tensor.data, tensor.ne, tensor.type = bytes(4), [1], 0
        (corpus / f"seed-{i}").write_bytes(small.to_bytes())
    flags = [
        f"-max_total_time={args.seconds}",
        "-max_len=40000",
        "-timeout=10",
        f"-seed={args.seed}",
        "-print_final_stats=1",
    ]
    atheris.instrument_func(one)
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=custom)
    atheris.Fuzz()
    return 0


# ---- a server --------------------------------------------------------------------------------------------


def verb_server(args: argparse.Namespace) -> int:
    """Wrong requests to a server in a process of its own, over several connections."""
    from server import siege
    from serving.tiny import write_tiny

    with _folder() as folder:
        model = args.model or str(write_tiny(folder / "tiny.gguf"))
        words = ["-c", "512"] if args.model else []  # or answers without a limit would go on for minutes
        report = siege.run(model, args.count, args.seed, *words, *args.words, n_attackers=args.connections)
    for text in report.complaints[:20]:
        say(f"FOUND {text[:3000]}")
    found = {
        "requests": report.requests, "seed": args.seed, "model": args.model or "tiny", "well_formed": report.good,
        "statuses": {str(k): v for k, v in sorted(report.statuses.items())}, "kinds": dict(report.kinds.most_common()),
        **report.figures, "complaints": len(report.complaints),
    }  # fmt: skip
    print(json.dumps(found))
    return 1 if report.complaints else 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, text in (("files", "damaged files, the whole path"), ("worker", argparse.SUPPRESS)):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("--count", type=int, default=2000, help="how many files")
        verb.add_argument("--seed", type=int, default=0)
        verb.add_argument("--first", type=int, default=0, help="number of the first file")
        verb.add_argument("--portion", type=int, default=5000, help="files per child process")
        verb.add_argument("--library", type=Path, help="native library (the one in build/asan, which is built)")
        verb.add_argument("--release", action="store_true", help="the package's own library, without sanitizers")
        verb.add_argument("--out", type=Path, help="folder for findings")
        verb.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
        verb.add_argument("--verbose", action="store_true", help="a line for every file")
    cover = verbs.add_parser("cover", help="coverage-guided: reader and vocabularies")
    cover.add_argument("--seconds", type=int, default=60)
    cover.add_argument("--seed", type=int, default=1)
    cover.add_argument("--corpus", type=Path, help="folder that keeps what was learnt")
    server = verbs.add_parser("server", help="wrong requests over real sockets")
    server.add_argument("--count", type=int, default=60_000, help="how many requests")
    server.add_argument("--seed", type=int, default=1)
    server.add_argument("--model", help="name or path of the model that is served (a tiny one that is made for it)")
    server.add_argument("--connections", type=int, default=16, help="of wrong requests; four more send sound ones")
    server.add_argument("words", nargs="*", help="more options of `edgellm serve`, behind --")
    args = parser.parse_args(argv)
    return {"server": verb_server, "files": verb_files, "worker": worker, "cover": verb_cover}[args.verb](args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Show what edgellm found on this machine, what it chose, and why."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import psutil

from edgellm import _native
from edgellm.backends import select
from edgellm.backends.native import tuning
from edgellm.core import env
from edgellm.core.errors import ConfigError, NativeError
from edgellm.core.version import NUMERICS_VERSION, __version__
from edgellm.engine.advice import Advice, advise, largest
from edgellm.engine.loader import largest_tiled
from edgellm.engine.selftest import LOGITS_SHA256, Check, check
from edgellm.gguf.qtypes import QType
from edgellm.hub import tiles

JSON = {
    "version": "of edgellm",
    "numerics_version": "changes whenever any result changes",
    "python": "version of Python",
    "system": "operating system and machine",
    "cpu": "name of the processor",
    "logical_cpus": "logical processors",
    "physical_cores": "physical cores",
    "affinity_cpus": "processors this process may run on; null where the system does not say",
    "memory_total": "bytes",
    "memory_available": "bytes",
    "largest_model_tiles": "bytes of weights up to which they are repacked for speed",
    "tiles": "object: folder of the tile caches, number of those in it and beside models in the cache, bytes, and "
    "orphaned: number of those whose model is gone; null where there is no cache directory",
    "native": "whether the native library can be used",
    "native_library": "its path",
    "native_why_not": "why it cannot be used, or empty",
    "backend": "what backend=auto is here: native, numba or reference",
    "isa": "level in use; null where the one asked for cannot be used",
    "settings": "object: environment variables that are set, secrets left out",
    "isa_levels": "list of name, usable, why_not (with a native library, like the following keys)",
    "cores": "object: what the number of threads is chosen from: logical processors allowed by the affinity mask, fast "
    "ones of them, cores of those, quota (processors that the control group may use, 0: no limit)",
    "default_threads": "threads that would be chosen",
    "n_threads": "threads that are used: EDGELLM_THREADS, else the former",
    "bandwidth": "bytes per second read (not with --no-measure, like the following keys)",
    "int8_rate": "int8 multiply-adds per second, at the level in use",
    "tuning": "object: decode_threads for a model in Q4_K_M, bandwidths by number of threads, kept_in (a file, or "
    "null); null where there is nothing to choose: n_threads is set, or up to two",
    "prefetch": "object: gains (how many times as fast a weight type is read where kernels prefetch far ahead), "
    "far (the types that do), kept_in; null at levels with one distance",
    "advice": "object: size, quant, n_bytes, n_ctx, tokens_per_second of a model that suits this machine; null where "
    "none does",
    "largest": "the same of the largest that fits its memory, at whatever pace",
    "selftest": "list of backend, level, digest (SHA-256 of the logits, or empty), ok, seconds, why_not; null without "
    "--selftest",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm doctor`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-measure", action="store_true", help="skip the two short measurements")
    parser.add_argument(
        "--selftest", action="store_true", help="compare the logits of a tiny model with the published hash"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 when the native library, or the level asked for, cannot be used, or the self-test fails."""
    report = collect(measure=not args.no_measure)
    checks = selftest() if args.selftest else None
    report["selftest"] = None if checks is None else [c._asdict() for c in checks]
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
        for c in checks or ():
            sys.stdout.write(f"{'selftest':<10} {c.level or c.backend}: {'as published' if c.ok else c.why_not}\n")
        if checks is not None:
            sys.stdout.write(f"{'':<10} (SHA-256 of the logits, numerics {NUMERICS_VERSION}: {LOGITS_SHA256})\n")
    right = checks is None or (bool(checks) and all(c.ok for c in checks))
    return 0 if report["native"] and report["isa"] is not None and right else 1


def selftest() -> list[Check]:
    """The self-test at every level that this machine has, in ascending order; of Numba where that stands in for the
    native library; none where NumPy alone does."""
    if select.automatic()[0] == "numba":
        return [check("numba")]
    levels = _native.isa_levels() if _native.available() else []
    return [check("native", name) for name, usable, _ in levels if usable]


def collect(*, measure: bool) -> dict[str, Any]:
    """Everything doctor knows, as plain data. Rates: bytes/s and int8 multiply-adds/s; sizes in bytes.

    isa is None when the level that EDGELLM_ISA names cannot be used here.
    """
    memory = psutil.virtual_memory()
    native = _native.available()
    report: dict[str, Any] = {
        "version": __version__,
        "numerics_version": NUMERICS_VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "logical_cpus": psutil.cpu_count(logical=True),
        "physical_cores": psutil.cpu_count(logical=False),
        "affinity_cpus": _affinity(),
        "memory_total": memory.total,
        "memory_available": memory.available,
        "largest_model_tiles": largest_tiled(memory.available),
        "tiles": _tiles(),
        "native": native,
        "native_library": str(_native.library_path()),
        "native_why_not": _native.why_not(),
        "backend": select.automatic()[0],
        "isa": None,
        "settings": {v.name: v.text() for v in env.VARIABLES if v.text() is not None and not v.secret},
    }
    if native:
        levels = _native.isa_levels()
        report["isa_levels"] = [{"name": n, "usable": u, "why_not": w} for n, u, w in levels]
        asked = env.ISA.get()
        with contextlib.suppress(ConfigError):
            report["isa"] = _native.usable_level(asked)
        cores = _native.cores()
        report["cores"] = {k: v for k, v in cores._asdict().items() if k != "threads"}
        report["default_threads"] = cores.threads
        report["n_threads"] = n = env.THREADS.get() or cores.threads
        if measure:
            report["bandwidth"] = bandwidth = _native.probe_bandwidth(n)
            report["int8_rate"] = _native.probe_int8(n, report["isa"])
            report["tuning"] = _tuning(cores, report["isa"])
            report["prefetch"] = _prefetch(cores, report["isa"])
            for key, find in (("advice", advise), ("largest", largest)):
                found = find(memory.available, bandwidth)
                report[key] = found and found._asdict()
    return report


def _tuning(cores: _native.Cores, level: str | None) -> dict[str, Any] | None:
    """What engines use for decode steps, for the weight types of Q4_K_M, which the cache directory then holds."""
    if env.THREADS.get() or level is None or cores.threads < tuning.FEWEST:
        return None
    try:
        measured = tuning.obtain(cores, level, [QType.Q4_K, QType.Q6_K])
    except NativeError:
        return None
    choice = tuning.choose(measured, {QType.Q4_K: 7, QType.Q6_K: 3})
    return {"decode_threads": choice.threads, "bandwidths": measured.bandwidth, "kept_in": _kept(cores, level)}


def _prefetch(cores: _native.Cores, level: str | None) -> dict[str, Any] | None:
    """How far ahead kernels prefetch, for the weight types of Q4_K_M, which the cache directory then holds."""
    if level not in tuning.FAR_LEVELS:
        return None
    types = [QType.Q4_K, QType.Q6_K]
    try:
        gains = tuning.obtain_gains(cores, level, types).gains
    except NativeError:
        return None
    return {
        "gains": {t.name: round(gains[t], 3) for t in types},
        "far": [t.name for t in types if gains[t] >= tuning.GAIN],
        "kept_in": _kept(cores, level),
    }


def _kept(cores: _native.Cores, level: str) -> str | None:
    with contextlib.suppress(ConfigError):
        return str(tuning.path()) if tuning.load(tuning.machine_key(cores, level)) else None
    return None


def _tiles() -> dict[str, Any] | None:
    try:
        found = tiles.all_caches()
        return {
            "folder": str(tiles.tiles_dir()),
            "number": len(found),
            "bytes": sum(cache.size for cache in found),
            "orphaned": sum(cache.orphaned for cache in found),
        }
    except ConfigError:
        return None


def _affinity() -> int | None:
    """Processors this process may run on, None where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _print(r: dict[str, Any]) -> None:
    def line(name: str, value: object) -> None:
        sys.stdout.write(f"{name:<10} {value}\n")

    line("edgellm", f"{r['version']} (numerics {r['numerics_version']}), Python {r['python']}")
    line("system", r["system"])
    line("cpu", r["cpu"])
    line(
        "memory",
        f"{r['memory_available'] / 2**30:.1f} of {r['memory_total'] / 2**30:.1f} GiB available: models up to "
        f"{r['largest_model_tiles'] / 1e9:.1f} GB are repacked for speed, larger ones run from the file",
    )
    if r["tiles"] is not None:
        t = r["tiles"]
        gone = f", {t['orphaned']} of models that are gone (`edgellm pack --prune`)" if t["orphaned"] else ""
        line("tiles", f"{t['number']} caches with {t['bytes'] / 1e6:.1f} MB in {t['folder']}{gone}")
    if not r["native"]:
        line("native", f"not usable: {r['native_why_not']}")
        line("backend", "Numba" if r["backend"] == "numba" else f"NumPy alone, very slowly; faster: {select.INSTALL}")
    else:
        _print_native(r, line)
    for name, value in r["settings"].items():
        line("setting", f"{name}={value}")


def _print_native(r: dict[str, Any], line: Any) -> None:
    asked = r["settings"].get(env.ISA.name)
    if r["isa"] is None:
        line("level", f"none: {env.ISA.name} asks for {asked}, which this machine or library does not have")
    else:
        line("level", f"{r['isa']} ({f'capped by {env.ISA.name}={asked}' if asked else 'the best of this machine'})")
    for level in r["isa_levels"]:
        if not level["usable"]:
            line("", f"not {level['name']}: {level['why_not']}")
    _print_threads(r, line)
    if "bandwidth" not in r:
        return
    line("speed", f"{r['bandwidth'] / 1e9:.1f} GB/s read, {r['int8_rate'] / 1e9:.0f} G int8 multiply-adds/s")
    line("prefetch", _distance(r))
    for key, intro in (("advice", "a model of"), ("largest", "fits at most:")):
        if r[key] is not None:
            line("advice" if key == "advice" else "", f"{intro} {_advice(Advice(**r[key]))}")
    if r["advice"] is None:
        line("advice", "no model of ordinary size fits the memory that is available now")


def _distance(r: dict[str, Any]) -> str:
    if r["prefetch"] is None:
        return "one distance: a constant of the level's kernels, as are the sizes of tiles"
    gains = ", ".join(f"{t} {gain:.2f}" for t, gain in r["prefetch"]["gains"].items())
    far = f"far ahead for {', '.join(r['prefetch']['far'])}" if r["prefetch"]["far"] else "near"
    return f"{far} (times as fast with the far distance: {gains}); sizes of tiles are constants of the kernels"


def _advice(a: Advice) -> str:
    pace = "" if a.tokens_per_second is None else f", about {a.tokens_per_second:.1f} tokens/s"
    return f"{a.size} in {a.quant} ({a.n_bytes / 1e9:.1f} GB), a context of {a.n_ctx}{pace}"


def _print_threads(r: dict[str, Any], line: Any) -> None:
    cores = r["cores"]
    why = f"one on each of {cores['cores']} cores"
    if cores["quota"] and cores["quota"] < cores["cores"]:
        why = f"the CPU quota of the control group is {cores['quota']:g} processors"
    if env.THREADS.name in r["settings"]:
        why = f"set by {env.THREADS.name}; {r['default_threads']} by default: {why}"
    line("threads", f"{r['n_threads']}: {why}")
    facts = [f"{r['logical_cpus']} logical processors on {r['physical_cores']} physical cores"]
    facts.append(f"{cores['allowed']} in the affinity mask")
    if cores["fast"] < cores["allowed"]:
        facts.append(f"{cores['fast']} of these on performance cores")
    facts.append(f"CPU quota {cores['quota']:g}" if cores["quota"] else "no CPU quota")
    line("", f"({', '.join(facts)})")
    tuned = r.get("tuning")
    if tuned:
        rates = ", ".join(f"{n}: {rate / 1e9:.1f}" for n, rate in tuned["bandwidths"].items())
        line("", f"{tuned['decode_threads']} to decode (Q4_K_M), where memory saturates; GB/s by threads: {rates}")
    elif "bandwidth" in r and env.THREADS.name not in r["settings"]:
        line("", "all of them to decode, too: with up to two there is nothing to measure")

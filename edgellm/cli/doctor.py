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
from edgellm.core import env
from edgellm.core.errors import ConfigError
from edgellm.core.version import NUMERICS_VERSION, __version__
from edgellm.engine.loader import largest_tiled
from edgellm.engine.selftest import LOGITS_SHA256, Check, check
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
    "isa": "level in use; null where the one asked for cannot be used",
    "settings": "object: environment variables that are set, secrets left out",
    "isa_levels": "list of name, usable, why_not (with a native library, like the following keys)",
    "default_threads": "threads that would be chosen",
    "n_threads": "threads that are used: EDGELLM_THREADS, else the former",
    "bandwidth": "bytes per second read (not with --no-measure, like the following key)",
    "int8_rate": "int8 multiply-adds per second",
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
            sys.stdout.write(f"{'selftest':<10} {c.level}: {'as published' if c.ok else c.why_not}\n")
        if checks is not None:
            sys.stdout.write(f"{'':<10} (SHA-256 of the logits, numerics {NUMERICS_VERSION}: {LOGITS_SHA256})\n")
    right = checks is None or (bool(checks) and all(c.ok for c in checks))
    return 0 if report["native"] and report["isa"] is not None and right else 1


def selftest() -> list[Check]:
    """The self-test at every level that this machine has, in ascending order; none without a native library."""
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
        "isa": None,
        "settings": {v.name: v.text() for v in env.VARIABLES if v.text() is not None and not v.secret},
    }
    if native:
        levels = _native.isa_levels()
        report["isa_levels"] = [{"name": n, "usable": u, "why_not": w} for n, u, w in levels]
        asked = env.ISA.get()
        with contextlib.suppress(ConfigError):
            report["isa"] = _native.usable_level(asked)
        report["default_threads"] = _native.default_threads()
        report["n_threads"] = n = env.THREADS.get() or report["default_threads"]
        if measure:
            report["bandwidth"] = _native.probe_bandwidth(n)
            report["int8_rate"] = _native.probe_int8(n)
    return report


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
    why = "one a performance core, within affinity mask and CPU quota"
    if env.THREADS.name in r["settings"]:
        why = f"set by {env.THREADS.name}; {r['default_threads']} by default, {why}"
    allowed = "" if r["affinity_cpus"] is None else f", {r['affinity_cpus']} in the affinity mask"
    line("threads", f"{r['n_threads']}: {why}")
    line("", f"({r['physical_cores']} physical cores, {r['logical_cpus']} logical processors{allowed})")
    if "bandwidth" in r:
        line("speed", f"{r['bandwidth'] / 1e9:.1f} GB/s read, {r['int8_rate'] / 1e9:.0f} G int8 multiply-adds/s")

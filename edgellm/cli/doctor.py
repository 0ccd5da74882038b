"""Show what edgellm found on this machine, what it chose, and why."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

import psutil

from edgellm import _native
from edgellm.core import env
from edgellm.core.version import NUMERICS_VERSION, __version__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm doctor`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--no-measure", action="store_true", help="skip the two short measurements")


def run(args: argparse.Namespace) -> int:
    """Run the command; 1 when the native library cannot be used."""
    report = collect(measure=not args.no_measure)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0 if report["native"] else 1


def collect(*, measure: bool) -> dict[str, object]:
    """Everything doctor knows, as plain data. Rates: bytes/s and int8 multiply-adds/s."""
    memory = psutil.virtual_memory()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1
    report: dict[str, object] = {
        "version": __version__,
        "numerics_version": NUMERICS_VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "logical_cpus": psutil.cpu_count(logical=True),
        "physical_cores": psutil.cpu_count(logical=False),
        "affinity_cpus": affinity,
        "memory_total": memory.total,
        "memory_available": memory.available,
        "native": _native.available(),
        "native_why_not": "" if _native.available() else _native.why_not(),
        "settings": {v.name: v.text() for v in env.VARIABLES if v.text() is not None and not v.secret},
    }
    if _native.available():
        levels = _native.isa_levels()
        best = [name for name, usable, _ in levels if usable][-1]
        report["isa_levels"] = [{"name": n, "usable": u, "why_not": w} for n, u, w in levels]
        report["isa"] = env.ISA.get() or best
        report["n_threads"] = _native.default_threads()
        if measure:
            n = _native.default_threads()
            report["bandwidth"] = _native.probe_bandwidth(n)
            report["int8_rate"] = _native.probe_int8(n)
    return report


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _print(r: dict[str, object]) -> None:
    def line(name: str, value: object) -> None:
        sys.stdout.write(f"{name:<12} {value}\n")

    line("edgellm", f"{r['version']} (numerics {r['numerics_version']}), Python {r['python']}")
    line("system", r["system"])
    line("cpu", r["cpu"])
    if not r["native"]:
        line("native", f"not usable: {r['native_why_not']}")
        return
    line("level", f"{r['isa']}" + (" (capped by EDGELLM_ISA)" if env.ISA.get() else ""))
    levels = r["isa_levels"]
    for level in levels if isinstance(levels, list) else []:
        if not level["usable"]:
            line("", f"not {level['name']}: {level['why_not']}")
    line(
        "threads",
        f"{r['n_threads']}: {r['physical_cores']} physical cores, {r['logical_cpus']} logical, "
        f"{r['affinity_cpus']} allowed to this process",
    )
    line("memory", f"{_gib(r['memory_available'])} of {_gib(r['memory_total'])} available")
    if "bandwidth" in r:
        line("bandwidth", f"{_giga(r['bandwidth']):.1f} GB/s read, {_giga(r['int8_rate']):.0f} G int8 multiply-adds/s")
    settings = r["settings"]
    for name, value in settings.items() if isinstance(settings, dict) else []:
        line("setting", f"{name}={value}")


def _gib(n: object) -> str:
    return f"{float(str(n)) / 2**30:.1f} GiB"


def _giga(n: object) -> float:
    return float(str(n)) / 1e9

"""Show what a model file holds: metadata, tensors, size, and the memory it takes. --verify reads all of it."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from typing import Any

import numpy as np

from edgellm.backends.base import page_bytes
from edgellm.cli import options
from edgellm.cli.progress import Bars
from edgellm.cli.verify import Report, verify
from edgellm.core import memory as system
from edgellm.core.errors import ConfigError, UnsupportedModel
from edgellm.core.kv import kv_name
from edgellm.core.types import PAGE_TOKENS
from edgellm.engine.loader import largest_tiled
from edgellm.gguf.reader import GGUFFile
from edgellm.hub import tiles
from edgellm.models.plan import Plan
from edgellm.models.spec import load_plan

MAX_CTX = 1 << 24

JSON = {
    "path": "the file, or the first of a split set",
    "architecture": "general.architecture",
    "name": "general.name, or empty",
    "license": "general.license, or empty",
    "n_params": "numbers in all tensors",
    "n_bytes": "bytes of all tensors",
    "bits_per_weight": "their quotient",
    "supported": "whether edgellm can run it",
    "why_not": "the reason, or empty",
    "n_ctx": "the context that kv_bytes is for: -c, else what the model was trained for",
    "kv_bytes": "KV cache of one sequence of n_ctx tokens; null where it cannot be told",
    "memory": "object: needed (bytes: weights and kv_bytes), available, fits, layout (tiles, mmap or cache, as "
    "weights=auto would choose), largest_ctx (tokens of context that fit); null where it cannot be told",
    "verify": "with --verify, object: n_tensors, n_bytes, bad (list of tensor, type, blocks), unchecked (list of "
    "types); null without",
    "metadata": "all keys; of a long list its length and first values; inf and nan as text",
    "tensors": "list of name, shape (outermost first), type",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm inspect`."""
    options.add_model(parser)
    parser.add_argument(
        "-c", "--ctx-size", type=int, metavar="N", help="context for kv_bytes (0, default: the model's)"
    )
    options.add_cache_types(parser)
    parser.add_argument("--verify", action="store_true", help="read every tensor, look for damaged scales; 1 if any")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.ctx_size is not None and not 0 <= args.ctx_size <= MAX_CTX:
        raise ConfigError(f"-c must be from 0 to {MAX_CTX}, found {args.ctx_size}")
    checked: Report | None = None
    with GGUFFile(options.find(args).path) as file:
        report = collect(file, args.ctx_size or None, kv_name(args.cache_type_k), kv_name(args.cache_type_v))
        if args.verify:
            with Bars() as bars:
                checked = verify(file, bars.work)
            report["verify"] = {
                "n_tensors": checked.n_tensors,
                "n_bytes": checked.n_bytes,
                "bad": checked.bad,
                "unchecked": checked.unchecked,
            }
    if args.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print(report, args.tensors)
    return 1 if checked is not None and checked.bad else 0


def collect(file: GGUFFile, n_ctx: int | None, k_type: str, v_type: str) -> dict[str, Any]:
    """The file as plain data: the keys of JSON. kv_bytes is None where the architecture is not supported."""
    n_params = sum(t.n_elements for t in file.tensors.values())
    n_bytes = sum(t.n_bytes for t in file.tensors.values())
    report: dict[str, Any] = {
        "path": str(file.path),
        "architecture": str(file.metadata.get("general.architecture", "unknown")),
        "name": str(file.metadata.get("general.name", "")),
        "license": str(file.metadata.get("general.license", "")),
        "n_params": n_params,
        "n_bytes": n_bytes,
        "bits_per_weight": round(8 * n_bytes / n_params, 3) if n_params else 0.0,
        "supported": True,
        "why_not": "",
        "n_ctx": n_ctx,
        "kv_bytes": None,
        "memory": None,
        "verify": None,
        "metadata": {key: _shown(value) for key, value in file.metadata.items()},
        "tensors": [{"name": t.name, "shape": list(t.shape), "type": t.qtype.name} for t in file.tensors.values()],
    }
    try:
        plan = load_plan(file).plan
    except UnsupportedModel as e:
        report["supported"], report["why_not"] = False, str(e)
    else:
        report["n_ctx"] = n_ctx or plan.n_ctx_train
        report["kv_bytes"] = kv_bytes(plan, report["n_ctx"], k_type, v_type)
        report["memory"] = memory(plan, n_bytes, report["n_ctx"], k_type, v_type, system.available())
        if tiles.of_model(file.path):
            from edgellm.backends.native.cached import has_cache

            if has_cache(file, plan):
                report["memory"]["layout"] = "cache"
    return report


def kv_bytes(plan: Plan, n_ctx: int, k_type: str, v_type: str) -> int:
    """Bytes one sequence of n_ctx tokens keeps: all its tokens, or its window, or its state."""
    total = 0
    for c, cache in enumerate(plan.caches):
        tokens = min(n_ctx, cache.window + PAGE_TOKENS) if cache.kind == "window" else n_ctx
        pages = 1 if cache.kind == "state" else -(-tokens // PAGE_TOKENS)
        total += pages * page_bytes(plan, c, k_type, v_type)
    return total


def memory(plan: Plan, n_bytes: int, n_ctx: int, k_type: str, v_type: str, available: int) -> dict[str, Any]:
    """Whether weights of n_bytes and one sequence of n_ctx tokens fit what is available, and what would."""
    needed = n_bytes + kv_bytes(plan, n_ctx, k_type, v_type)
    low, high = 0, max(plan.n_ctx_train, n_ctx)
    while low < high:
        middle = (low + high + 1) // 2
        if n_bytes + kv_bytes(plan, middle, k_type, v_type) <= available:
            low = middle
        else:
            high = middle - 1
    return {
        "needed": needed,
        "available": available,
        "fits": needed <= available,
        "layout": "tiles" if n_bytes < largest_tiled(available) else "mmap",
        "largest_ctx": low,
    }


def _shown(value: Any) -> Any:
    """A metadata value for JSON: long arrays are summarised, numbers that JSON lacks are text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | int | float | bool):
        return value
    items = [_shown(value[i]) for i in range(min(len(value), 8))]
    return items if len(value) <= 8 else {"length": len(value), "first": items}


def _print(r: dict[str, Any], tensors: bool) -> None:
    print(r["path"])
    print(
        f"{r['architecture']}  {r['name']}  {r['n_params'] / 1e6:.1f} M parameters, {r['n_bytes'] / 1e6:.1f} MB, "
        f"{r['bits_per_weight']} bits/weight{', licence: ' + r['license'] if r['license'] else ''}"
    )
    if r["kv_bytes"] is not None:
        print(f"KV cache at {r['n_ctx']} tokens: {r['kv_bytes'] / 2**20:.1f} MiB")
        m = r["memory"]
        fits = "fits" if m["fits"] else f"does not fit: a context of {m['largest_ctx']} tokens would"
        if not m["fits"] and not m["largest_ctx"]:
            fits = "does not fit"
        layout = {"tiles": "repacked for speed", "mmap": "run from the file", "cache": "run from its tile cache"}
        print(
            f"memory: {m['needed'] / 2**20:.1f} MiB of {m['available'] / 2**20:.1f} MiB available: {fits}; weights "
            f"would be {layout[m['layout']]}"
        )
    if not r["supported"]:
        print(f"not supported: {r['why_not']}")
    if r["verify"] is not None:
        _print_verify(r["verify"])
    print("\nmetadata")
    for key, value in r["metadata"].items():
        text = json.dumps(value, ensure_ascii=False)
        print(f"  {key} = {text if len(text) <= 100 else text[:97] + '...'}")
    print("\ntensors")
    if tensors:
        for t in r["tensors"]:
            print(f"  {t['name']:<40} {t['type']:<6} {t['shape']}")
    else:
        for kind, n in Counter(t["type"] for t in r["tensors"]).most_common():
            print(f"  {n:>5} x {kind}")


def _print_verify(v: dict[str, Any]) -> None:
    state = f"{len(v['bad'])} tensors are damaged" if v["bad"] else "no scale or value is infinite or undefined"
    print(f"verified: {v['n_tensors']} tensors, {v['n_bytes'] / 1e6:.1f} MB read: {state}")
    for bad in v["bad"]:
        print(f"  {bad['tensor']} ({bad['type']}): {bad['blocks']} blocks with a number that is not finite")
    if v["unchecked"]:
        print(f"  read, but not looked into: {', '.join(v['unchecked'])}")

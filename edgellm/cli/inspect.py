"""Show what a model file holds: metadata, tensors, size, and the memory its context takes."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from typing import Any

import numpy as np

from edgellm.backends.base import page_bytes
from edgellm.cli import options
from edgellm.core.errors import ConfigError, UnsupportedModel
from edgellm.core.types import PAGE_TOKENS
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import Plan
from edgellm.models.spec import load_plan

MAX_CTX = 1 << 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm inspect`."""
    options.add_model(parser)
    parser.add_argument(
        "-c", "--ctx-size", type=int, metavar="N", help="context for kv_bytes (0, default: the model's)"
    )
    options.add_cache_types(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.ctx_size is not None and not 0 <= args.ctx_size <= MAX_CTX:
        raise ConfigError(f"-c must be from 0 to {MAX_CTX}, found {args.ctx_size}")
    with GGUFFile(options.find(args).path) as file:
        report = collect(file, args.ctx_size or None, args.cache_type_k, args.cache_type_v)
    if args.json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        _print(report, args.tensors)
    return 0


def collect(file: GGUFFile, n_ctx: int | None, k_type: str, v_type: str) -> dict[str, Any]:
    """The file as plain data; kv_bytes is None where the architecture is not supported."""
    n_params = sum(t.n_elements for t in file.tensors.values())
    n_bytes = sum(t.n_bytes for t in file.tensors.values())
    report: dict[str, Any] = {
        "path": str(file.path),
        "architecture": str(file.metadata.get("general.architecture", "unknown")),
        "name": str(file.metadata.get("general.name", "")),
        "n_params": n_params,
        "n_bytes": n_bytes,
        "bits_per_weight": round(8 * n_bytes / n_params, 3) if n_params else 0.0,
        "supported": True,
        "why_not": "",
        "n_ctx": n_ctx,
        "kv_bytes": None,
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
    return report


def kv_bytes(plan: Plan, n_ctx: int, k_type: str, v_type: str) -> int:
    """Bytes one sequence of n_ctx tokens keeps: all its tokens, or its window, or its state."""
    total = 0
    for c, cache in enumerate(plan.caches):
        tokens = min(n_ctx, cache.window + PAGE_TOKENS) if cache.kind == "window" else n_ctx
        pages = 1 if cache.kind == "state" else -(-tokens // PAGE_TOKENS)
        total += pages * page_bytes(plan, c, k_type, v_type)
    return total


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
        f"{r['architecture']}  {r['name']}  {r['n_params'] / 1e6:.1f} M parameters, {r['bits_per_weight']} bits/weight"
    )
    if r["kv_bytes"] is not None:
        print(f"KV cache at {r['n_ctx']} tokens: {r['kv_bytes'] / 2**20:.1f} MiB")
    if not r["supported"]:
        print(f"not supported: {r['why_not']}")
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

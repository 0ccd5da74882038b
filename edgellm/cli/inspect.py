"""Show what a model file holds: metadata, tensors, size, and the memory its context takes."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

import numpy as np

from edgellm import hub
from edgellm.backends.base import page_bytes
from edgellm.cli import options
from edgellm.cli.progress import Download
from edgellm.core.errors import ModelError
from edgellm.core.types import PAGE_TOKENS
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import Plan
from edgellm.models.spec import load_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm inspect`."""
    options.add_model(parser)
    parser.add_argument("-c", "--ctx-size", type=int, metavar="N", help="context for kv_bytes (default: the model's)")
    parser.add_argument("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="K cache: f16 or f32")
    parser.add_argument("-ctv", "--cache-type-v", default="f16", metavar="TYPE", help="V cache: f16 or f32")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with Download() as bar:
        found = hub.resolve(options.model_name(args), offline=args.offline, progress=bar)
    with GGUFFile(found.path) as file:
        report = collect(file, args.ctx_size, args.cache_type_k, args.cache_type_v)
        if args.json:
            print(json.dumps(report, ensure_ascii=False, indent=2))
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
        plan = load_plan(file)[0]
        report["n_ctx"] = n_ctx or plan.n_ctx_train
        report["kv_bytes"] = kv_bytes(plan, report["n_ctx"], k_type, v_type)
    except ModelError as e:
        report["supported"], report["why_not"] = False, str(e)
    return report


def kv_bytes(plan: Plan, n_ctx: int, k_type: str, v_type: str) -> int:
    """Bytes one sequence of n_ctx tokens keeps: all its tokens, or its window, or its state."""
    total = 0
    for c, cache in enumerate(plan.caches):
        tokens = min(n_ctx, cache.window + PAGE_TOKENS) if cache.window else n_ctx
        pages = 1 if cache.kind == "state" else -(-tokens // PAGE_TOKENS)
        total += pages * page_bytes(plan, c, k_type, v_type)
    return total


def _shown(value: Any) -> Any:
    """A metadata value for JSON; long arrays are summarised."""
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, np.generic):
        return value.item()
    items = [v.item() if isinstance(v, np.generic) else v for v in (value[i] for i in range(min(len(value), 8)))]
    return items if len(value) <= 8 else {"length": len(value), "first": items}


def _print(r: dict[str, Any], tensors: bool) -> None:
    print(f"{r['path']}")
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

"""List the models on this machine, whoever downloaded them, and those the catalogue offers."""

from __future__ import annotations

import argparse
import json

from edgellm import hub
from edgellm.hub import tiles

JSON = {
    "local": "list of models on this machine: name, path (of the first file), size in bytes, origin (edgellm, Hugging "
    "Face, LM Studio, llama.cpp or Ollama), repo (on Hugging Face, or null), license (or null), modified (UTC), "
    "tiles (bytes of its tile caches)",
    "catalog": "list of models that the catalogue offers and that are not here: name, size, license",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm list`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    local = hub.list_local()
    offered = [e for e in hub.catalog() if e.name not in {m.name for m in local}]
    if args.json:
        print(json.dumps({"local": [_local(m) for m in local], "catalog": [_offer(e) for e in offered]}))
        return 0
    width = max([24, *(len(m.name) for m in local)])
    for m in local:
        packed = _tiles(m)
        more = f"  (+ {packed / 1e6:.1f} MB of tiles)" if packed else ""
        print(f"{m.name:<{width}} {m.size / 1e6:>9.1f} MB  {m.origin:<12}  {m.path}{more}")
    for e in offered:
        print(f"{e.name:<{width}} {e.size / 1e6:>9.1f} MB  not downloaded ({e.license})")
    return 0


def _local(m: hub.LocalModel) -> dict[str, object]:
    return {
        "name": m.name,
        "path": str(m.path),
        "size": m.size,
        "origin": m.origin,
        "repo": m.repo,
        "license": m.license or None,
        "modified": m.modified.isoformat(timespec="seconds"),
        "tiles": _tiles(m),
    }


def _tiles(m: hub.LocalModel) -> int:
    return sum(cache.size for cache in tiles.of_model(m.path))


def _offer(e: hub.CatalogEntry) -> dict[str, object]:
    return {"name": e.name, "size": e.size, "license": e.license}

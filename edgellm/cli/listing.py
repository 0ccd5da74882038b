"""List the models on this machine and those the catalogue offers."""

from __future__ import annotations

import argparse
import json

from edgellm import hub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm list`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    local = hub.list_local()
    offered = [e for e in hub.catalog() if e.name not in {m.name for m in local}]
    if args.json:
        print(
            json.dumps(
                {
                    "local": [{"name": m.name, "path": str(m.path), "size": m.size} for m in local],
                    "catalog": [{"name": e.name, "size": e.size, "license": e.license} for e in offered],
                }
            )
        )
        return 0
    for m in local:
        print(f"{m.name:<24} {m.size / 1e6:>9.1f} MB  {m.path}")
    for e in offered:
        print(f"{e.name:<24} {e.size / 1e6:>9.1f} MB  not downloaded ({e.license})")
    return 0

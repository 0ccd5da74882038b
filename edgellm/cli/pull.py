"""Download models, verified and complete, or verify those that are here; prints the path of each.

A model of the catalogue, or one on Hugging Face: u/r:QUANT, hf.co/u/r:QUANT, hf:u/r/FILE or the address of its page.
"""

from __future__ import annotations

import argparse
import json
import sys

from edgellm import hub
from edgellm.cli.progress import Bars

JSON = {
    "models": "list, in the order of the names: name, path (of the first file), license (null where it is not stated), "
    "origin (the program in whose folder it lies: edgellm, Hugging Face, LM Studio, llama.cpp or Ollama), "
    "page (where to read about it, or null)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm pull`."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="names in the catalogue, or USER/NAME[:QUANT] on Hugging Face (default: the starter model)",
    )
    parser.add_argument("--offline", action="store_true", help="never use the network: only verify")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the paths")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    done = []
    for name in args.models or [hub.default_model()]:
        with Bars() as bars:
            found = hub.pull(name, offline=args.offline, progress=bars.download)
        print(_summary(found), file=sys.stderr)
        if not args.json:
            print(found.path, flush=True)
        done.append(found)
    if args.json:
        print(json.dumps({"models": [_report(found) for found in done]}))
    return 0


def _report(found: hub.ResolvedModel) -> dict[str, str | None]:
    return {
        "name": found.name,
        "path": str(found.path),
        "license": found.license or None,
        "origin": found.origin,
        "page": found.page or None,
    }


def _summary(found: hub.ResolvedModel) -> str:
    """One line: the model, its licence, and whose file it is when it is not ours."""
    licence = f"licence {found.license}" if found.license else "licence not stated"
    page = f", {found.page}" if found.page else ""
    where = "" if found.origin == "edgellm" else f"; used where {found.origin} keeps it"
    return f"{found.name}: {licence}{page}{where}"

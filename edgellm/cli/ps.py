"""Show the models that a running server has in memory."""

from __future__ import annotations

import argparse
import json

from edgellm.cli.calls import DEFAULT_URL, call


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm ps`."""
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=f"the server ({DEFAULT_URL})")
    parser.add_argument("--json", action="store_true", help="print JSON")


JSON = {"models": "name, size in bytes, context_length and details of each"}


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    models = call(args.url, "/api/ps")["models"]
    if args.json:
        print(json.dumps({"models": models}))
        return 0
    print(f"{'NAME':<40} {'SIZE':>10} {'CONTEXT':>8}")
    for model in models:
        print(f"{model['name']:<40} {model['size'] / 1e6:>7.0f} MB {model['context_length']:>8}")
    return 0

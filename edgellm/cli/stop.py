"""Take a model out of a running server's memory; the next request for it loads it again."""

from __future__ import annotations

import argparse
import sys

from edgellm.cli.calls import DEFAULT_URL, call


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm stop`."""
    parser.add_argument("model", metavar="MODEL", help="its name at the server (see `edgellm ps`)")
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=f"the server ({DEFAULT_URL})")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    done = call(args.url, "/api/generate", {"model": args.model, "prompt": "", "keep_alive": 0})
    if done["done_reason"] == "unload":
        return 0
    print("edgellm: it is that server's only model: end the server instead (Ctrl-C)", file=sys.stderr)
    return 1

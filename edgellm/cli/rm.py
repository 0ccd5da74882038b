"""Delete downloaded models from the model cache. Files of other programs are never deleted."""

from __future__ import annotations

import argparse
import json
import sys

from edgellm import hub

JSON = {"removed": "list: name (as it was given), freed (bytes that were deleted)"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm rm`."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names as `edgellm list` shows them")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    done = []
    for name in args.models:
        freed = hub.remove(name)
        done.append({"name": name, "freed": freed})
        print(f"removed {name} ({freed / 1e6:.1f} MB)", file=sys.stderr)
    if args.json:
        print(json.dumps({"removed": done}))
    return 0

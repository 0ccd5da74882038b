"""Delete downloaded models from the model cache. Files of other programs are never deleted."""

from __future__ import annotations

import argparse
import json
import sys

from edgellm import hub
from edgellm.hub import tiles
from edgellm.hub.local import models_dir

JSON = {
    "removed": "list: name (as it was given, or --all), freed (bytes that were deleted), tiles (those of tile caches "
    "among them, where a model was named)"
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm rm`."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names as `edgellm list` shows them")
    parser.add_argument("--all", action="store_true", help="empty the model cache: every model and tile cache in it")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if bool(args.models) == args.all:
        print("edgellm rm: give one MODEL or more, or --all; not both, nor neither", file=sys.stderr)
        return 2
    if args.all:
        freed = hub.remove_all()
        print(f"removed everything in the model cache ({freed / 1e6:.1f} MB)", file=sys.stderr)
        if args.json:
            print(json.dumps({"removed": [{"name": "--all", "freed": freed, "tiles": 0}]}))
        return 0
    done = []
    for name in args.models:
        freed = hub.remove(name)
        packed = tiles.remove_orphans(models_dir())
        done.append({"name": name, "freed": freed + packed, "tiles": packed})
        more = f" and {packed / 1e6:.1f} MB of tiles" if packed else ""
        print(f"removed {name} ({freed / 1e6:.1f} MB{more})", file=sys.stderr)
    if args.json:
        print(json.dumps({"removed": done}))
    return 0

"""Delete downloaded models from the model cache."""

from __future__ import annotations

import argparse
import sys

from edgellm import hub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm rm`."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="names as `edgellm list` shows them")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    for name in args.models:
        freed = hub.remove(name)
        print(f"removed {name} ({freed / 1e6:.1f} MB)", file=sys.stderr)
    return 0

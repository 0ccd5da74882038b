"""Download models of the catalogue, verified and complete, into the model cache; prints the path of each."""

from __future__ import annotations

import argparse

from edgellm import hub
from edgellm.cli.progress import Bars


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm pull`."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="catalogue names (default: the starter model)")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    for name in args.models or [hub.default_model()]:
        with Bars() as bars:
            found = hub.pull(name, progress=bars.download)
        print(found.path)
    return 0

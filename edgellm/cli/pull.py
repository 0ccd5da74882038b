"""Download a catalogue model, verified and complete, into the model cache."""

from __future__ import annotations

import argparse

from edgellm import hub
from edgellm.cli.progress import Download


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm pull`."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="catalogue names (default: the starter model)")


def run(args: argparse.Namespace) -> int:
    """Run the command; prints the path of each model."""
    for name in args.models or [hub.default_model()]:
        with Download() as bar:
            found = hub.pull(name, progress=bar)
        print(found.path)
    return 0

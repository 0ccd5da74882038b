"""Show the tokens of a text: one line per token, id and text."""

from __future__ import annotations

import argparse
import json
import sys

from edgellm import hub
from edgellm.cli import options
from edgellm.cli.progress import Download
from edgellm.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm tokenize`."""
    options.add_model(parser)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the text (default: read from stdin)")
    parser.add_argument("--no-special", action="store_true", help="do not add BOS or EOS")
    parser.add_argument("--parse-special", action="store_true", help="read control tokens in the text")
    parser.add_argument("--json", action="store_true", help="print the ids as a JSON list")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    words = list(args.text)
    if args.model_flag is not None and args.model is not None:
        words.insert(0, args.model)
        args.model = None
    text = " ".join(words) if words else sys.stdin.read()
    with Download() as bar:
        found = hub.resolve(options.model_name(args), offline=args.offline, progress=bar)
    tokenizer = Tokenizer.from_gguf(found.path)
    ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=args.parse_special)
    if args.json:
        print(json.dumps(ids))
    else:
        for i in ids:
            print(f"{i:>7}  {tokenizer.decode([i], special=True)!r}")
    return 0

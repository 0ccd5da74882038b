"""Show the tokens of a text: one line per token, id and text."""

from __future__ import annotations

import argparse
import json

from edgellm.cli import options
from edgellm.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm tokenize`."""
    options.add_model(parser)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the text (default: what is piped in)")
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the text, as an option")
    parser.add_argument("--no-special", "--no-bos", action="store_true", help="do not add BOS or EOS")
    parser.add_argument("--parse-special", action="store_true", help="read control tokens in the text")
    parser.add_argument("--json", "--ids", action="store_true", help="print the ids as a JSON list")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    words = options.split_words(args, args.text)
    parts = [" ".join(words)] if words else []
    if args.prompt is not None:
        parts.append(args.prompt)
    text = "\n\n".join(parts) if parts else options.read_stdin()
    tokenizer = Tokenizer.from_gguf(options.find(args).path)
    ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=args.parse_special)
    if args.json:
        print(json.dumps(ids))
    else:
        for i in ids:
            print(f"{i:>7}  {tokenizer.decode([i], special=True, continues=True)!r}")
    return 0

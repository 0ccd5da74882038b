"""Show the tokens of a text: one line per token, id and text; or the ids, their number, or everything as JSON."""

from __future__ import annotations

import argparse
import json

from edgellm.cli import options
from edgellm.core.errors import ConfigError

JSON = {
    "model": "the name it was asked for by",
    "count": "number of tokens",
    "ids": "list of token ids",
    "pieces": "list of the tokens' texts; a token of incomplete characters has U+FFFD in it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm tokenize`."""
    options.add_model(parser)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the text (default: what is piped in)")
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the text, as an option")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the text from a file, to its last character")
    parser.add_argument("--stdin", action="store_true", help="read it from standard input, to its last character")
    parser.add_argument("--no-special", "--no-bos", action="store_true", help="do not add BOS or EOS")
    parser.add_argument("--parse-special", action="store_true", help="read control tokens in the text")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--ids", action="store_true", help="print the ids as one list")
    shape.add_argument("--count", "--show-count", action="store_true", help="print the number of tokens only")
    shape.add_argument("--json", action="store_true", help="print JSON")


def read_text(args: argparse.Namespace) -> str:
    """The text: arguments, or a file, or standard input. Raises ConfigError."""
    words = options.split_words(args, args.text)
    parts = [" ".join(words)] if words else []
    if args.prompt is not None:
        parts.append(args.prompt)
    sources = bool(parts) + (args.file is not None) + args.stdin
    if sources > 1:
        raise ConfigError("give the text once: as arguments, with -f, or with --stdin")
    if args.file is not None:
        return options.read_text(args.file, whole=True)
    if args.stdin:
        return options.read_stdin(whole=True)
    return "\n\n".join(parts) if parts else options.read_stdin()


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from edgellm.tokenizer import Tokenizer

    text = read_text(args)
    name = options.model_name(args)
    tokenizer = Tokenizer.from_gguf(options.find(args).path)
    ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=args.parse_special)
    if args.ids:
        print(json.dumps(ids))
    elif args.count:
        print(len(ids))
    else:
        pieces = [tokenizer.decode([i], special=True, continues=True) for i in ids]
        if args.json:
            print(json.dumps({"model": name, "count": len(ids), "ids": ids, "pieces": pieces}))
        else:
            for i, piece in zip(ids, pieces, strict=True):
                print(f"{i:>7}  {piece!r}")
    return 0

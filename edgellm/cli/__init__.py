"""The command line: a table of commands, each a small module with `add_arguments(parser)` and `run(args) -> int`.

Tokens and results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import NamedTuple

from edgellm.core.errors import ConfigError, EdgeLLMError
from edgellm.core.version import __version__


class Command(NamedTuple):
    """A command's module (in this package) and its line in `edgellm --help`."""

    module: str
    help: str


COMMANDS = {
    "chat": Command("chat", "talk to a model in the terminal"),
    "run": Command("run", "answer one prompt (without a prompt on a terminal: chat)"),
    "bench": Command("bench", "measure prompt and generation speed"),
    "inspect": Command("inspect", "show what a model file holds"),
    "doctor": Command("doctor", "show what edgellm found on this machine and chose"),
    "pull": Command("pull", "download a catalogue model"),
    "list": Command("list", "list the models on this machine and in the catalogue"),
    "rm": Command("rm", "delete a downloaded model"),
    "tokenize": Command("tokenize", "show the tokens of a text"),
}
ALIASES = {"show": "inspect", "ls": "list"}


def _top_parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<10} {command.help}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="edgellm",
        usage="edgellm COMMAND [MODEL] [options]",
        description=f"Run GGUF language models on this machine.\n\ncommands:\n{lines}",
        epilog="`edgellm COMMAND --help` shows a command's options. Without a model the starter model is used.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"edgellm {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command; imports only that command's module."""
    module = import_module(f"edgellm.cli.{COMMANDS[name].module}")
    parser = argparse.ArgumentParser(prog=f"edgellm {name}", description=module.__doc__)
    module.add_arguments(parser)
    parser.set_defaults(run=module.run, parser=parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    name = ALIASES.get(args[0], args[0]) if args else ""
    if name not in COMMANDS:
        parser = _top_parser()
        if args and not args[0].startswith("-"):
            parser.error(f"unknown command {args[0]!r}; choose from {', '.join(COMMANDS)}")
        parser.parse_args(args)
        parser.print_help()
        return 0
    try:
        parsed = command_parser(name).parse_args(args[1:])
        return int(parsed.run(parsed))
    except ConfigError as e:
        return _fail(e, 2)
    except EdgeLLMError as e:
        return _fail(e, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say
        return 1


def _fail(error: EdgeLLMError, code: int) -> int:
    print(f"edgellm: {error}", file=sys.stderr)
    return code

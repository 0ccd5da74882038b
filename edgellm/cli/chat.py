"""Talk to a model in the terminal. Ctrl-C stops an answer, Ctrl-D or /bye leaves, /? shows the commands."""

from __future__ import annotations

import argparse
import sys

from edgellm.cli import options
from edgellm.cli.repl import Repl


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm chat`."""
    options.add_model(parser)
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message")
    parser.add_argument("-v", "--verbose", action="store_true", help="print timings and the seed after each answer")
    options.add_engine(parser)
    options.add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    params = options.sampling(args)
    with options.open_llm(args) as llm:
        if llm.is_base:
            return options.refuse_base(options.model_name(args))
        info = llm.info
        if options.on_terminal():
            print(
                f"{options.model_name(args)}: {info.n_params / 1e6:.0f} M parameters, context {info.n_ctx}, "
                f"{info.n_threads} threads, {info.isa}. /? for help, /bye to leave.",
                file=sys.stderr,
            )
        return Repl(llm, params, args.system_prompt, verbose=args.verbose).loop()

"""Talk to a model in the terminal. Ctrl-C stops an answer, Ctrl-D or /bye leaves, /? shows the commands.

A line is a message; a backslash at its end continues it, and three quotes enclose several lines. From a pipe, each line
is a message, too.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from edgellm.cli import options, sampling

if TYPE_CHECKING:
    from edgellm.llm import LLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm chat`."""
    options.add_model(parser)
    options.add_system(parser)
    parser.add_argument("--no-history", action="store_true", help="do not store what is typed")
    options.add_display(parser)
    options.add_engine(parser)
    sampling.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from edgellm.cli.repl import Repl

    params, system = sampling.from_arguments(args), options.system_prompt(args)
    name, typed = options.model_name(args), options.on_terminal()
    args.model, args.model_flag = name, None

    def opener(model: str, **changed: Any) -> LLM:
        return options.open_llm(argparse.Namespace(**{**vars(args), "model": model, **changed}))

    llm = opener(name)
    if llm.is_base:
        llm.close()
        return options.refuse_base(name)
    chat = Repl(name, llm, opener, params, system, typed=typed, simple=args.simple_io)
    try:
        chat.markdown = chat.markdown and not args.no_markdown
        chat.wrap = chat.wrap and not args.no_wordwrap
        chat.stats = "long" if args.verbose else "short" if typed and not args.simple_io else ""
        if typed:
            info = llm.info
            print(
                f"{name}: {info.n_params / 1e6:.0f} M parameters, context {info.n_ctx}, "
                f"{info.n_threads} threads, {info.isa}. /? for help, /bye to leave.",
                file=sys.stderr,
            )
        return chat.loop(store=not getattr(args, "no_history", False))
    finally:
        chat.close()

"""Talk to a model in the terminal. Ctrl-C stops an answer, Ctrl-D or /bye leaves, /? shows the commands.

A line is a message; a backslash at its end continues it, and three quotes enclose several lines. From a pipe, each line
is a message, too. With --url the model is that of a running server, which any OpenAI-compatible one will do for.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgellm.cli import options, sampling
from edgellm.core.config import SamplingParams
from edgellm.core.env import API_KEY
from edgellm.core.errors import ConfigError

if TYPE_CHECKING:
    from edgellm.cli.remote import Remote
    from edgellm.cli.repl import Repl
    from edgellm.llm import LLM


_OF_SERVER = {
    "ctx_size": None,
    "threads": None,
    "ubatch_size": None,
    "batch_size": None,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "weights": "auto",
    "backend": "auto",
    "isa": None,
    "no_strict": False,
    "draft": None,
    "prefix_cache_dir": None,
    "prefix_cache_size": 10.0,
}
"""Options that a running server has decided, and their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm chat`."""
    options.add_model(parser)
    options.add_system(parser)
    parser.add_argument("--url", metavar="URL", help="talk to a running server; MODEL is then a name of its own")
    parser.add_argument("--no-history", action="store_true", help="do not store what is typed")
    options.add_display(parser)
    options.add_engine(parser)
    sampling.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    return run_here(args) if args.url is None else _talk_to_server(args)


def run_here(args: argparse.Namespace) -> int:
    """The chat with a model in this process, which `run` may become, too."""
    params, system = _sampling(args), options.system_prompt(args)
    name, typed = options.model_name(args), options.on_terminal()
    args.model, args.model_flag = name, None

    def opener(model: str, **changed: Any) -> LLM:
        return options.open_llm(argparse.Namespace(**{**vars(args), "model": model, **changed}))

    # What only a person needs is imported beside the weights, which are repacked without Python, and what the first
    # message needs is built while it is typed.
    edited = typed and not args.simple_io
    llm = options.open_llm(args, _import_terminal) if edited else opener(name)
    if llm.is_base:
        llm.close()
        return options.refuse_base(name)
    from edgellm.cli.repl import Repl

    chat = Repl(name, llm, opener, params, system, typed=typed, simple=args.simple_io)
    info = llm.info
    about = f"{info.n_params / 1e6:.0f} M parameters, context {info.n_ctx}, {info.n_threads} threads, {info.isa}"
    return _loop(chat, args, about, llm.warm if edited else None)


def _import_terminal() -> None:
    """Begin to import the line editor."""
    threading.Thread(target=importlib.import_module, args=("edgellm.cli.history",), daemon=True).start()


def _sampling(args: argparse.Namespace) -> SamplingParams:
    params = sampling.from_arguments(args)
    if params.logprobs is not None or params.prompt_logprobs is not None:
        raise ConfigError("a chat shows no log-probabilities: `edgellm run --json` prints them")
    return params


def _talk_to_server(args: argparse.Namespace) -> int:
    """The chat with a model on a server."""
    from edgellm.cli.remote import Remote
    from edgellm.cli.repl import Repl

    params, system = _sampling(args), options.system_prompt(args)
    changed = [f"--{name.replace('_', '-')}" for name, default in _OF_SERVER.items() if getattr(args, name) != default]
    if changed:
        raise ConfigError(f"{', '.join(changed)}: with --url this was decided when the server was started")

    def opener(model: str, **changed: Any) -> Remote:
        if changed:
            raise ConfigError("this was decided when the server was started")
        return Remote(args.url, model, (API_KEY.get() or "").partition(",")[0])

    remote = opener(args.model_flag or args.model or "")
    chat = Repl(remote.name, remote, opener, params, system, typed=options.on_terminal(), simple=args.simple_io)
    context = f", context {remote.info.n_ctx}" if remote.info.n_ctx else ""
    return _loop(chat, args, f"on {remote.url}{context}")


def _loop(chat: Repl, args: argparse.Namespace, about: str, shown: Callable[[], None] | None = None) -> int:
    """Talk until the end. about: what is said of the model first. shown: called when the first prompt is there."""
    try:
        chat.markdown = chat.markdown and not args.no_markdown
        chat.wrap = chat.wrap and not args.no_wordwrap
        chat.stats = "long" if args.verbose else "short" if chat.typed and not args.simple_io else ""
        if chat.typed:
            print(f"{chat.model}: {about}. /? for help, /bye to leave.", file=sys.stderr)
        return chat.loop(store=not getattr(args, "no_history", False), shown=shown)
    finally:
        chat.close()

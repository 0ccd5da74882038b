"""Options that several commands share; names are llama.cpp's where the meaning is the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgellm import hub
from edgellm.core.errors import ConfigError
from edgellm.llm import LLM


def add_model(parser: argparse.ArgumentParser) -> None:
    """[MODEL] or -m MODEL."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="path or catalogue name (default: the starter model)")
    parser.add_argument("-m", "--model", dest="model_flag", metavar="MODEL", help="the same, as an option")
    parser.add_argument("--offline", action="store_true", help="never use the network")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """How the model is opened."""
    group = parser.add_argument_group("model options")
    group.add_argument("-c", "--ctx-size", type=int, metavar="N", help="context in tokens (default: the model's own)")
    group.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: physical cores)")
    group.add_argument("-b", "-ub", "--batch-size", type=int, default=512, metavar="N", help="most tokens a step")
    group.add_argument("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="K cache: f16 or f32")
    group.add_argument("-ctv", "--cache-type-v", default="f16", metavar="TYPE", help="V cache: f16 or f32")
    group.add_argument("--weights", default="auto", choices=["auto", "mmap", "tiles"], help="layout of the weights")
    group.add_argument("--backend", default="auto", choices=["auto", "native", "reference"], help="what computes")
    group.add_argument("--isa", metavar="LEVEL", help="highest instruction set level to use")
    group.add_argument("--no-strict", action="store_true", help="open files with unknown metadata, with a warning")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen; unset = the model's own default, else llama.cpp's."""
    group = parser.add_argument_group("sampling options")
    group.add_argument("-n", "--predict", type=int, metavar="N", help="most tokens to generate (-1: until done)")
    group.add_argument("--temp", type=float, metavar="T", help="temperature; 0 = greedy")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest; 0 = all")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the likeliest set of probability P")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens below P times the likeliest")
    group.add_argument("--repeat-penalty", type=float, metavar="X", help="penalise recent tokens; 1 = off")
    group.add_argument("--repeat-last-n", type=int, metavar="N", help="how many recent tokens count; -1 = all")
    group.add_argument("--presence-penalty", type=float, metavar="X", help="subtracted once per token seen")
    group.add_argument("--frequency-penalty", type=float, metavar="X", help="subtracted per occurrence")
    group.add_argument("-s", "--seed", type=int, metavar="N", help="seed; -1 = random")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the answer here (repeatable)")


SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Option -> field of SamplingParams."""


def sampling_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given, as keyword arguments of generate and chat."""
    given = {name: getattr(args, option) for option, name in SAMPLING.items() if getattr(args, option) is not None}
    if args.seed is not None and args.seed >= 0:
        given["seed"] = args.seed
    if args.predict is not None and args.predict >= 0:
        given["max_tokens"] = args.predict
    if args.stop:
        given["stop"] = tuple(args.stop)
    return given


def model_name(args: argparse.Namespace) -> str:
    """The chosen model: option, positional, or the catalogue's default."""
    if args.model_flag is not None and args.model is not None:
        raise ConfigError("give the model once: as an argument or with -m")
    return args.model_flag or args.model or hub.default_model()


@contextmanager
def open_llm(args: argparse.Namespace, **overrides: Any) -> Iterator[LLM]:
    """Find (download) and open the model; closes it afterwards."""
    from edgellm.cli.progress import Download

    name = model_name(args)
    with Download() as bar:
        found = hub.resolve(name, offline=args.offline, progress=bar)
    options: dict[str, Any] = {
        "n_ctx": args.ctx_size,
        "n_threads": args.threads,
        "kv_type": (args.cache_type_k, args.cache_type_v),
        "weights": args.weights,
        "backend": args.backend,
        "isa": args.isa,
        "strict": not args.no_strict,
        "n_batch": args.batch_size,
        **overrides,
    }
    with LLM(found.path, **options) as llm:
        yield llm


def refuse_base(name: str) -> int:
    """Explain why a base model cannot chat; the exit code."""
    print(
        f"edgellm: {name} is a base model: it continues text and was not trained to answer.\n"
        f"  continue a text:    edgellm run --raw {name} 'Once upon a time'\n"
        f"  chat with a model:  edgellm chat {hub.default_model()}",
        file=sys.stderr,
    )
    return 2

"""Options that several commands share; names are llama.cpp's where the meaning is the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgellm import hub
from edgellm.cli.progress import Bars
from edgellm.core.config import SamplingParams
from edgellm.core.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from edgellm.llm import LLM

KV_TYPES = ("f16", "f32")


def add_model(parser: argparse.ArgumentParser) -> None:
    """[MODEL] or -m MODEL."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="path or catalogue name (default: the starter model)")
    parser.add_argument("-m", "--model", dest="model_flag", metavar="MODEL", help="the model, as an option")
    parser.add_argument("--offline", action="store_true", help="never use the network")


def add_compute(group: argparse._ActionsContainer) -> None:
    """How the model is laid out and computed: none of it changes results, but for the cache types."""
    group.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: one a performance core)")
    group.add_argument("-ub", "--ubatch-size", type=int, metavar="N", help="most tokens a step computes (512)")
    group.add_argument("-b", "--batch-size", type=int, metavar="N", help="the same, where -ub is not given")
    add_cache_types(group)
    group.add_argument("--weights", default="auto", choices=["auto", "mmap", "tiles"], help="layout of the weights")
    group.add_argument("--backend", default="auto", choices=["auto", "native", "reference"], help="what computes")
    group.add_argument("--isa", metavar="LEVEL", help="instruction set level (see `edgellm doctor`)")


def add_cache_types(group: argparse._ActionsContainer) -> None:
    """-ctk and -ctv."""
    for flag, name in (("-ctk", "k"), ("-ctv", "v")):
        group.add_argument(
            flag, f"--cache-type-{name}", default="f16", choices=KV_TYPES, help=f"type of the {name.upper()} cache"
        )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """How the model is opened."""
    group = parser.add_argument_group("model options")
    group.add_argument("-c", "--ctx-size", type=int, metavar="N", help="context in tokens (0, default: the model's)")
    add_compute(group)
    group.add_argument("--no-strict", action="store_true", help="open files with unknown metadata, with a warning")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen; unset = the model's own default, else llama.cpp's."""
    group = parser.add_argument_group("sampling options")
    group.add_argument("-n", "--predict", "--n-predict", type=int, metavar="N", help="most tokens (-1: until done)")
    group.add_argument("--temp", "--temperature", type=float, metavar="T", help="temperature; 0 = greedy (0.8)")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest; 0 = all (40)")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the likeliest set of probability P (0.95)")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens below P times the likeliest (0.05)")
    group.add_argument("--repeat-penalty", type=float, metavar="X", help="penalise recent tokens; 1 = off (1)")
    group.add_argument("--repeat-last-n", type=int, metavar="N", help="how many recent tokens count; -1 = all (64)")
    group.add_argument("--presence-penalty", type=float, metavar="X", help="subtracted from tokens seen (0)")
    group.add_argument("--frequency-penalty", type=float, metavar="X", help="subtracted for each occurrence (0)")
    group.add_argument("-s", "--seed", type=int, metavar="N", help="seed; -1 = another one each time (-1)")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the answer here (repeatable)")


def sampling(args: argparse.Namespace) -> SamplingParams:
    """The sampling options that were given. Raises ConfigError, before a model is opened."""
    try:
        return SamplingParams(
            temperature=args.temp,
            top_k=args.top_k,
            top_p=args.top_p,
            min_p=args.min_p,
            repeat_penalty=args.repeat_penalty,
            repeat_last_n=args.repeat_last_n,
            presence_penalty=args.presence_penalty,
            frequency_penalty=args.frequency_penalty,
            seed=None if args.seed == -1 else args.seed,
            max_tokens=None if args.predict == -1 else args.predict,
            stop=tuple(args.stop),
        )
    except RequestError as e:
        raise ConfigError(str(e)) from None


def ubatch(args: argparse.Namespace) -> int:
    """Most tokens a step computes."""
    for value in (args.ubatch_size, args.batch_size):
        if value is not None:
            return int(value)
    return 512


def split_words(args: argparse.Namespace, words: list[str]) -> list[str]:
    """The words after the model; with -m the first argument is one of them, not a model."""
    if args.model_flag is not None and args.model is not None:
        words, args.model = [args.model, *words], None
    return words


def model_name(args: argparse.Namespace) -> str:
    """The chosen model: option, positional, or the catalogue's default."""
    if args.model_flag is not None and args.model is not None:
        raise ConfigError("give the model once: as an argument or with -m")
    return args.model_flag or args.model or hub.default_model()


def find(args: argparse.Namespace) -> hub.ResolvedModel:
    """Find the chosen model; downloads it, with a progress bar, when it is in the catalogue but not here."""
    with Bars() as bars:
        return hub.resolve(model_name(args), offline=args.offline, progress=bars.download)


@contextmanager
def open_llm(args: argparse.Namespace) -> Iterator[LLM]:
    """Find and open the model; closes it afterwards."""
    from edgellm.llm import LLM

    path = find(args).path
    with Bars() as bars:
        llm = LLM(
            path,
            n_ctx=args.ctx_size or None,
            n_threads=args.threads,
            kv_type=(args.cache_type_k, args.cache_type_v),
            weights=args.weights,
            backend=args.backend,
            isa=args.isa,
            strict=not args.no_strict,
            n_batch=ubatch(args),
            progress=bars.load,
        )
    with llm:
        yield llm


def read_text(path: str) -> str:
    """A text file without its last line break, as a prompt. Raises ConfigError."""
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, ValueError) as e:
        raise ConfigError(f"cannot read {path}: {e}") from None


def read_stdin() -> str:
    """Everything piped in, without its last line break. Raises ConfigError where it is not text."""
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as e:
        raise ConfigError(f"what was piped in is not text in {e.encoding}: {e.reason} at byte {e.start}") from None


def on_terminal() -> bool:
    """Whether a person can type: standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def refuse_base(name: str) -> int:
    """Explain why a base model cannot chat; the exit code."""
    print(
        f"edgellm: {name} is a base model: it continues text and was not trained to answer.\n"
        f"  continue a text:    edgellm run --raw {name} 'Once upon a time'\n"
        f"  chat with a model:  edgellm chat {hub.default_model()}",
        file=sys.stderr,
    )
    return 2

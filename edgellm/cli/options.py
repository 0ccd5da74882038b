"""Options that several commands share; names are llama.cpp's where the meaning is the same."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from edgellm.cli import drafts
from edgellm.cli.progress import Bars
from edgellm.core.errors import ConfigError
from edgellm.core.kv import KV_NAMES
from edgellm.core.layouts import WEIGHTS, is_layout

if TYPE_CHECKING:
    from edgellm.hub import ResolvedModel
    from edgellm.llm import LLM

MODEL = "a path, a name in the catalogue, or USER/NAME[:QUANT] on Hugging Face (default: the starter model)"


class _Weights(tuple[str, ...]):
    """The layouts of weights to choose from; "cache:FILE" is one of them."""

    def __contains__(self, value: object) -> bool:
        return is_layout(value)


def add_model(parser: argparse.ArgumentParser) -> None:
    """[MODEL] or -m MODEL."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    parser.add_argument("-m", "--model", dest="model_flag", metavar="MODEL", help="the model, as an option")
    parser.add_argument(
        "-hf", "--hf-repo", dest="model_flag", type=hugging_face, metavar="REPO", help="the same: USER/NAME[:QUANT]"
    )
    parser.add_argument("--offline", action="store_true", help="never use the network")


def hugging_face(text: str) -> str:
    """The model's name for a repository on Hugging Face."""
    return text if text.lower().startswith(("hf:", "http:", "https:", "hf.co/")) else f"hf:{text}"


def add_compute(group: argparse._ActionsContainer) -> None:
    """How the model is laid out and computed: none of it changes results, but for the cache types."""
    group.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: one a performance core)")
    group.add_argument("-ub", "--ubatch-size", type=int, metavar="N", help="most tokens a step computes (512)")
    group.add_argument("-b", "--batch-size", type=int, metavar="N", help="the same, where -ub is not given")
    add_cache_types(group)
    group.add_argument(
        "--weights",
        default="auto",
        choices=_Weights(WEIGHTS),
        help="layout of the weights; cache: a file of tiles, see `edgellm pack` (cache:FILE: that one)",
    )
    group.add_argument(
        "--backend", default="auto", choices=["auto", "native", "numba", "reference"], help="what computes"
    )
    group.add_argument("--isa", metavar="LEVEL", help="instruction set level (see `edgellm doctor`)")


def add_cache_types(group: argparse._ActionsContainer) -> None:
    """-ctk and -ctv."""
    for flag, name in (("-ctk", "k"), ("-ctv", "v")):
        group.add_argument(
            flag,
            f"--cache-type-{name}",
            default="f16",
            choices=KV_NAMES,
            metavar="TYPE",
            help=f"format of the {name.upper()} cache: {', '.join(KV_NAMES)} (f16)",
        )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """How the model is opened."""
    group = parser.add_argument_group("model options")
    group.add_argument("-c", "--ctx-size", type=int, metavar="N", help="context in tokens (0, default: the model's)")
    add_compute(group)
    group.add_argument("--no-strict", action="store_true", help="open files with unknown metadata, with a warning")
    drafts.add_drafts(group)
    drafts.add_lengths(group)
    drafts.add_prefix_cache(group)


def add_display(parser: argparse.ArgumentParser) -> None:
    """How answers look; none of it matters where they do not go to a terminal."""
    group = parser.add_argument_group("display options")
    group.add_argument("-v", "--verbose", action="store_true", help="print timings and the seed after each answer")
    group.add_argument("--show-timings", action="store_true", dest="verbose", help="the same")
    group.add_argument("--no-markdown", action="store_true", help="show the text as the model writes it")
    group.add_argument("--no-wordwrap", "--nowordwrap", action="store_true", help="leave line breaks to the terminal")
    group.add_argument(
        "--simple-io", action="store_true", help="plain lines in and out: no editing, no colours, no Markdown"
    )


def add_system(parser: argparse.ArgumentParser) -> None:
    """The system message."""
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message")
    parser.add_argument("-sysf", "--system-prompt-file", metavar="FILE", help="read the system message from a file")


def system_prompt(args: argparse.Namespace) -> str | None:
    """The system message that was given. Raises ConfigError."""
    if args.system_prompt_file is None:
        return None if args.system_prompt is None else str(args.system_prompt)
    if args.system_prompt is not None:
        raise ConfigError("give the system message once: with -sys or with -sysf")
    return read_text(args.system_prompt_file)


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
    return args.model_flag or args.model or default_model()


def default_model() -> str:
    """The catalogue's default."""
    from edgellm import hub  # brings NumPy: help and wrong usage do without

    return hub.default_model()


def find(args: argparse.Namespace) -> ResolvedModel:
    """Find the chosen model; downloads it, with a progress bar, when it is in the catalogue but not here."""
    from edgellm import hub

    with Bars() as bars:
        return hub.resolve(model_name(args), offline=args.offline, progress=bars.download)


def open_llm(args: argparse.Namespace, beside: Callable[[], None] | None = None) -> LLM:
    """Find and open the model; the caller closes it.

    beside: begins work to be done while the weights are loaded, in place of the tokenizer's tables: `LLM.warm` is then
    the caller's.
    """
    from edgellm import hub
    from edgellm.engine.loader import PROMPT
    from edgellm.llm import LLM

    gc.unfreeze()  # what an earlier model left may go now
    path, draft = find(args).path, args.draft
    with Bars() as bars:

        def progress(stage: str, fraction: float) -> None:
            if beside is not None and fraction == 0.0:
                beside()
            bars.load(stage, fraction)

        if draft not in (None, PROMPT):
            draft = hub.resolve(draft, offline=args.offline, progress=bars.download).path
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
            draft=draft,
            warm=beside is None,
            progress=progress,
            **drafts.prefix_cache(args),
        )
    # What a model is made of stays, half a million objects: looking through them takes longer than some answers.
    gc.freeze()
    gc.enable()  # see cli.main
    return llm


MAX_TEXT = 64 << 20
"""Characters of a prompt at most: more than any context holds."""


def read_text(path: str, *, whole: bool = False) -> str:
    """A text file as a prompt: without its last line break, unless it is wanted whole. Raises ConfigError."""
    try:
        with open(Path(path).expanduser(), encoding="utf-8", newline="" if whole else None) as file:
            return _take(file, path, whole)
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror or e}") from None
    except (ValueError, RuntimeError) as e:
        raise ConfigError(f"cannot read {path}: {e}") from None


def read_stdin(*, whole: bool = False) -> str:
    """Everything piped in, without its last line break unless it is wanted whole. ConfigError if it is not text."""
    try:
        return _take(sys.stdin, "standard input", whole)
    except UnicodeDecodeError as e:
        raise ConfigError(f"what was piped in is not text in {e.encoding}: {e.reason} at byte {e.start}") from None


def _take(file: TextIO, name: str, whole: bool) -> str:
    text = file.read(MAX_TEXT + 1)
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{name} has more than {MAX_TEXT >> 20} million characters: no prompt is that long")
    return text if whole else text.removesuffix("\n")


def on_terminal() -> bool:
    """Whether a person can type: standard input is a terminal."""
    return sys.stdin.isatty()


def base_text(name: str) -> str:
    """Why a base model cannot chat, and what to do instead."""
    return (
        f"{name} is a base model: it continues text and was not trained to answer.\n"
        f"  continue a text:    edgellm run --raw {name} 'Once upon a time'\n"
        f"  chat with a model:  edgellm chat {default_model()}"
    )


def refuse_base(name: str) -> int:
    """Explain why a base model cannot chat; the exit code."""
    print(f"edgellm: {base_text(name)}", file=sys.stderr)
    return 2

"""Options that change how soon answers come and never what they are: guesses at tokens, and prefixes kept on disk."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

GIB = 1 << 30

LEARNT = "how much is guessed is learnt from what it brings: this has no effect"


def add_drafts(group: argparse._ActionsContainer) -> None:
    """--draft, and the names that llama.cpp and vLLM have for it."""
    group.add_argument(
        "--draft", type=choice, metavar="DRAFT",
        help='speculative decoding: the same answers, sooner. "prompt": guess what repeats the text so far; else a '
        "smaller model with the same vocabulary",
    )  # fmt: skip
    group.add_argument("--spec-type", dest="draft", type=spec_type, metavar="TYPE",
                       help="ngram: the same as --draft prompt (none)")  # fmt: skip
    group.add_argument(
        "--spec-default", dest="draft", action="store_const", const="prompt", help="the same as --draft prompt"
    )
    group.add_argument("-md", "--model-draft", "--spec-draft-model", dest="draft", metavar="MODEL",
                       help="the same as --draft MODEL")  # fmt: skip
    group.add_argument("--speculative-config", dest="draft", type=config, metavar="JSON",
                       help="vLLM's way to say it")  # fmt: skip


def add_lengths(group: argparse._ActionsContainer) -> None:
    """llama.cpp's limits of guesses, which are taken, and said to do nothing."""
    group.add_argument(
        "--draft-max", "--draft-n", "--draft-min", "--draft-p-min", "--spec-draft-n-max", "--spec-draft-n-min",
        "--spec-draft-p-min", action=_Learnt, metavar="N", help="taken without effect: the length of guesses is learnt",
    )  # fmt: skip


def add_prefix_cache(group: argparse._ActionsContainer) -> None:
    """--prefix-cache-dir, and LMCache's names."""
    group.add_argument(
        "--prefix-cache-dir", "--local-disk", metavar="DIR",
        help="keep what was computed for prompts in files, so that it is found again after a restart",
    )  # fmt: skip
    group.add_argument(
        "--prefix-cache-size", "--max-local-disk-size", type=float, default=10.0, metavar="GIB",
        help="what these files take at most (10)",
    )  # fmt: skip


def prefix_cache(args: argparse.Namespace) -> dict[str, Any]:
    """What LLM is told of them."""
    folder = args.prefix_cache_dir
    return {
        "prefix_cache_dir": None if folder is None else folder.removeprefix("file://"),
        "prefix_cache_size": int(args.prefix_cache_size * GIB),
    }


class _Learnt(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        print(f"edgellm: {option_string}: {LEARNT}", file=sys.stderr)


def choice(text: str) -> str | None:
    """The `draft` of LLM. A number is llama.cpp's length of guesses, which is learnt here."""
    if text.isdigit():
        raise argparse.ArgumentTypeError(f"names a model, or is prompt, found {text}: {LEARNT}, leave it out")
    return None if text == "none" else text


def spec_type(text: str) -> str | None:
    """The `draft` of LLM for llama.cpp's --spec-type."""
    kinds = [kind for kind in (part.strip() for part in text.split(",")) if kind not in ("", "none")]
    if not kinds:
        return None
    if not all(kind.startswith("ngram") for kind in kinds):
        raise argparse.ArgumentTypeError(f"must be none or ngram, found {text!r:.60}: -md names a draft model")
    return "prompt"


def config(text: str) -> str | None:
    """The same for vLLM's --speculative-config. Raises ValueError for what is no JSON object."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError
    if found.get("model") and found.get("method", "draft_model") == "draft_model":
        return str(found["model"])
    return spec_type(str(found.get("method", "none")))

"""The vocabulary of a GGUF file: token texts, kinds, and which tokens end a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import GGUFError, TokenizerError
from edgellm.core.record import dataclass
from edgellm.tokenizer.special import Special

Metadata = Mapping[str, Any]


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Files seldom say which tokens end a turn; their texts do. Order is the order of preference for the
# end-of-turn token.
_END_OF_TURN = (
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT] "
    "<｜end▁of▁sentence｜> <end_of_utterance>"
).split()
_END_OF_MESSAGE = ("<|eom_id|>",)
_END_OF_GENERATION = (
    *_END_OF_TURN,
    *_END_OF_MESSAGE,
    *"<|return|> <|call|> <|flush|> <|calls|> </s> [EOS] <eos> <turn|> <|tool_response> [e~[".split(),
)
# Fill-in-the-middle tokens: metadata key (and its older spelling), texts. The last three end a generation.
_FILL_IN: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("fim_pre", "prefix"),
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
    ),
    (
        ("fim_suf", "suffix"),
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
    ),
    (
        ("fim_mid", "middle"),
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
    ),
    (("fim_pad",), "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"),
    (("fim_rep",), "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"),
    (("fim_sep",), "<|file_sep|>"),
)
# Control tokens that are shown all the same: the channel marks of the harmony format are part of its output.
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

# Some tokenizers let special tokens swallow the white space around them, which no key records.
_RSTRIP_NAMES = ("phi-3", "phi3")
_RSTRIP_EXCEPT = frozenset(("<unk>", "<s>", "<|endoftext|>"))
_LSTRIP_MASK_PRE = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_LSTRIP_MASK_NAME = "modern-bert"


@dataclass(frozen=True, slots=True)
class Vocab:
    """The tables of one file, read once.

    tokens:   [V] text of each token as the file spells it; empty ones are called "[EMPTY_<id>]".
    types:    [V] TokenType values as in the file.
    scores:   [V] float32; zeros when the file has none.
    index:    text -> id (of two tokens with one text, the later).
    hidden:   [V] bool: control and unknown tokens, which have no text of their own unless asked for.
    control:  [V] bool: control tokens, whether marked as such or known by their text.
    specials: what raw text is searched for; plain text must not encode to those marked `control`.
    eot_id:   the token that ends a turn, or None.
    eog_ids:  every token that ends a generation.
    fim_ids:  what fill-in-the-middle prompts are made of: "pre", "suf", "mid", "pad", "rep" (the name of the
              repository), "sep" (between files), as far as the model has them.
    """

    tokens: list[str]
    types: NDArray[np.int32]
    scores: NDArray[np.float32]
    index: dict[str, int]
    hidden: NDArray[np.bool_]
    control: NDArray[np.bool_]
    specials: tuple[Special, ...]
    eot_id: int | None
    eog_ids: frozenset[int]
    fim_ids: dict[str, int]


def special_id(metadata: Metadata, n_vocab: int, *names: str, default: int | None = None) -> int | None:
    """`tokenizer.ggml.<name>_token_id` of the first name that is there and inside the vocabulary."""
    for name in names:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < n_vocab:
            return value
    return default if default is not None and default < n_vocab else None


def read_strings(metadata: Metadata, key: str) -> list[str]:
    """A string array as a list. Raises TokenizerError if it is absent, of another type or not UTF-8."""
    value = metadata.get(key)
    if value is None:
        raise TokenizerError(f"the file has no {key}: its vocabulary is incomplete; convert the model again")
    try:
        strings = value.to_list() if hasattr(value, "to_list") else list(value)
    except (GGUFError, TypeError) as e:
        raise TokenizerError(f"{key} is not a usable list of strings: {e}") from e
    if isinstance(value, str):
        raise TokenizerError(f"{key} is one string, expected a list of them")
    if strings and not isinstance(strings[0], str):
        raise TokenizerError(f"{key} holds {type(strings[0]).__name__} values, expected strings")
    return strings


def load_vocab(metadata: Metadata, eos_id: int | None) -> Vocab:
    """Reads tokens, types and scores, and works out the special tokens. Raises TokenizerError."""
    tokens = read_strings(metadata, "tokenizer.ggml.tokens")
    n = len(tokens)
    types = _array(metadata, "tokenizer.ggml.token_type", n, np.int32, TokenType.NORMAL)
    scores = _array(metadata, "tokenizer.ggml.scores", n, np.float32, 0.0)
    index = dict(zip(tokens, range(n), strict=True))
    if "" in index:
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
        index = dict(zip(tokens, range(n), strict=True))

    control = types == TokenType.CONTROL
    fim_ids = _fill_in(metadata, index, control)
    eot_id, eog_ids = _endings(metadata, index, control, eos_id, fim_ids)
    shown = np.zeros(n, np.bool_)
    for text in (*_SHOWN, "<|end|>"):
        i = index.get(text)
        if i is not None and (text in _SHOWN or _harmony(index)):
            shown[i] = True
    hidden = (control | (types == TokenType.UNKNOWN)) & ~shown
    specials = _specials(metadata, tokens, types, control)
    return Vocab(tokens, types, scores, index, hidden, control & ~shown, specials, eot_id, eog_ids, fim_ids)


def _array(metadata: Metadata, key: str, n: int, dtype: type[Any], default: float) -> NDArray[Any]:
    """A numeric array with one entry a token, or `default` everywhere when the key is absent."""
    value = metadata.get(key)
    if value is None:
        return np.full(n, default, dtype)
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or len(array) < n:
        raise TokenizerError(f"{key} has shape {array.shape} and type {array.dtype}, expected {n} numbers")
    with np.errstate(invalid="ignore"):  # numbers that are no types are types that are not known
        return array[:n].astype(dtype)


def _fill_in(metadata: Metadata, index: dict[str, int], control: NDArray[np.bool_]) -> dict[str, int]:
    """Fill-in-the-middle tokens by their keys, else by their texts; the latter are marked in `control`."""
    found: dict[str, int] = {}
    for names, texts in _FILL_IN:
        token = special_id(metadata, len(control), *names)
        if token is None:
            token = _first(index, texts.split())
            if token is not None:
                control[token] = True
        if token is not None:
            found[names[0].removeprefix("fim_")] = token
    return found


def _endings(
    metadata: Metadata,
    index: dict[str, int],
    control: NDArray[np.bool_],
    eos_id: int | None,
    fim_ids: dict[str, int],
) -> tuple[int | None, frozenset[int]]:
    """(end-of-turn token, end-of-generation set); marks in `control` what is known by its text alone."""
    n = len(control)
    by_text = {index[t] for t in _END_OF_GENERATION if t in index}
    eot = special_id(metadata, n, "eot", default=_first(index, _END_OF_TURN))
    eom = special_id(metadata, n, "eom", default=_first(index, _END_OF_MESSAGE))
    ends = {i for i in (eos_id, eot, eom) if i is not None} | by_text
    ends.update(fim_ids[name] for name in ("pad", "rep", "sep") if name in fim_ids)
    for i in by_text:
        control[i] = True
    if _harmony(index):
        ends.discard(index["<|end|>"])
    if "<|tool_response>" in index or "<|plamo:eos|>" in index:
        plain = index.get("</s>")
        if plain is not None:
            ends.discard(plain)
            control[plain] = False
    return eot, frozenset(ends)


def _harmony(index: dict[str, int]) -> bool:
    """Whether <|end|> ends a message of several rather than the answer: told by its neighbours."""
    pairs = (("<|return|>", "<|call|>"), ("<|flush|>", "<|call|>"), ("<|flush|>", "<|calls|>"))
    return "<|end|>" in index and any(a in index and b in index for a, b in pairs)


def _specials(
    metadata: Metadata, tokens: list[str], types: NDArray[np.int32], control: NDArray[np.bool_]
) -> tuple[Special, ...]:
    name, pre = (str(metadata.get(key, "")).lower() for key in ("general.name", "tokenizer.ggml.pre"))
    rstrip = any(n in name for n in _RSTRIP_NAMES)
    mask = None
    if any(n in pre for n in _LSTRIP_MASK_PRE):
        mask = "<mask>"
    elif _LSTRIP_MASK_NAME in name:
        mask = "[MASK]"
    unknown = types == TokenType.UNKNOWN
    guarded = control | unknown
    found = np.flatnonzero(guarded | (types == TokenType.USER_DEFINED)).tolist()
    return tuple(
        Special(text, i, bool(guarded[i]), rstrip and text not in _RSTRIP_EXCEPT, text == mask)
        for i, text in ((i, tokens[i]) for i in found)
    )


def _first(index: dict[str, int], texts: Sequence[str]) -> int | None:
    return next((index[t] for t in texts if t in index), None)

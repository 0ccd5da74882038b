"""Text to token ids and back, for the vocabulary that a GGUF file carries."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import RequestError, TokenizerError
from edgellm.core.log import logger
from edgellm.core.record import dataclass
from edgellm.gguf import GGUFFile
from edgellm.tokenizer.pieces import Pieces, StreamDecoder, piece_table, unknown_id
from edgellm.tokenizer.pretokenize import FAMILIES, Family
from edgellm.tokenizer.special import Span, SpecialMatcher
from edgellm.tokenizer.vocab import Vocab, load_vocab, read_strings, special_id
from edgellm.tokenizer.words import WordEncoder

_log = logger(__name__)

_NO_VOCABULARY = ("none", "no_vocab", "")
_KINDS = ("gpt2", "llama", "gemma4")
_KEPT = ("general.name",)


@dataclass(frozen=True, slots=True)
class _Tables:
    """What decoding and stopping need; the tokens' own texts are dropped once these are built."""

    pieces: Pieces
    hidden_text: dict[int, bytes]
    control: NDArray[np.bool_]
    matcher: SpecialMatcher


@dataclass(frozen=True, slots=True)
class _Roles:
    """Which tokens play a part in generation."""

    eot_id: int | None
    eog_ids: frozenset[int]
    fim_ids: Mapping[str, int]


class Tokenizer:
    """The tokenizer of one model. Cheap to make: tables are built when first needed (`warm` builds them now).

    Safe to use from several threads. Ids are those that llama.cpp gives, but for the documented differences
    in tests/golden/tokenizer_differences.toml. Without a usable vocabulary, calls that take or give text
    raise TokenizerError; everything else works.

    Attributes:
        model, pre: `tokenizer.ggml.model` and `.pre`; "" where the file does not say.
        n_vocab: tokens in the vocabulary.
        bos_id, eos_id, unk_id, pad_id: special tokens, None where the model has none.
        add_bos, add_eos: whether `encode` puts these around a text (with add_special).
        add_space_prefix: a SentencePiece model that puts a space before text.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Same as `from_metadata`."""
        self._metadata = {k: v for k, v in metadata.items() if k.startswith("tokenizer.") or k in _KEPT}
        self._lock = threading.RLock()
        self._vocab: Vocab | None = None
        self._roles: _Roles | None = None
        self._tables: _Tables | None = None
        self._longest: int | None = None
        self._encoder: WordEncoder | None = None
        self._failed: dict[str, TokenizerError] = {}

        text = self._text_key
        self.model, self.pre = text("tokenizer.ggml.model"), text("tokenizer.ggml.pre")
        if self.model == "gemma4":
            self.pre = "gemma4"  # files of this kind name none
        self.n_vocab = self._size(metadata)
        spm = self.model == "llama"
        n, find = self.n_vocab, special_id
        self.bos_id = find(self._metadata, n, "bos", default=1 if spm else None)
        self.eos_id = find(self._metadata, n, "eos", default=2 if spm else None)
        self.unk_id = find(self._metadata, n, "unknown", default=0 if spm else None)
        self.pad_id = find(self._metadata, n, "padding")
        family = self._family()
        add_bos = spm or (family is not None and family.add_bos)
        # Published Gemma 4 files deny the BOS token that the model cannot do without.
        wants_bos = self._flag("add_bos_token", add_bos) or (family is not None and family is FAMILIES["gemma4"])
        self.add_bos = wants_bos and self.bos_id is not None
        self.add_eos = self._flag("add_eos_token", False) and self.eos_id is not None
        self.add_space_prefix = spm and self._flag("add_space_prefix", True)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that these GGUF metadata describe. Never raises for what they say."""
        return cls(metadata)

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer of a file, which may hold nothing else. Raises ModelNotFound, GGUFError."""
        with GGUFFile(path) as file:
            return cls(file.metadata)

    # --- what the vocabulary says ---------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether ids can be turned into text: the vocabulary is there and of a kind we know."""
        return self._unusable() is None

    @property
    def eot_id(self) -> int | None:
        """The token that ends a turn, by its key or its text."""
        return self._known_roles().eot_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every token that ends a generation. Without a readable vocabulary: those that keys name."""
        return self._known_roles().eog_ids

    @property
    def fim_ids(self) -> Mapping[str, int]:
        """Fill-in-the-middle tokens: "pre", "suf", "mid", "pad", "rep", "sep", as far as the model has them."""
        return self._known_roles().fim_ids

    @property
    def suppressed_ids(self) -> frozenset[int]:
        """Tokens that the file says must never be generated; ids outside the vocabulary are passed over."""
        value = self._metadata.get("tokenizer.ggml.suppress_tokens")
        if value is None:
            return frozenset()
        ids = np.asarray(value)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TokenizerError(
                f"tokenizer.ggml.suppress_tokens has shape {ids.shape} and type {ids.dtype}, expected token ids"
            )
        return frozenset(i for i in ids.tolist() if 0 <= i < self.n_vocab)

    def is_control(self, token_id: int) -> bool:
        """Whether this is a control token: it has no text, and plain text never encodes to it.

        False for every token of a vocabulary that is not usable.
        """
        self._check([token_id])
        return self.usable and bool(self._built().control[token_id])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes this token stands for, which need not be whole characters; b"" for control tokens."""
        self._check([token_id])
        return self._built().pieces[token_id]

    def least_tokens(self, text: str) -> int:
        """A lower bound on the tokens of a text, without tokenising it: no token holds more than the longest one."""
        if self._longest is None:
            self._longest = max(1, self._built().pieces.longest())
        return -(-len(text) // self._longest)

    def token_text(self, token_id: int) -> str:
        """The token as the file spells it: "<bos>", "Ġthe", "▁the"."""
        self._check([token_id])
        self._raise_if(self._unusable())
        return str(self._metadata["tokenizer.ggml.tokens"][token_id]) or f"[EMPTY_{token_id}]"

    def warm(self) -> None:
        """Builds everything now. Raises nothing: what is wrong is raised by the calls that need it."""
        for build in (self._known_roles, self._built, self._encoding):
            try:
                build()
            except TokenizerError:
                continue

    # --- text to ids ----------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        add_special: put BOS and EOS around it where the model wants them (even if the text has its own).
        parse_special: control tokens spelt out in the text become those tokens; user-defined ones always do.
        Bytes that the vocabulary has no token for are left out: some have none for a few control characters.
        """
        _check_text(text)
        ids = self._encode(text, [(0, len(text))] if parse_special else [])
        if add_special and self.add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def encode_segments(self, segments: Sequence[tuple[str, bool]], *, add_special: bool = True) -> list[int]:
        """Token ids of a text in segments; the flag of a segment says whether control tokens in it count.

        The ids are those of the joined text, except that a control token is taken only where all of it lies
        in flagged segments: text that a user wrote cannot become one, alone or together with its surroundings.
        add_special: begin with exactly one BOS if the model wants one, whether or not the text has its own.
        An EOS is never added: more text is to follow.
        """
        texts = [text for text, _ in segments]
        for text in texts:
            _check_text(text)
        ids = self._encode("".join(texts), _flagged_spans(segments))
        if add_special and self.add_bos and self.bos_id is not None:
            own = 0
            while own < len(ids) and ids[own] == self.bos_id:
                own += 1
            ids[:own] = [self.bos_id]
        return ids

    def _encode(self, text: str, control: Sequence[Span]) -> list[int]:
        encoder = self._encoding()
        parts = self._built().matcher.split(text, control)
        if encoder.prefixes_space:
            after_special = True
            for i, part in enumerate(parts):
                if after_special and isinstance(part, str):
                    parts[i] = " " + part
                after_special = isinstance(part, int)
        return encoder.encode(parts)

    # --- ids to text ----------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], *, special: bool = False, continues: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        special: write control tokens out. continues: the text goes on from another, so the space that a
        SentencePiece model puts before the first word is kept.
        """
        ids = list(ids)
        self._check(ids)
        tables = self._built()
        if special:
            shown = tables.hidden_text
            data = b"".join([shown.get(i) or tables.pieces[i] for i in ids])
        else:
            data = b"".join([tables.pieces[i] for i in ids])
        if self.add_space_prefix and not continues:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def stream(self, *, continues: bool = True) -> StreamDecoder:
        """A decoder for tokens that arrive one by one; together it gives `decode(ids, continues=continues)`."""
        return StreamDecoder(self._built().pieces, self.add_space_prefix and not continues)

    # --- building -------------------------------------------------------------------------------------

    def _known_roles(self) -> _Roles:
        if self._roles is None:
            with self._lock:
                try:
                    vocab = self._loaded()
                    self._roles = _Roles(vocab.eot_id, vocab.eog_ids, vocab.fim_ids)
                except TokenizerError:
                    eot = special_id(self._metadata, self.n_vocab, "eot")
                    self._roles = _Roles(eot, frozenset(i for i in (self.eos_id, eot) if i is not None), {})
        return self._roles

    def _built(self) -> _Tables:
        if self._tables is None:
            with self._lock:
                if self._tables is None:
                    self._tables = self._once("tables", self._build_tables)
                    self._forget()
        return self._tables

    def _encoding(self) -> WordEncoder:
        if self._encoder is None:
            with self._lock:
                if self._encoder is None:
                    self._encoder = self._once("encoder", self._build_encoder)
                    self._forget()
        return self._encoder

    def _once(self, what: str, build: Callable[[], Any]) -> Any:
        """build(), or the error it gave before."""
        self._raise_if(self._failed.get(what))
        try:
            return build()
        except TokenizerError as e:
            self._failed[what] = e
            raise

    def _loaded(self) -> Vocab:
        if self._vocab is None:
            self._vocab = self._once("vocab", lambda: load_vocab(self._metadata, self.eos_id))
        return self._vocab

    def _forget(self) -> None:
        """Drops the vocabulary when nothing is left to build from it."""
        built = self._tables is not None and (self._encoder is not None or "encoder" in self._failed)
        if built:
            self._known_roles()
            self._vocab = None

    def _build_tables(self) -> _Tables:
        self._raise_if(self._unusable())
        vocab = self._loaded()
        hidden = {i: vocab.tokens[i].encode("utf-8") for i in np.flatnonzero(vocab.hidden).tolist()}
        family = self._family()
        byte_level = self.model == "gpt2" and not (family is not None and family.raw)
        pieces = piece_table(vocab, byte_level)
        return _Tables(pieces, hidden, vocab.control, SpecialMatcher(vocab.specials))

    def _build_encoder(self) -> WordEncoder:
        self._raise_if(self._unusable())
        if self.model == "llama":
            from edgellm.tokenizer.spm import SPMEncoder

            return SPMEncoder(self._loaded(), self.unk_id, self.add_space_prefix)
        family = self._family()
        if family is None:
            raise TokenizerError(
                f"unknown pre-tokenizer {self.pre!r} (tokenizer.ggml.pre): text cannot be encoded without "
                f"risking wrong ids; pass token ids, or use a newer release. Known: {', '.join(sorted(FAMILIES))}"
            )
        if not self.pre:
            _log.warning(
                "the file names no pre-tokenizer (tokenizer.ggml.pre), so the default one cuts text into words; if "
                "answers are poor, convert the model again"
            )
        from edgellm.tokenizer.bpe import BPEEncoder

        return BPEEncoder(self._loaded(), read_strings(self._metadata, "tokenizer.ggml.merges"), family)

    def _unusable(self) -> TokenizerError | None:
        """Why there is no text for ids, or None."""
        if self.model in _NO_VOCABULARY:
            return TokenizerError("this file has no vocabulary: pass token ids instead of text")
        if self.model not in _KINDS:
            return TokenizerError(
                f"unsupported tokenizer {self.model!r} (tokenizer.ggml.model), expected one of {', '.join(_KINDS)}: "
                f"pass token ids instead of text"
            )
        if "tokenizer.ggml.tokens" not in self._metadata:
            return TokenizerError("the file has no tokenizer.ggml.tokens: pass token ids instead of text")
        return None

    def _family(self) -> Family | None:
        return FAMILIES.get(self.pre or "default") if self.model in ("gpt2", "gemma4") else None

    def _size(self, metadata: Mapping[str, Any]) -> int:
        tokens = metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Sequence) and not isinstance(tokens, str):
            return len(tokens)
        size = metadata.get(f"{metadata.get('general.architecture', '')}.vocab_size", 0)
        return size if isinstance(size, int) else 0

    def _text_key(self, key: str) -> str:
        value = self._metadata.get(key, "")
        return value if isinstance(value, str) else ""

    def _flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        return value if isinstance(value, bool) else default

    def _check(self, ids: Sequence[int]) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self.n_vocab):
            raise unknown_id(min(ids) if min(ids) < 0 else max(ids), self.n_vocab)

    @staticmethod
    def _raise_if(error: TokenizerError | None) -> None:
        if error is not None:
            raise TokenizerError(*error.args)


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise RequestError(f"text must be a string, found {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as e:
            raise RequestError(
                f"text has a lone surrogate U+{ord(text[e.start]):04X} at character {e.start}: it is not Unicode text"
            ) from None


def _flagged_spans(segments: Sequence[tuple[str, bool]]) -> list[Span]:
    """Ranges of the joined text whose segments are flagged; neighbours are one range."""
    ends = list(accumulate(len(text) for text, _ in segments))
    spans: list[Span] = []
    for (text, flag), end in zip(segments, ends, strict=True):
        start = end - len(text)
        if flag and text:
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
    return spans

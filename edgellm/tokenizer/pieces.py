"""The bytes that each token stands for, and putting them together to text as they arrive."""

from __future__ import annotations

import codecs
import re

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import RequestError, TokenizerError
from edgellm.tokenizer.vocab import TokenType, Vocab

META_SPACE = "▁"
"""How vocabularies on plain UTF-8 write a space."""

_MARK = "\U0010ffff"  # between texts; no vocabulary is known to use it


def byte_to_char() -> dict[int, str]:
    """The alphabet in which byte-level BPE writes bytes: printable ones as themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in set(printable))
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


class Pieces:
    """[V] bytes of each token. Cut out of the bytes of all of them when asked for, since few tokens of a vocabulary
    ever are; those that are set are kept beside."""

    __slots__ = ("_data", "_ends", "_set", "_starts")

    def __init__(self, data: bytes, ends: NDArray[np.int64], gap: int) -> None:
        """ends: where each piece ends in data; the next one begins `gap` bytes later."""
        # As memoryviews: they give plain integers, at a fifth of what an array takes for one of its own.
        self._data, self._ends = data, ends.data
        self._starts = np.append(0, ends[:-1] + gap).data
        self._set: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, token: int) -> bytes:
        found = self._set.get(token)
        return self._data[self._starts[token] : self._ends[token]] if found is None else found

    def __setitem__(self, token: int, piece: bytes) -> None:
        self._set[token] = piece

    def longest(self) -> int:
        """No piece has more bytes."""
        cut = int((np.asarray(self._ends) - np.asarray(self._starts)).max(initial=0))
        return max(cut, *map(len, self._set.values()), 0)


def piece_table(vocab: Vocab, byte_level: bool) -> Pieces:
    """The bytes of each token; b"" for control, unknown, unused and undefined ones.

    byte_level: texts are written in the byte alphabet; otherwise in UTF-8 with ▁ for a space.
    """
    table = _byte_level(vocab.tokens) if byte_level else _meta_space(vocab.tokens)
    for i in np.flatnonzero((vocab.types != TokenType.NORMAL) | vocab.hidden).tolist():
        kind, text = vocab.types[i], vocab.tokens[i]
        if vocab.hidden[i] or kind in (TokenType.UNUSED, 0):
            table[i] = b""
        elif kind == TokenType.BYTE:
            table[i] = bytes((byte_value(text, i),))
        else:  # user-defined, and control tokens that are shown
            table[i] = text.encode("utf-8")
    return table


def byte_value(text: str, token: int) -> int:
    """The byte that a token like <0x0A> stands for. Raises TokenizerError for another text."""
    match = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text)
    if match is None:
        raise TokenizerError(f"token {token} is marked as a byte but its text is {text!r}, expected <0x00>..<0xFF>")
    return int(match[1], 16)


def _joined(pieces: list[bytes]) -> Pieces:
    return Pieces(b"".join(pieces), np.cumsum([len(p) for p in pieces], dtype=np.int64), 0)


def _meta_space(tokens: list[str]) -> Pieces:
    joined = _MARK.join(tokens).replace(META_SPACE, " ").encode("utf-8").split(_MARK.encode("utf-8"))
    if len(joined) == len(tokens):
        return _joined(joined)
    return _joined([t.replace(META_SPACE, " ").encode("utf-8") for t in tokens])


def _byte_level(tokens: list[str]) -> Pieces:
    """Bytes of texts in the byte alphabet; a text with any other character stands for its own UTF-8."""
    if not tokens:
        return _joined([])
    codes = np.frombuffer(_MARK.join(tokens).encode("utf-32-le"), "<u4")
    ends = np.append(np.flatnonzero(codes == ord(_MARK)), len(codes))
    if len(ends) != len(tokens):  # a text holds the mark
        alphabet = {c: b for b, c in byte_to_char().items()}
        return _joined(
            [bytes(alphabet[c] for c in t) if alphabet.keys() >= set(t) else t.encode("utf-8") for t in tokens]
        )
    table = np.full(0x200, -1, np.int16)
    for byte, char in byte_to_char().items():
        table[ord(char)] = byte
    values = table[np.minimum(codes, len(table) - 1)]
    data = values.astype(np.uint8).tobytes()
    pieces = Pieces(data, ends, 1)
    foreign = np.flatnonzero((values < 0) & (codes != ord(_MARK)))
    for i in set(np.searchsorted(ends, foreign).tolist()):
        pieces[i] = tokens[i].encode("utf-8")
    return pieces


class StreamDecoder:
    """Turns tokens into text one at a time; what it emits never ends inside a character.

    The emitted strings together equal `Tokenizer.decode` of all tokens. Not thread-safe.
    """

    __slots__ = ("_decoder", "_partial", "_strip", "_table")

    def __init__(self, table: Pieces, strip: bool) -> None:
        """table: bytes of each token. strip: drop one space at the very beginning of the text."""
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = False
        self._strip = strip

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is still incomplete."""
        if token_id < 0 or token_id >= len(self._table):
            raise unknown_id(token_id, len(self._table))
        piece = self._table[token_id]
        if self._strip and piece:
            self._strip = False
            piece = piece.removeprefix(b" ")
        if not self._partial and piece.isascii():
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self._partial = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Ends the text: the rest, with U+FFFD for a character that stayed incomplete."""
        return self._decoder.decode(b"", True)


def unknown_id(token_id: int, n_vocab: int) -> RequestError:
    """The error for a token id outside the vocabulary."""
    return RequestError(f"token id {token_id} is outside the vocabulary (0 .. {n_vocab - 1})")

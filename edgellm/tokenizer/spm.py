"""SentencePiece vocabularies (merging by score): text to token ids through the `sentencepiece` library.

GGUF files hold a model's pieces, not the model, so a ModelProto is put together here. Its fields are those
of sentencepiece_model.proto; the few that are needed are written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from edgellm.core.errors import TokenizerError
from edgellm.tokenizer.vocab import TokenType, Vocab

_CHUNK = 2048
_META_SPACE = "▁"

# SentencePiece.Type in the proto.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


class SPMEncoder:
    """Encodes text without special tokens. Thread-safe.

    Control tokens are marked as such, so that no merges can produce one from plain text. User-defined
    tokens were found before; here they merge like any other.
    """

    def __init__(self, vocab: Vocab, unk_id: int | None, prefixes_space: bool) -> None:
        """unk_id: stands for what cannot be written otherwise; None: such characters are dropped.

        prefixes_space: whoever calls puts a space before text at the start and after special tokens.
        """
        self.prefixes_space = prefixes_space
        self._unk = len(vocab.tokens)
        self._unk_id = unk_id
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(_model_proto(vocab))
        except RuntimeError as e:
            raise TokenizerError(f"this vocabulary cannot be used with SentencePiece: {e}") from e
        # Text is cut before a space wherever no piece goes on from the character before it into a space.
        before_space = "\n".join(vocab.tokens).split(_META_SPACE)[:-1]
        crossing = {part[-1] for part in before_space if part}
        self._uncut = frozenset(crossing | {" ", _META_SPACE})

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = list(chain.from_iterable(map(self._processor.EncodeAsIds, self._chunks(text))))
        if self._unk in ids:
            known = [] if self._unk_id is None else [self._unk_id]
            ids = list(chain.from_iterable(known if i == self._unk else (i,) for i in ids))
        return ids

    def _chunks(self, text: str) -> Iterator[str]:
        """Cuts long text where nothing merges: the library slows down on long inputs."""
        at, end = 0, 0
        while len(text) - at > 2 * _CHUNK:
            end = text.find(" ", max(at + _CHUNK, end + 1))
            if end < 0:
                break
            if text[end - 1] not in self._uncut:
                yield text[at:end]
                at = end
        yield text[at:]


def _model_proto(vocab: Vocab) -> bytes:
    """A serialised ModelProto: byte-pair model by score, no normalisation, spaces escaped, nothing added.

    The unknown piece is an extra one at the end, because files mark none, one or many.
    """
    normalizer = _field(1, b"identity") + _flag(3, False) + _flag(4, False) + _flag(5, True)
    kinds = np.full(len(vocab.tokens), _NORMAL, np.uint8)
    kinds[[special.id for special in vocab.specials if special.control]] = _CONTROL
    is_byte = (vocab.types == TokenType.BYTE) & (kinds == _NORMAL)
    byte_texts = {vocab.tokens[i] for i in np.flatnonzero(is_byte).tolist()}
    has_bytes = byte_texts.issuperset(f"<0x{b:02X}>" for b in range(256))
    kinds[is_byte] = _BYTE if has_bytes else _CONTROL
    trainer = _varint_field(3, 2) + _flag(35, has_bytes)  # model_type = BPE, byte_fallback
    return _pieces(vocab, kinds) + _field(2, trainer) + _field(3, normalizer)


def _pieces(vocab: Vocab, kinds: NDArray[np.uint8]) -> bytes:
    """The repeated `pieces` field, a quarter of a million records written by NumPy at once.

    Every record is 8 bytes of headers, the text, and 7 bytes for score and type. Lengths are varints of a
    fixed three bytes, which the wire format allows.
    """
    tokens = vocab.tokens
    if len(vocab.index) != len(tokens) or "\0" in "".join(tokens):
        # SentencePiece wants every text once, so the last one counts, and no NUL in any.
        tokens = [f"\x01{i}" if vocab.index[t] != i or "\0" in t else t for i, t in enumerate(tokens)]
    n = len(tokens) + 1
    text = np.frombuffer("\0".join([*tokens, "\x01unknown"]).encode("utf-8"), np.uint8)
    lengths = np.diff(np.flatnonzero(text == 0), prepend=-1, append=len(text)) - 1
    text = text[text != 0]
    if int(lengths.max()) >= 1 << 20:
        raise TokenizerError(f"token {int(lengths.argmax())} has {int(lengths.max())} bytes, at most 1048575")
    starts = np.concatenate(([0], np.cumsum(lengths + 15)))
    out = np.zeros(int(starts[-1]), np.uint8)

    head = np.zeros((n, 8), np.uint8)
    head[:, 0] = 0x0A  # ModelProto.pieces
    head[:, 1:4] = _fixed_varint(lengths + 11)
    head[:, 4] = 0x0A  # SentencePiece.piece
    head[:, 5:8] = _fixed_varint(lengths)
    tail = np.zeros((n, 7), np.uint8)
    tail[:, 0] = 0x15  # SentencePiece.score, float
    tail[:, 1:5] = np.append(vocab.scores, np.float32(0)).astype("<f4").view(np.uint8).reshape(n, 4)
    tail[:, 5] = 0x18  # SentencePiece.type
    tail[:, 6] = np.append(kinds, _UNKNOWN)

    is_text = np.ones(len(out), np.bool_)
    for k in range(8):
        at = starts[:-1] + k
        out[at] = head[:, k]
        is_text[at] = False
    for k in range(7):
        at = starts[1:] - 7 + k
        out[at] = tail[:, k]
        is_text[at] = False
    out[is_text] = text
    return out.tobytes()


def _fixed_varint(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    """[n, 3] uint8: varints of three bytes each."""
    columns = (values & 127 | 128, values >> 7 & 127 | 128, values >> 14)
    return np.stack(columns, axis=1).astype(np.uint8)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _flag(number: int, value: bool) -> bytes:
    return _varint_field(number, int(value))


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload

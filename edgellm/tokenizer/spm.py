"""SentencePiece vocabularies: byte-pair encoding by the scores of the results, on plain UTF-8.

Long texts go through the `sentencepiece` library. GGUF files hold a model's pieces, not the model, so a
ModelProto is put together here. Its fields are those of sentencepiece_model.proto; the few that are needed are
written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import TokenizerError
from edgellm.tokenizer.pieces import META_SPACE
from edgellm.tokenizer.split import CHUNK
from edgellm.tokenizer.vocab import TokenType, Vocab
from edgellm.tokenizer.words import Bulk, WordEncoder, merge, words_at_spaces

# SentencePiece.Type in the proto.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


class SPMEncoder(WordEncoder):
    """Encodes text without special tokens. Thread-safe.

    Control tokens are left out, so that no merges can produce one from plain text. User-defined tokens were
    found before; here they merge like any other.
    """

    def __init__(self, vocab: Vocab, unk_id: int | None, prefixes_space: bool) -> None:
        """unk_id: stands for a character that is no token where not every byte is one; None: it is left out."""
        super().__init__()
        self.prefixes_space = prefixes_space
        self._vocab: Vocab | None = vocab
        self._unknown = () if unk_id is None else (unk_id,)
        self._index = vocab.index.copy()
        kinds = _kinds(vocab)
        for i in np.flatnonzero(kinds != _NORMAL).tolist():
            if self._index.get(vocab.tokens[i]) == i:
                del self._index[vocab.tokens[i]]
        self._bytes = _byte_ids(vocab, kinds)
        self._penalty: list[float] = (-vocab.scores).tolist()
        before_space = "\0".join(vocab.tokens).split(META_SPACE)[:-1]
        crossing = {part[-1] for part in before_space if part} - {"\0"}
        self._words = words_at_spaces(crossing)
        self._uncut = frozenset(crossing | {" ", META_SPACE})

    def split(self, text: str) -> Iterator[list[str]]:
        """See WordEncoder."""
        at = end = 0
        while len(text) - at > 2 * CHUNK:
            end = text.find(" ", max(at + CHUNK, end + 1))
            if end < 0:
                break
            if text[end - 1] not in self._uncut:
                yield self._words.findall(text[at:end].replace(" ", META_SPACE))
                at = end
        yield self._words.findall(text[at:].replace(" ", META_SPACE))

    def merge(self, word: str) -> list[int]:
        """See WordEncoder."""
        index, penalty = self._index, self._penalty

        def rank(left: str, right: str) -> float | None:
            token = index.get(left + right)
            return None if token is None else penalty[token]

        ids: list[int] = []
        for part in merge(list(word), rank):
            token = index.get(part)
            if token is not None:
                ids.append(token)
            elif self._bytes is None:
                ids += self._unknown
            else:
                ids += [self._bytes[byte] for byte in part.encode("utf-8")]
        return ids

    def build(self) -> Bulk:
        """See WordEncoder."""
        if self._bytes is None or self._vocab is None:
            # The library would make one unknown token of several characters.
            return lambda words: [self.merge(word) for word in words]
        import sentencepiece  # takes a while, and short texts do without

        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(_model_proto(self._vocab))
        except RuntimeError as e:
            raise TokenizerError(f"this vocabulary cannot be used with SentencePiece: {e}") from e
        self._vocab = None
        encode = processor.EncodeAsIds
        return lambda words: encode(words, num_threads=1)


def _kinds(vocab: Vocab) -> NDArray[np.uint8]:
    """[V] what SentencePiece shall take each token for: what raw text must not become is a control token."""
    kinds = np.full(len(vocab.tokens), _NORMAL, np.uint8)
    kinds[[special.id for special in vocab.specials if special.control]] = _CONTROL
    kinds[(vocab.types == TokenType.BYTE) & (kinds == _NORMAL)] = _BYTE
    return kinds


def _byte_ids(vocab: Vocab, kinds: NDArray[np.uint8]) -> list[int] | None:
    """[256] the token of each byte; None unless every byte has one."""
    of_text = {vocab.tokens[i]: i for i in np.flatnonzero(kinds == _BYTE).tolist()}
    ids = [of_text.get(f"<0x{byte:02X}>") for byte in range(256)]
    return None if None in ids else ids  # type: ignore[return-value]  # there is no None in it


def _model_proto(vocab: Vocab) -> bytes:
    """A serialised ModelProto: byte-pair model by score, no normalisation, spaces escaped, nothing added.

    The unknown piece that every model needs is an extra one at the end; no text becomes it.
    """
    normalizer = _field(1, b"identity") + _flag(3, False) + _flag(4, False) + _flag(5, True)
    trainer = _varint_field(3, 2) + _flag(35, True)  # model_type = BPE, byte_fallback
    return _pieces(vocab, _kinds(vocab)) + _field(2, trainer) + _field(3, normalizer)


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

"""Byte-level BPE: text to token ids through the `tokenizers` library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

import tokenizers
from tokenizers import models, pre_tokenizers

from edgellm.core.errors import TokenizerError
from edgellm.tokenizer.pieces import byte_to_char
from edgellm.tokenizer.pretokenize import Family
from edgellm.tokenizer.vocab import Vocab

_CHUNK = 4096
_WORD_START = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")


class BPEEncoder:
    """Encodes text without special tokens. Thread-safe.

    Control tokens are left out of the model, so that no sequence of merges can produce one from plain text.
    """

    prefixes_space = False

    def __init__(self, vocab: Vocab, merges: list[str], family: Family) -> None:
        index = vocab.index.copy()
        control = {special.text for special in vocab.specials if special.control}
        for text in control:
            index.pop(text, None)
        merges = [m for m in merges if m.replace(" ", "", 1) not in control]
        self._expansions: dict[int, list[int]] = {}
        try:
            pairs = [tuple(m.split(" ", 1)) for m in merges]
            model = models.BPE(index, pairs, ignore_merges=family.ignore_merges)  # type: ignore[arg-type]
        except Exception:  # the library raises bare exceptions for merges that lead out of the vocabulary
            model = self._patched(index, merges, family, len(vocab.tokens), control)
        self._tokenizer = tokenizers.Tokenizer(model)
        steps = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in family.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        encode = self._tokenizer.encode
        ids = list(chain.from_iterable(encode(part, add_special_tokens=False).ids for part in _chunks(text)))
        if self._expansions:
            expand = self._expansions
            ids = list(chain.from_iterable(expand.get(i, (i,)) for i in ids))
        return ids

    def _patched(
        self, index: dict[str, int], merges: list[str], family: Family, n: int, control: set[str]
    ) -> models.BPE:
        """The model for merges whose parts or results are not all tokens.

        Such texts get ids past the vocabulary; where one is left when merging ends, its bytes take its place.
        """
        cuts = [(m, m.find(" ", 1)) for m in merges]
        pairs = [(m[:cut], m[cut + 1 :]) for m, cut in cuts if 0 < cut < len(m) - 1]
        alphabet = set(byte_to_char().values())
        for text in (t for a, b in pairs for t in (a, b, a + b)):
            if text not in index and text not in control and alphabet.issuperset(text):
                extra = n + len(self._expansions)
                self._expansions[extra] = [index[c] for c in text if c in index]
                index[text] = extra
        pairs = [(a, b) for a, b in pairs if a in index and b in index and a + b in index]
        try:
            return models.BPE(index, pairs, ignore_merges=family.ignore_merges)
        except Exception as e:
            raise TokenizerError(f"the merges of this vocabulary cannot be used: {e}") from e


def _chunks(text: str) -> Iterator[str]:
    """Cuts long text where a word begins in every family: the library slows down on long inputs."""
    at = 0
    while len(text) - at > 2 * _CHUNK:
        match = _WORD_START.search(text, at + _CHUNK)
        if match is None:
            break
        yield text[at : match.start()]
        at = match.start()
    yield text[at:]

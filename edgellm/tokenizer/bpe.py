"""Byte-pair encoding by ranked merges, on the byte alphabet or on plain UTF-8."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from edgellm.core.errors import TokenizerError
from edgellm.tokenizer.pieces import META_SPACE, byte_to_char
from edgellm.tokenizer.pretokenize import Family
from edgellm.tokenizer.split import Splitter
from edgellm.tokenizer.vocab import Vocab
from edgellm.tokenizer.words import Bulk, WordEncoder, merge, words_at_spaces

_UNKNOWN = "\U0010ffff unknown"  # no word holds a space where this text counts


class BPEEncoder(WordEncoder):
    """Encodes text without special tokens. Thread-safe.

    Control tokens are left out, so that no sequence of merges can produce one from plain text. A character
    without a token is written by its bytes' tokens; one that has not all of these either is left out.
    """

    def __init__(self, vocab: Vocab, merges: list[str], family: Family) -> None:
        """merges: "left right", the earliest first; what has no or several spaces is passed over."""
        super().__init__()
        self._family = family
        self._splitter = Splitter(family)
        self._n = len(vocab.tokens)
        self._index = vocab.index.copy()
        # Backwards, so that of equal merges the earliest counts.
        self._ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        for special in vocab.specials:
            if special.control and self._index.get(special.text) == special.id:
                del self._index[special.text]
                for cut in range(1, len(special.text)):
                    self._ranks.pop(f"{special.text[:cut]} {special.text[cut:]}", None)
        self._at_spaces: re.Pattern[str] | None = None
        if family.raw:
            (pattern,) = family.patterns
            self._lines = re.compile(pattern)
            # Merges build every token, so they show which characters a token goes on from into a space.
            before_space = "\n".join(self._ranks).split(f" {META_SPACE}")[:-1]
            self._at_spaces = words_at_spaces({part[-1] for part in before_space if part} - {"\n", META_SPACE})
        self._letters = str.maketrans({chr(b): c for b, c in byte_to_char().items()})

    def split(self, text: str) -> Iterator[list[str]]:
        """See WordEncoder."""
        if self._at_spaces is None:
            yield from self._splitter.chunks(text)
            return
        words: list[str] = []
        for match in self._lines.finditer(text.replace(" ", META_SPACE)):
            line = match[0]
            words += (line,) if line[0] == "\n" else self._at_spaces.findall(line)
            if len(words) > 4096:
                yield words
                words = []
        yield words

    def merge(self, word: str) -> list[int]:
        """See WordEncoder."""
        text = self._spelt(word)
        if self._is_whole(text):
            return [self._index[text]]
        ranks = self._ranks
        ids: list[int] = []
        for part in merge(list(text), lambda a, b: ranks.get(f"{a} {b}")):
            token = self._index.get(part)
            ids += self._spell(part) if token is None else (token,)
        return ids

    def build(self) -> Bulk:
        """See WordEncoder."""
        from tokenizers import models  # takes a while, and short texts do without

        index = self._index.copy()
        others: dict[int, list[int]] = {self._n: []}
        index[_UNKNOWN] = self._n
        raw = self._family.raw
        for char in () if raw else byte_to_char().values():
            self._add(char, index, others)
        ranked = sorted((m for m in self._ranks if m.count(" ") == 1), key=self._ranks.__getitem__)
        flat = " ".join(ranked).split(" ") if ranked else []
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        try:
            model = models.BPE(index, pairs, unk_token=_UNKNOWN, byte_fallback=raw)
        except Exception:  # the library raises bare exceptions for merges that lead out of the vocabulary
            pairs = [(a, b) for a, b in pairs if a and b]
            for text in (t for a, b in pairs for t in (a, b, a + b)):
                self._add(text, index, others)
            try:
                model = models.BPE(index, pairs, unk_token=_UNKNOWN, byte_fallback=raw)
            except Exception as e:
                raise TokenizerError(f"the merges of this vocabulary cannot be used: {e}") from e
        n, known, spelt = self._n, self._index, self._spelt
        tokenize, is_whole = model.tokenize, self._is_whole

        def by_library(words: list[str]) -> list[Sequence[int]]:
            out: list[Sequence[int]] = []
            for text in map(spelt, words):
                if is_whole(text):
                    out.append((known[text],))
                    continue
                ids = [token.id for token in tokenize(text)]
                if max(ids, default=0) >= n:
                    ids = [i for token in ids for i in (others[token] if token >= n else (token,))]
                out.append(ids)
            return out

        return by_library

    def _add(self, text: str, index: dict[str, int], others: dict[int, list[int]]) -> None:
        """Gives a text that merging may reach but that is no token an id past the vocabulary."""
        if text not in index:
            index[text] = self._n + len(others)
            others[index[text]] = self._spell(text)

    def _spelt(self, word: str) -> str:
        """The word in the alphabet of the vocabulary."""
        return word if self._family.raw else word.encode("utf-8").decode("latin-1").translate(self._letters)

    def _is_whole(self, text: str) -> bool:
        """Whether this word is taken as the token it is, whatever the merges say."""
        whole = self._family.ignore_merges or (self._family.whole_breaks and text[0] == "\n")
        return whole and text in self._index

    def _spell(self, text: str) -> list[int]:
        """Ids of a text that is no token, character by character."""
        ids: list[int] = []
        for char in text:
            own = self._index.get(char)
            if own is not None:
                ids.append(own)
            elif self._family.raw:
                codes = [self._index.get(f"<0x{byte:02X}>") for byte in char.encode("utf-8")]
                ids += [] if None in codes else codes  # type: ignore[arg-type]  # there is no None in it
        return ids

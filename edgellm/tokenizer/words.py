"""Encoding word by word: words met before come from a cache, new ones are merged.

Few new words are merged here, in Python, so that a prompt can be tokenised long before a library has taken in a
vocabulary. Many are handed to the library of the vocabulary's kind, which is built when they first add up. Both
give the same ids.
"""

from __future__ import annotations

import heapq
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from edgellm.tokenizer.pieces import META_SPACE

Rank = Callable[[str, str], "float | None"]
"""How early two neighbours merge, lower first; None if they do not."""

Bulk = Callable[[list[str]], list[Sequence[int]]]
"""Token ids of each of some words."""

Word = str | int
"""A word, or the id of a special token that stands among the words."""

_BATCH = 4096
_CACHED_WORDS = 32_768
_CACHED_LENGTH = 128
_BY_HAND = 32_768  # characters: about what takes as long as building the library of a large vocabulary


class WordEncoder(ABC):
    """Encodes text without special tokens. Thread-safe.

    prefixes_space: whoever calls puts a space before text at the start and after special tokens.
    """

    prefixes_space = False

    def __init__(self) -> None:
        self._cache: dict[Word, Sequence[int]] = {}
        self._left = _BY_HAND
        self._library: Bulk | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def split(self, text: str) -> Iterator[list[str]]:
        """The words of `text` in order, in lists of a convenient length; no merge goes across two words."""

    @abstractmethod
    def merge(self, word: str) -> list[int]:
        """Token ids of a word, by hand."""

    @abstractmethod
    def build(self) -> Bulk:
        """The library's way to do what `merge` does."""

    def encode(self, parts: Iterable[Word]) -> list[int]:
        """Token ids of text in parts, each of them cut into words by itself; special tokens stay as they are."""
        ids: list[int] = []
        words: list[Word] = []
        for part in parts:
            if isinstance(part, int):
                words.append(part)
                continue
            for more in self.split(part):
                words += more
                if len(words) >= _BATCH:
                    ids += self._look_up(words)
                    words = []
        ids += self._look_up(words)
        return ids

    def _look_up(self, words: list[Word]) -> Iterator[int]:
        cache = self._cache
        unknown = set(words).difference(cache)
        if not unknown:
            return chain.from_iterable(map(cache.__getitem__, words))
        new: dict[Word, Sequence[int]] = {word: (word,) for word in unknown if isinstance(word, int)}
        texts = [word for word in unknown if isinstance(word, str)]
        new.update(zip(texts, map(tuple, self._merge_all(texts)), strict=True))
        kept = {word: ids for word, ids in new.items() if isinstance(word, int) or len(word) <= _CACHED_LENGTH}
        if len(cache) + len(kept) > _CACHED_WORDS:
            self._cache = {}  # for the texts to come; this one has its own still
        cache.update(kept)
        if len(kept) == len(new):
            return chain.from_iterable(map(cache.__getitem__, words))
        return chain.from_iterable([new[word] if word in new else cache[word] for word in words])

    def _merge_all(self, words: list[str]) -> list[Sequence[int]]:
        if self._library is None:
            length = sum(map(len, words))
            if length <= self._left:
                self._left -= length
                return [self.merge(word) for word in words]
            with self._lock:
                if self._library is None:
                    self._library = self.build()
        return self._library(words)


def merge(parts: list[str], rank: Rank) -> list[str]:
    """Joins neighbours, the lowest rank anywhere first and of equal ones the leftmost, until none has a rank.

    Takes n log n steps for n parts.
    """
    n = len(parts)
    parts = parts.copy()
    pairs = [(r, i, parts[i], parts[i + 1]) for i in range(n - 1) if (r := rank(parts[i], parts[i + 1])) is not None]
    if not pairs:
        return parts
    heapq.heapify(pairs)
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    while pairs:
        _, i, left, right = heapq.heappop(pairs)
        j = after[i]
        if j >= n or parts[i] != left or parts[j] != right:
            continue  # one of the two has merged with another since
        joined = parts[i] = left + right
        parts[j] = ""
        k = after[i] = after[j]
        if k < n:
            before[k] = i
            r = rank(joined, parts[k])
            if r is not None:
                heapq.heappush(pairs, (r, i, joined, parts[k]))
        h = before[i]
        if h >= 0:
            r = rank(parts[h], joined)
            if r is not None:
                heapq.heappush(pairs, (r, h, parts[h], joined))
    return [part for part in parts if part]


def words_at_spaces(crossing: set[str]) -> re.Pattern[str]:
    """Matches a run of ▁ with what follows it up to the next one.

    crossing: characters from which some token goes on into ▁; a ▁ after one of them is no place to cut.
    """
    onward = "".join(map(re.escape, sorted(crossing)))
    pattern = f"{META_SPACE}*[^{META_SPACE}]+"
    if crossing:
        pattern += f"(?:(?<=[{onward}]){META_SPACE}+[^{META_SPACE}]*)*"
    return re.compile(f"{pattern}|{META_SPACE}+", re.DOTALL)

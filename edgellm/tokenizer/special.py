"""Finds special tokens in raw text, before anything else cuts it: longest token first, over the whole text."""

from __future__ import annotations

import heapq
import re
import sys
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""A range of characters: first, one past the last."""

_C_SPACE = " \t\n\v\f\r"


@dataclass(frozen=True, slots=True)
class Special:
    """A token that text is searched for.

    control: matched only where control tokens may be parsed; False for user-defined tokens.
    rstrip:  swallows the white space that follows it.
    """

    text: str
    id: int
    control: bool
    rstrip: bool = False


class SpecialMatcher:
    """Partitions text into special tokens and the text between them. Immutable, so safe to share."""

    def __init__(self, specials: Iterable[Special]) -> None:
        """Texts must not be empty; of two tokens with the same text the later one counts."""
        self._by_text: dict[str, Special] = {s.text: s for s in specials}
        ordered = sorted(self._by_text.values(), key=lambda s: (-len(s.text.encode("utf-8")), s.id))
        self._rank = {s.text: rank for rank, s in enumerate(ordered)}
        lengths: dict[str, set[int]] = {}
        for text in self._by_text:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {prefix: tuple(sorted(n, reverse=True)) for prefix, n in lengths.items()}
        self._start = re.compile(_start_pattern(lengths), re.DOTALL) if lengths else None

    def split(self, text: str, control: Sequence[Span]) -> list[str | int]:
        """`text` as a list of token ids and of non-empty strings without tokens in them.

        Control tokens count only where they lie within one of the spans of `control` (ascending, disjoint).
        """
        parts: list[str | int] = []
        at = 0
        for start, special, end in self._find(text, control):
            if start > at:
                parts.append(text[at:start])
            parts.append(special.id)
            at = end
        if at < len(text):
            parts.append(text[at:])
        return parts

    def _find(self, text: str, control: Sequence[Span]) -> list[tuple[int, Special, int]]:
        """Accepted tokens by position: (start, token, end of what it swallows)."""
        if self._start is None:
            return []
        # Per place only the longest token is a candidate; if it turns out to overlap a longer one that
        # starts further on, the next shorter one at this place takes its turn.
        candidates: list[tuple[int, int, int]] = []
        for match in self._start.finditer(text):
            self._push(candidates, text, match.start(), len(text), control)
        if not candidates:
            return []
        heapq.heapify(candidates)
        starts: list[int] = []
        found: dict[int, tuple[Special, int]] = {}
        while candidates:
            _, start, length = heapq.heappop(candidates)
            i = bisect_right(starts, start)
            if i and found[starts[i - 1]][1] > start:
                continue
            limit = starts[i] if i < len(starts) else len(text)
            if start + length > limit:
                smaller: list[tuple[int, int, int]] = []
                self._push(smaller, text, start, length - 1, control)
                for candidate in smaller:
                    heapq.heappush(candidates, candidate)
                continue
            special = self._by_text[text[start : start + length]]
            end = start + length
            while special.rstrip and end < limit and text[end] in _C_SPACE:
                end += 1
            insort(starts, start)
            found[start] = (special, end)
        return [(start, *found[start]) for start in starts]

    def _push(
        self, out: list[tuple[int, int, int]], text: str, start: int, longest: int, control: Sequence[Span]
    ) -> None:
        """Appends (rank, start, length) of the longest allowed token at `start`, if there is one."""
        for prefix in (text[start : start + 2], text[start : start + 1]):
            for length in self._lengths.get(prefix, ()):
                if length > longest:
                    continue
                special = self._by_text.get(text[start : start + length])
                if special is None or (special.control and not _inside(control, start, start + length)):
                    continue
                out.append((self._rank[special.text], start, length))
                return


def _inside(spans: Sequence[Span], start: int, end: int) -> bool:
    """Whether [start, end) lies within one of the spans."""
    i = bisect_right(spans, (start, sys.maxsize))
    return i > 0 and spans[i - 1][1] >= end


def _start_pattern(prefixes: Iterable[str]) -> str:
    """Matches one character wherever a token with one of these prefixes (one or two characters) may start."""
    seconds: dict[str, set[str]] = {}
    alone: set[str] = set()
    for prefix in prefixes:
        if len(prefix) == 1:
            alone.add(prefix)
        else:
            seconds.setdefault(prefix[0], set()).add(prefix[1])
    branches = [re.escape(c) for c in sorted(alone)]
    for first in sorted(seconds.keys() - alone):
        follow = "".join(re.escape(c) for c in sorted(seconds[first]))
        branches.append(f"{re.escape(first)}(?=[{follow}])")
    return "|".join(branches)

"""Finds special tokens in raw text, before anything else cuts it: longest token first, over the whole text."""

from __future__ import annotations

import heapq
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from edgellm.core.record import dataclass

Span = tuple[int, int]
"""A range of characters: first, one past the last."""

Found = tuple[int, int, int]
"""A special token in text: first character of what it takes up, one past the last, token id."""

_C_SPACE = " \t\n\v\f\r"
_RUN = re.compile(r"(.)\1*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Special:
    """A token that text is searched for.

    control: matched only where control tokens may be parsed; False for user-defined tokens.
    lstrip, rstrip: swallows the white space before it, after it.
    """

    text: str
    id: int
    control: bool
    rstrip: bool = False
    lstrip: bool = False


class SpecialMatcher:
    """Partitions text into special tokens and the text between them. Immutable, so safe to share.

    What is found is what cutting out token by token gives, the longest (in UTF-8) first, then the lower id.
    """

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
        self._strips = any(s.lstrip or s.rstrip for s in ordered)
        self._runs = _runs(ordered)

    def split(self, text: str, control: Sequence[Span]) -> list[str | int]:
        """`text` as a list of token ids and of non-empty strings without tokens in them.

        Control tokens count only where they lie within one of the spans of `control` (ascending, disjoint).
        """
        parts: list[str | int] = []
        at = 0
        for start, end, token in self._find(text, control):
            if start > at:
                parts.append(text[at:start])
            parts.append(token)
            at = end
        if at < len(text):
            parts.append(text[at:])
        return parts

    def _find(self, text: str, control: Sequence[Span]) -> list[Found]:
        """Accepted tokens by position."""
        if self._start is None:
            return []
        if self._strips:
            return self._contest(text, list(self._starts(text, 0)), 0, len(text), control)
        found: list[Found] = []
        at = 0
        while match := self._start.search(text, at):
            start = match.start()
            runs = self._runs.get(text[start])
            if runs is not None:
                size = _longest_run(runs, text, start)
            else:
                # A token is taken at once unless one that goes before it starts inside it.
                size = self._longest(text, start, len(text), control)
                if size > 1 and self._has_rival(text, start, size, control):
                    starts, end = self._entangled(text, start, start + size, control)
                    found += self._contest(text, starts, start, end, control)
                    at = end
                    continue
            if size:
                found.append((start, start + size, self._by_text[text[start : start + size]].id))
            at = start + (size or 1)
        return found

    def _starts(self, text: str, at: int) -> Iterator[int]:
        """Where tokens may begin, from `at` on."""
        return (match.start() for match in self._start.finditer(text, at)) if self._start else iter(())

    def _has_rival(self, text: str, start: int, size: int, control: Sequence[Span]) -> bool:
        """Whether a token that starts inside text[start:start + size] goes before that one."""
        rank = self._rank[text[start : start + size]]
        for inner in self._starts(text, start + 1):
            if inner >= start + size:
                break
            length = self._longest(text, inner, len(text), control)
            if length and self._rank[text[inner : inner + length]] < rank:
                return True
        return False

    def _entangled(self, text: str, start: int, end: int, control: Sequence[Span]) -> tuple[list[int], int]:
        """The places of all tokens that overlap each other from `start` on, and where the last of them ends."""
        starts = [start]
        for inner in self._starts(text, start + 1):
            if inner >= end:
                break
            size = self._longest(text, inner, len(text), control)
            if size:
                starts.append(inner)
                end = max(end, inner + size)
        return starts, end

    def _contest(self, text: str, starts: Sequence[int], low: int, high: int, control: Sequence[Span]) -> list[Found]:
        """Accepted tokens of text[low:high], all of which begin at one of `starts`."""
        # Per place only the longest token is a candidate; if it turns out to overlap one that goes before it,
        # the next shorter one at this place takes its turn.
        candidates: list[tuple[int, int, int]] = []
        for start in starts:
            size = self._longest(text, start, high, control)
            if size:
                candidates.append((self._rank[text[start : start + size]], start, size))
        heapq.heapify(candidates)
        taken = bytearray(high - low)
        found: list[Found] = []
        while candidates:
            _, start, size = heapq.heappop(candidates)
            blocked = taken.find(1, start - low, start - low + size)
            if blocked >= 0:
                size = self._longest(text, start, low + blocked, control)
                if size:
                    heapq.heappush(candidates, (self._rank[text[start : start + size]], start, size))
                continue
            special = self._by_text[text[start : start + size]]
            first, end = start, start + size
            while special.lstrip and first > low and text[first - 1] in _C_SPACE and not taken[first - 1 - low]:
                first -= 1
            while special.rstrip and end < high and text[end] in _C_SPACE and not taken[end - low]:
                end += 1
            taken[first - low : end - low] = b"\1" * (end - first)
            found.append((first, end, special.id))
        return sorted(found)

    def _longest(self, text: str, start: int, end: int, control: Sequence[Span]) -> int:
        """Characters of the longest allowed token in text[start:end] that begins at `start`; 0 if there is none."""
        for prefix in (text[start : start + 2], text[start : start + 1]):
            for length in self._lengths.get(prefix, ()):
                if start + length > end:
                    continue
                special = self._by_text.get(text[start : start + length])
                if special is not None and (not special.control or _inside(control, start, start + length)):
                    return length
        return 0


def _runs(specials: Sequence[Special]) -> dict[str, list[int]]:
    """Character -> ascending lengths, where all tokens that start with it are nothing but repetitions of it.

    Line breaks and spaces are often like that; nothing needs to be compared then.
    """
    runs: dict[str, list[int]] = {}
    others = {s.text[0] for s in specials if s.control or s.text != s.text[0] * len(s.text)}
    for special in specials:
        if special.text[0] not in others:
            runs.setdefault(special.text[0], []).append(len(special.text))
    return {char: sorted(lengths) for char, lengths in runs.items()}


def _longest_run(lengths: list[int], text: str, start: int) -> int:
    """The largest of `lengths` that the run of one character at `start` has room for; 0 if there is none."""
    run = _RUN.match(text, start, start + lengths[-1])
    i = bisect_right(lengths, run.end() - start) if run else 0
    return lengths[i - 1] if i else 0


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

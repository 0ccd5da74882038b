"""Who waits for admission, and in which order: by priority, which waiting raises; clients of one priority in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace

from edgellm.engine.request import Sequence

AGEING_SECONDS = 10.0
"""Waiting so long is worth one step of priority: nobody waits for ever, however many more important ones arrive."""


class Queue:
    """Sequences that wait, by client and priority in order of arrival, and how many tokens each client has been given.

    A client that is new, or comes back, starts with the least that any other one has been given: it goes next, but has
    saved nothing up.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], dict[Sequence, None]] = {}
        self._served: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, Sequence) and seq in self._lines.get(_line(seq), ())

    def enter(self, seq: Sequence) -> None:
        """A sequence of `seq`'s client has come into the engine."""
        client = seq.request.client
        if client not in self._served:
            self._served[client] = min(self._served.values(), default=0)
        self._live[client] = self._live.get(client, 0) + 1

    def leave(self, seq: Sequence) -> None:
        """It has ended."""
        client = seq.request.client
        self._live[client] -= 1
        if not self._live[client]:
            del self._live[client], self._served[client]

    def serve(self, pieces: Iterable[tuple[Sequence, int, int, int]]) -> None:
        """Their clients are given so many tokens of a step: (sequence, start, count, rows) each."""
        if len(self._served) > 1:
            for seq, _, count, _ in pieces:
                self._served[seq.request.client] += count

    def add(self, seq: Sequence, first: bool = False) -> None:
        """Queue it behind its equals, or (first) before them."""
        line = self._lines.get(_line(seq), {})
        self._lines[_line(seq)] = {seq: None, **line} if first else line
        self._lines[_line(seq)][seq] = None
        self._n += 1

    def remove(self, seq: Sequence) -> None:
        """Take it out; KeyError where it is not there."""
        line = self._lines[_line(seq)]
        del line[seq]
        self._n -= 1
        if not line:
            del self._lines[_line(seq)]

    def in_turn(self, now: float) -> Iterator[Sequence]:
        """All that wait, the next one first. The one that was given last may be removed meanwhile, no other."""
        heads = []
        for i, line in enumerate(self._lines.values()):
            rest = iter(list(line))
            seq = next(rest)
            heads.append((*self._rank(seq, now), i, seq, rest))
        heapify(heads)
        while heads:
            *_, i, seq, rest = heads[0]
            yield seq
            after = next(rest, None)
            if after is None:
                heappop(heads)
            else:
                heapreplace(heads, (*self._rank(after, now), i, after, rest))

    def _rank(self, seq: Sequence, now: float) -> tuple[int, int, int]:
        aged = seq.request.priority + int((now - seq.queued) / AGEING_SECONDS)
        return -aged, self._served.get(seq.request.client, 0), seq.arrival


def _line(seq: Sequence) -> tuple[str, int]:
    return seq.request.client, seq.request.priority

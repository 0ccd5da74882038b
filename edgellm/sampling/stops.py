"""Stop strings over a growing text: hold back what may still become a match, cut exactly at the first match."""

from __future__ import annotations


class StopMatcher:
    """Feed text pieces with `push`; returns what is certain. `matched` is the stop string found, if any."""

    __slots__ = ("_held", "_longest", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max((len(s) for s in stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Return text that no stop string can reach any more; everything before the match once one is found."""
        if not self._stops:
            return piece
        if self.matched is not None:
            return ""
        text = self._held + piece
        at, found = len(text), None
        for s in self._stops:
            i = text.find(s, 0, at + len(s))
            if i >= 0 and (i < at or (i == at and found is not None and len(s) > len(found))):
                at, found = i, s
        if found is not None:
            self.matched, self._held = found, ""
            return text[:at]
        keep = 0
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-n:]
            if any(s.startswith(tail) for s in self._stops):
                keep = n
                break
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text still held back when the sequence ends without a match."""
        held, self._held = self._held, ""
        return held

    def finish(self, piece: str) -> tuple[str, bool]:
        """The last piece and everything held back; and whether a stop string was found in them."""
        text = self.push(piece)
        return (text, True) if self.matched is not None else (text + self.flush(), False)

"""Marks inside a line of Markdown, decided as the text arrives: `code`, *emphasis*, links, backslashes.

A mark that never closes is shown as it was written. To know that takes the rest of the line, so what may be styled is
held back, but never more than MAX_HOLD characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgellm.cli.wrap import PLAIN, Style

MAX_HOLD = 240

BOLD: Style = ("1",)
ITALIC: Style = ("3",)
STRIKE: Style = ("9",)
CODE: Style = ("36",)
LINK: Style = ("4",)
DIM: Style = ("2",)

_SPECIAL = re.compile(r"[\\`*_~\[!]")
_LINK = re.compile(r"!?\[([^\]\n]*)\]\(\s*<?([^)\s>]*)>?(?:\s+\"[^\"\n]*\")?\s*\)")
_LINK_BEGUN = re.compile(r"!?\[[^\]\n]*(?:\](?:\([^)\n]*)?)?")
_ESCAPED = frozenset("\\`*_{}[]()#+-.!|<>~\"'$%&,/:;=?@^")
_EMPHASIS = {
    "*": ITALIC, "**": BOLD, "***": BOLD + ITALIC, "_": ITALIC, "__": BOLD, "___": BOLD + ITALIC, "~~": STRIKE,
}  # fmt: skip

Run = tuple[str, Style]
"""Text and how it looks."""


class Inline:
    """Takes the text of one line in pieces, gives it back as runs."""

    def __init__(self, style: Style = PLAIN) -> None:
        self._style = style
        self._held = ""
        self._before = ""

    def feed(self, text: str) -> Iterator[Run]:
        """Add text (no line breaks); yields what is decided."""
        self._held += text
        yield from self._decide(final=False)

    def close(self) -> Iterator[Run]:
        """The line has ended; yields the rest."""
        yield from self._decide(final=True)
        self._held = self._before = ""

    def _decide(self, final: bool) -> Iterator[Run]:
        at = 0
        held = self._held
        while at < len(held):
            found = _SPECIAL.search(held, at)
            if found is None:
                yield held[at:], self._style
                at = len(held)
                break
            if found.start() > at:
                yield held[at : found.start()], self._style
                at = found.start()
            taken = _span(held, at, held[at - 1] if at else self._before, final or len(held) - at > MAX_HOLD)
            if taken is None:
                break
            n, text, style, nested = taken
            if nested:
                inner = Inline(self._style + style)
                yield from inner.feed(text)
                yield from inner.close()
            elif text:
                yield text, self._style + style
            if style == LINK and not nested and not held.startswith(f"[{text}]({text})", at):
                address = _LINK.match(held, at)
                if address is not None and address[2]:
                    yield f" ({address[2]})", self._style + DIM
            at += n
        if at:
            self._before, self._held = held[at - 1], held[at:]


def _span(text: str, at: int, before: str, final: bool) -> tuple[int, str, Style, bool] | None:
    """What begins at `at`: (characters taken, text to show, style to add, whether marks in it count).

    None: it cannot be told yet.
    final: nothing will follow (or too much is held back): what is undecided is taken as written.
    """
    char = text[at]
    if char == "\\":
        return _backslash(text, at, final)
    if char in "[!":
        return _link(text, at, final)
    if char == "`":
        return _code(text, at, final)
    return _emphasis(text, at, before, final)


def _backslash(text: str, at: int, final: bool) -> tuple[int, str, Style, bool] | None:
    if at + 1 == len(text):
        return (1, "\\", PLAIN, False) if final else None
    if text[at + 1] in _ESCAPED:
        return 2, text[at + 1], PLAIN, False
    return 1, "\\", PLAIN, False


def _link(text: str, at: int, final: bool) -> tuple[int, str, Style, bool] | None:
    whole = _LINK.match(text, at)
    if whole is not None:
        return len(whole[0]), whole[1] or whole[2], LINK, False
    begun = _LINK_BEGUN.match(text, at)
    open_end = text[at:] == "!" or (begun is not None and begun.end() == len(text))
    if open_end and not final:
        return None
    return 1, text[at], PLAIN, False


def _run_length(text: str, at: int) -> int:
    end = at
    while end < len(text) and text[end] == text[at]:
        end += 1
    return end - at


def _code(text: str, at: int, final: bool) -> tuple[int, str, Style, bool] | None:
    n = _run_length(text, at)
    start = at + n
    if start == len(text):
        return (n, text[at:start], PLAIN, False) if final else None
    look = start
    while (look := text.find("`", look)) >= 0:
        length = _run_length(text, look)
        if look + length == len(text) and not final:
            return None  # the run may grow
        if length == n:
            inner = text[start:look]
            if inner.startswith(" ") and inner.endswith(" ") and inner.strip():
                inner = inner[1:-1]
            return look + n - at, inner, CODE, False
        look += length
    return (n, text[at:start], PLAIN, False) if final else None


def _emphasis(text: str, at: int, before: str, final: bool) -> tuple[int, str, Style, bool] | None:
    n = _run_length(text, at)
    start = at + n
    mark = text[at:start]
    if start == len(text):
        return (n, mark, PLAIN, False) if final else None
    style = _EMPHASIS.get(mark)
    inside_word = mark[0] == "_" and before.isalnum()
    if style is None or text[start].isspace() or inside_word:
        return n, mark, PLAIN, False
    look = start
    while (look := text.find(mark, look)) >= 0:
        length = _run_length(text, look)
        if look + length == len(text) and not final:
            return None
        after = text[look + length : look + length + 1]
        closes = not text[look - 1].isspace() and not (mark[0] == "_" and after.isalnum())
        if closes and (length == n or (length == 3 and n < 3)):
            # In "**a *b***" the three close both: the outer mark takes the last ones.
            end = look + length - n
            if mark == "__" and text[start:end].isidentifier():  # __init__ is a name
                return end + n - at, text[at : end + n], PLAIN, False
            return end + n - at, text[start:end], style, True
        look += length
    return (n, mark, PLAIN, False) if final else None

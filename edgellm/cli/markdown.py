"""Markdown onto a terminal while it is being written: append-only, a word behind the model.

Line breaks stay where the model put them. Code keeps its fences and its columns, so that copying it gives it back.
A table is shown when it is whole; until then one line says how far it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from edgellm.cli.inline import DIM, Inline, Run
from edgellm.cli.wrap import PLAIN, Style, Wrapper, visible

MAX_LINE = 400
"""Characters after which a line that is still undecided is a paragraph."""
MAX_CODE_LINE = 2000
"""Characters of a line of code after which it is written as it comes."""
MAX_TABLE = 1 << 16
"""Characters of a table that is collected."""
MAX_LEXED = 200
"""Lines of code that are coloured with all lines before them in mind; further ones alone."""

HEADINGS: tuple[Style, ...] = (("1", "4"), ("1",), ("1",), ("3", "1"), ("3",), ("3",))

_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*([^\s`{]*)[^`]*$")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+|$)")
_RULE = re.compile(r" {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$")
_BULLET = re.compile(r"(\s*)[-*+][ \t]+")
_NUMBER = re.compile(r"(\s*\d{1,9}[.)])[ \t]+")
_QUOTE = re.compile(r" {0,3}((?:>[ \t]?)+)")
_TASK = re.compile(r"\[([ xX])\] ")
_UNDECIDED = re.compile(
    r"\s*(?:#{1,6}[ \t]*|[-*_]{1,2}|-{3,}|\*{3,}|_{3,}|\+|\d{1,9}[.)]?|`{1,2}|~{1,2}|[>\s]*|"
    r"[-*+][ \t]+(?:\[(?:[ xX]\]?)?)?)$"
)
_DELIMITERS = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")


Highlight = Callable[[list[str], str], str | None]
"""From the lines of code so far and a language to the last line with colours; None: leave it plain."""

Table = Callable[[list[list[list[Run]]], list[str], int], str]
"""From rows of cells, an alignment per column and a width in columns to lines of text."""


class MarkdownStream:
    """Takes Markdown in pieces of any size and writes it to a Wrapper. unicode=False: bullets and bars in ASCII."""

    def __init__(
        self, out: Wrapper, *, highlight: Highlight | None = None, table: Table | None = None, unicode: bool = True
    ) -> None:
        self._out, self._highlight, self._table = out, highlight, table
        self._bullet, self._bar, self._rule = ("•", "│ ", "─") if unicode else ("*", "| ", "-")
        self._boxes = {" ": "☐ ", "x": "☑ ", "X": "☑ "} if unicode else {}
        self._line = ""
        self._inline: Inline | None = None
        self._fence = self._language = ""
        self._code: list[str] = []
        self._cut = False
        self._rows: list[str] = []

    def feed(self, text: str) -> None:
        """Add text."""
        for i, part in enumerate(visible(text).split("\n")):
            if i and self._finish():
                self._out.line_break()
            if part:
                self._add(part)

    def close(self) -> None:
        """The text has ended, perhaps in the middle of something: everything held back is written."""
        if self._line or self._inline is not None:
            self._finish()
        self._end_table()
        self._out.flush()

    # -- lines -----------------------------------------------------------------------------------------------------

    def _add(self, part: str) -> None:
        """More of the current line."""
        if self._inline is not None:
            self._show(self._inline.feed(part))
            return
        self._line += part
        if self._fence:
            if len(self._line) > MAX_CODE_LINE:
                self._out.verbatim(self._line)
                self._line, self._cut = "", True
        elif len(self._line) > MAX_LINE and not self._line.lstrip().startswith("|"):
            self._end_table()
            self._paragraph()
        elif len(self._line) > MAX_TABLE or not self._waits():
            self._end_table()
            self._begin()

    def _waits(self) -> bool:
        """Whether the kind of this line cannot be told before more of it is there."""
        text = self._line.lstrip()
        if text.startswith("|"):
            return self._table is not None
        return text.startswith(("```", "~~~")) or _UNDECIDED.match(self._line) is not None

    def _finish(self) -> bool:
        """The line is whole; whether it has been shown and wants its line break."""
        line, shown = self._line, True
        if self._fence:
            self._code_line(line)
        elif self._inline is not None:
            self._show(self._inline.close())
            self._inline = None
        elif self._table is not None and line.lstrip().startswith("|") and self._room(line):
            self._rows.append(line)
            self._out.status(f"(table, {len(self._rows)} rows)")
            shown = False
        else:
            self._end_table()
            self._whole_line(line)
        self._line = ""
        return shown

    def _whole_line(self, line: str) -> None:
        """A line whose kind could not be told before its end: a fence, a rule, or something short."""
        fence = _FENCE.match(line)
        if fence is not None:
            self._fence, self._language, self._code = fence[1], fence[2], []
            self._out.verbatim(line, DIM)
        elif _RULE.match(line):
            self._out.verbatim(self._rule * min(self._out.columns, 60), DIM)
        elif line:
            self._begin()
            if self._inline is not None:
                self._show(self._inline.close())
                self._inline = None

    def _begin(self) -> None:
        """Write what stands before the text of a line, and take up the text."""
        line, out = self._line, self._out
        if (quote := _QUOTE.match(line)) is not None:
            bars = self._bar * quote[1].count(">")
            out.verbatim(bars, DIM)
            out.indent = bars
            self._start(line[quote.end() :], DIM)
        elif (heading := _HEADING.match(line)) is not None:
            self._start(line[heading.end() :], HEADINGS[len(heading[1]) - 1])
        elif (bullet := _BULLET.match(line)) is not None:
            task = _TASK.match(line, bullet.end()) if self._boxes else None
            mark = f"{self._bullet} " if task is None else self._boxes[task[1]]
            self._item(bullet[1] + mark, line[(task or bullet).end() :])
        elif (number := _NUMBER.match(line)) is not None:
            self._item(f"{number[1]} ", line[number.end() :])
        else:
            self._paragraph()

    def _item(self, before: str, text: str) -> None:
        before = before.expandtabs(4)
        self._out.verbatim(before)
        self._out.indent = " " * len(before)
        self._start(text, PLAIN)

    def _paragraph(self) -> None:
        text = self._line.lstrip()
        space = self._line[: len(self._line) - len(text)].expandtabs(4)
        if space and text:
            self._out.verbatim(space)
            self._out.indent = space
        self._start(text, PLAIN)

    def _start(self, text: str, style: Style) -> None:
        self._line = ""
        self._inline = Inline(style)
        self._show(self._inline.feed(text))

    def _show(self, runs: Iterable[Run]) -> None:
        for text, style in runs:
            self._out.text(text, style)

    # -- code and tables -------------------------------------------------------------------------------------------

    def _code_line(self, line: str) -> None:
        mark = line.strip()
        if not self._cut and len(mark) >= len(self._fence) and set(mark) == {self._fence[0]}:
            self._out.verbatim(line, DIM)
            self._fence, self._code = "", []
            return
        shown: str | None = None
        if self._highlight is not None and not self._cut and self._language:
            self._code = [*self._code, line] if len(self._code) < MAX_LEXED else [line]
            shown = self._highlight(self._code, self._language)
        self._out.verbatim(line if shown is None else shown)
        self._cut = False

    def _room(self, line: str) -> bool:
        return sum(map(len, self._rows)) + len(line) <= MAX_TABLE

    def _end_table(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        if len(rows) > 1 and _DELIMITERS.match(rows[1]) and self._table is not None:
            cells = [[_runs(cell) for cell in _cells(row)] for row in (rows[0], *rows[2:])]
            marks = [cell.strip() for cell in _cells(rows[1])]
            sides = ["center" if m[:1] == m[-1:] == ":" else "right" if m[-1:] == ":" else "left" for m in marks]
            self._out.lines(self._table(cells, sides, self._out.columns))
        else:
            self._out.lines("".join(f"{row}\n" for row in rows))


def _cells(row: str) -> list[str]:
    """The cells of a table row: bars part them, unless escaped or in code."""
    text = row.strip().removeprefix("|")
    cells, cell, code = [], "", False
    for i, char in enumerate(text):
        if char == "`":
            code = not code
        if char == "|" and not code and text[i - 1 : i] != "\\":
            cells.append(cell.strip())
            cell = ""
        else:
            cell += char
    if cell.strip():
        cells.append(cell.strip())
    return cells


def _runs(cell: str) -> list[Run]:
    inline = Inline()
    return [*inline.feed(cell), *inline.close()]

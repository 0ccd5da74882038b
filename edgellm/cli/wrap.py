"""Text with styles onto a terminal, append-only: words are wrapped at the terminal's width as it is at that moment.

Nothing is ever moved or erased, so resizing the window, scrolling back and copying stay sound. A word is held back
until it ends, at most one line of it.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import get_character_cell_size

Style = tuple[str, ...]
"""SGR parameters: ("1",) is bold."""

PLAIN: Style = ()

_JOINERS = "\u200d\ufe0f"
_SHOWN = {c: chr(0x2400 + c) for c in range(0x20) if c not in (0x09, 0x0A)}
_CONTROLS = {**_SHOWN, 0x7F: "\u2421", **dict.fromkeys(range(128, 160), "�"), 0x0D: ""}


def visible(text: str) -> str:
    """Text with control characters made visible: what a model writes must not steer the terminal."""
    return text if text.isascii() and text.isprintable() else text.translate(_CONTROLS)


class Wrapper:
    """Writes styled text to `write`, wrapped at `width()` columns (wrap=False: the terminal breaks lines).

    color=False leaves out colours and keeps bold, italic and underline. indent: what rows after the first begin with,
    until the line ends.
    """

    def __init__(
        self, write: Callable[[str], object], width: Callable[[], int], *, wrap: bool = True, color: bool = True
    ) -> None:
        self._write, self._width, self.wrap, self.color = write, width, wrap, color
        self.indent = ""
        self._column = 0
        self._spaces = ""
        self._word: list[tuple[str, Style]] = []
        self._word_width = 0
        self._last = ""
        self._running = self._status = False

    @property
    def at_start(self) -> bool:
        """Whether the next character begins a line."""
        return not (self._column or self._word or self._spaces)

    def text(self, text: str, style: Style = PLAIN) -> None:
        """Add text; line breaks in it begin new lines without the indent."""
        for i, line in enumerate(text.split("\n")):
            if i:
                self.line_break()
            if self.wrap:
                self._add(line.replace("\t", "    "), style)
            elif line:
                self._put(line, style)

    def line_break(self) -> None:
        """End the line; the next one begins without an indent."""
        self.flush()
        self._spaces = self.indent = self._last = ""
        self._emit("\n")
        self._column = 0

    def flush(self) -> None:
        """Write what is held back."""
        if self._word:
            limit = self._limit()
            fits = self._column + len(self._spaces) + self._word_width <= limit
            if not fits and self._column > len(self.indent):
                self._new_row()
            elif self._spaces:
                self._emit(self._spaces)
                self._column += len(self._spaces)
            for part, style in self._word:
                self._put(part, style)
            self._column += self._word_width
            self._spaces, self._word, self._word_width = "", [], 0
        self._running = False

    def verbatim(self, text: str, style: Style = PLAIN) -> None:
        """Write text without line breaks in it as it is, without wrapping."""
        self.flush()
        self._put(self._spaces + text, style)
        self._spaces = ""
        self._column += len(text)

    def lines(self, text: str) -> None:
        """Write whole lines as they are, escape sequences included; the last one ends with a line break, too."""
        self.flush()
        self._spaces = self.indent = self._last = ""
        self._emit(text)
        self._column = 0

    def status(self, text: str) -> None:
        """Show a short text at the start of a line until something else is written."""
        self._emit(f"\x1b[2m{text}\x1b[0m")
        self._status = True

    @property
    def columns(self) -> int:
        """Columns of the terminal now."""
        return self._width()

    def clear_status(self) -> None:
        """Take the status away."""
        self._emit("")

    def _emit(self, text: str) -> None:
        if self._status:
            self._status = False
            self._write("\r\x1b[K")
        self._write(text)

    def _new_row(self) -> None:
        self._emit("\n" + self.indent)
        self._column, self._spaces = len(self.indent), ""

    def _limit(self) -> int:
        return max(self._width(), len(self.indent) + 8)

    def _add(self, line: str, style: Style) -> None:
        """Cut into words. Wide characters (Chinese, emoji) may be parted anywhere."""
        part = ""
        for char in line:
            if char == " ":
                self._append(part, style)
                part = ""
                self.flush()
                self._spaces += " "
                self._last = ""
                continue
            size = get_character_cell_size(char)
            wide = size == 2 or (size == 1 and self._last and get_character_cell_size(self._last) == 2)
            if wide and self._last not in _JOINERS and (part or self._word):
                self._append(part, style)
                part = ""
                self.flush()
            part += char
            self._last = char if size or char in _JOINERS else self._last
            if len(part) >= 64:
                self._append(part, style)
                part = ""
        self._append(part, style)

    def _append(self, part: str, style: Style) -> None:
        if not part:
            return
        if self._word and self._word[-1][1] == style:
            self._word[-1] = (self._word[-1][0] + part, style)
        else:
            self._word.append((part, style))
        self._word_width += sum(map(get_character_cell_size, part))
        limit = self._limit()
        if self._running or self._word_width > limit - len(self.indent):
            # Longer than a row: it begins where it stands, and the terminal breaks it.
            if self._spaces and self._column > len(self.indent):
                self._new_row()
            else:
                self._emit(self._spaces)
            for text, its in self._word:
                self._put(text, its)
            self._column = (self._column + self._word_width - 1) % limit + 1
            self._word, self._word_width, self._spaces, self._running = [], 0, "", True

    def _put(self, text: str, style: Style) -> None:
        codes = [c for c in dict.fromkeys(style) if self.color or len(c) == 1]
        self._emit(f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text else text)
        if not self.wrap:
            self._column += 1

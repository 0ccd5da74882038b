"""Where an answer goes: as it is into a file or pipe; on a terminal wrapped, with Markdown, and harmless."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Protocol, TextIO

from edgellm.core.env import NO_COLOR, TERM

if TYPE_CHECKING:
    from edgellm.cli.inline import Run


class Answer(Protocol):
    """Takes the pieces of one answer."""

    def wait(self) -> None:
        """The first word may take a while: show that, where it can be taken back."""

    def write(self, text: str) -> None:
        """A piece of the answer, shown at once or as soon as a word ends."""

    def close(self) -> None:
        """The answer has ended, perhaps too early: the rest is shown and the line ended."""


class Plain:
    """Every piece as it is, at once."""

    def __init__(self, stream: TextIO, *, harmless: bool = False) -> None:
        """harmless: control characters are shown, not obeyed."""
        self._stream, self._harmless = stream, harmless
        self._begun = False

    def wait(self) -> None:
        """See Answer."""

    def write(self, text: str) -> None:
        """See Answer."""
        if self._harmless:
            from edgellm.cli.wrap import visible

            text = visible(text)
        self._begun = True
        self._stream.write(text)
        self._stream.flush()

    def close(self) -> None:
        """See Answer: an answer without a word leaves no line."""
        if self._begun:
            self._stream.write("\n")
            self._stream.flush()


class Styled:
    """On a terminal: words wrapped, Markdown shown."""

    def __init__(self, stream: TextIO, *, markdown: bool, wrap: bool) -> None:
        from edgellm.cli.wrap import Wrapper

        self._stream = stream
        color = not NO_COLOR.get()
        self._unicode = unicode = "utf" in (stream.encoding or "").lower()
        self._wrapper = Wrapper(stream.write, lambda: shutil.get_terminal_size().columns, wrap=wrap, color=color)
        self._markdown = None
        if markdown:
            from edgellm.cli.markdown import MarkdownStream

            def highlight(lines: list[str], language: str) -> str | None:
                from edgellm.cli import rendering

                return rendering.highlight(lines, language, color=color)

            def table(rows: list[list[list[Run]]], sides: list[str], width: int) -> str:
                from edgellm.cli import rendering

                return rendering.table(rows, sides, width, color=color, unicode=unicode)

            self._markdown = MarkdownStream(self._wrapper, highlight=highlight, table=table, unicode=unicode)

    def wait(self) -> None:
        """See Answer."""
        self._wrapper.status("…" if self._unicode else "...")
        self._stream.flush()

    def write(self, text: str) -> None:
        """See Answer."""
        if self._markdown is not None:
            self._markdown.feed(text)
        else:
            from edgellm.cli.wrap import visible

            self._wrapper.text(visible(text))
        self._stream.flush()

    def close(self) -> None:
        """See Answer."""
        if self._markdown is not None:
            self._markdown.close()
        self._wrapper.flush()
        self._wrapper.clear_status()
        if not self._wrapper.at_start:
            self._wrapper.line_break()
        self._stream.flush()


def styled_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that obeys escape sequences."""
    return stream.isatty() and TERM.get() != "dumb"


def answer_to(stream: TextIO, *, markdown: bool = True, wrap: bool = True, plain: bool = False) -> Answer:
    """The way of one answer to `stream`. plain: no escape sequences, no wrapping, whatever the stream is."""
    if not stream.isatty():
        return Plain(stream)
    if plain or not styled_terminal(stream):
        return Plain(stream, harmless=True)
    return Styled(stream, markdown=markdown, wrap=wrap)

"""What rich draws for the Markdown of an answer: coloured code and tables, as text with escape sequences."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgellm.cli.inline import Run

_STYLES = {"1": "bold", "2": "dim", "3": "italic", "4": "underline", "9": "strike", "36": "cyan"}


def table(
    rows: list[list[list[Run]]], sides: list[str], width: int, *, color: bool = True, unicode: bool = True
) -> str:
    """Lines of a table whose first row is the head; cells are wrapped so that it fits `width` columns."""
    drawn = Table(box=box.SIMPLE_HEAD if unicode else box.ASCII2, safe_box=False, pad_edge=False)
    n = max(len(row) for row in rows)
    head = rows[0] + [[]] * (n - len(rows[0]))
    for i, cell in enumerate(head):
        side = sides[i] if i < len(sides) else "left"
        drawn.add_column(_text(cell), justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows[1:]:
        drawn.add_row(*map(_text, row))
    text = _render(drawn, width, color)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())


def highlight(lines: list[str], language: str, *, color: bool = True) -> str | None:
    """The last of these lines of code with the terminal's colours; None where the language is not known."""
    from rich.syntax import Syntax

    syntax = Syntax("", language, theme="ansi_dark", background_color="default")
    if syntax.lexer is None:
        return None
    whole = syntax.highlight("\n".join(lines))
    last = whole.split("\n", allow_blank=True)[len(lines) - 1]
    last.no_wrap, last.overflow = True, "ignore"
    if last.plain != lines[-1]:  # the lexer changed it: tabs
        return None
    return _render(last, max(2 * len(last.plain), 80), color).removesuffix("\n")


def _text(cell: list[Run]) -> Text:
    text = Text()
    for part, style in cell:
        text.append(part, " ".join(_STYLES[code] for code in style))
    return text


def _render(what: object, width: int, color: bool) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=True, color_system="standard", no_color=not color, width=width,
        legacy_windows=False, highlight=False, markup=False, emoji=False,
    )  # fmt: skip
    with console.capture() as capture:
        console.print(what, soft_wrap=isinstance(what, Text))
    return capture.get()

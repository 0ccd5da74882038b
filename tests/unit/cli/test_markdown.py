"""Markdown on a terminal: what is shown, that the size of the pieces does not matter, that nothing is lost."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgellm.cli import rendering
from edgellm.cli.inline import MAX_HOLD, Inline
from edgellm.cli.markdown import MAX_LINE, MAX_TABLE, MarkdownStream
from edgellm.cli.wrap import Wrapper, visible

ESCAPES = re.compile(r"\x1b\[[0-9;]*[mK]")


def render(text: str, *, width: int = 40, step: int = 10**9, wrap: bool = True, color: bool = True) -> str:
    """What is written, with escape sequences; a status that was taken back is left out."""
    out = io.StringIO()
    wrapper = Wrapper(out.write, lambda: width, wrap=wrap, color=color)
    stream = MarkdownStream(wrapper, highlight=rendering.highlight, table=rendering.table)
    for i in range(0, len(text), step):
        stream.feed(text[i : i + step])
    stream.close()
    return re.sub(r"\x1b\[2m\([^\r]*\r\x1b\[K", "", out.getvalue())


def plain(text: str, **options: int) -> str:
    return ESCAPES.sub("", render(text, **options))  # type: ignore[arg-type]


def runs(text: str) -> list[tuple[str, str]]:
    """Text and style of a line; neighbours of one style together."""
    inline = Inline()
    joined: list[tuple[str, str]] = []
    for part, style in [*inline.feed(text), *inline.close()]:
        code = ";".join(style)
        if joined and joined[-1][1] == code:
            joined[-1] = (joined[-1][0] + part, code)
        else:
            joined.append((part, code))
    return joined


# -- marks inside a line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text", [("plain text", "")]),
        ("a **b c** d", [("a ", ""), ("b c", "1"), (" d", "")]),
        ("a *b* d", [("a ", ""), ("b", "3"), (" d", "")]),
        ("_b_ and __c d__", [("b", "3"), (" and ", ""), ("c d", "1")]),
        ("***x***", [("x", "1;3")]),
        ("**a *b* c**", [("a ", "1"), ("b", "1;3"), (" c", "1")]),
        ("**a *b***!", [("a ", "1"), ("b", "1;3"), ("!", "")]),
        ("~~old~~", [("old", "9")]),
        ("`a*b*c`", [("a*b*c", "36")]),
        ("``a`b``", [("a`b", "36")]),
        ("` a `", [("a", "36")]),
        ("[text](https://x.org/a_b_c)", [("text", "4"), (" (https://x.org/a_b_c)", "2")]),
        ("[https://x.org](https://x.org)", [("https://x.org", "4")]),
        ("![image](a.png) end", [("image", "4"), (" (a.png)", "2"), (" end", "")]),
        (r"\*not\* \[x\]", [("*not* [x]", "")]),
        (r"C:\path \a", [(r"C:\path \a", "")]),
    ],
)
def test_marks(text: str, expected: list[tuple[str, str]]) -> None:
    assert runs(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2 * 3 * 4", "2 ** 3", "snake_case_name", "__init__", "a*", "*", "**", "**never closed", "*never closed",
        "`never closed", "[1] and [x] (y)", "[never closed", "[a](b c", "!important", "a ~ b ~~c", "****",
        "x_1 and y_2", "* * *b", "**a b **", "_a_b", "\\",
    ],
)  # fmt: skip
def test_what_is_no_mark_stays_as_it_is(text: str) -> None:
    assert runs(text) == [(text, "")]


@given(st.text(alphabet="ab *_`~[]()\\!", max_size=60), st.integers(1, 7))
def test_the_size_of_the_pieces_does_not_matter(text: str, step: int) -> None:
    inline = Inline()
    parts = [run for i in range(0, len(text), step) for run in inline.feed(text[i : i + step])] + [*inline.close()]
    whole = [(char, style) for part, code in runs(text) for char in part for style in [code]]
    assert [(char, ";".join(style)) for part, style in parts for char in part] == whole


def test_no_more_than_a_bound_is_held_back() -> None:
    inline = Inline()
    shown = sum(len(part) for part, _ in inline.feed("**" + "x" * 10_000))
    assert shown == 10_002
    inline = Inline()
    fed = shown = 0
    for piece in ["**start "] + ["word "] * 200:
        fed += len(piece)
        shown += sum(len(part) for part, _ in inline.feed(piece))
        assert fed - shown <= MAX_HOLD


# -- lines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# Title\n## **Sub**\n####### no\n#tag", "Title\nSub\n####### no\n#tag\n"),
        ("- a\n* b\n+ c\n-d\n*e*", "• a\n• b\n• c\n-d\ne\n"),
        ("1. a\n12) b\n1.5 x\n3", "1. a\n12) b\n1.5 x\n3\n"),
        ("- [ ] open\n- [x] done\n- [y] no\n- [", "☐ open\n☑ done\n• [y] no\n• [\n"),
        ("> a\n>> b", "│ a\n│ │ b\n"),
        ("a\n\n---\n***\n- - -\nb", "a\n\n" + "─" * 40 + "\n" + "─" * 40 + "\n• - -\nb\n"),
        ("  indented\n\tcode", "  indented\n    code\n"),
        ("a\n\n\nb\n", "a\n\n\nb\n"),
        ("", ""),
        ("-", "-\n"),
        ("a\\\nb", "a\\\nb\n"),
    ],
)
def test_lines(text: str, shown: str) -> None:
    assert plain(text) == shown.removesuffix("\n") + ("\n" if text.endswith("\n") else "")


def test_headings_and_quotes_have_styles() -> None:
    assert render("# A") == "\x1b[1;4mA\x1b[0m"
    assert render("## A *b*") == "\x1b[1mA\x1b[0m \x1b[1;3mb\x1b[0m"
    assert render("> q") == "\x1b[2m│ \x1b[0m\x1b[2mq\x1b[0m"


def test_items_hang() -> None:
    text = "- " + "word " * 12 + "\n  10. " + "word " * 12
    assert plain(text, width=30).split("\n") == [
        "• word word word word word",
        "  word word word word word",
        "  word word",
        "  10. word word word word word",
        "      word word word word word",
        "      word word",
    ]


def test_code_is_kept_as_it_is() -> None:
    code = "def f(x):\n    return  x * 2  # " + "long " * 20 + "\n\n\ttab **no mark** | no | table"
    shown = plain(f"```python\n{code}\n```\nafter")
    assert shown == f"```python\n{code}\n```\nafter"
    assert plain("~~~\n- a\n```\n~~~\n- b") == "~~~\n- a\n```\n~~~\n• b"


def test_code_has_colours_where_the_language_is_known() -> None:
    assert "\x1b[94" in render("```python\ndef f(): pass\n```")
    unknown = render("```nonsense\ndef f(): pass\n```")
    assert "\ndef f(): pass\n" in unknown
    inside = render('```python\n"""a\nnot code: def\n"""\n```').split("\n")[2]
    assert "\x1b[33" in inside, "the second line of a string has the colour of a string"


def test_an_open_fence_at_the_end() -> None:
    assert plain("```python\nx = 1") == "```python\nx = 1"
    assert plain("```") == "```"


TABLE = "| name | n |\n|:-----|--:|\n| `a` | 1 |\n| **b** | 22 |\n"


def test_tables() -> None:
    lines = plain(f"before\n{TABLE}after").split("\n")
    assert [line.split() for line in lines if "─" not in line] == [
        ["before"], ["name", "n"], ["a", "1"], ["b", "22"], ["after"],
    ]  # fmt: skip
    assert lines[3].index("1") == lines[4].index("22") + 1, "numbers are flush right"
    assert "\x1b[36ma" in render(TABLE)
    assert plain(TABLE).endswith("22\n")


def test_a_table_fits_the_width() -> None:
    table = "| a | b |\n|---|---|\n| x | " + "word " * 30 + "|\n"
    lines = plain(table, width=30).splitlines()
    assert max(map(len, lines)) <= 30
    assert " ".join(lines).split().count("word") == 30


@pytest.mark.parametrize(
    "text", ["| not a table\n| at all\n", "|x|\n", "| a | b |\n", "a | b\n--|--\n", "| a\n\n| b |\n"]
)
def test_what_is_no_table_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


def test_cells_with_bars_and_missing_cells() -> None:
    shown = plain("| a | b |\n|---|---|\n| `x|y` | p \\| q |\n| only |\n| 1 | 2 | 3 |\n", width=80)
    assert "x|y" in shown
    assert "p | q" in shown
    assert "only" in shown
    assert "3" in shown


def test_a_table_that_never_ends_is_shown_all_the_same() -> None:
    row = "| " + "x" * 500 + " |\n"
    n = MAX_TABLE // len(row) + 10
    assert plain(row * n).count("x" * 500) == n


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50])
def test_pieces_of_any_size_give_the_same(step: int) -> None:
    text = (
        "# Head **b**\n\ntext with `code` and a [link](http://x.org), wrapped somewhere in the middle of it\n"
        "- [x] item *one*\n  - nested\n1. one\n\n> quote\n\n---\n```c\nint x; // **no**\n```\n" + TABLE + "\nend **open"
    )
    assert render(text, step=step) == render(text)
    assert render(text, step=step, wrap=False) is not None


@example("#  1", 1)
@given(st.text(alphabet="ab |-*`#>1.\n\t", max_size=120), st.integers(1, 9))
def test_any_text_in_any_pieces(text: str, step: int) -> None:
    assert plain(text, step=step) == plain(text)


@given(st.text(max_size=300))
def test_letters_are_never_lost(text: str) -> None:
    letters = [c for c in text if c.isalpha()]
    assert [c for c in plain(text, width=17) if c.isalpha()][: len(letters)] == letters


def test_a_line_without_end_is_shown_in_time() -> None:
    out = io.StringIO()
    stream = MarkdownStream(Wrapper(out.write, lambda: 40))
    stream.feed("`" * (MAX_LINE + 1))
    stream.feed("x" * 2000)
    assert len(out.getvalue()) > 1000


# -- wrapping --------------------------------------------------------------------------------------------------


def wrapped(text: str, width: int, step: int = 10**9) -> list[str]:
    out = io.StringIO()
    wrapper = Wrapper(out.write, lambda: width)
    for i in range(0, len(text), step):
        wrapper.text(text[i : i + step])
    wrapper.flush()
    return out.getvalue().split("\n")


@pytest.mark.parametrize("step", [1, 5, 10**9])
def test_words(step: int) -> None:
    assert wrapped("one two three four", 9, step) == ["one two", "three", "four"]
    assert wrapped("one  two", 20, step) == ["one  two"]
    assert wrapped("ends with blanks   \nnext", 20, step) == ["ends with blanks", "next"]
    assert wrapped("a " + "x" * 30 + " b", 10, step) == ["a", "x" * 30, "b"] or step == 1
    assert wrapped("exactly10!", 10, step) == ["exactly10!"]
    assert wrapped("exactly10! x", 10, step) == ["exactly10!", "x"]


def test_wide_characters_may_be_parted() -> None:
    assert wrapped("日本語の文章です", 10) == ["日本語の文", "章です"]
    assert wrapped("abcdefg日本", 9) == ["abcdefg日", "本"]
    family = "👨‍👩‍👧"
    assert "".join(wrapped(family * 3, 12)) == family * 3
    assert all(len(line) % len(family) == 0 for line in wrapped(family * 3, 12)), "never inside a sequence"


def test_the_width_is_that_of_the_moment() -> None:
    out = io.StringIO()
    width = [40]
    wrapper = Wrapper(out.write, lambda: width[0])
    wrapper.text("word " * 8)
    width[0] = 10
    wrapper.text("word " * 4)
    wrapper.flush()
    lines = out.getvalue().split("\n")
    assert len(lines[0]) == 39
    assert max(map(len, lines[1:])) <= 10


def test_a_word_is_shown_when_it_ends() -> None:
    out = io.StringIO()
    wrapper = Wrapper(out.write, lambda: 40)
    wrapper.text("hel")
    assert out.getvalue() == ""
    wrapper.text("lo wor")
    assert out.getvalue() == "hello"
    wrapper.flush()
    assert out.getvalue() == "hello wor"


def test_without_wrapping_everything_is_shown_at_once() -> None:
    out = io.StringIO()
    wrapper = Wrapper(out.write, lambda: 5, wrap=False)
    wrapper.text("hello wor")
    assert out.getvalue() == "hello wor"


def test_colours_can_be_left_out() -> None:
    out = io.StringIO()
    wrapper = Wrapper(out.write, lambda: 40, color=False)
    wrapper.text("a", ("36",))
    wrapper.text("b", ("1", "36"))
    wrapper.flush()
    assert out.getvalue() == "a\x1b[1mb\x1b[0m"


def test_a_status_is_taken_back() -> None:
    out = io.StringIO()
    wrapper = Wrapper(out.write, lambda: 40)
    wrapper.status("wait")
    wrapper.text("x ")
    assert out.getvalue() == "\x1b[2mwait\x1b[0m\r\x1b[Kx"
    wrapper.status("wait")
    wrapper.clear_status()
    assert out.getvalue().endswith("\r\x1b[K")


def test_control_characters_are_shown_not_obeyed() -> None:
    assert visible("a\x1b[31mb\x07\x9b\x7f\x00") == "a␛[31mb␇\ufffd␡␀"
    assert visible("tab\tline\r\nend é 日") == "tab\tline\nend é 日"
    assert "\x1b]0;" not in render("\x1b]0;title\x07")

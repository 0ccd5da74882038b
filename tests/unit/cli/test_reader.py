"""How lines become messages."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from edgellm.cli.reader import Lines, Message, Typed, continues, is_open, join, to_message
from edgellm.core.errors import ConfigError


def messages(text: str) -> list[Message]:
    return list(join(iter(io.StringIO(text))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\n \n\t\n", []),
        ("a\nb\n", [Message("a", False), Message("b", False)]),
        ("  a  \r\n", [Message("a", False)]),
        ("/bye\n", [Message("/bye", True)]),
        ("a\\\nb\n", [Message("a\nb", False)]),
        ("a\\\\\nb\n", [Message("a\\\\", False), Message("b", False)]),
        ("a\\\\\\\nb\n", [Message("a\\\\\nb", False)]),
        ("a\\", [Message("a\\", False)]),
        ("\\\n\\\nx", [Message("x", False)]),
        ("/x\\\ny", [Message("/x\ny", False)]),
        ('"""a\n\n  b"""\nc', [Message("a\n\n  b", False), Message("c", False)]),
        ('"""a"""', [Message("a", False)]),
        ('"""\n/bye\n"""', [Message("/bye", False)]),
        ('"""/bye"""', [Message("/bye", False)]),
        ('"""', []),
        ('""""""', []),
        ('"""a\\\nb"""', [Message("a\\\nb", False)]),
        ('"""open\nto the end', [Message("open\nto the end", False)]),
        ('a """ b', [Message('a """ b', False)]),
        ('/system """one\ntwo"""\nx', [Message('/system """one\ntwo"""', True), Message("x", False)]),
        ('/system """one"""\nx', [Message('/system """one"""', True), Message("x", False)]),
    ],
)
def test_joining(text: str, expected: list[Message]) -> None:
    assert messages(text) == expected


@given(st.text(alphabet='a\\"/ \n', max_size=60))
def test_letters_are_never_lost(text: str) -> None:
    assert sum(m.text.count("a") for m in messages(text)) == text.count("a")


def test_a_long_quotation_takes_linear_time() -> None:
    text = '"""' + "line of a long text\n" * 200_000 + '"""'
    (message,) = messages(text)
    assert message.text.count("\n") == 199_999


def test_open_and_continued() -> None:
    assert is_open('"""a')
    assert is_open('"""')
    assert not is_open('"""a"""')
    assert not is_open('a"""')
    assert is_open('/system """a')
    assert continues("a\\")
    assert not continues("a")
    assert not continues("a\\\\")
    assert to_message('  """ x """ ') == Message("x", False)
    assert to_message("/a\nb") == Message("/a\nb", False), "a paste is no command"


def test_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb"))
    assert list(Lines().messages()) == [Message("a", False), Message("b", False)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    with pytest.raises(ConfigError, match="not text in utf-8"):
        list(Lines().messages())
    monkeypatch.setattr(sys, "stdin", None)
    assert list(Lines().messages()) == []
    assert Lines().keep_history(True) is False


def test_simple_lines_have_a_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    assert list(Lines(prompt=True).messages()) == [Message("a", False)]
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", ">>> >>> ")


def test_an_interrupt_at_a_simple_prompt_begins_a_new_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(io.StringIO):
        def readline(self, *_: object) -> str:
            if not done:
                done.append(1)
                raise KeyboardInterrupt
            return super().readline()

    done: list[int] = []
    monkeypatch.setattr(sys, "stdin", Interrupted("a\n"))
    assert list(Lines(prompt=True).messages()) == [Message("a", False)]
    assert capsys.readouterr().err == ">>> \n>>> >>> "


# -- typed -----------------------------------------------------------------------------------------------------


def typed(
    keys: str, history: Path | None = None, *, preset: str = "", store: bool = True
) -> tuple[list[str], list[str]]:
    """The messages and the remarks that these keys give; Ctrl-D is added."""
    said: list[str] = []

    def complete(before: str) -> list[str]:
        return [word for word in ("/clear", "/set ", "/show ") if word.startswith(before)]

    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys + "\x04")
        reader = Typed(history, complete, said.append, output=DummyOutput())
        reader.preset = preset
        reader.keep_history(store)
        return [m.text for m in reader.messages()], said


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("hello\r", ["hello"]),
        ("\r\rhello\r", ["hello"]),
        ("hello\x01X\x05Y\r", ["XhelloY"]),
        ("one two\x17three\r", ["one three"]),
        ("a\\\rb\r", ["a\nb"]),
        ("a\x1b\rb\r", ["a\nb"]),
        ('"""a\rb"""\r', ["a\nb"]),
        ("\x1b[200~a\nb\\\nc\x1b[201~\r", ["a\nb\\\nc"]),
        ("x\x0by\r", ["xy"]),
    ],
)
def test_editing(keys: str, expected: list[str]) -> None:
    assert typed(keys)[0] == expected


def test_what_waits_for_the_first_prompt_is_called_once_when_it_is_there() -> None:
    events: list[str] = []

    class Screen(DummyOutput):
        def write(self, data: str) -> None:
            if ">" in data:
                events.append("prompt")

    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text("one\rtwo\r\x04")
        reader = Typed(None, lambda _: [], events.append, shown=lambda: events.append("shown"), output=Screen())
        assert [m.text for m in reader.messages()] == ["one", "two"]
    assert events.count("shown") == 1
    assert events[: events.index("shown")] == ["prompt"] * 3, "the three characters of the first prompt"


def test_an_interrupt_clears_the_line_and_a_second_one_explains() -> None:
    assert typed("not sent\x03sent\r") == (["sent"], [])
    assert typed("\x03x\r") == (["x"], ["Ctrl-D or /bye leaves"])


def test_a_preset_is_edited() -> None:
    assert typed("!\r", preset="again")[0] == ["again!"]


def test_history_of_an_earlier_chat(tmp_path: Path) -> None:
    path = tmp_path / "h"
    assert typed("one\rtwo\nlines\r", path)[0] == ["one", "two", "lines"]
    assert typed("\x1b[A\x1b[A\r", path)[0] == ["two"]
    assert typed("not stored\r", path, store=False)[0] == ["not stored"]
    assert "not stored" not in path.read_text()


def test_a_history_that_cannot_be_kept_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    _, (said,) = typed("one\rtwo\rthree\r", tmp_path / "file" / "h")
    assert said.startswith(f"the history {tmp_path / 'file' / 'h'} cannot be written: ")


def test_very_long_lines() -> None:
    """As long as a pipe takes at once; the tests with a terminal have longer ones."""
    assert typed("\x1b[200~" + "word " * 10_000 + "\x1b[201~\r")[0] == [("word " * 10_000).strip()]

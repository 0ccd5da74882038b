"""The chat as a person sees it: paste, edit, interrupt, resize, save, load, Markdown, and a chat that only waits."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest
from terminal.conftest import Chat, Tmux

MARKDOWN = """\
# Rivers

- The **Rhine** is long
- The *Elbe* is not

```python
def length(river: str) -> int:
    return 1_233  # km
```

| river | km |
|-------|---:|
| Rhine | 1233 |
| Elbe | 1094 |

That is all there is to say about rivers in this answer, which goes on for more than one line of text."""


def rows_after(screen: str, mark: str) -> list[str]:
    """The lines after the last one with `mark`."""
    lines = screen.splitlines()
    return lines[max(i for i, line in enumerate(lines) if mark in line) + 1 :]


def test_the_first_screen(chat: Chat, model: str) -> None:
    first, *_, last = chat(columns=200).screen().splitlines()
    assert first == f"{model}: 0 M parameters, context 32768, 1 threads, none. /? for help, /bye to leave."
    assert last == ">>> Send a message (/? for help)"


def test_a_paste_of_200_lines_is_one_message(chat: Chat) -> None:
    screen = chat("-c", "32768", answers=("Read.", "Twice!"))
    lines = [f"line {i} of the pasted text \\" for i in range(200)]
    screen.paste("\n".join([*lines, "the last line"]))
    screen.wait_for("the last line")
    screen.wait_for("line 199 of the pasted text")
    assert "Read." not in screen.screen(scrolled=True), "nothing was sent"
    screen.press("Enter")
    screen.wait_for("Read.")
    screen.prompt()
    screen.type("/save pasted")
    screen.press("Enter")
    screen.wait_for("2 messages saved")
    assert "Twice!" not in screen.screen(scrolled=True)


def test_a_paste_is_edited_before_it_is_sent(chat: Chat, tmp_path: Path) -> None:
    screen = chat()
    screen.paste("one\ntwo\nthree")
    screen.wait_for("... three")
    screen.press("Up", "C-e")
    screen.type("!")
    screen.press("C-a")
    screen.type("> ")
    screen.press("Down", "C-e", "C-w")
    screen.type("four")
    screen.wait_for("... four")
    assert rows_after(screen.screen(), "/bye to leave") == [">>> one", "... > two!", "... four"]
    screen.press("Enter")
    screen.wait_for("Hello.")
    screen.prompt()
    screen.type(f"/save {tmp_path}/edited.json")
    screen.press("Enter")
    screen.wait_for("2 messages saved", scrolled=True)
    assert json.loads((tmp_path / "edited.json").read_text())["messages"][0]["content"] == "one\n> two!\nfour"


def test_several_lines_by_hand(chat: Chat) -> None:
    screen = chat()
    screen.type("with a backslash\\")
    screen.press("Enter")
    screen.type("and a second line")
    screen.wait_for("... and a second line")
    screen.press("M-Enter")
    screen.type("and a third")
    screen.press("Enter")
    assert ">>> with a backslash\n... and a second line\n... and a third\nHello." in screen.wait_for("Hello.")
    screen.prompt()
    screen.type('"""quoted')
    screen.press("Enter", "Enter")
    screen.type('end"""')
    screen.press("Enter")
    assert '>>> """quoted\n...\n... end"""\nHello.' in re.sub(r" +\n", "\n", screen.wait_for("Hello.", times=2))


def test_an_interrupt_stops_the_answer_only(chat: Chat) -> None:
    screen = chat(answers=("word " * 200, "Second."), pace=0.03)
    screen.type("Hi")
    screen.press("Enter")
    screen.wait_for("word word word")
    screen.press("C-c")
    screen.wait_for("[stopped]")
    screen.prompt()
    assert screen.screen().count("word") < 150
    screen.type("And?")
    screen.press("Enter")
    screen.wait_for("Second.")
    screen.prompt()
    screen.press("C-c")
    screen.wait_for("Ctrl-D or /bye leaves")
    screen.type("not sent")
    screen.wait_for("not sent")
    screen.press("C-c")
    screen.wait_for("Send a message", times=2)
    screen.press("C-d")
    screen.wait_for("ended with 0")


def test_an_interrupt_in_the_middle_of_styled_text_leaves_no_style_behind(chat: Chat) -> None:
    screen = chat(answers=("**" + "bold " * 100 + "**",), pace=0.03)
    screen.type("Hi")
    screen.press("Enter")
    screen.wait_for("bold bold")
    screen.press("C-c")
    screen.wait_for("[stopped]")
    line = next(row for row in screen.screen(escapes=True).splitlines() if "[stopped]" in row)
    assert "\x1b[1m" not in line


def test_markdown(chat: Chat) -> None:
    screen = chat(answers=(MARKDOWN,), columns=60, rows=40)
    screen.type("Rivers?")
    screen.press("Enter")
    screen.wait_for("% of the context used]")
    shown = [row.rstrip() for row in rows_after(screen.prompt(), "Rivers?")]
    assert shown[:10] == [
        "Rivers", "", "• The Rhine is long", "• The Elbe is not", "", "```python", "def length(river: str) -> int:",
        "    return 1_233  # km", "```", "",
    ]  # fmt: skip
    assert [row.split() for row in shown[10:14] if "─" not in row] == [
        ["river", "km"],
        ["Rhine", "1233"],
        ["Elbe", "1094"],
    ]
    assert shown[14:17] == [
        "", "That is all there is to say about rivers in this answer,", "which goes on for more than one line of text.",
    ]  # fmt: skip
    styled = screen.screen(escapes=True)
    assert "\x1b[1mRhine" in styled
    assert "\x1b[3mElbe" in styled
    assert re.search(r"\x1b\[[0-9;]*94m(\x1b\[[0-9;]*m)*def", styled), "code has colours"


def test_the_window_is_resized_while_typing(chat: Chat) -> None:
    screen = chat(columns=100)
    text = "a message that is longer than the window will be once it has been made narrow, and so it is wrapped"
    screen.type(text[:60])
    screen.wait_for(text[:60])
    screen.resize(40, 20)
    time.sleep(0.3)
    screen.type(text[60:])
    screen.resize(120, 24)
    screen.wait_for(text[60:])
    screen.press("Enter")
    screen.wait_for("Hello.")
    screen.prompt()
    screen.type("/show messages")
    screen.press("Enter")
    screen.wait_for("    Hello.")
    assert f">>> {text}\n    Hello." in screen.screen(joined=True)


def test_the_window_is_resized_while_an_answer_comes(chat: Chat) -> None:
    screen = chat(answers=("some words " * 60,), pace=0.01, columns=100, rows=50)
    screen.type("Hi")
    screen.press("Enter")
    screen.wait_for("some words some")
    screen.resize(44, 50)
    screen.wait_for(" tokens, ")
    shown = screen.prompt()
    assert shown.replace("\n", " ").split().count("words") == 60
    tail = [row.rstrip() for row in rows_after(shown, ">>> Hi") if "words" in row][-6:-1]
    assert all(len(row) <= 44 and row.split()[0] in ("some", "words") for row in tail), "words are whole"


def test_saved_and_loaded_in_another_chat(chat: Chat, tmux: Tmux, tmp_path: Path) -> None:
    screen = chat(answers=("One.", "Two."))
    screen.type("remember the sea")
    screen.press("Enter")
    screen.wait_for("One.")
    screen.prompt()
    screen.type("/save sea")
    screen.press("Enter")
    screen.wait_for("2 messages saved")
    screen.prompt()
    screen.press("C-d")
    screen.wait_for("ended with 0")
    tmux.stop()
    screen = chat(answers=("Three.",))
    screen.type("/load ")
    screen.press("Tab")
    screen.wait_for("/load sea")
    screen.press("Enter")
    screen.wait_for("2 messages loaded from")
    screen.prompt()
    screen.type("/show messages")
    screen.press("Enter")
    screen.wait_for("    One.")
    screen.prompt()
    screen.press("Up", "Up", "Up", "Up")
    screen.wait_for(">>> remember the sea", times=2)


def test_very_long_lines(chat: Chat, tmp_path: Path) -> None:
    screen = chat(answers=("x" * 5000 + " end of the answer",))
    screen.paste("word " * 40_000 + "end of the line")
    screen.wait_for("end of the line")
    screen.press("C-a", "C-k")
    screen.prompt()
    screen.paste("y" * 3000)
    screen.press("Enter")
    screen.wait_for("end of the answer")
    screen.prompt()
    answer = screen.screen(scrolled=True, joined=True)
    assert "x" * 5000 in answer
    # The line editor draws no more of a message than a screen; what is sent is the whole of it.
    assert "y" * 1500 in answer.replace("\n", "")
    path = tmp_path / "long.json"
    screen.type(f"/save {path}")
    screen.press("Enter")
    screen.wait_for("2 messages saved")
    assert "y" * 3000 in path.read_text(encoding="utf-8")


def test_what_a_model_writes_does_not_steer_the_terminal(chat: Chat) -> None:
    screen = chat(answers=("a\x1b[2J\x1b[Hb\x07\x1b]0;title\x07c",))
    screen.type("Hi")
    screen.press("Enter")
    screen.wait_for("a␛[2J␛[Hb␇␛]0;title␇c")
    assert "/? for help" in screen.screen()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_chat_that_waits_does_nothing(chat: Chat) -> None:
    """Neither processor time nor wake-ups, once the engine and the terminal are at rest."""
    screen = chat()
    screen.type("Hi")
    screen.press("Enter")
    screen.wait_for("Hello.")
    screen.prompt()
    pid = screen.program()

    def spent() -> tuple[int, int]:
        ticks = wakeups = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            status = (task / "status").read_text()
            wakeups += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE).group(1))  # type: ignore[union-attr]
        return ticks, wakeups

    for attempt in range(5):  # how long it takes to come to rest is the machine's business
        time.sleep(1.0)
        before = spent()
        time.sleep(3.0)
        rest = 4 * (attempt + 1)
        ticks, wakeups = (b - a for a, b in zip(before, spent(), strict=True))
        if ticks <= 1 and wakeups <= 3:
            return
    pytest.fail(f"{ticks} ticks and {wakeups} wake-ups in three seconds, after {rest} of rest")

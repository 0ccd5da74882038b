"""`edgellm chat`: from a pipe, and on a terminal: typing, streaming, Ctrl-C, Ctrl-D, every slash command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from serving.tiny import saying, write_tiny
from unit.cli.conftest import CLI, Terminal

from edgellm.backends.fake import FakeBackend
from edgellm.cli.repl import Repl

GREEDY = ("--temp", "0")


def test_each_piped_line_is_a_message(cli: CLI, tiny: str) -> None:
    fake = FakeBackend(saying("First.", "Second."))
    assert cli("chat", tiny, *GREEDY, stdin="Hi\n\n  \nAgain\n", fake=fake) == (0, "First.\nSecond.\n", "")


def test_three_quotes_enclose_a_message(cli: CLI, tiny: str) -> None:
    lengths: list[int] = []
    fake = FakeBackend(saying("One.", "Two.", "Three."), on_step=lambda b: lengths.append(len(b.tokens)))
    text = '"""first line\nsecond line"""\n"""alone"""\n"""open\nto the end\n'
    assert cli("chat", tiny, *GREEDY, stdin=text, fake=fake).out == "One.\nTwo.\nThree.\n"
    assert len([n for n in lengths if n > 1]) == 3


def test_the_conversation_goes_on_until_it_is_cleared(cli: CLI, tiny: str) -> None:
    prompts: list[int] = []
    fake = FakeBackend(saying("Yes."), on_step=lambda b: prompts.append(int(b.positions[-1]) + 1))
    cli("chat", tiny, *GREEDY, stdin="a\nb\n/clear\nc\n", fake=fake)
    starts = [n for n, before in zip(prompts, [0, *prompts], strict=False) if n != before + 1]
    assert len(starts) == 3
    assert starts[1] > starts[0]
    assert starts[2] == starts[0]


@pytest.mark.parametrize("word", ["/bye", "/exit", "/quit"])
def test_leaving(cli: CLI, tiny: str, word: str) -> None:
    assert cli("chat", tiny, *GREEDY, stdin=f"{word}\nHi\n", fake=FakeBackend(saying("No."))) == (0, "", "")


@pytest.mark.parametrize("word", ["/?", "/help"])
def test_help_names_every_command(cli: CLI, tiny: str, word: str) -> None:
    code, out, err = cli("chat", tiny, stdin=f"{word}\n")
    assert (code, out) == (0, "")
    for name in ("/?", "/help", "/clear", "/system", "/regen", "/bye", "/exit", "Ctrl-C", "Ctrl-D", '"""'):
        assert name in err


def test_unknown_commands_are_not_sent(cli: CLI, tiny: str) -> None:
    code, out, err = cli("chat", tiny, stdin="/regn\n/frobnicate now\n", fake=FakeBackend(saying("No.")))
    assert (code, out) == (0, "")
    assert "unknown command /regn; did you mean /regen?" in err
    assert "unknown command /frobnicate; /? lists the commands" in err


def test_system_messages(cli: CLI, tiny: str) -> None:
    script = saying("A.", "B.", "C.")
    text = "/system\nHi\n/system Be kind.\n/system\nHi\n"
    code, out, err = cli("chat", tiny, *GREEDY, stdin=text, fake=FakeBackend(script))
    assert (code, out) == (0, "A.\nB.\n")
    assert "no system message is set" in err
    assert "the conversation starts anew" in err
    assert "Be kind." in err
    code, out, err = cli("chat", tiny, *GREEDY, "-sys", "Be brief.", stdin="/system\n")
    assert "Be brief." in err


def test_regen_answers_again(cli: CLI, tiny: str) -> None:
    options = ["--temp", "9", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-n", "8"]
    code, out, err = cli("chat", tiny, *options, stdin="/regen\n/clear\n/regen\n")
    assert (code, out) == (0, "")
    assert err.count("there is nothing to answer yet") == 2
    fake = FakeBackend(saying("Same."))
    assert cli("chat", tiny, *GREEDY, stdin="Hi\n/regen\n/regen\n", fake=fake).out == "Same.\nSame.\nSame.\n"


def test_regen_repeats_with_a_seed_and_changes_without(cli: CLI, tiny: str) -> None:
    options = ["--temp", "9", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-n", "12", "-v"]

    def seeds(err: str) -> list[str]:
        return [line.partition("seed ")[2].partition(" ")[0] for line in err.splitlines() if "seed " in line]

    fixed = seeds(cli("chat", tiny, *options, "-s", "5", stdin="Hi\n/regen\n").err)
    assert fixed == ["5", "5"]
    assert len(set(seeds(cli("chat", tiny, *options, stdin="Hi\n/regen\n").err))) == 2


def test_a_full_context_is_said_and_the_exit_code_tells(cli: CLI, tiny: str) -> None:
    fake = FakeBackend(saying("zzzz " * 60))
    code, out, err = cli("chat", tiny, *GREEDY, stdin="Hi\nMore\n", fake=fake)
    assert code == 1
    assert out.startswith("zzzz zzzz")
    assert "[the context is full: /clear starts a new conversation]" in err
    assert "exceeds the available context size (256 tokens)" in err
    assert "/clear starts a new conversation." in err
    code, out, err = cli("chat", tiny, *GREEDY, stdin="Hi\nMore\n/clear\nHi\n", fake=FakeBackend(saying("Ok.")))
    assert (code, out, err) == (0, "Ok.\nOk.\nOk.\n", "the conversation is forgotten\n")


def test_an_answer_cut_at_n_tokens_says_so(cli: CLI, tiny: str) -> None:
    code, out, err = cli("chat", tiny, *GREEDY, "-n", "3", stdin="Hi\n", fake=FakeBackend(saying("abcdef")))
    assert (code, out, err) == (0, "abc\n", "[cut at -n tokens]\n")


def test_a_message_that_failed_is_replaced_by_the_next(cli: CLI, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
    )
    path = str(write_tiny(tmp_path / "strict.gguf", template=template))
    code, out, err = cli("chat", path, *GREEDY, stdin=f"Hi\n{'x' * 300}\nHi\n", fake=FakeBackend(saying("Ok.")))
    assert (code, out) == (1, "Ok.\nOk.\n")
    assert "roles must alternate" not in err
    assert "exceeds the available context size" in err


def test_a_base_model_explains_itself(cli: CLI, tiny_base: str) -> None:
    code, out, err = cli("chat", tiny_base)
    assert (code, out) == (2, "")
    assert "is a base model: it continues text and was not trained to answer" in err


def test_verbose(cli: CLI, tiny: str) -> None:
    err = cli("chat", tiny, *GREEDY, "-v", stdin="Hi\n", fake=FakeBackend(saying("Hello."))).err
    assert "answer 7 tokens" in err


def test_bytes_that_are_not_text(cli: CLI, tiny: str) -> None:
    code, out, err = cli("chat", tiny, stdin=b"\xff\xfe\n")
    assert (code, out) == (2, "")
    assert "what was piped in is not text in utf-8" in err


def test_a_system_message_from_a_file(cli: CLI, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("Be kind.\n")
    assert cli("chat", tiny, "-sysf", str(tmp_path / "system.txt"), stdin="/system\n").err == "Be kind.\n"


def test_a_backslash_continues_a_message(cli: CLI, tiny: str) -> None:
    fake = FakeBackend(saying("One.", "Two."))
    result = cli("chat", tiny, *GREEDY, stdin="first\\\nsecond\n/show messages\n", fake=fake)
    assert (result.out, result.err) == ("One.\n", ">>> first\n... second\n    One.\n")


def test_what_a_model_writes_reaches_a_pipe_unchanged(cli: CLI, tiny: str) -> None:
    text = "# **x**\n\x1b[31m`y`\r\n| a |\n"
    assert cli("chat", tiny, *GREEDY, stdin="Hi\n", fake=FakeBackend(saying(text))).out == text + "\n"


def test_what_the_template_cannot_express_is_said_once(cli: CLI, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "<|im_start|>{{ m['role'] }}{{ m['content'] }}<|im_end|>{% endfor %}"
    )
    path = str(write_tiny(tmp_path / "plain.gguf", template=template))
    result = cli("chat", path, *GREEDY, "-sys", "Be kind.", stdin="Hi\nAgain\n", fake=FakeBackend(saying("Ok.")))
    assert (result.code, result.out) == (0, "Ok.\nOk.\n")
    assert len(result.err.splitlines()) == 1
    assert "system" in result.err


# -- on a terminal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_typing_streaming_and_ctrl_d(terminal: Any, tiny: str, term: str) -> None:
    screen = terminal("chat", tiny, *GREEDY, answers=("Hello there.", "Bye."), term=term)
    screen.wait_for(f"{tiny}: 0 M parameters, context 256, 1 threads, none. /? for help, /bye to leave.")
    screen.wait_for(">>>")
    screen.type("Hi\r")
    screen.wait_for("Hello there.")
    screen.wait_for("[13 tokens, ")
    screen.wait_for(">>>")
    screen.type("See you\r")
    screen.wait_for("Bye.")
    screen.wait_for(">>>")
    screen.type("\x04")
    assert screen.end() == 0


def test_ctrl_c_stops_the_answer_only(terminal: Any, tiny: str) -> None:
    screen = terminal("chat", tiny, *GREEDY, answers=("word " * 40, "Second."), pace=0.1)
    screen.wait_for(">>>")
    screen.type("Hi\r")
    screen.wait_for("word word")
    screen.type("\x03")
    said = screen.wait_for("[stopped]")
    assert said.count("word") < 30
    screen.wait_for(">>>")
    screen.type("And?\r")
    screen.wait_for("Second.")
    screen.wait_for(">>>")
    screen.type("/bye\r")
    assert screen.end() == 0


def test_ctrl_c_before_the_first_word_and_regen(terminal: Any, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    screen = terminal("chat", tiny, *GREEDY, answers=("Hello.",), held=str(tmp_path))
    screen.wait_for(">>>")
    screen.type("Hi\r")
    screen.wait_for("Hi")
    screen.wait_until((tmp_path / "begun").exists)
    screen.type("\x03")
    before = screen.wait_for("[stopped]")
    assert "Hello" not in before
    (tmp_path / "hold").unlink()
    screen.wait_for(">>>")
    screen.type("/regen\r")
    screen.wait_for("Hello.")
    screen.wait_for(">>>")
    screen.type("/exit\r")
    assert screen.end() == 0


def test_ctrl_c_just_after_an_answer_does_not_leave(cli: CLI, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whisper, said = Repl._whisper, list[str]()

    def interrupted(chat: Repl, text: str) -> None:
        said.append(text)
        if len(said) == 1:
            raise KeyboardInterrupt
        whisper(chat, text)

    monkeypatch.setattr(Repl, "_whisper", interrupted)
    options = ("chat", tiny, *GREEDY, "--simple-io", "--verbose")
    fake = FakeBackend(saying("One.", "Two."))
    result = cli(*options, stdin=Terminal("Hi\nAgain\n"), fake=fake)
    assert (result.code, result.out, len(said)) == (0, "One.\nTwo.\n", 2)
    said.clear()
    piped = cli(*options, stdin="Hi\nAgain\n", fake=fake)
    assert (piped.code, len(said)) == (130, 1)


def test_ctrl_c_at_the_prompt_clears_the_line(terminal: Any, tiny: str) -> None:
    screen = terminal("chat", tiny, *GREEDY, answers=("Hello.",))
    screen.wait_for(">>>")
    screen.type("not to be sent")
    screen.wait_for("sent")
    screen.type("\x03")
    screen.wait_for(">>>")
    screen.type("Hi\r")
    screen.wait_for("Hello.")
    screen.type("/bye\r")
    assert screen.end() == 0


def test_several_lines_on_a_terminal(terminal: Any, tiny: str) -> None:
    screen = terminal("chat", tiny, *GREEDY, answers=("Hello.",))
    screen.wait_for(">>>")
    screen.type('"""one\r')
    screen.wait_for(">>>")
    screen.type('two"""\r')
    screen.wait_for("Hello.")
    screen.wait_for(">>>")
    screen.type("\x04")
    assert screen.end() == 0


def test_a_paste_of_several_lines_is_one_message(terminal: Any, tiny: str) -> None:
    screen = terminal("chat", tiny, *GREEDY, answers=("Hello.", "Twice!"))
    screen.wait_for(">>>")
    screen.type("\x1b[200~one\ntwo\nthree\x1b[201~\r")
    screen.wait_for("Hello.")
    screen.wait_for(">>>")
    screen.type("\x04")
    assert screen.end() == 0
    assert "Twice!" not in screen.shown


def test_answers_piped_away_while_typing(terminal: Any, tiny: str, tmp_path: Path) -> None:
    """The prompt stays on the terminal, the file gets the tokens and nothing else."""
    with open(tmp_path / "answers.txt", "wb") as file:
        screen = terminal("chat", tiny, *GREEDY, answers=("Hello.", "Again."), stdout=file.fileno())
        screen.wait_for(">>>")
        screen.type("Hi\r")
        screen.wait_for("Hi")
        screen.wait_for(">>>")
        screen.type("More\r")
        screen.wait_for("More")
        screen.wait_for(">>>")
        screen.type("/bye\r")
        assert screen.end() == 0
    assert (tmp_path / "answers.txt").read_text() == "Hello.\nAgain.\n"
    assert "Hello." not in screen.shown


def test_simple_io_on_a_terminal(terminal: Any, tiny: str) -> None:
    screen = terminal("chat", tiny, *GREEDY, "--simple-io", answers=("**Hello** \x1b[31mthere.", "Bye."))
    screen.wait_for(">>> ")
    screen.type("Hi\\\nmore\n")
    screen.wait_for("**Hello** ␛[31mthere.")
    screen.wait_for(">>> ")
    for _ in range(200):  # at once: also between the prompt and the wait for a line
        screen.type("\x03")
        screen.wait_for(">>> ")
    screen.type("\x04")
    assert screen.end() == 0
    assert "tokens," not in screen.shown


def test_markdown_on_a_terminal_and_without(terminal: Any, tiny: str) -> None:
    screen = terminal("chat", tiny, *GREEDY, answers=("- **one**\n- two",))
    screen.wait_for(">>>")
    screen.type("Hi\r")
    screen.wait_for("• one\n• two\n")
    screen.wait_for(">>>")
    screen.type("/set nomarkdown\r")
    screen.wait_for("text is shown as it is")
    screen.type("/regen\r")
    screen.wait_for("- **one**\n- two\n")
    screen.type("/bye\r")
    assert screen.end() == 0
    screen = terminal("chat", tiny, *GREEDY, "--no-markdown", answers=("- **one**",))
    screen.wait_for(">>>")
    screen.type("Hi\r")
    screen.wait_for("- **one**\n")


def test_undo_brings_the_message_back_for_editing(terminal: Any, tiny: str) -> None:
    screen = terminal("chat", tiny, *GREEDY, answers=("One.", "Two."))
    screen.wait_for(">>>")
    screen.type("first\r")
    screen.wait_for("One.")
    screen.wait_for(">>>")
    screen.type("/undo\r")
    screen.wait_for("taken back")
    screen.wait_for(">>> first")
    screen.type("!\r")
    screen.wait_for("Two.")
    screen.wait_for(">>>")
    screen.type("/show messages\r")
    screen.wait_for(">>> first!")


def test_history_outlives_the_chat(terminal: Any, tiny: str) -> None:
    screen = terminal("chat", tiny, *GREEDY)
    screen.wait_for(">>>")
    screen.type("remember me\r")
    screen.wait_for("Hello.")
    screen.wait_for(">>>")
    screen.type("/bye\r")
    assert screen.end() == 0
    screen = terminal("chat", tiny, *GREEDY, "--no-history")
    screen.wait_for(">>>")
    screen.type("\x1b[A")
    screen.wait_for("/bye")
    screen.type("\x1b[A")
    screen.wait_for("ber me")  # only what differs is drawn
    screen.type("\r")
    screen.wait_for("Hello.")
    screen.wait_for(">>>")
    screen.type("/set history\r")
    screen.wait_for("what you type is stored")

"""Where messages come from: a pipe, a terminal with line editing, or a terminal taken as plain lines.

A message is a line. A backslash at its end continues it; three quotes begin a message that ends with three quotes,
and is never read as a command.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from edgellm.core.errors import ConfigError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import Output

    from edgellm.cli.history import FileHistory

QUOTES = '"""'
PROMPT, MORE = ">>> ", "... "
PLACEHOLDER = "Send a message (/? for help)"


class Message(NamedTuple):
    """What was typed; `command`: whether it is a slash command."""

    text: str
    command: bool


Complete = Callable[[str], Iterable[str]]
"""From the text before the cursor to texts that it could become."""


class Reader(Protocol):
    """Gives messages until there are none. `preset`: text that the next prompt begins with, to be edited."""

    preset: str

    def messages(self) -> Generator[Message, None, None]:
        """Messages, blank ones left out."""

    def keep_history(self, keep: bool) -> bool:
        """Begin or stop storing what is typed; whether it is stored now."""


def continues(text: str) -> bool:
    """Whether a backslash at the end (an odd number of them) continues the message."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def is_open(text: str) -> bool:
    """Whether three quotes were opened, at the start or in a command, and are not closed."""
    text = text.strip()
    if text.startswith("/"):
        return text.count(QUOTES) % 2 == 1
    return text.startswith(QUOTES) and not text[len(QUOTES) :].endswith(QUOTES)


def to_message(text: str) -> Message:
    """The message that a whole text means."""
    text = text.strip()
    if text.startswith(QUOTES):
        return Message(text.removeprefix(QUOTES).removesuffix(QUOTES).strip(), False)
    first = text.partition("\n")[0]
    return Message(text, text.startswith("/") and (first == text or QUOTES in first))


def join(lines: Iterator[str]) -> Iterator[Message]:
    """Messages from lines. Where the lines end, so does a message that was open."""
    for line in lines:
        parts = [line.rstrip("\r\n")]
        quoted = is_open(parts[0])
        while quoted or continues(parts[-1]):
            following = next(lines, None)
            if following is None:
                break
            if not quoted:
                parts[-1] = parts[-1][:-1]
            parts.append(following.rstrip("\r\n"))
            if quoted and parts[-1].rstrip().endswith(QUOTES):
                break
        message = to_message("\n".join(parts))
        if message.text:
            yield message


class Lines:
    """Lines of standard input. prompt: shown on standard error before each, for a person who types."""

    preset = ""

    def __init__(self, *, prompt: bool = False) -> None:
        self._prompt = prompt

    def messages(self) -> Generator[Message, None, None]:
        """See Reader. Raises ConfigError where the input is not text."""
        yield from join(self._lines())

    def keep_history(self, keep: bool) -> bool:
        """See Reader: there is none."""
        return False

    def _lines(self) -> Iterator[str]:
        try:
            while True:
                try:
                    if self._prompt:
                        sys.stderr.write(PROMPT)
                        sys.stderr.flush()
                        _wait_for_input()
                    line = sys.stdin.readline() if sys.stdin is not None else ""
                except KeyboardInterrupt:
                    if not self._prompt:
                        raise
                    sys.stderr.write("\n")
                    continue
                if not line:
                    return
                yield line
        except UnicodeDecodeError as e:
            raise ConfigError(f"what was piped in is not text in {e.encoding}: {e.reason}") from None


def _wait_for_input() -> None:
    """Return once a line can be read. KeyboardInterrupt, also for a Ctrl-C that comes just before the wait: without
    the pipe it would be seen after the next line only."""
    if sys.platform == "win32" or sys.stdin is None or threading.current_thread() is not threading.main_thread():
        return
    try:
        typed = sys.stdin.fileno()
    except OSError:  # text that a program has put in its place
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        select.select([typed, reading], [], [])
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


class Typed:
    """A terminal with line editing, history, and completion of commands.

    history: the file for it. complete: what Tab offers. say: for what the person should know. shown: called once, when
    the first prompt is on the screen. output: the terminal, None: standard output, or standard error where the former
    is none.
    """

    def __init__(
        self,
        history: Path | None,
        complete: Complete,
        say: Callable[[str], None],
        *,
        shown: Callable[[], None] | None = None,
        output: Output | None = None,
    ) -> None:
        from edgellm.cli.history import FileHistory

        self.preset = ""
        self._complete, self._say, self._warned = complete, say, False
        self._history: FileHistory | None = FileHistory(history) if history is not None else None
        self._session = self._new_session(output)
        self._idle = False
        if shown is not None:
            self._call_once(shown)

    def messages(self) -> Generator[Message, None, None]:
        """See Reader."""
        while True:
            preset, self.preset = self.preset, ""
            try:
                text = self._session.prompt(PROMPT, default=preset)
            except KeyboardInterrupt:
                if self._idle:
                    self._say("Ctrl-D or /bye leaves")
                continue
            except EOFError:
                return
            if self._history is not None and self._history.why_not and not self._warned:
                self._say(self._history.why_not)
                self._warned = True
            message = to_message(text)
            if message.text:
                yield message

    def keep_history(self, keep: bool) -> bool:
        """See Reader."""
        if self._history is None:
            return False
        self._history.enabled = keep
        return keep

    def _call_once(self, shown: Callable[[], None]) -> None:
        after = self._session.app.after_render

        def call(_: object) -> None:
            after.remove_handler(call)
            shown()

        after.add_handler(call)

    def _new_session(self, output: Output | None) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import InMemoryHistory
        from prompt_toolkit.output import create_output

        # Where stdout is piped away the prompt still belongs on the terminal.
        output = output or (create_output() if sys.stdout.isatty() else create_output(stdout=sys.stderr))
        session: PromptSession[str] = PromptSession(
            multiline=True,
            history=self._history if self._history is not None else InMemoryHistory(),
            key_bindings=self._keys(),
            completer=_completer(self._complete),
            complete_while_typing=False,
            reserve_space_for_menu=4,
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else MORE,
            placeholder=FormattedText([("fg:ansibrightblack", PLACEHOLDER)]),
            enable_suspend=True,
            tempfile_suffix=".md",
            output=output,
        )
        if sys.platform != "win32":
            session.app.terminal_size_polling_interval = None  # a signal tells; a chat that waits does nothing
        return session

    def _keys(self) -> KeyBindings:
        from prompt_toolkit.filters import is_searching
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        @keys.add("enter", filter=~is_searching)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if is_open(buffer.text):
                buffer.newline(copy_margin=False)
            elif continues(buffer.document.text_before_cursor):
                buffer.delete_before_cursor()
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-c", filter=~is_searching)
        def _(event: KeyPressEvent) -> None:
            self._idle = not event.current_buffer.text
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

        @keys.add("c-g", filter=~is_searching)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.open_in_editor()

        return keys


def _completer(complete: Complete):  # type: ignore[no-untyped-def]
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Commands(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            before = document.text_before_cursor
            if before.startswith("/") and "\n" not in before:
                for text in complete(before):
                    yield Completion(text, start_position=-len(before), display=text.rsplit(" ", 1)[-1])

    return Commands()

"""The chat loop: lines from a terminal or a pipe, streaming answers, and a table of slash commands.

A conversation is a list of messages; the last one is the user's while its answer is missing (stopped before the first
word, or failed). /regen answers it again, a new message takes its place.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from edgellm.cli.run import stats_line
from edgellm.core.config import SamplingParams
from edgellm.core.errors import ConfigError, ContextOverflow, EdgeLLMError
from edgellm.core.results import Chunk, Completion

if TYPE_CHECKING:
    from edgellm.llm import LLM

QUOTES = '"""'
FULL = "the context is full: /clear starts a new conversation"


class Repl:
    """A conversation with one model. `commands` maps a slash command to a method that returns False to leave."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None, *, verbose: bool = False) -> None:
        self._llm, self._params, self._system, self._verbose = llm, params, system, verbose
        self._failed = False
        self.messages: list[dict[str, Any]] = []
        self.commands: dict[str, tuple[Callable[[str], bool], str]] = {
            "/?": (self._help, "show this help (also /help)"),
            "/clear": (self._clear, "forget the conversation"),
            "/system": (self._set_system, "/system TEXT sets the system message and starts anew; alone: shows it"),
            "/regen": (self._regen, "answer the last message again"),
            "/bye": (self._leave, "leave (also /exit, Ctrl-D)"),
        }
        self._aliases = {"/help": "/?", "/exit": "/bye", "/quit": "/bye"}

    def loop(self) -> int:
        """Read and answer until the end. The exit code: 1 when messages came from a pipe and one could not be
        answered."""
        typed = sys.stdin is not None and sys.stdin.isatty()
        with closing(self._typed_lines() if typed else self._piped_lines()) as lines:
            for text in self._messages(lines):
                if text.startswith("/") and "\n" not in text:
                    if not self.command(text):
                        break
                else:
                    self.ask(text)
        return 1 if self._failed and not typed else 0

    def command(self, text: str) -> bool:
        """Run a slash command; False to leave."""
        word, _, rest = text.partition(" ")
        found = self.commands.get(self._aliases.get(word, word))
        if found is None:
            near = difflib.get_close_matches(word, [*self.commands, *self._aliases], n=1)
            hint = f"; did you mean {near[0]}?" if near else "; /? lists the commands"
            self._say(f"unknown command {word}{hint}")
            return True
        return found[0](rest.strip())

    def ask(self, text: str) -> None:
        """Send a message and stream the answer; Ctrl-C stops the answer and keeps what was said."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()
        self.messages.append({"role": "user", "content": text})
        self._answer()

    def _answer(self) -> None:
        said: list[str] = []
        done: Completion | None = None
        try:
            done = self._stream(said)
        except KeyboardInterrupt:
            self._break_line(said)
            self._say("[stopped]")
        except EdgeLLMError as e:
            self._failed = True
            self._break_line(said)
            self._say(f"edgellm: {e}")
            if isinstance(e, ContextOverflow) and len(self.messages) > 1:
                self._say("/clear starts a new conversation.")
        if said:
            self.messages.append({"role": "assistant", "content": "".join(said)})
        if done is not None and done.finish_reason == "length":
            self._say(f"[{FULL}]" if done.usage.total_tokens >= self._llm.info.n_ctx else "[cut at -n tokens]")
        if done is not None and self._verbose:
            self._say(stats_line(done))

    def _stream(self, said: list[str]) -> Completion | None:
        """Write the answer to stdout as it comes, and its pieces to `said`."""
        messages = [{"role": "system", "content": self._system}] if self._system else []
        chunks = self._llm.chat([*messages, *self.messages], self._params, stream=True, on_error="raise")
        last: Chunk | None = None
        with closing(chunks):
            for chunk in chunks:
                last = chunk
                if chunk.text:
                    said.append(chunk.text)
                    sys.stdout.write(chunk.text)
                    sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
        return last.completion if last is not None else None

    def _break_line(self, said: list[str]) -> None:
        """End the line of an answer that broke off."""
        if said:
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _messages(self, lines: Iterator[str]) -> Iterator[str]:
        """Messages and commands from lines: blank lines are passed over, three quotes enclose several lines."""
        for line in lines:
            text = line.strip()
            if text.startswith(QUOTES):
                text = text.removeprefix(QUOTES)
                while not text.rstrip().endswith(QUOTES):
                    following = next(lines, None)
                    if following is None:
                        break
                    text += "\n" + following.rstrip("\n")
                text = text.rstrip().removesuffix(QUOTES).strip()
            if text:
                yield text

    def _piped_lines(self) -> Generator[str, None, None]:
        try:
            yield from sys.stdin or ()
        except UnicodeDecodeError as e:
            raise ConfigError(f"what was piped in is not text in {e.encoding}: {e.reason}") from None

    def _typed_lines(self) -> Generator[str, None, None]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import InMemoryHistory
        from prompt_toolkit.output import create_output

        # Where stdout is piped away the prompt still belongs on the terminal.
        output = create_output() if sys.stdout.isatty() else create_output(stdout=sys.stderr)
        session: PromptSession[str] = PromptSession(history=InMemoryHistory(), output=output)
        while True:
            try:
                yield session.prompt(">>> ")
            except KeyboardInterrupt:
                continue  # clears the line, as a shell does
            except EOFError:
                return

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr)

    def _help(self, _: str) -> bool:
        for name, (_method, text) in self.commands.items():
            self._say(f"  {name:<9} {text}")
        self._say(f"  {QUOTES:<9} begins and ends a message of several lines")
        self._say("  Ctrl-C    stops the answer")
        return True

    def _clear(self, _: str) -> bool:
        self.messages.clear()
        self._say("the conversation is forgotten")
        return True

    def _set_system(self, text: str) -> bool:
        if text:
            self._system = text
            self.messages.clear()
            self._say("system message set; the conversation starts anew")
        else:
            self._say(self._system or "no system message is set")
        return True

    def _regen(self, _: str) -> bool:
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            self._say("there is nothing to answer yet")
        else:
            self._answer()
        return True

    def _leave(self, _: str) -> bool:
        return False

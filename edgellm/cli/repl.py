"""The chat loop: line editing, streaming answers, and a table of slash commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.history import InMemoryHistory

from edgellm.cli.run import stats_line
from edgellm.core.errors import EdgeLLMError
from edgellm.core.results import Chunk


class Chatter(Protocol):
    """What the loop needs of an LLM."""

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        """Answer a conversation."""
        ...


class Repl:
    """A conversation with one model. `commands` maps a slash command to a method that returns False to leave."""

    def __init__(
        self, llm: Chatter, sampling: dict[str, Any], system: str | None = None, verbose: bool = False
    ) -> None:
        self._llm, self._sampling, self._system, self._verbose = llm, sampling, system, verbose
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
        """Read and answer until the end; the exit code."""
        for line in self._lines():
            text = line.strip()
            if not text:
                continue
            if text.startswith("/"):
                if not self.command(text):
                    return 0
            else:
                self.ask(text)
        return 0

    def command(self, text: str) -> bool:
        """Run a slash command; False to leave."""
        word, _, rest = text.partition(" ")
        found = self.commands.get(self._aliases.get(word, word))
        if found is None:
            self._say(f"unknown command {word}; /? lists the commands")
            return True
        return found[0](rest.strip())

    def ask(self, text: str) -> None:
        """Send a message and stream the answer; Ctrl-C stops the answer and keeps what was said."""
        self.messages.append({"role": "user", "content": text})
        self._answer()

    def _answer(self) -> None:
        messages = [{"role": "system", "content": self._system}] if self._system else []
        said: list[str] = []
        last: Chunk | None = None
        try:
            stream = self._llm.chat(messages + self.messages, stream=True, on_error="raise", **self._sampling)
            try:
                for chunk in stream:
                    last = chunk
                    said.append(chunk.text)
                    sys.stdout.write(chunk.text)
                    sys.stdout.flush()
            except KeyboardInterrupt:
                stream.close()  # stops the work within a step
                self._say("[stopped]")
            sys.stdout.write("\n")
            sys.stdout.flush()
        except EdgeLLMError as e:
            if not said:
                self.messages.pop()
            self._say(f"{e}" + ("\n/clear starts a new conversation." if "context" in str(e) else ""))
            return
        self.messages.append({"role": "assistant", "content": "".join(said)})
        if self._verbose and last is not None and last.completion is not None:
            self._say(stats_line(last.completion))

    def _lines(self) -> Iterator[str]:
        if not sys.stdin.isatty():
            yield from sys.stdin
            return
        session: PromptSession[str] = PromptSession(history=InMemoryHistory())
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
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            self._say("there is nothing to answer yet")
        else:
            self._answer()
        return True

    def _leave(self, _: str) -> bool:
        return False

"""The chat: reads messages, streams answers, keeps the conversation.

A conversation is a list of messages; the last one is the user's while its answer is missing (stopped before the first
word, or failed). /regen answers it again, a new message takes its place.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgellm.cli import commands, output, sampling
from edgellm.cli.reader import Lines, Reader, Typed
from edgellm.cli.session import Session
from edgellm.cli.stats import short_line, stats_line
from edgellm.core.config import SamplingParams
from edgellm.core.env import STATE
from edgellm.core.errors import ConfigError, ContextOverflow, EdgeLLMError, TemplateError
from edgellm.core.results import Chunk, Completion

if TYPE_CHECKING:
    from edgellm.cli.remote import Remote
    from edgellm.llm import LLM

FULL = "the context is full: /clear starts a new conversation"

MAX_COLUMNS = 100
"""Of help that does not go to a terminal."""

Opener = Callable[..., "LLM | Remote"]
"""opener(model, ctx_size=..., threads=...) opens a model as the command line asked, but for what is given here."""


class Repl:
    """A conversation with a model, and how it is shown. `close` closes the model that is open then.

    parameters: fields of SamplingParams that were set. stats: "" | "short" | "long", after every answer.
    typed: a person types at a terminal. name: of the session that was saved or loaded last. attached: texts that go
    before the next message.
    """

    def __init__(
        self,
        model: str,
        llm: LLM | Remote,
        opener: Opener,
        params: SamplingParams | None = None,
        system: str | None = None,
        *,
        typed: bool = False,
        simple: bool = False,
    ) -> None:
        """typed: a person types at a terminal. simple: plain lines there, no editing, no escape sequences."""
        self.model, self._opener, self.system = model, opener, system
        self.parameters: dict[str, Any] = sampling.given_fields(params or SamplingParams())
        self.messages: list[dict[str, str]] = []
        self.attached: list[str] = []
        self.name = ""
        self.markdown, self.wrap, self.stats = not simple, not simple, ""
        self.typed, self._simple = typed, simple
        self._failed = False
        self._noted: set[str] = set()
        self._metadata: Mapping[str, Any] | None = None
        self._reader: Reader | None = None
        self.llm = llm

    # -- the loop --------------------------------------------------------------------------------------------------

    def loop(self, *, store: bool = True, shown: Callable[[], None] | None = None) -> int:
        """Read and answer until the end. The exit code: 1 when messages came from a pipe and one could not be
        answered. store: keep what is typed for the next time. shown: called when the first prompt that can be edited
        is on the screen."""
        self._reader = self._new_reader(shown)
        self._reader.keep_history(store)
        with closing(self._reader.messages()) as messages:
            for message in messages:
                try:
                    if not message.command:
                        self.ask(message.text)
                    elif not commands.run(self, message.text):
                        break
                except KeyboardInterrupt:  # it was to stop an answer, and came when that had just ended
                    if not self.typed:
                        raise
        return 1 if self._failed and not self.typed else 0

    def ask(self, text: str) -> None:
        """Send a message and stream the answer; Ctrl-C stops the answer and keeps what was said."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()
        text = "\n\n".join([*self.attached, text])
        self.attached.clear()
        self.messages.append({"role": "user", "content": text})
        self.answer()

    def answer(self) -> None:
        """Stream an answer to the conversation as it is, and add it."""
        said: list[str] = []
        done: Completion | None = None
        try:
            done = self._stream(said)
        except KeyboardInterrupt:
            self.say("[stopped]")
        except EdgeLLMError as e:
            self._failed = True
            self.say(f"edgellm: {e}")
            if isinstance(e, ContextOverflow) and len(self.messages) > 1:
                self.say("/clear starts a new conversation.")
        if said:
            self.messages.append({"role": "assistant", "content": "".join(said)})
        for note in () if done is None else done.notes:
            if note not in self._noted:
                self._noted.add(note)
                self._whisper(f"({note})")
        if done is not None and done.finish_reason == "length":
            full = 0 < self.llm.info.n_ctx <= done.usage.total_tokens
            self.say(f"[{FULL}]" if full else "[cut at -n tokens]")
        if done is not None and self.stats:
            self._whisper(stats_line(done) if self.stats == "long" else short_line(done, self.llm.info.n_ctx))

    def _stream(self, said: list[str]) -> Completion | None:
        """Write the answer to stdout as it comes, and its pieces to `said`."""
        chunks = self.llm.chat(self.prompt(), sampling.build(self.parameters), stream=True, on_error="raise")
        answer = output.answer_to(sys.stdout, markdown=self.markdown, wrap=self.wrap, plain=self._simple)
        last: Chunk | None = None
        with closing(chunks):
            try:
                answer.wait()
                for chunk in chunks:
                    last = chunk
                    if chunk.text:
                        said.append(chunk.text)
                        answer.write(chunk.text)
            finally:
                answer.close()
        return last.completion if last is not None else None

    def prompt(self) -> list[dict[str, str]]:
        """The conversation with its system message."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def close(self) -> None:
        """Close the model."""
        self.llm.close()

    # -- for commands ----------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A line for the person, which is not part of the answer."""
        print(text, file=sys.stderr)

    def say_rows(self, rows: list[tuple[str, str]]) -> None:
        """Names and what there is to say about them, in two columns, or below each other in a narrow terminal."""
        columns = shutil.get_terminal_size().columns if sys.stderr.isatty() else MAX_COLUMNS
        first = max(len(name) for name, _ in rows)
        narrow = columns < first + 40
        indent = " " * (4 if narrow else first + 4)
        for name, text in rows:
            if narrow:
                self.say(f"  {name}")
            lines = textwrap.wrap(text, max(columns - len(indent) - 1, 20)) or [""]
            for i, line in enumerate(lines):
                self.say(f"{f'  {name:<{first}}  ' if i == 0 and not narrow else indent}{line}".rstrip())

    def _whisper(self, text: str) -> None:
        dim = not self._simple and output.styled_terminal(sys.stderr)
        self.say(f"\x1b[2m{text}\x1b[0m" if dim else text)

    def clear(self) -> None:
        """Forget the conversation."""
        self.messages.clear()
        self.attached.clear()
        self.name = ""

    def edit(self, text: str) -> None:
        """Let the next prompt begin with this text, where it can be edited."""
        if self._reader is not None:
            self._reader.preset = text

    def keep_history(self, keep: bool) -> bool:
        """Begin or stop storing what is typed; whether it is stored now."""
        return self._reader is not None and self._reader.keep_history(keep)

    def set_parameter(self, field: str, value: Any) -> None:
        """Change a sampling parameter. ConfigError for a value that cannot be honoured; nothing changes then."""
        self.parameters = sampling.given_fields(sampling.build({**self.parameters, field: value}))

    def open(self, model: str, **changed: Any) -> None:
        """Open a model in place of the one that is open; when that fails, the old one stays."""
        llm = self._opener(model, **changed)
        if llm.is_base:
            llm.close()
            raise TemplateError(f"{model} is a base model: it was not trained to answer; choose another")
        self.llm.close()
        self.llm, self.model, self._metadata = llm, model, None

    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the model's file. ConfigError where it lies on a server."""
        if self._metadata is None:
            from edgellm.cli.remote import Remote
            from edgellm.gguf.reader import GGUFFile

            if isinstance(self.llm, Remote):
                raise ConfigError(f"the model's file is on the server: {self.llm.url}")
            with GGUFFile(self.llm.info.path) as file:
                self._metadata = dict(file.metadata)
        return self._metadata

    @property
    def fingerprint(self) -> str:
        """Of the open model."""
        return self.llm.info.fingerprint

    def count(self, text: str) -> int | None:
        """Tokens of a text, None where the model cannot say."""
        try:
            return len(self.llm.tokenize(text, add_special=False))
        except EdgeLLMError:
            return None

    def used(self) -> int | None:
        """Tokens of the conversation, None where the template refuses it."""
        if not self.messages:
            return 0
        try:
            return len(self.llm.chat_tokens(self.prompt()))
        except EdgeLLMError:
            return None

    def to_session(self) -> Session:
        """The conversation, to be saved."""
        path = Path(self.model)
        model = str(path.resolve()) if path.exists() else self.model
        return Session(model, self.system, self.parameters, list(self.messages), self.fingerprint)

    def from_session(self, session: Session) -> None:
        """Go on with a saved conversation."""
        self.clear()
        self.system, self.parameters = session.system, dict(session.parameters)
        self.messages.extend(session.messages)

    # -- input -----------------------------------------------------------------------------------------------------

    def _new_reader(self, shown: Callable[[], None] | None) -> Reader:
        if not self.typed:
            return Lines()
        if self._simple:
            return Lines(prompt=True)
        try:
            history = STATE.get() / "history.jsonl"
        except ConfigError:
            history = None
        return Typed(history, commands.complete, self.say, shown=shown)

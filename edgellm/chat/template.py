"""Chat templates: a conversation becomes the text that a model was trained to continue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgellm.chat.capabilities import Capabilities, adapt, needs_adapting
from edgellm.chat.messages import Message, copy_json, normalise_messages, normalise_tools, text_of
from edgellm.core.errors import GGUFError, TemplateError
from edgellm.core.record import dataclass

if TYPE_CHECKING:
    from edgellm.chat.compiled import Compiled, Job
    from edgellm.chat.provenance import Segment

_KEY = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as text.

    segments: (text, whether control tokens in it count); together they are the text.
    notes: what was done to messages that the template cannot express, one sentence each.
    """

    segments: tuple[Segment, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(text for text, _ in self.segments)


class ChatTemplate:
    """The chat template of one model. Cheap to make: compiled at the first use, or by `warm`. Thread-safe.

    Attributes:
        source: the Jinja source, or None.
        bos_text, eos_text: what templates know as bos_token and eos_token.
    """

    def __init__(
        self, source: str | None, bos_text: str = "", eos_text: str = "", *, tool_source: str | None = None
    ) -> None:
        """tool_source: a template to use instead when tools are given."""
        self.source = source
        self.bos_text = bos_text
        self.eos_text = eos_text
        self._tool_source = tool_source
        self._lock = threading.Lock()
        self._compiled: dict[str, Compiled] = {}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ChatTemplate:
        """The template that GGUF metadata hold, if any."""
        source, tool_source = metadata.get(_KEY), metadata.get(f"{_KEY}.tool_use")
        return cls(
            source if isinstance(source, str) else None,
            _token_text(metadata, "bos", 1),
            _token_text(metadata, "eos", 2),
            tool_source=tool_source if isinstance(tool_source, str) else None,
        )

    @property
    def has_template(self) -> bool:
        """Whether the model has one; if not, it is a base model that continues text."""
        return bool(self.source)

    def warm(self) -> None:
        """Compiles the template now. Raises nothing: what is wrong with it is raised by the calls that need it."""
        if self.source:
            with contextlib.suppress(TemplateError):
                self._template(False)

    @property
    def capabilities(self) -> Capabilities | None:
        """What the template can express, found out once; None if it fails on a single user turn.

        Raises TemplateError when there is no template, or it is not valid.
        """
        return self._template(False).capabilities

    def apply(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        **extra: Any,
    ) -> Rendered:
        """The conversation as text, cut by where it comes from; with add_generation_prompt, ready for the answer.

        Control tokens count only in what the template itself wrote. Everything that comes from messages and tools is
        marked False, except marks that the template looks for in assistant messages (such as </think>).
        A system message that the template cannot express goes into the user turn, turns that it refuses side by side
        are joined, and the notes say so. extra: further variables for the template, such as enable_thinking; trusted,
        but for `documents`.
        Raises RequestError for messages that are not messages; TemplateError when there is no template, when it
        refuses, fails or wants too much, or does something to a text that cannot be followed.
        """
        job = self._prepare(messages, add_generation_prompt, tools, extra)
        return Rendered(tuple(job.segments()), tuple(job.notes))

    def render(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The text alone, also where it cannot be told where it comes from. Otherwise as `apply`."""
        return self._prepare(messages, add_generation_prompt, tools, extra).run()

    def render_segments(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        **extra: Any,
    ) -> list[Segment]:
        """The segments of `apply`."""
        rendered = self.apply(messages, add_generation_prompt=add_generation_prompt, tools=tools, **extra)
        return list(rendered.segments)

    def _prepare(
        self,
        messages: list[Message],
        add_generation_prompt: bool,
        tools: list[dict[str, Any]] | None,
        extra: dict[str, Any],
    ) -> Job:
        compiled = self._template(bool(tools))
        copies = [{**m, "content": text_of(m["content"])} for m in normalise_messages(messages)]
        definitions = normalise_tools(tools)
        notes: list[str] = []
        if needs_adapting(copies) or definitions:
            can = compiled.capabilities
            if can is not None:
                copies, notes = adapt(copies, can)
                if definitions and not can.tools:
                    notes.append("the model's chat template has no place for tools: the model does not see them")
        if compiled.wants_parts:
            for message in copies:
                message["content"] = [{"type": "text", "text": message["content"]}]
        variables: dict[str, Any] = {
            "bos_token": self.bos_text,
            "eos_token": self.eos_text,
            "documents": None,
            **copy_json(extra, "template options"),
            "messages": copies,
            "tools": definitions,
            "add_generation_prompt": add_generation_prompt,
        }
        return compiled.job(variables, notes)

    def _template(self, for_tools: bool) -> Compiled:
        source = self._tool_source if for_tools and self._tool_source else self.source
        if not source:
            raise TemplateError(
                "this model has no chat template: it is a base model, made to continue text. Use generate() or "
                "`edgellm run --raw` with the beginning of a text, or choose an instruct model"
            )
        from edgellm.chat.compiled import Compiled  # with Jinja: a program that does not chat does without

        with self._lock:
            if source not in self._compiled:
                self._compiled[source] = Compiled(source)
            return self._compiled[source]


def _token_text(metadata: Mapping[str, Any], name: str, default: int) -> str:
    """The text of a special token, "" where the model has none."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    spm = metadata.get("tokenizer.ggml.model") == "llama"
    token = metadata.get(f"tokenizer.ggml.{name}_token_id", default if spm else None)
    if not isinstance(tokens, Sequence) or not isinstance(token, int) or not 0 <= token < len(tokens):
        return ""
    try:
        return str(tokens[token])
    except GGUFError:  # not UTF-8: the tokenizer says so when text is asked for
        return ""

"""Chat templates: a conversation becomes the text that a model was trained to continue."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.nodes

from edgellm.chat import provenance, sandbox
from edgellm.chat.messages import Message, copy_json, normalise_messages, normalise_tools, text_of
from edgellm.core.errors import TemplateError

_KEY = "tokenizer.chat_template"
_MIN_CHARS = 4_000_000
_PROBE_METHODS = frozenset(
    "count endswith find index lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit "
    "rstrip split startswith strip".split()
)


class ChatTemplate:
    """The chat template of one model. Cheap to make: compiled at the first use. Thread-safe.

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
        self._compiled: dict[str, _Compiled] = {}

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

    def render(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The text of the conversation; with add_generation_prompt, ready for the assistant's answer.

        extra: further variables for the template, such as enable_thinking. Raises RequestError for messages
        that are not messages, TemplateError when there is no template or it refuses or fails.
        """
        compiled, context = self._prepare(messages, add_generation_prompt, tools, extra)
        return compiled.run(context, self._limit(context))

    def render_segments(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        **extra: Any,
    ) -> list[tuple[str, bool]]:
        """`render` cut into (text, whether control tokens in it count).

        They count only in what the template itself wrote. Everything that comes from messages and tools is
        marked False, except marks that the template looks for in assistant messages (such as </think>).
        The texts together equal `render`. `extra` is trusted, but for `documents`. Raises TemplateError also
        when the template does something to a text that cannot be followed.
        """
        compiled, context = self._prepare(messages, add_generation_prompt, tools, extra)
        limit = self._limit(context)
        untrusted = {k: context[k] for k in ("messages", "tools", "documents") if context.get(k)}
        return provenance.segments(
            compiled.run(context, limit),
            untrusted,
            lambda changed: compiled.run(context | changed, limit),
            compiled.probes,
        )

    def _prepare(
        self,
        messages: list[Message],
        add_generation_prompt: bool,
        tools: list[dict[str, Any]] | None,
        extra: dict[str, Any],
    ) -> tuple[_Compiled, dict[str, Any]]:
        compiled = self._template(bool(tools))
        copies = normalise_messages(messages)
        for message in copies:
            text = text_of(message["content"])
            message["content"] = [{"type": "text", "text": text}] if compiled.wants_parts else text
        options: dict[str, Any] = {
            "bos_token": self.bos_text,
            "eos_token": self.eos_text,
            "documents": None,
            **copy_json(extra, "template options"),
            "messages": copies,
            "tools": normalise_tools(tools),
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": sandbox.clock(datetime.now()),
        }
        return compiled, options

    def _template(self, for_tools: bool) -> _Compiled:
        source = self._tool_source if for_tools and self._tool_source else self.source
        if not source:
            raise TemplateError(
                "this model has no chat template: it is a base model, made to continue text. Use generate() or "
                "`edgellm run --raw` with the beginning of a text, or choose an instruct model"
            )
        with self._lock:
            if source not in self._compiled:
                self._compiled[source] = _Compiled(source)
            return self._compiled[source]

    @staticmethod
    def _limit(context: dict[str, Any]) -> int:
        """Most characters a rendering may have: generous for what goes in."""
        return _MIN_CHARS + 16 * (len(str(context["messages"])) + len(str(context["tools"])))


class _Compiled:
    """A compiled template and what was learnt about it.

    probes: strings it looks for in other strings.   wants_parts: it writes content only as a list of parts.
    """

    def __init__(self, source: str) -> None:
        environment = sandbox.make_environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except (jinja2.TemplateSyntaxError, RecursionError) as e:
            line = f" in line {e.lineno}" if isinstance(e, jinja2.TemplateSyntaxError) else ""
            raise TemplateError(f"the model's chat template is not valid{line}: {e}") from e
        self.probes = _probes(tree)
        self.wants_parts = self._wants_parts()

    def run(self, context: dict[str, Any], max_chars: int) -> str:
        return sandbox.run(self._template, context, max_chars)

    def _wants_parts(self) -> bool:
        """Tries both forms of content on a message that no template refuses."""
        word = "edgellmprobe"
        parts = [{"type": "text", "text": word}]
        return not self._shows(word, word) and self._shows(parts, word)

    def _shows(self, content: Any, word: str) -> bool:
        context = {
            "messages": [{"role": "user", "content": content}],
            "tools": None,
            "documents": None,
            "bos_token": "",
            "eos_token": "",
            "add_generation_prompt": True,
            "strftime_now": sandbox.clock(datetime(2000, 1, 1)),
        }
        try:
            text = self.run(context, _MIN_CHARS)
        except TemplateError:
            return False
        return word in text and not re.search("""["']type["']""", text)


def _probes(tree: jinja2.nodes.Template) -> tuple[str, ...]:
    """Constant strings that the template compares texts with, or hands to methods that search them."""
    found: set[str] = set()

    def add(*nodes: jinja2.nodes.Node) -> None:
        for node in nodes:
            for const in (node, *node.find_all(jinja2.nodes.Const)):
                if isinstance(const, jinja2.nodes.Const) and isinstance(const.value, str):
                    found.add(const.value)

    for compare in tree.find_all(jinja2.nodes.Compare):
        add(compare.expr, *(operand.expr for operand in compare.ops))
    for call in tree.find_all(jinja2.nodes.Call):
        if isinstance(call.node, jinja2.nodes.Getattr) and call.node.attr in _PROBE_METHODS:
            add(*call.args)
    for filter_ in tree.find_all(jinja2.nodes.Filter):
        if filter_.name == "replace":
            add(*filter_.args[:1])
    return tuple(sorted(p for p in found if p.strip() and not p.isalnum()))


def _token_text(metadata: Mapping[str, Any], name: str, default: int) -> str:
    """The text of a special token, "" where the model has none."""
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    spm = metadata.get("tokenizer.ggml.model") == "llama"
    token = metadata.get(f"tokenizer.ggml.{name}_token_id", default if spm else None)
    if isinstance(token, int) and 0 <= token < len(tokens):
        return str(tokens[token])
    return ""

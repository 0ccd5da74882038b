"""A compiled chat template, what is learnt about it, and its renderings."""

from __future__ import annotations

import re
import threading
from datetime import datetime
from functools import cache
from typing import Any

import jinja2.nodes

from edgellm.chat import provenance, sandbox
from edgellm.chat.capabilities import Capabilities, probe
from edgellm.chat.messages import Message
from edgellm.chat.meter import STEPS_TO_PROBE, Meter
from edgellm.chat.provenance import Segment
from edgellm.core.errors import TemplateError
from edgellm.core.record import dataclass

_PROBE_METHODS = frozenset(
    "count endswith find index lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit "
    "rstrip split startswith strip".split()
)


@dataclass(frozen=True, slots=True)
class Job:
    """A rendering that is about to happen."""

    compiled: Compiled
    variables: dict[str, Any]
    notes: list[str]

    def meter(self) -> Meter:
        """What a rendering of these variables may use up."""
        return Meter.for_input(self.variables, len(self.variables["messages"]))

    def run(self) -> str:
        """The text."""
        return self.compiled.run(self.variables, self.meter())

    def segments(self) -> list[Segment]:
        """The text, cut by where it comes from."""
        untrusted = {k: self.variables[k] for k in ("messages", "tools", "documents") if self.variables.get(k)}
        plain, meter = self.run(), self.meter()

        def again(changed: dict[str, Any]) -> str:
            return self.compiled.run(self.variables | changed, meter)

        return provenance.segments(plain, untrusted, again, self.compiled.probes)


class Compiled:
    """A compiled template and what was learnt about it.

    probes: strings it looks for in other strings.   wants_parts: it writes content only as a list of parts.
    """

    def __init__(self, source: str) -> None:
        environment = _environment()
        tree = sandbox.parse(environment, source)
        self.probes = sandbox.guarded(lambda: _probes(tree))
        self._template = sandbox.compile_tree(environment, tree)
        self._lock = threading.Lock()
        self._meter = Meter(STEPS_TO_PROBE)
        self._capabilities: Capabilities | None = None
        self._probed = False
        self.wants_parts = self._wants_parts()

    def run(self, variables: dict[str, Any], meter: Meter) -> str:
        """Renders. Raises TemplateError."""
        return sandbox.run(self._template, variables, meter)

    def job(self, variables: dict[str, Any], notes: list[str]) -> Job:
        """A rendering of these variables, for which the time stands still."""
        return Job(self, {**variables, "strftime_now": sandbox.clock(datetime.now())}, notes)

    @property
    def capabilities(self) -> Capabilities | None:
        """What it can express, found out once; None if it fails on a single user turn."""
        with self._lock:
            if not self._probed:
                self._capabilities = probe(self._try)
                self._probed = True
            return self._capabilities

    def _wants_parts(self) -> bool:
        """Tries both forms of content on a message that no template refuses."""
        word = "edgellmprobe"
        self.wants_parts = False
        if _shows(self._try([{"role": "user", "content": word}]), word):
            return False
        return _shows(self._try([{"role": "user", "content": [{"type": "text", "text": word}]}]), word)

    def _try(self, messages: list[Message], **options: Any) -> str | None:
        """A trial rendering; None if the template refuses or fails."""
        if self.wants_parts:
            messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        variables: dict[str, Any] = {
            "messages": messages,
            "tools": None,
            "documents": None,
            "bos_token": "",
            "eos_token": "",
            "add_generation_prompt": True,
            "strftime_now": sandbox.clock(datetime(2000, 1, 1)),
            **options,
        }
        try:
            return self.run(variables, self._meter)
        except TemplateError:
            return None


@cache
def _environment() -> sandbox.Environment:
    return sandbox.Environment()


def _shows(text: str | None, word: str) -> bool:
    """Whether the word is there, and not as the printed form of a list of parts."""
    return text is not None and word in text and not re.search("""["']type["']""", text)


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

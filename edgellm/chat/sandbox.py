"""The Jinja environment of chat templates: what they may use, and how much of it.

A template comes with the model file, so it is untrusted. It runs in Jinja's immutable sandbox, and what it
can make grow is bounded: ranges, repetition, padding and the rendered text.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context

from edgellm.chat.tags import escape_non_ascii
from edgellm.core.errors import TemplateError

MAX_RANGE = 100_000
"""Most numbers a range in a template may have."""

MAX_REPEAT = 1_000_000
"""Most characters or elements that one repetition or padding may make."""

MAX_SECONDS = 10.0
"""Longest a template may run, checked whenever it writes something."""

_WIDTH = re.compile(r"[:%][^{}a-zA-Z]*(?:\d{5,}|\*)")
_PADDING_FILTERS = ("batch", "center", "indent", "slice", "truncate", "wordwrap")


class Refused(Exception):
    """The template called raise_exception; the argument is its message."""


class _Generation(jinja2.ext.Extension):
    """{% generation %}: marks the assistant's text for training; here its body is all that matters."""

    tags = {"generation"}  # noqa: RUF012  (Jinja wants a plain set)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(times, int):
                    _bound(len(one) * times)
        elif operator == "**":
            bits = left.bit_length() if isinstance(left, int) else 64
            _bound(bits * right if isinstance(right, int | float) else 0)
        elif isinstance(left, str) and _WIDTH.search(left):
            raise SecurityError("a format with a very wide field")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_format(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_format(obj, argument)
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            for argument in args:
                if isinstance(argument, int):
                    _bound(argument)
        return super().call(context, obj, *args, **kwargs)


def make_environment() -> jinja2.Environment:
    """An environment with the filters, tests and functions that published templates use."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    environment.filters["tojson"] = _tojson
    for name in _PADDING_FILTERS:
        environment.filters[name] = _bounded(environment.filters[name])
    environment.globals.pop("lipsum", None)
    environment.globals.update(range=_range, raise_exception=_raise_exception)
    return environment


def clock(now: datetime) -> Callable[[str], str]:
    """strftime_now for one rendering: the time stands still."""
    return lambda format: now.strftime(format)


def run(template: jinja2.Template, context: dict[str, Any], max_chars: int) -> str:
    """Renders. Raises TemplateError with the template's own words when it refuses or fails."""
    parts: list[str] = []
    total, deadline = 0, time.monotonic() + MAX_SECONDS
    try:
        for part in template.generate(context):
            parts.append(part)
            total += len(part)
            if total > max_chars:
                raise TemplateError(f"the chat template writes more than {max_chars} characters; it was stopped")
            if time.monotonic() > deadline:
                raise TemplateError(f"the chat template ran for more than {MAX_SECONDS:g} s; it was stopped")
    except TemplateError:
        raise
    except Refused as e:
        raise TemplateError(f"the chat template refused the messages: {e}") from None
    except SecurityError as e:
        raise TemplateError(f"the chat template tried something that is not allowed: {e}") from e
    except Exception as e:  # whatever a template's code can run into
        raise TemplateError(f"the chat template failed: {e or type(e).__name__} ({type(e).__name__})") from e
    return "".join(parts)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates want it: no HTML escapes, letters as they are, keys in order."""
    if indent is not None:
        _bound(indent * 1000)
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return escape_non_ascii(text) if ensure_ascii else text


def _raise_exception(message: Any = "") -> None:
    raise Refused(str(message))


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise SecurityError(f"a range of {len(numbers)} numbers, at most {MAX_RANGE}")
    return numbers


def _check_format(obj: Any, attribute: Any) -> None:
    """Refuses 'text'.format where the text asks for a very wide field."""
    if attribute in ("format", "format_map") and isinstance(obj, str) and _WIDTH.search(obj):
        raise SecurityError("a format with a very wide field")


def _bound(size: float) -> None:
    if size > MAX_REPEAT:
        raise SecurityError(f"a repetition of {size} elements, at most {MAX_REPEAT}")


def _bounded(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, with a bound on its numbers. Keeps the marks by which Jinja passes it the environment."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, int):
                _bound(argument * 100)
        return filter_(*args, **kwargs)

    bounded.__dict__.update(filter_.__dict__)
    return bounded

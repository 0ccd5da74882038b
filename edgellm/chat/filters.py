"""Filters of chat templates: those that published templates use, each paid for. Here those of text and numbers.

They behave as Jinja's, except that those which would give a generator give a list, and that text is never marked
as safe: nothing is escaped behind the template's back.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from jinja2.exceptions import TemplateRuntimeError
from jinja2.utils import pass_context

from edgellm.chat.meter import MAX_BITS, Exhausted, RenderContext
from edgellm.chat.methods import percent, replace, text_method
from edgellm.chat.tags import escape_non_ascii

Filter = Callable[..., Any]

_MAX_INDENT = 32
_WORD_START = re.compile(r"([-\s({\[<]+)")
_ESCAPES = (("&", "&amp;"), (">", "&gt;"), ("<", "&lt;"), ("'", "&#39;"), ('"', "&#34;"))

FILTERS: dict[str, Filter] = {}


def add_filter(*names: str) -> Callable[[Filter], Filter]:
    """Puts a function of (context, value, ...) into FILTERS."""

    def register(function: Filter) -> Filter:
        FILTERS.update(dict.fromkeys(names, pass_context(function)))
        return function

    return register


# -- text ------------------------------------------------------------------------------------------------------------


def _by_method(name: str) -> Filter:
    def run(context: RenderContext, value: Any, *args: Any) -> Any:
        return text_method(context, name, context.meter.text(value), *args)

    return run


for _name in ("capitalize", "lower", "upper"):
    add_filter(_name)(_by_method(_name))


@add_filter("trim")
def _trim(context: RenderContext, value: Any, chars: str | None = None) -> Any:
    return text_method(context, "strip", context.meter.text(value), chars)


@add_filter("center")
def _center(context: RenderContext, value: Any, width: int = 80) -> Any:
    return text_method(context, "center", context.meter.text(value), width)


@add_filter("replace")
def _replace(context: RenderContext, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text = context.meter.text
    return replace(context, text(value), text(old), text(new), -1 if count is None else count)


@add_filter("string", "safe")
def _string(context: RenderContext, value: Any) -> str:
    return context.meter.text(value)


@add_filter("title")
def _title(context: RenderContext, value: Any) -> str:
    text = context.meter.text(value)
    context.meter.step(1 + (len(text) >> 3))
    context.meter.make_list(len(text), 14)
    return "".join([w[0].upper() + w[1:].lower() for w in _WORD_START.split(text) if w])


@add_filter("e", "escape")
def _escape(context: RenderContext, value: Any) -> str:
    text = context.meter.text(value)
    for character, entity in _ESCAPES:
        text = replace(context, text, character, entity)
    return text


@add_filter("urlencode")
def _urlencode(context: RenderContext, value: Any) -> str:
    text = context.meter.text(value)
    context.meter.step(1 + (len(text) >> 2))
    context.meter.make(24 * len(text))
    return quote(text, safe="/")


@add_filter("wordcount")
def _wordcount(context: RenderContext, value: Any) -> int:
    text = context.meter.text(value)
    context.meter.step(1 + (len(text) >> 3))
    return sum(1 for _ in re.finditer(r"\w+", text))


@add_filter("indent")
def _indent(context: RenderContext, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if isinstance(width, int):
        context.meter.make(max(0, width))
    indention = width if isinstance(width, str) else " " * width
    text = context.meter.text(value)
    text += "\n"
    lines = text_method(context, "splitlines", text)
    context.meter.make(len(text) + len(indention) * (len(lines) + 1))
    context.meter.step(1 + (len(lines) >> 2))
    if blank:
        out = ("\n" + indention).join(lines)
    else:
        out = lines.pop(0)
        if lines:
            out += "\n" + "\n".join(indention + line if line else line for line in lines)
    return indention + out if first else out


@add_filter("truncate")
def _truncate(
    context: RenderContext, value: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: int = 5
) -> str:
    text = context.meter.text(value)
    if length < len(end) or leeway < 0:
        raise ValueError(f"truncate needs a length of at least {len(end)}, found {length}")
    if len(text) <= length + leeway:
        return text
    context.meter.make(2 * length)
    cut = text[: length - len(end)]
    return cut + end if killwords else cut.rsplit(" ", 1)[0] + end


@add_filter("wordwrap")
def _wordwrap(
    context: RenderContext,
    value: Any,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str = "\n",
    break_on_hyphens: bool = True,
) -> str:
    meter = context.meter
    text = meter.text(value)
    lines = text_method(context, "splitlines", text)
    meter.make_list(len(text), 14 + len(wrapstring))
    out = []
    for line in lines:  # the wrapper's patterns and its slicing can take the square of a line
        meter.step(10 + (len(line) ** 2 >> 7))
        wrapped = textwrap.wrap(
            line,
            width=width,
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=break_long_words,
            break_on_hyphens=break_on_hyphens,
        )
        out.append(wrapstring.join(wrapped))
    return wrapstring.join(out)


@add_filter("format")
def _format(context: RenderContext, value: Any, /, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("format takes positional or keyword arguments, not both")
    return percent(context, context.meter.text(value), kwargs or args)


@add_filter("tojson")
def _tojson(
    context: RenderContext,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates want it: no HTML escapes, letters as they are, keys in order."""
    meter = context.meter
    size = meter.weigh(value)
    step = 0 if indent is None else len(indent) if isinstance(indent, str) else int(indent)
    glue = tuple(separators) if separators is not None else (", ", ": ")
    if step > _MAX_INDENT or any(len(s) > _MAX_INDENT for s in glue):
        raise Exhausted(f"it indents JSON by more than {_MAX_INDENT}")
    meter.make(6 * size + (size >> 3) * (2 * step * (1 if step == 0 else _depth(value)) + sum(map(len, glue))))
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return escape_non_ascii(text) if ensure_ascii else text


@add_filter("from_json", "fromjson")
def _from_json(context: RenderContext, value: Any) -> Any:
    text = context.meter.text(value)
    context.meter.step(1 + (len(text) >> 5))
    context.meter.make(40 * len(text))
    return json.loads(text, parse_int=_parse_int)


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_BITS // 4:
        raise Exhausted("it reads a whole number of too many digits")
    return int(digits)


def _depth(value: Any) -> int:
    """Levels of nesting; the value has been weighed."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [i for v in level if type(v) in (list, tuple, dict) for i in (v.values() if type(v) is dict else v)]
    return depth


# -- numbers ---------------------------------------------------------------------------------------------------------


@add_filter("abs")
def _abs(context: RenderContext, value: Any) -> Any:
    return abs(value)


@add_filter("int")
def _int(context: RenderContext, value: Any, default: Any = 0, base: int = 10) -> Any:
    if isinstance(value, str):
        if len(value) > MAX_BITS // 4:
            raise Exhausted("it reads a whole number of too many digits")
        try:
            return int(value, base)
        except ValueError:
            pass
    try:
        return int(float(value)) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return default


@add_filter("float")
def _float(context: RenderContext, value: Any, default: Any = 0.0) -> Any:
    if isinstance(value, str):
        context.meter.scan(len(value))
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return default


@add_filter("round")
def _round(context: RenderContext, value: Any, precision: int = 0, method: str = "common") -> Any:
    if abs(precision) > 100:
        raise Exhausted(f"it rounds to {precision} digits, at most 100")
    if method == "common":
        return round(value, precision)
    if method not in ("ceil", "floor"):
        raise TemplateRuntimeError("round must be common, ceil or floor")
    whole = math.ceil if method == "ceil" else math.floor
    return whole(value * 10**precision) / 10**precision

"""Methods of text, lists and objects that templates may call: a list of what is allowed, each with its price.

Anything else a value has in Python is out of reach, whatever it is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

from edgellm.chat.meter import Exhausted, Meter, RenderContext, as_list, check_key, sized

MAX_WIDTH = 1_000
"""Widest field and longest precision in a format."""

_MAX_STRIP = 256
_SPEC = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(?P<width>\d+|\*)?(?:\.(?P<precision>\*|\d*))?[hlL]?(?P<kind>.|$)", re.S)
_NUMBER = re.compile(r"\d+")


class Method:
    """A method of a value, or a function that the sandbox offers: only the sandbox can call it."""

    __slots__ = ("name", "owner", "run")

    def __init__(self, name: str, run: Callable[..., Any], owner: Any = None) -> None:
        self.name, self.run, self.owner = name, run, owner

    def invoke(self, context: RenderContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it from the template."""
        return self.run(context, self.owner, *args, **kwargs)


def find(obj: Any, name: str) -> Method | None:
    """The method of that name, if templates may call it. SecurityError for other names that Python knows."""
    kind = type(obj)
    table = _TABLES.get(kind)
    if table is not None and name in table:
        return Method(name, table[name], obj)
    if name.startswith("__" if kind is dict else "_") or hasattr(kind, name):
        raise SecurityError(f"access to {name!r} of a {kind.__name__}")
    return None


# -- text ------------------------------------------------------------------------------------------------------------


def _reading(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str) -> Any:
        context.meter.scan(len(text))
        return method(text)

    return run


def _casing(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str) -> Any:
        context.meter.scan(len(text))
        context.meter.make(len(text) if text.isascii() else 3 * len(text))
        return method(text)

    return run


def _stripping(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str, chars: str | None = None) -> Any:
        n = 8 if chars is None else len(chars)
        if n > _MAX_STRIP:
            raise Exhausted(f"it strips {n} different characters, at most {_MAX_STRIP}")
        context.meter.scan(len(text) * (8 + n) >> 3)
        context.meter.make(len(text))
        return method(text, chars)

    return run


def _ends(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str, what: Any, *span: Any) -> Any:
        context.meter.step(1 + (context.meter.weigh(what) >> 6))
        return method(text, what, *span)

    return run


def _cutting(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str, part: str) -> Any:
        context.meter.scan(len(text))
        context.meter.make(len(text))
        return method(text, part)

    return run


def _searching(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str, what: str, *span: Any) -> Any:
        context.meter.search(len(text), len(what), backwards=name.startswith("r"))
        return method(text, what, *span)

    return run


def _splitting(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str, sep: str | None = None, maxsplit: int = -1) -> Any:
        meter = context.meter
        if sep is None:
            meter.scan(len(text))
            pieces = len(text) // 2 + 1
        else:
            meter.search(len(text), len(sep), backwards=name.startswith("r"))
            pieces = text.count(sep) + 1 if sep else 1
        if maxsplit >= 0:
            pieces = min(pieces, maxsplit + 1)
        meter.make(len(text))
        meter.make_list(pieces, 14)
        return method(text, sep, maxsplit)

    return run


def _splitlines(context: RenderContext, text: str, keepends: bool = False) -> list[str]:
    context.meter.scan(len(text))
    n = sum(text.count(c) for c in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029") + 1
    context.meter.make(len(text))
    context.meter.make_list(n, 14)
    return text.splitlines(bool(keepends))


def _partition(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str, sep: str) -> Any:
        context.meter.search(len(text), len(sep), backwards=name.startswith("r"))
        context.meter.make(len(text))
        return method(text, sep)

    return run


def replace(context: RenderContext, text: str, old: str, new: str, count: int = -1) -> str:
    """text.replace, paid for."""
    meter = context.meter
    meter.search(len(text), len(old))
    n = text.count(old) if old else len(text) + 1
    if count >= 0:
        n = min(n, count)
    meter.step(n >> 5)
    meter.make(len(text) + n * max(0, len(new) - len(old)))
    return text.replace(old, new, count)


def join(context: RenderContext, glue: str, items: Any) -> str:
    """glue.join, paid for: items must be text."""
    items = sized(items)
    context.meter.step(1 + (len(items) >> 3))
    total = len(items) if type(items) is str else sum(len(i) for i in items if type(i) is str)
    context.meter.make(total + len(glue) * len(items))
    return glue.join(items)


def _padding(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def run(context: RenderContext, text: str, width: int, *fill: str) -> Any:
        context.meter.make(max(len(text), int(width)))
        return method(text, width, *fill)

    return run


def _expandtabs(context: RenderContext, text: str, tabsize: int = 8) -> str:
    context.meter.scan(len(text))
    context.meter.make(len(text) + text.count("\t") * max(0, int(tabsize)))
    return text.expandtabs(tabsize)


class _MeteredFormatter(Formatter):
    """str.format with the sandbox's own access to attributes, bounded widths, and paid text."""

    def __init__(self, context: RenderContext) -> None:
        self._context = context

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        first, _, rest = re.sub(r"[.\[]", "\0\\g<0>", field_name, count=1).partition("\0")
        key: Any = int(first) if first.isdecimal() and len(first) < 10 else first
        value = args[key] if isinstance(key, int) else kwargs[key]
        environment = self._context.environment
        while rest:
            match = re.match(r"\.([^.\[\]]+)|\[([^\]]+)\]", rest)
            if match is None:
                raise ValueError(f"a field of a format is not valid: {field_name[:80]!r}")
            name, item = match.groups()
            if name is not None:
                value = environment.getattr(value, name)
            else:
                value = environment.getitem(value, int(item) if item.isdecimal() and len(item) < 10 else item)
            rest = rest[match.end() :]
        return value, key

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None:
            return value
        text = self._context.meter.text(value)
        if conversion == "s":
            return text
        if conversion not in "ra":
            raise ValueError(f"unknown conversion {conversion!r:.20}")
        self._context.meter.make(10 * len(text))
        return repr(value) if conversion == "r" else ascii(value)

    def format_field(self, value: Any, format_spec: str) -> str:
        self._context.meter.step()
        if not format_spec:
            return self._context.meter.text(value)
        for number in _NUMBER.findall(format_spec):
            _check_width(number)
        if not isinstance(value, str | int | float):
            raise TypeError(f"a {type(value).__name__} takes no format")
        self._context.meter.make(self._context.meter.weigh(value) + 3 * MAX_WIDTH)
        return format(value, format_spec)


def _check_width(number: str) -> None:
    if len(number) > 9 or int(number) > MAX_WIDTH:
        raise Exhausted(f"it asks for a field of {number[:20]} characters, at most {MAX_WIDTH}")


def _format(context: RenderContext, text: str, /, *args: Any, **kwargs: Any) -> str:
    context.meter.scan(16 * len(text))
    context.meter.make(len(text))
    return _MeteredFormatter(context).vformat(text, args, kwargs)


def _format_map(context: RenderContext, text: str, mapping: Any) -> str:
    if type(mapping) is not dict:
        raise TypeError("format_map takes an object")
    return _format(context, text, **{k: v for k, v in mapping.items() if isinstance(k, str)})


def percent(context: RenderContext, text: str, args: Any) -> str:
    """text % args with bounded widths, paid for."""
    meter = context.meter
    meter.scan(16 * len(text))
    n = 0
    for spec in _SPEC.finditer(text):
        for number in (spec["width"], spec["precision"]):
            if number == "*":
                raise SecurityError("a format whose width is an argument")
            if number:
                _check_width(number)
        if spec["kind"] in ("(", "*"):  # a key with parentheses in it, behind which a width could hide
            raise SecurityError("a format that is not plain")
        n += spec["kind"] != "%"
    if isinstance(args, Undefined):
        meter.make(len(text))
    else:
        meter.make(len(text) + n * (10 * meter.weigh(args, text=True) + 2 * MAX_WIDTH))
    return str(text % args)


# -- lists and objects -------------------------------------------------------------------------------------------------


def _looking(name: str) -> Callable[..., Any]:
    def run(context: RenderContext, items: Any, what: Any, *span: Any) -> Any:
        context.meter.weigh(items)
        context.meter.weigh(what)
        return getattr(items, name)(what, *span)

    return run


def _get(context: RenderContext, mapping: dict[Any, Any], key: Any, default: Any = None) -> Any:
    return mapping.get(check_key(key), default)


def _items(context: RenderContext, mapping: dict[Any, Any]) -> list[Any]:
    context.meter.make_list(len(mapping), 14)
    return list(mapping.items())


def _keys(context: RenderContext, mapping: dict[Any, Any]) -> list[Any]:
    return as_list(context.meter, mapping)


def _values(context: RenderContext, mapping: dict[Any, Any]) -> list[Any]:
    context.meter.make_list(len(mapping))
    return list(mapping.values())


_READING = (
    "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper"
)
_STR: dict[str, Callable[..., Any]] = {
    **{name: _reading(name) for name in _READING.split()},
    **{name: _casing(name) for name in "capitalize casefold lower swapcase title upper".split()},
    **{name: _stripping(name) for name in "strip lstrip rstrip".split()},
    **{name: _ends(name) for name in "startswith endswith".split()},
    **{name: _cutting(name) for name in "removeprefix removesuffix".split()},
    **{name: _searching(name) for name in "find index count rfind rindex".split()},
    **{name: _splitting(name) for name in "split rsplit".split()},
    **{name: _partition(name) for name in "partition rpartition".split()},
    **{name: _padding(name) for name in "center ljust rjust zfill".split()},
    "splitlines": _splitlines,
    "replace": replace,
    "join": join,
    "expandtabs": _expandtabs,
    "format": _format,
    "format_map": _format_map,
}
_LIST: dict[str, Callable[..., Any]] = {"count": _looking("count"), "index": _looking("index")}
_DICT: dict[str, Callable[..., Any]] = {"get": _get, "items": _items, "keys": _keys, "values": _values}
DICT_METHODS = frozenset(_DICT)
_TABLES: dict[type, dict[str, Callable[..., Any]]] = {str: _STR, list: _LIST, tuple: _LIST, dict: _DICT}


def text_method(context: RenderContext, name: str, text: str, *args: Any, **kwargs: Any) -> Any:
    """The method of that name on text, paid for."""
    return _STR[name](context, text, *args, **kwargs)


def compare(meter: Meter, left: Any, op: str, right: Any) -> bool:
    """`left op right`, paid for; op is Jinja's name for it."""
    if op in ("in", "notin"):
        if type(right) is str and isinstance(left, str):
            meter.search(len(right), len(left))
        elif type(right) is dict:
            check_key(left)
        elif isinstance(left, int | float | None) and type(right) in (list, tuple, range):
            meter.step(1 + (len(right) >> 3))
        else:
            meter.weigh(left)
            meter.weigh(right)
        return (left in right) == (op == "in")
    if type(left) in _TABLES and type(right) in _TABLES:
        meter.weigh(left)
        meter.weigh(right)
    return bool(_COMPARE[op](left, right))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "lteq": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "gteq": lambda a, b: a >= b,
}

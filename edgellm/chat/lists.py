"""Filters of chat templates that work on values and lists. See filters.py, whose table they join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.runtime import Undefined
from jinja2.utils import pass_context

from edgellm.chat.checks import TESTS
from edgellm.chat.filters import FILTERS, Filter, add_filter
from edgellm.chat.meter import RenderContext, as_list, sized
from edgellm.chat.methods import join

__all__ = ["FILTERS"]


@add_filter("default", "d")
def _default(context: RenderContext, value: Any, default: Any = "", boolean: bool = False) -> Any:
    return default if isinstance(value, Undefined) or (boolean and not value) else value


@add_filter("length", "count")
def _length(context: RenderContext, value: Any) -> int:
    return len(value)


@add_filter("list")
def _list(context: RenderContext, value: Any) -> list[Any]:
    return as_list(context.meter, value)


@add_filter("items")
def _items(context: RenderContext, value: Any) -> list[Any]:
    if isinstance(value, Undefined):
        return []
    if type(value) is not dict:
        raise TypeError(f"items needs an object, found {type(value).__name__}")
    context.meter.make_list(len(value), 14)
    return list(value.items())


@add_filter("first")
def _first(context: RenderContext, value: Any) -> Any:
    for item in sized(value):
        return item
    return context.environment.undefined("there is no first item: the sequence is empty")


@add_filter("last")
def _last(context: RenderContext, value: Any) -> Any:
    for item in reversed(sized(value)):
        return item
    return context.environment.undefined("there is no last item: the sequence is empty")


@add_filter("reverse")
def _reverse(context: RenderContext, value: Any) -> Any:
    if isinstance(value, str):
        context.meter.make(len(value))
        return value[::-1]
    return as_list(context.meter, value)[::-1]


@add_filter("join")
def _join(context: RenderContext, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    items = sized(value)
    context.meter.make_list(len(items))
    context.meter.step(len(items) >> 1)
    get = _attribute(context, attribute)
    return join(context, context.meter.text(d), [context.meter.text(get(item)) for item in items])


@add_filter("sum")
def _sum(context: RenderContext, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    get = _attribute(context, attribute)
    for item in sized(value):
        context.meter.step()
        start = context.environment.call_binop(context, "+", start, get(item))
    return start


@add_filter("map")
def _map(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
    items = as_list(context.meter, value or ())
    context.meter.step(len(items))
    if not args and "attribute" in kwargs:
        attribute, default = kwargs.pop("attribute"), kwargs.pop("default", None)
        if kwargs:
            raise TypeError(f"map takes no argument {next(iter(kwargs))!r}")
        get = _attribute(context, attribute, default)
        return [get(item) for item in items]
    if not args:
        raise TypeError("map needs the name of a filter, or attribute=")
    run = _named(context, FILTERS, args[0], "filter")
    return [run(context, item, *args[1:], **kwargs) for item in items]


def _selecting(keep: bool, by_attribute: bool) -> Filter:
    def run(context: RenderContext, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
        items = as_list(context.meter, value or ())
        context.meter.step(len(items))
        get: Callable[[Any], Any] = lambda item: item  # noqa: E731
        if by_attribute:
            if not args:
                raise TypeError("the name of an attribute is missing")
            get, args = _attribute(context, args[0]), args[1:]
        if not args:
            return [item for item in items if bool(get(item)) == keep]
        test = _named(context, TESTS, args[0], "test")
        return [item for item in items if bool(test(context, get(item), *args[1:], **kwargs)) == keep]

    return run


for _name, _keep, _by in (
    ("select", True, False),
    ("reject", False, False),
    ("selectattr", True, True),
    ("rejectattr", False, True),
):
    add_filter(_name)(_selecting(_keep, _by))


@add_filter("sort")
def _sort(
    context: RenderContext,
    value: Any,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: str | int | None = None,
) -> list[Any]:
    items = as_list(context.meter, value)
    context.meter.step(len(items).bit_length() * (1 + (context.meter.weigh(items) >> 3)))
    gets = [_attribute(context, name) for name in str(attribute).split(",")] if attribute is not None else []

    def key(item: Any) -> Any:
        if gets:
            return [_folded(context, get(item), case_sensitive) for get in gets]
        return _folded(context, item, case_sensitive)

    return sorted(items, key=key, reverse=reverse)


@add_filter("dictsort")
def _dictsort(
    context: RenderContext, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[Any]:
    if type(value) is not dict or by not in ("key", "value"):
        raise TypeError('dictsort needs an object, and by="key" or "value"')
    items = _items(context, value)
    where = 0 if by == "key" else 1
    context.meter.step(len(items).bit_length() * (1 + (context.meter.weigh([i[where] for i in items]) >> 3)))
    return sorted(items, key=lambda item: _folded(context, item[where], case_sensitive), reverse=reverse)


@add_filter("unique")
def _unique(
    context: RenderContext, value: Any, case_sensitive: bool = False, attribute: str | int | None = None
) -> list[Any]:
    get, seen, out = _attribute(context, attribute), set(), []
    for item in as_list(context.meter, value):
        context.meter.step()
        key = _folded(context, get(item), case_sensitive)
        context.meter.weigh(key)
        if key not in seen:
            seen.add(key)
            out.append(item)
    return out


def _extreme(largest: bool) -> Filter:
    def run(
        context: RenderContext, value: Any, case_sensitive: bool = False, attribute: str | int | None = None
    ) -> Any:
        items = as_list(context.meter, value)
        context.meter.weigh(items)
        if not items:
            return context.environment.undefined("there is no item: the sequence is empty")
        get = _attribute(context, attribute)
        return (max if largest else min)(items, key=lambda item: _folded(context, get(item), case_sensitive))

    return run


add_filter("max")(_extreme(True))
add_filter("min")(_extreme(False))


@add_filter("batch")
def _batch(context: RenderContext, value: Any, linecount: int, fill_with: Any = None) -> list[list[Any]]:
    items = as_list(context.meter, value)
    if linecount < 1:
        raise ValueError(f"batch needs a size of at least 1, found {linecount}")
    context.meter.make_list(len(items), 14)
    rows = [items[i : i + linecount] for i in range(0, len(items), linecount)]
    if rows and fill_with is not None and len(rows[-1]) < linecount:
        context.meter.make_list(linecount)
        rows[-1] += [fill_with] * (linecount - len(rows[-1]))
    return rows


@add_filter("slice")
def _slice(context: RenderContext, value: Any, slices: int, fill_with: Any = None) -> list[list[Any]]:
    items = as_list(context.meter, value)
    if slices < 1:
        raise ValueError(f"slice needs a number of at least 1, found {slices}")
    context.meter.make_list(slices, 30)
    each, longer = divmod(len(items), slices)
    rows, at = [], 0
    for i in range(slices):
        n = each + (i < longer)
        row = items[at : at + n]
        rows.append([*row, fill_with] if fill_with is not None and i >= longer else row)
        at += n
    return rows


@add_filter("attr")
def _attr(context: RenderContext, value: Any, name: str) -> Any:
    if type(value) is dict:
        raise SecurityError("attr looks for attributes, and an object has none but its methods")
    return context.environment.getattr(value, str(name))


def _attribute(context: RenderContext, path: Any, default: Any = None) -> Callable[[Any], Any]:
    """What `attribute="a.b"` reads."""
    if path is None:
        return lambda item: item
    parts = [int(p) if p.isdecimal() and len(p) < 10 else p for p in str(path).split(".")]

    def get(item: Any) -> Any:
        context.meter.step(2 * len(parts))
        for part in parts:
            item = context.environment.getitem(item, part)
            if default is not None and isinstance(item, Undefined):
                item = default
        return item

    return get


def _folded(context: RenderContext, value: Any, case_sensitive: bool) -> Any:
    if isinstance(value, str) and not case_sensitive:
        context.meter.scan(len(value))
        return value.lower()
    return value


def _named(context: RenderContext, table: dict[str, Filter], name: Any, kind: str) -> Filter:
    if not isinstance(name, str) or name not in table:
        raise TemplateRuntimeError(f"there is no {kind} named {name!r:.80}")
    return table[name]


@pass_context
def _is_filter(context: RenderContext, value: Any) -> bool:
    return isinstance(value, str) and value in FILTERS


TESTS["filter"] = _is_filter

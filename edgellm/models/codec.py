"""Records to JSON values and back, by their declared field types. Used for plans; every mismatch is a PlanError.

A record (frozen dataclass) becomes a list of its fields in order, a member of a union of records a list that starts
with the record's name, a tuple a list. Numbers must be finite; integers fit 32 bits.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from typing import Any

from edgellm.models.tables import PlanError

_INT_LIMIT = 2**31


def encode(value: Any) -> Any:
    """A JSON value for a record, tuple, number, string or None."""
    if isinstance(value, tuple):
        return [encode(v) for v in value]
    if hasattr(type(value), "__match_args__"):
        return [encode(getattr(value, name)) for name in type(value).__match_args__]
    return value


def encode_member(value: Any) -> Any:
    """A JSON value for a record that is one of a union: its name, then its fields."""
    return [type(value).__name__, *encode(value)]


def decode(kind: Any, value: Any, where: str) -> Any:
    """The value of declared type `kind` that `encode` made this JSON from. PlanError names `where` it is not one."""
    origin = typing.get_origin(kind)
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise PlanError(f"{where} is {_short(value)}, expected a finite number")
        return float(value)
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int) or not -_INT_LIMIT <= value < _INT_LIMIT:
            raise PlanError(f"{where} is {_short(value)}, expected a 32-bit integer")
        return value
    if kind in (str, bool):
        if not isinstance(value, kind):
            raise PlanError(f"{where} is {_short(value)}, expected {kind.__name__}")
        return value
    if origin in (types.UnionType, typing.Union):
        inner = [k for k in typing.get_args(kind) if k is not type(None)]
        return None if value is None else decode(inner[0], value, where)
    if origin is tuple:
        (item, _) = typing.get_args(kind)
        return tuple(decode(item, v, f"{where}[{i}]") for i, v in enumerate(_list(value, None, where)))
    hints = _hints(kind)
    fields = _list(value, len(hints), where)
    return kind(*(decode(k, v, f"{where}.{n}") for (n, k), v in zip(hints, fields, strict=True)))


def decode_member(kinds: typing.Mapping[str, type], value: Any, where: str) -> Any:
    """The record that `encode_member` made this JSON from, one of `kinds` by name."""
    if not isinstance(value, list) or not value or not isinstance(value[0], str) or value[0] not in kinds:
        raise PlanError(f"{where} is {_short(value)}, expected one of {', '.join(kinds)} with its fields")
    return decode(kinds[value[0]], value[1:], f"{where} {value[0]}")


@functools.cache
def _hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    """(field name, declared type) of a record or a NamedTuple, in order."""
    return tuple(typing.get_type_hints(kind).items())


def _list(value: Any, n: int | None, where: str) -> list[Any]:
    if not isinstance(value, list) or (n is not None and len(value) != n):
        raise PlanError(f"{where} is {_short(value)}, expected a list" + ("" if n is None else f" of {n}"))
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

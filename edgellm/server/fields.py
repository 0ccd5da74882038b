"""Reading the JSON object of a request: null means absent, and a wrong type is a 400 that names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgellm.server.errors import invalid

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_KINDS = {str: "a string", bool: "true or false", int: "an integer", float: "a number", list: "an array",
          dict: "an object"}  # fmt: skip


def kind_of(value: object) -> str:
    """What JSON calls a value's type, for messages."""
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def parse(raw: bytes) -> Body:
    """The body of a request. Raises ApiError (400) for anything but a JSON object of Unicode text."""
    try:
        value = json.loads(raw, parse_constant=_constant)
        if _SURROGATE_ESCAPE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
    except UnicodeError:
        raise invalid("the body is not Unicode text: it must be JSON in UTF-8, without lone surrogates") from None
    except ValueError as e:
        raise invalid(f"the body is not valid JSON: {e}") from None
    if not isinstance(value, dict):
        raise invalid(f"the body must be a JSON object, found {kind_of(value)}")
    return Body(value)


class Body:
    """A JSON object. Every reader gives None (or the default) for a field that is absent or null.

    where: what stands before a field's name in messages, such as "messages[0].".
    """

    __slots__ = ("_fields", "_where")

    def __init__(self, fields: Mapping[str, Any], where: str = "") -> None:
        self._fields = {k: v for k, v in fields.items() if v is not None}
        self._where = where

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def raw(self, name: str, default: Any = None) -> Any:
        """The value as it is."""
        return self._fields.get(name, default)

    def plain(self) -> dict[str, Any]:
        """All fields that are there, a new dictionary."""
        return dict(self._fields)

    def text(self, name: str, default: str | None = None) -> str | None:
        """A string."""
        value = self._fields.get(name, default)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def needed_text(self, name: str) -> str:
        """A string that must be there."""
        value = self.text(name)
        if value is None:
            raise invalid(f"Field '{self._where}{name}': is required", self._where + name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._fields.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def integer(self, name: str, default: int | None = None) -> int | None:
        """A whole number; 3.0 is one."""
        value = self._fields.get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._wrong(name, "an integer", value)
        return value

    def number(self, name: str, default: float | None = None) -> float | None:
        """A number."""
        value = self._fields.get(name, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self._wrong(name, "a number", value)
        return None if value is None else self.real(name, value)

    def real(self, name: str, value: float) -> float:
        """A number of a field as a float; ApiError (400) for an integer that is too large to be one."""
        try:
            return float(value)
        except OverflowError:
            raise invalid(f"Field '{self._where}{name}': is out of range", self._where + name) from None

    def array(self, name: str) -> list[Any] | None:
        """An array."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, list):
            raise self._wrong(name, "an array", value)
        return value

    def inner(self, name: str) -> Body | None:
        """An object."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return Body(value, f"{self._where}{name}.")

    def _wrong(self, name: str, expected: str, found: object) -> Exception:
        return invalid(f"Field '{self._where}{name}': expected {expected}, found {kind_of(found)}", self._where + name)

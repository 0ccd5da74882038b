"""What a rendering may use up: steps and text, counted rather than timed, so that the same template with the same
messages always gets equally far.

A step is about a microsecond of work. Room is counted in characters of all the text that was ever made (list elements
in the same coin), but for long texts that nobody holds any more: an upper bound for what can be alive.
"""

from __future__ import annotations

import sys
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Undefined

STEPS = 100_000
"""Steps of a rendering without regard to what goes in; the longest published templates take about 200 a message."""

STEPS_TO_PROBE = 30_000
"""Steps that all trial renderings of a template may take together."""

STEPS_PER_MESSAGE = 1_000
STEPS_PER_VALUE = 100
ROOM = 4_000_000
"""Characters a rendering may make without regard to what goes in; four bytes each at worst."""

ROOM_PER_CHAR = 64
LONG = 4_096
"""Shortest text whose room comes back when nobody holds it."""

MAX_DEPTH = 100
"""Deepest nesting of lists and objects that is read as a whole."""

MAX_CALLS = 64
"""Deepest nesting of macro calls."""

MAX_BITS = 1024
"""Longest whole number a template may compute."""

_ELEMENT = 2  # characters of room for the eight bytes of an element
_SCALARS = (str, int, float, bool, type(None))


class Exhausted(Exception):
    """The template used up what it may; the argument says which."""


class Meter:
    """Counts down what is left. `calls` is how deep in macros the template is at the moment."""

    __slots__ = ("_long", "calls", "room", "steps", "steps_given")

    def __init__(self, steps: int = STEPS, room: int = ROOM) -> None:
        self.steps = self.steps_given = steps
        self.room = room
        self.calls = 0
        self._long: list[str] = []

    @classmethod
    def for_input(cls, value: Any, n_messages: int) -> Meter:
        """A meter with what a template fairly needs for this input, a JSON value with n_messages in it."""
        values, chars, level = 0, 0, [value]
        while level:
            values += len(level)
            inner: list[Any] = []
            for v in level:
                if isinstance(v, str):
                    chars += len(v)
                elif isinstance(v, dict):
                    inner += v.keys()
                    inner += v.values()
                elif isinstance(v, list):
                    inner += v
            level = inner
        steps = STEPS + STEPS_PER_MESSAGE * n_messages + STEPS_PER_VALUE * values + chars
        return cls(steps, ROOM + ROOM_PER_CHAR * chars)

    def step(self, n: int = 1) -> None:
        """Take n steps."""
        self.steps -= n
        if self.steps < 0:
            raise Exhausted(f"it takes more than {self.steps_given} steps")

    def scan(self, n_chars: int) -> None:
        """Read so many characters."""
        self.step(1 + (n_chars >> 7))

    def make(self, n_chars: int) -> None:
        """Make so much text."""
        if n_chars > self.room and not self._reclaim(n_chars):
            raise Exhausted(f"it makes too much text: {n_chars} characters more, where {self.room} are left")
        self.room -= n_chars

    def made(self, text: str) -> str:
        """The text, which was just made: its room comes back once nobody holds it."""
        if len(text) >= LONG:
            self.step(len(text) >> 11)
            self._long.append(text)
        return text

    def _reclaim(self, n_chars: int) -> bool:
        """Take back the room of long texts that only this meter still holds; whether that makes n_chars fit."""
        kept = []
        while self._long:
            text = self._long.pop()
            if sys.getrefcount(text) > 2:  # this name, the argument, and others
                kept.append(text)
            else:
                self.room += len(text)
        self._long = kept
        return n_chars <= self.room

    def make_list(self, n: int, chars_each: int = 0) -> None:
        """Make a list of n elements; chars_each: new text of each, or 14 for the header of a short string."""
        self.make(n * (_ELEMENT + chars_each) + 16)
        self.step(1 + (n >> 5))

    def search(self, n: int, m: int, backwards: bool = False) -> None:
        """Look for m characters in n; backwards it can take the product of both."""
        self.step(1 + (n >> 8) + (n * (m if backwards else min(m, 100)) >> 10))

    def weigh(self, value: Any, *, text: bool = False) -> int:
        """Characters of all the text in a value, and room for punctuation; takes the steps of reading it all.

        Shared parts count as often as they are reached. text: refuse what has no written form (functions, macros).
        """
        if type(value) is str:
            self.step(1 + (len(value) >> 10))
            return len(value)
        total, depth, level = 0, 0, [value]
        while level:
            self.step(len(level))
            total += 8 * len(level)
            inner: list[Any] = []
            for v in level:
                kind = type(v)
                if kind is str:
                    total += len(v)
                elif kind is list or kind is tuple or kind is range:
                    self.step(len(v) >> 3)
                    inner += v
                elif kind is dict:
                    self.step(len(v) >> 2)
                    inner += v.keys()
                    inner += v.values()
                elif kind is int:
                    total += v.bit_length() >> 1
                elif text and not isinstance(v, _SCALARS) and not isinstance(v, Undefined):
                    raise SecurityError(f"a {kind.__name__.strip('_').lower()} cannot be written as text")
            depth += 1
            if depth > MAX_DEPTH:
                raise Exhausted(f"it nests lists more than {MAX_DEPTH} levels deep")
            level = inner
        self.step(total >> 10)
        return total

    def text(self, value: Any) -> str:
        """str(value), the room for it taken."""
        kind = type(value)
        if kind is str:
            self.make(len(value))
            return str(value)
        if kind is int and value.bit_length() > 4 * MAX_BITS:
            raise Exhausted("it writes a whole number of too many digits")
        if kind is list or kind is tuple or kind is dict:
            self.make(10 * self.weigh(value, text=True))
            return str(value)
        if not isinstance(value, (*_SCALARS, range, Undefined)):
            self.weigh(value, text=True)
        text = str(value)
        self.make(len(text))
        return text


class RenderContext(Context):
    """The variables of one rendering, and what it may still use up."""

    environment: Any
    meter: Meter


def check_key(value: Any) -> Any:
    """The value, if it may be looked up in an object: hashing it takes no time."""
    if not isinstance(value, _SCALARS) and not isinstance(value, Undefined):
        raise TypeError(f"a {type(value).__name__} cannot be a key")
    return value


def check_bits(value: Any) -> Any:
    """The value, unless it is a whole number that grew too long."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise Exhausted(f"it computes a whole number of more than {MAX_BITS} bits")
    return value


def sized(items: Any) -> Any:
    """Items as something with a length: what templates loop over. TypeError for what cannot be looped over."""
    if isinstance(items, (str, list, tuple, dict, range)):
        return items
    if isinstance(items, Undefined):
        return list(items)
    raise TypeError(f"{type(items).__name__!r} object is not iterable")


def as_list(meter: Meter, items: Any) -> list[Any]:
    """A new list of the items, the room for it taken."""
    items = sized(items)
    meter.make_list(len(items), 14 if type(items) is str else 0)
    return list(items)

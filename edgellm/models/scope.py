"""The matcher of shape checks: sizes bound to the letters of ops.py, each with the place that it came from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from edgellm.models import ops as o
from edgellm.models.tables import CacheClass, CacheLayer, PlanError, Tables

MAX_WIDTH = 1 << 24
MAX_CTX = 1 << 26

_T = TypeVar("_T")


class Scope:
    """One op's sizes by letter, and its lookups in the tables; every failure is a PlanError that names the op."""

    def __init__(self, op: o.Op, tables: Tables) -> None:
        self.op, self.t = op, tables
        self.name = type(op).__name__
        self.sizes: dict[str, tuple[int, str]] = {}
        self.axis: str | None = None

    def fail(self, message: str) -> PlanError:
        return PlanError(f"{self.name}: {message}")

    def require(self, ok: bool, message: str) -> None:
        if not ok:
            raise self.fail(message)

    def bind(self, letter: str, size: int, source: str) -> int:
        """`letter` is `size`, says `source`; fails where another source said something else."""
        known = self.sizes.setdefault(letter, (size, source))
        if known[0] != size:
            raise self.fail(f"{letter} is {known[0]} from {known[1]} but {size} in {source}")
        return size

    def view(self, field: str, letter: str | None = None, times: int = 1, dtype: str = "f32", axis: str = "") -> int:
        """Width of a view field divided by `times`, bound to `letter`. All views of an op share their axis."""
        v: o.View = getattr(self.op, field)
        buffer = self._entry(self.t.buffers, v.buf, f"{field}: buffer")
        source = f"{field} (buffer '{buffer.name}')"
        if v.start < 0 or not 1 <= v.width <= buffer.width - v.start:
            raise self.fail(
                f"{field} takes columns {v.start}..{v.start + v.width - 1} of buffer '{buffer.name}', "
                f"which has {buffer.width}"
            )
        if buffer.dtype != dtype:
            raise self.fail(f"{source} has type {buffer.dtype}, expected {dtype}")
        self.axis = self.axis or axis or buffer.axis
        wanted = axis or self.axis
        if buffer.axis != wanted:
            raise self.fail(f"{source} has axis {buffer.axis}, expected {wanted}")
        if times < 1 or v.width % times:
            raise self.fail(f"{source} has {v.width} columns, not a multiple of {times}")
        if letter is not None:
            self.bind(letter, v.width // times, source)
        return v.width // times

    def weight(self, index: int | None, role: str, *letters: str) -> tuple[int, ...]:
        """Shape of a weight of this role, its dims bound to the letters. None: nothing to check."""
        if index is None:
            return ()
        w = self._entry(self.t.weights, index, "weight")
        if w.role != role:
            raise self.fail(f"{w.tensor} is used as {role} but declared as {w.role}")
        if len(w.shape) != len(letters):
            raise self.fail(f"{w.tensor} has shape {list(w.shape)}, expected [{', '.join(letters)}]")
        for letter, size in zip(letters, w.shape, strict=True):
            self.bind(letter, size, w.tensor)
        return w.shape

    def part(self, part: o.Part, n: str) -> int:
        """Output rows of a part whose input is K."""
        rows = self.weight(part.w, "matrix", n, "K")[0]
        self.weight(part.b, "vector", n)
        self.finite("scale", part.scale)
        return rows

    def experts(self, e: o.Experts, n: str, k: str) -> None:
        self.weight(e.w, "matrix", "X", n, k)
        self.weight(e.b, "vector", "X", n)
        self.weight(e.scale, "vector", "X")

    def cache(self, slot: o.Slot, *kinds: str) -> tuple[CacheClass, CacheLayer]:
        cls = self._entry(self.t.caches, slot.cls, "cache class")
        layer = self._entry(cls.layers, slot.layer, f"layer of cache class {slot.cls}")
        self.require(cls.kind in kinds, f"cache class {slot.cls} is {cls.kind}, expected {' or '.join(kinds)}")
        return cls, layer

    def state(self, slot: o.Slot, *shape: int) -> None:
        layer = self.cache(slot, "state")[1]
        self.require(layer.state == (shape,), f"state {slot} has shapes {layer.state}, expected one of {list(shape)}")
        self.require(self.axis == "T", "works on the token axis only")

    def finite(self, field: str, value: float, lo: float = -math.inf) -> None:
        if not (math.isfinite(value) and value >= lo):
            raise self.fail(f"{field} is {value}, expected a finite number")

    def count(self, field: str, value: int, hi: int = MAX_WIDTH) -> None:
        self.require(1 <= value <= hi, f"{field} is {value}, expected 1..{hi}")

    def choice(self, field: str, value: str, allowed: Sequence[str]) -> None:
        self.require(value in allowed, f"{field} is {value!r}, expected one of {', '.join(allowed)}")

    def apart(self, *fields: str) -> None:
        """The named input views may not overlap y."""
        y: o.View = self.op.y  # type: ignore[union-attr]
        for field in fields:
            v: o.View = getattr(self.op, field)
            overlap = v.buf == y.buf and v.start < y.start + y.width and y.start < v.start + v.width
            self.require(not overlap, f"{field} and y overlap")

    def _entry(self, table: Sequence[_T], index: int, what: str) -> _T:
        if not 0 <= index < len(table):
            raise self.fail(f"{what} {index} does not exist (there are {len(table)})")
        return table[index]

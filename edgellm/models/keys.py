"""Typed reading of a family's metadata keys, with the books kept: a key that nobody asked for is found at the end.

Keys are named without their `<arch>.` prefix. Every reader takes a default; without one the key is required.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from edgellm.core.errors import UnsupportedModel

MAX_LAYERS = 1024
MAX_DIM = 1 << 24

_T = TypeVar("_T")


class _Required:
    """Marks a key without a default."""


REQUIRED = _Required()


class Keys:
    """The metadata under `<arch>.` of one file. UnsupportedModel for missing keys, wrong types and wild values."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self.arch = arch
        self._metadata = metadata
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Is the key there? Does not count as reading it."""
        return f"{self.arch}.{name}" in self._metadata

    def integer(self, name: str, default: int | _Required = REQUIRED, lo: int = 0, hi: int = MAX_DIM) -> int:
        """A whole number in lo..hi (the default is not checked)."""
        value = self._get(name, default)
        return value if value is default else self._whole(name, value, lo, hi)  # type: ignore[return-value]

    def number(self, name: str, default: float | _Required = REQUIRED) -> float:
        """A finite number."""
        value = self._get(name, default)
        return value if value is default else self._number(name, value)  # type: ignore[return-value]

    def flag(self, name: str, default: bool | _Required = REQUIRED) -> bool:
        """A truth value; 0 and 1 count as one."""
        value = self._get(name, default)
        if not isinstance(value, (bool, int, np.bool_)) or value not in (0, 1):
            raise self._wrong(name, value, "true or false")
        return bool(value)

    def text(self, name: str, default: str | _Required = REQUIRED) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def integers(
        self, name: str, n: int, default: int | _Required = REQUIRED, lo: int = 0, hi: int = MAX_DIM
    ) -> tuple[int, ...]:
        """One whole number per layer: an array of at least n, or one number for all."""
        value = self._get(name, default)
        if isinstance(value, np.ndarray):
            if value.ndim != 1 or len(value) < n:
                raise self._wrong(name, value, f"a number or an array of {n}")
            return tuple(self._whole(name, v, lo, hi) for v in value[:n].tolist())
        return (value if value is default else self._whole(name, value, lo, hi),) * n  # type: ignore[return-value]

    def flags(self, name: str, n: int, default: tuple[bool, ...] | None = None) -> tuple[bool, ...]:
        """One truth value per layer, from an array of at least n; `default` where the key is absent."""
        value = self._get(name, REQUIRED if default is None else default)
        if value is default:
            return default or ()
        if not isinstance(value, np.ndarray) or value.ndim != 1 or len(value) < n:
            raise self._wrong(name, value, f"an array of {n} flags")
        return tuple(bool(v) for v in value[:n].tolist())

    def is_array(self, name: str) -> bool:
        """Is the key there, with an array? Does not count as reading it."""
        return isinstance(self._metadata.get(f"{self.arch}.{name}"), np.ndarray)

    def unread(self, ignored: Mapping[str, str]) -> Iterator[str]:
        """Full names of keys under `<arch>.` that were not read, are not neutral and not in `ignored`."""
        for key, value in self._metadata.items():
            name = key.removeprefix(f"{self.arch}.")
            if name != key and name not in self._read and name not in ignored and not neutral(value):
                yield key

    def value(self, key: str) -> str:
        """A short spelling of a value, for messages."""
        return _short(self._metadata.get(key))

    def _get(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._metadata.get(f"{self.arch}.{name}", default)
        if value is REQUIRED:
            raise UnsupportedModel(
                f"metadata key '{self.arch}.{name}' is missing and has no default; convert the model again"
            )
        return value

    def _whole(self, name: str, value: Any, lo: int, hi: int) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not lo <= value <= hi:
            raise self._wrong(name, value, f"a whole number in {lo}..{hi}")
        return int(value)

    def _number(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
            raise self._wrong(name, value, "a finite number")
        return float(value)

    def _wrong(self, name: str, value: Any, expected: str) -> UnsupportedModel:
        return UnsupportedModel(f"metadata key '{self.arch}.{name}' is {_short(value)}, expected {expected}")


def neutral(value: Any) -> bool:
    """Does a value mean "nothing": 0, false, -1, -inf, empty, or an array of zeros?"""
    if isinstance(value, np.ndarray):
        return not value.any()
    if isinstance(value, (bool, int, float, np.generic)):
        return value in (0, -1) or value == -math.inf
    return len(value) == 0


def _short(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 60 else text[:57] + "..."

"""Metadata values of a GGUF file: the 13 value types and the lazy array of strings."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import GGUFError
from edgellm.core.record import dataclass

Bytes = NDArray[np.uint8]


class ValueType(enum.IntEnum):
    """Type of a metadata value; the integer value is the id in the file."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12

    def __str__(self) -> str:
        return self.name.lower()


# Little-endian NumPy dtypes of the types with a fixed size. A bool is one byte, 0 or 1.
DTYPES: dict[ValueType, np.dtype[Any]] = {
    ValueType.U8: np.dtype("u1"),
    ValueType.I8: np.dtype("i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class KVType:
    """The declared type of a metadata value. For arrays, `element` and `count` are set."""

    type: ValueType
    element: ValueType | None = None
    count: int | None = None

    def __str__(self) -> str:
        return str(self.type) if self.element is None else f"array[{self.element}, {self.count}]"


class StringArray(Sequence[str]):
    """Strings of a metadata array, decoded when asked for.

    Holds the array's own bytes and one integer a string; it stays valid after the file is closed.
    An element that is not UTF-8 raises GGUFError when decoded; `raw` gives its bytes.
    """

    __slots__ = ("_blob", "_bounds", "_key")

    def __init__(self, key: str, blob: Bytes, bounds: NDArray[np.int64]) -> None:
        """`blob`: length-prefixed strings. `bounds` [n + 1]: where each prefix starts, then the end."""
        self._key = key
        self._blob = blob.tobytes()
        self._bounds = bounds.astype(np.uint32 if len(blob) < 2**32 else np.int64)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._decode(i, "strict") for i in range(*index.indices(len(self)))]
        return self._decode(self._check(index), "strict")

    def __repr__(self) -> str:
        return f"<StringArray {self._key!r}, {len(self)} strings>"

    def raw(self, index: int) -> bytes:
        """The bytes of one string, valid UTF-8 or not."""
        i = self._check(index)
        return self._blob[int(self._bounds[i]) + 8 : int(self._bounds[i + 1])]

    def lengths(self) -> NDArray[np.int64]:
        """Bytes of every string, int64 [n]."""
        bounds = self._bounds.astype(np.int64)
        return bounds[1:] - bounds[:-1] - 8

    def to_list(self, errors: str = "strict") -> list[str]:
        """All strings. `errors` as in bytes.decode; "strict" raises GGUFError and names the element."""
        n = len(self)
        if n == 0:
            return []
        # One decode and one split instead of n: keep one zero byte of each prefix as the separator. The
        # highest byte of a length is always zero; strings with NULs in them take the slow way.
        blob = np.frombuffer(self._blob, np.uint8)
        keep = np.ones(len(blob), np.bool_)
        prefixes = self._bounds[:-1].astype(np.int64)
        for k in range(7):
            keep[prefixes + k] = False
        try:
            pieces = blob[keep].tobytes().decode("utf-8", errors).split("\0")
        except UnicodeDecodeError:
            pieces = []
        if len(pieces) == n + 1:
            return pieces[1:]
        return [self._decode(i, errors) for i in range(n)]

    def _check(self, index: int) -> int:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is outside {self._key!r} with {n} strings")
        return index % n

    def _decode(self, index: int, errors: str) -> str:
        try:
            return self.raw(index).decode("utf-8", errors)
        except UnicodeDecodeError as e:
            raise GGUFError(
                f"metadata key {self._key!r}: string {index} is not valid UTF-8: {e.reason} at byte {e.start}"
            ) from e


Value = bool | int | float | str | NDArray[Any] | StringArray

_U64 = struct.Struct("<Q")
_WINDOW = (1 << 12, 1 << 20)  # smallest and largest stretch that is searched at once, bytes
_BURST = 256  # strings read one by one before the next search


def scan_strings(data: Bytes, start: int, count: int) -> NDArray[np.int64] | int:
    """Finds `count` length-prefixed strings that follow each other in `data` from byte `start` on.

    Returns int64 [count + 1]: the byte where each 8-byte length prefix starts, then the end of the last
    string. Returns the index of the first string that does not fit instead, when one does not.

    A length says where the next one is, so the plain loop is serial: over 100 ns a string. Text hardly ever
    has seven zero bytes in a row, though, and the prefix of a string shorter than 256 bytes always has. So
    all places in a window that look like such a prefix are found at once, and a run of them is accepted as
    far as each one's length leads exactly to the next. The plain loop does the rest.
    """
    bounds = np.empty(count + 1, np.int64)
    view, end = data.data, len(data)
    pos, i, window = start, 0, _WINDOW[0]
    while i < count:
        if count - i > _BURST and end - pos >= 8:
            stop = min(pos + window, end)
            run = _chain(data, pos, stop, count - i)
            if len(run):
                bounds[i : i + len(run)] = run
                i += len(run)
                pos = int(run[-1]) + 8 + int(data[run[-1]])
                if pos > end:
                    return i - 1
                if pos + 8 > stop:  # the chain held to the end of the window
                    window = min(window * 2, _WINDOW[1])
                    continue
            window = _WINDOW[0]
        for _ in range(min(_BURST, count - i)):
            if end - pos < 8:
                return i
            bounds[i] = pos
            pos += 8 + int(_U64.unpack_from(view, pos)[0])
            if pos > end:
                return i
            i += 1
    bounds[count] = pos
    return bounds


def _chain(data: Bytes, lo: int, hi: int, limit: int) -> NDArray[np.int64]:
    """Places of at most `limit` consecutive short prefixes from byte `lo` on, as far as the chain holds."""
    zero = data[lo:hi] == 0
    n = hi - lo - 7
    small = zero[1 : n + 1].copy()  # seven zero bytes behind a place: the number there is below 256
    for k in range(2, 8):
        small &= zero[k : n + k]
    places = np.flatnonzero(small)
    if len(places) == 0 or places[0] != 0:
        return places[:0]
    following = places + 8 + data[lo + places]
    broken = np.flatnonzero(following[:-1] != places[1:])
    run = int(broken[0]) + 1 if len(broken) else len(places)
    return places[: min(run, limit)] + lo

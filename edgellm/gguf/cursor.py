"""A bounded cursor over the bytes of one file: every read checks the end first."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import GGUFError
from edgellm.gguf.values import DTYPES, Bytes, StringArray, Value, ValueType, scan_strings

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
More = Callable[[int], Bytes]
MAX_HEADER_BYTES = 1 << 25
"""Of metadata and tensor directory together; a vocabulary of 262,144 tokens takes 16 MiB."""
_TYPES = tuple(ValueType)  # their ids are 0, 1, 2 ...


class Cursor:
    """Reads little-endian values from the first bytes of a file. `where`, the file's path, begins every error."""

    __slots__ = ("_more", "data", "end", "pos", "view", "where")

    def __init__(self, data: Bytes, where: str, end: int | None = None, more: More | None = None) -> None:
        """data: the file, or its beginning. end: its size. more: reads a longer beginning of at least n bytes."""
        self.data, self.view, self.where, self._more = data, data.data, where, more
        self.pos, self.end = 0, len(data) if end is None else end

    def fail(self, message: str) -> NoReturn:
        raise GGUFError(f"{self.where}: {message}")

    def need(self, n: int, what: str) -> None:
        """GGUFError unless `n` more bytes are there."""
        if n > self.end - self.pos:
            self.fail(
                f"{what} needs {n} bytes at byte {self.pos}, but the file ends at byte {self.end}; "
                f"it is truncated or damaged: download it again"
            )
        if self.pos + n > len(self.data):
            self._grow(self.pos + n)

    def _grow(self, n: int) -> None:
        """Have the first n bytes of the file, which has that many, in `data`."""
        if n > MAX_HEADER_BYTES or self._more is None:
            self.fail(f"the header has more than {MAX_HEADER_BYTES >> 20} MiB; the file is damaged")
        n = min(max(n, 2 * len(self.data)), self.end, MAX_HEADER_BYTES)
        self.data = self.data[:0]  # not both at once
        self.view = self.data.data
        self.data = self._more(n)
        self.view = self.data.data

    def u32(self, what: str) -> int:
        self.need(4, what)
        value = int(_U32.unpack_from(self.view, self.pos)[0])
        self.pos += 4
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        value = int(_U64.unpack_from(self.view, self.pos)[0])
        self.pos += 8
        return value

    def count(self, what: str, *, min_bytes: int, limit: int) -> int:
        """A u64 count of things of at least `min_bytes` bytes each, so that it cannot exceed what is left."""
        n = self.u64(what)
        if n > limit:
            self.fail(f"{what} is {n}; more than {limit} is not plausible, the file is damaged")
        self.need(n * min_bytes, f"{what} is {n}, which")
        return n

    def raw(self, what: str, *, limit: int | None = None) -> bytes:
        """A u64 length and that many bytes."""
        n = self.u64(f"length of {what}")
        if limit is not None and n > limit:
            self.fail(f"{what} has a length of {n} bytes; at most {limit} are allowed, the file is damaged")
        self.need(n, what)
        value = self.data[self.pos : self.pos + n].tobytes()
        self.pos += n
        return value

    def name(self, what: str, *, limit: int) -> str:
        """A non-empty UTF-8 string without control characters: a key or the name of a tensor."""
        raw = self.raw(what, limit=limit)
        if not raw:
            self.fail(f"{what} is empty; the file is damaged")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8: {raw[:40]!r}; the file is damaged")
        if min(raw) < 0x20:
            self.fail(f"{what} has control characters: {text[:40]!r}; the file is damaged")
        return text

    def value_type(self, what: str) -> ValueType:
        type_id = self.u32(f"type of {what}")
        if type_id >= len(_TYPES):
            self.fail(f"{what}: value type {type_id} is unknown (known: 0 to {len(_TYPES) - 1})")
        return _TYPES[type_id]

    def scalar(self, kind: ValueType, what: str, errors: str = "strict") -> Value:
        """One value of any type but array. `errors` as in bytes.decode."""
        if kind is ValueType.STRING:
            raw = self.raw(what)
            try:
                return raw.decode("utf-8", errors)
            except UnicodeDecodeError as e:
                self.fail(f"{what} is not valid UTF-8 ({e.reason} at byte {e.start} of {len(raw)})")
        dtype = DTYPES[kind]
        self.need(dtype.itemsize, what)
        raw = self.data[self.pos : self.pos + dtype.itemsize].tobytes()
        self.pos += dtype.itemsize
        if kind is ValueType.BOOL and raw[0] > 1:
            self.fail(f"{what} is a bool but has the value {raw[0]}; expected 0 or 1")
        value: bool | int | float = np.frombuffer(raw, dtype)[0].item()
        return value

    def array(self, kind: ValueType, count: int, what: str, key: str) -> Value:
        """`count` values of any type but array: read-only NumPy array (a copy) or StringArray."""
        if kind is ValueType.STRING:
            self.need(count * 8, f"{what} has {count} strings, which")
            bounds = scan_strings(self.data, self.pos, count)
            while isinstance(bounds, int) and len(self.data) < self.end:
                self._grow(len(self.data) + 1)
                bounds = scan_strings(self.data, self.pos, count)
            if isinstance(bounds, int):
                self.fail(
                    f"{what}: string {bounds} of {count} goes past the end of the file at byte {self.end}; "
                    f"it is truncated or damaged: download it again"
                )
            stop = int(bounds[-1])
            strings = StringArray(key, self.data[self.pos : stop], bounds - self.pos)
            self.pos = stop
            return strings
        dtype = DTYPES[kind]
        n = count * dtype.itemsize
        self.need(n, f"{what} has {count} elements of {dtype.itemsize} bytes, which")
        raw = self.data[self.pos : self.pos + n].copy()
        self.pos += n
        if kind is ValueType.BOOL and n and int(raw.max()) > 1:
            self.fail(f"{what} is an array of bools but has the value {int(raw.max())}; expected 0 or 1")
        values: NDArray[Any] = raw.view(dtype)
        values.flags.writeable = False
        return values

"""A GGUF file in pieces that can be bent one by one, and back to bytes: sound by itself, as unsound as its fields."""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field
from typing import Any

from edgellm.gguf.qtypes import QType

CODES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
"""struct codes of the value types with a fixed size."""
STRING, ARRAY = 8, 9
MAX_DATA = 1 << 21


def string(raw: bytes) -> bytes:
    """A length and the bytes."""
    return struct.pack("<Q", len(raw)) + raw


@dataclass
class Key:
    """A metadata key. value: bytes for a string, a list for an array, else a number. raw: instead of all that."""

    name: bytes
    type: int
    value: Any
    element: int = 0
    count: int | None = None
    raw: bytes | None = None

    def encode(self) -> bytes:
        if self.raw is None:
            self.raw = self._encode()
        return string(self.name) + struct.pack("<I", self.type & 0xFFFFFFFF) + self.raw

    def changed(self, **fields: Any) -> Key:
        """A copy with other fields, to be encoded anew."""
        return Key(**{"name": self.name, "type": self.type, "value": self.value, "element": self.element, **fields})

    def _encode(self) -> bytes:
        if self.type != ARRAY:
            return _scalar(self.type, self.value)
        values = self.value if isinstance(self.value, list) else []
        count = len(values) if self.count is None else self.count
        head = struct.pack("<IQ", self.element & 0xFFFFFFFF, count & (1 << 64) - 1)
        return head + b"".join(_scalar(self.element, v) for v in values)


def _scalar(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return string(value if isinstance(value, bytes) else str(value).encode())
    code = CODES.get(kind, "<I")
    if not isinstance(value, (int, float)):
        return bytes(8)
    if code[1] in "fd":
        try:
            return struct.pack(code, value)
        except OverflowError:
            return struct.pack(code, float("inf"))
    whole = int(value) if value == value and abs(value) != float("inf") else 0
    return (whole & (1 << 64) - 1).to_bytes(8, "little")[: struct.calcsize(code)]


@dataclass
class Entry:
    """A tensor. ne: dims, the contiguous one first. offset, n_dims: instead of the true ones."""

    name: bytes
    ne: list[int]
    type: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None

    def fit(self) -> None:
        """Give it as many bytes as its dims and type need, by repetition; leave it where that is absurd."""
        n = 1
        for dim in self.ne:
            n *= dim
        try:
            need = QType(self.type).n_bytes(n)
        except ValueError:
            return
        if 0 < need <= MAX_DATA and self.data:
            self.data = (self.data * (need // len(self.data) + 1))[:need]


@dataclass
class Image:
    """A file. n_tensors, n_keys: instead of the true counts."""

    keys: list[Key]
    tensors: list[Entry]
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_keys: int | None = None
    alignment: int = 32
    notes: list[str] = field(default_factory=list)

    def copy(self) -> Image:
        """Its own lists and tensors; keys are shared, and replaced rather than written."""
        out = copy.copy(self)
        out.keys, out.tensors, out.notes = list(self.keys), [copy.copy(t) for t in self.tensors], []
        for t in out.tensors:
            t.ne = list(t.ne)
        return out

    def find(self, name: bytes) -> int | None:
        """Where the key is."""
        return next((i for i, k in enumerate(self.keys) if k.name == name), None)

    def to_bytes(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        mask = (1 << 64) - 1
        out = [self.magic, struct.pack("<IQQ", self.version & 0xFFFFFFFF, n_tensors & mask, n_keys & mask)]
        out += [k.encode() for k in self.keys]
        at = 0
        body: list[bytes] = []
        for t in self.tensors:
            dims = struct.pack(f"<{len(t.ne)}Q", *(d & mask for d in t.ne))
            n_dims = len(t.ne) if t.n_dims is None else t.n_dims
            offset = at if t.offset is None else t.offset
            tail = struct.pack("<IQ", t.type & 0xFFFFFFFF, offset & mask)
            out.append(string(t.name) + struct.pack("<I", n_dims & 0xFFFFFFFF) + dims + tail)
            body += [t.data, bytes(-len(t.data) % self.alignment)]
            at += len(t.data) + len(body[-1])
        head = b"".join(out)
        return b"".join([head, bytes(-len(head) % self.alignment), *body])

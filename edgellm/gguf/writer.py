"""Writes GGUF version 3: for tests, synthetic models and tools.

    write("m.gguf", {"general.architecture": "llama", "llama.block_count": 2},
          [Tensor("output_norm.weight", (64,), QType.F32, norm.tobytes())])

Types are taken from the Python values: bool; int as u32 where it fits, else i32, u64, i64; float as f32; str;
lists of one kind; NumPy arrays by dtype. `Typed` states another type. `general.alignment` among the metadata
is obeyed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import GGUFError
from edgellm.core.record import dataclass
from edgellm.gguf.header import DEFAULT_ALIGNMENT
from edgellm.gguf.qtypes import QType
from edgellm.gguf.values import DTYPES, StringArray, ValueType

Chunk = bytes | bytearray | memoryview | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its type stated; `element` is the type of the elements of an array."""

    value: Any
    type: ValueType
    element: ValueType | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to write.

    shape: outermost first. data: its bytes, or a function that yields them in pieces (for models larger than
    memory); their length must be what shape and type need.
    """

    name: str
    shape: tuple[int, ...]
    qtype: QType
    data: Chunk | Callable[[], Iterable[Chunk]]

    @property
    def n_bytes(self) -> int:
        n = 1
        for dim in self.shape:
            n *= dim
        return self.qtype.n_bytes(n)


def write(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
) -> Path:
    """Writes one file; replaces an existing one only when the new one is complete. Returns its path.

    GGUFError for values that GGUF cannot hold and for tensors whose bytes do not match their shape.
    """
    path, alignment = Path(path), _alignment(metadata)
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            file.write(header_bytes(metadata, tensors, version=version))
            for tensor in tensors:
                _pad(file, alignment)
                _write_data(file, tensor)
            _pad(file, alignment)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


def write_split(
    stem: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    shards: Sequence[Sequence[Tensor]],
) -> list[Path]:
    """Writes a model as `stem-00001-of-0000N.gguf` …, one file a list of tensors. Returns their paths."""
    count = len(shards)
    if not 1 <= count < 1 << 16:
        raise GGUFError(f"a model cannot be split into {count} files")
    stem, total = Path(stem), sum(len(s) for s in shards)
    common = {k: v for k, v in metadata.items() if k == "general.alignment"}
    paths = []
    for i, tensors in enumerate(shards):
        keys: dict[str, Any] = {
            "split.no": Typed(i, ValueType.U16),
            "split.count": Typed(count, ValueType.U16),
            "split.tensors.count": Typed(total, ValueType.I32),
        }
        path = stem.with_name(f"{stem.name}-{i + 1:05d}-of-{count:05d}.gguf")
        paths.append(write(path, {**(common if i else metadata), **keys}, tensors))
    return paths


def header_bytes(
    metadata: Mapping[str, Any],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
) -> bytes:
    """Everything before the tensors' bytes, without the padding."""
    alignment = _alignment(metadata)
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        out += [_string(key), *_value(key, value)]
    offset = 0
    for t in tensors:
        ne = t.shape[::-1]
        if not ne or ne[0] % t.qtype.block:
            raise GGUFError(f"tensor {t.name!r}: shape {t.shape} has no rows of whole {t.qtype} blocks")
        out += [_string(t.name), struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, int(t.qtype), offset)]
        offset += -(-t.n_bytes // alignment) * alignment
    return b"".join(out)


def _alignment(metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    return value if isinstance(value, int) and value > 0 else DEFAULT_ALIGNMENT


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _write_data(file: BinaryIO, tensor: Tensor) -> None:
    start = file.tell()
    for piece in tensor.data() if callable(tensor.data) else (tensor.data,):
        file.write(np.ascontiguousarray(piece).data if isinstance(piece, np.ndarray) else piece)
    written = file.tell() - start
    if written != tensor.n_bytes:
        raise GGUFError(
            f"tensor {tensor.name!r}: {written} bytes given, but shape {tensor.shape} in {tensor.qtype} "
            f"needs {tensor.n_bytes}"
        )


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Any) -> Iterator[bytes]:
    """Type and value of one key, in pieces."""
    if not isinstance(value, Typed):
        value = _infer(key, value)
    yield struct.pack("<I", value.type)
    if value.type is not ValueType.ARRAY:
        yield _scalar(key, value.type, value.value)
        return
    if value.element is None or value.element is ValueType.ARRAY:
        raise GGUFError(f"metadata key {key!r}: an array needs an element type other than array")
    yield struct.pack("<IQ", value.element, len(value.value))
    if value.element is ValueType.STRING:
        yield b"".join(_string(s) for s in value.value)
    else:
        yield b"".join(_scalar(key, value.element, v) for v in value.value)


def _scalar(key: str, kind: ValueType, value: Any) -> bytes:
    if kind is ValueType.STRING:
        return _string(value)
    try:
        return struct.pack(_CODES[kind], value)
    except (struct.error, OverflowError) as e:
        raise GGUFError(f"metadata key {key!r}: {value!r} does not fit {kind}: {e}") from e


_OF_DTYPE = {dtype: kind for kind, dtype in DTYPES.items()}
_CODES = {
    ValueType.U8: "<B",
    ValueType.I8: "<b",
    ValueType.U16: "<H",
    ValueType.I16: "<h",
    ValueType.U32: "<I",
    ValueType.I32: "<i",
    ValueType.F32: "<f",
    ValueType.BOOL: "<?",
    ValueType.U64: "<Q",
    ValueType.I64: "<q",
    ValueType.F64: "<d",
}


def _infer(key: str, value: Any) -> Typed:
    if isinstance(value, np.ndarray):
        kind = _OF_DTYPE.get(value.dtype)
        if kind is None or value.ndim != 1:
            found = f"{value.dtype}{list(value.shape)}"
            raise GGUFError(f"metadata key {key!r}: GGUF cannot hold an array {found}")
        return Typed(value.tolist(), ValueType.ARRAY, kind)
    if isinstance(value, StringArray):
        return Typed([value.raw(i) for i in range(len(value))], ValueType.ARRAY, ValueType.STRING)
    if isinstance(value, list | tuple):
        kinds = {_kind(key, v) for v in value}
        if len(kinds) > 1 and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            kinds = {_widest(value)}
        if len(kinds) != 1:
            raise GGUFError(f"metadata key {key!r}: the elements of a list must have one type (use Typed)")
        return Typed(value, ValueType.ARRAY, kinds.pop())
    return Typed(value, _kind(key, value))


def _kind(key: str, value: Any) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        return _widest([value])
    if isinstance(value, float):
        return ValueType.F32
    if isinstance(value, str | bytes):
        return ValueType.STRING
    raise GGUFError(f"metadata key {key!r}: GGUF cannot hold a {type(value).__name__}")


def _widest(values: Sequence[int]) -> ValueType:
    low, high = min(values), max(values)
    if low >= 0:
        return ValueType.U32 if high < 1 << 32 else ValueType.U64
    return ValueType.I32 if low >= -(1 << 31) and high < 1 << 31 else ValueType.I64

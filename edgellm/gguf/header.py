"""Parses the header of one GGUF file: metadata and the tensor directory, everything checked against the file.

    magic "GGUF" · u32 version · u64 tensors · u64 keys
    key:     string name · u32 type · value (an array: u32 element type · u64 count · elements)
    tensor:  string name · u32 n_dims · u64 dims (contiguous one first) · u32 type · u64 offset
    padding to general.alignment (default 32), then the tensors' bytes; offsets count from there

A string is a u64 length and that many bytes; all numbers are little-endian. (Source: the GGUF specification.)
"""

from __future__ import annotations

import itertools
import math

from edgellm.core.errors import GGUFError
from edgellm.core.record import dataclass
from edgellm.gguf.cursor import MAX_HEADER_BYTES, Cursor, More
from edgellm.gguf.qtypes import QType, qtype_from_id
from edgellm.gguf.values import Bytes, KVType, Value, ValueType

# Bounds on what a file may declare. Real files stay far below; they keep hostile ones from filling memory.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_KEY_BYTES = (1 << 16) - 1
MAX_NAME_BYTES = 1024
MAX_STRINGS = 1 << 24
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 48

DEFAULT_ALIGNMENT = 32
VERSIONS = (2, 3)

# Least bytes of a key (length, one character, type, value) and of a tensor entry (length, one character,
# n_dims, one dim, type, offset).
_MIN_KEY = 8 + 1 + 4 + 1
_MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the directory.

    Attributes:
        name: unique in the model.
        shape: outermost first, as NumPy has it; 1 to 4 dims, none zero. A matmul weight is [N, K].
        qtype: storage type; the last dim fills whole blocks of it.
        n_elements, n_bytes: in total.
        shard: index of the file that holds it (0 unless the model is split).
        offset: first byte, counted from the start of that file.
    """

    name: str
    shape: tuple[int, ...]
    qtype: QType
    n_elements: int
    n_bytes: int
    shard: int
    offset: int

    @property
    def ne(self) -> tuple[int, ...]:
        """The dims in GGUF's own order: contiguous one first."""
        return self.shape[::-1]


@dataclass(frozen=True, slots=True)
class Header:
    """What one file declares. `data_start`: the byte where tensor data begins, or would."""

    version: int
    metadata: dict[str, Value]
    kv_types: dict[str, KVType]
    tensors: dict[str, TensorInfo]
    data_start: int


def parse_header(
    data: Bytes, where: str, shard: int = 0, *, size: int | None = None, more: More | None = None
) -> Header:
    """Parses and checks the whole header of a file; GGUFError says what is wrong.

    data: the file's bytes, or the first ones of `size`; `more` (see Cursor) is then asked for as many as it takes.
    """
    cur = Cursor(data, where, size, more)
    version = _check_magic(cur)
    n_tensors = cur.count("the number of tensors", min_bytes=_MIN_TENSOR, limit=MAX_TENSORS)
    n_keys = cur.count("the number of metadata keys", min_bytes=_MIN_KEY, limit=MAX_KEYS)
    metadata: dict[str, Value] = {}
    kv_types: dict[str, KVType] = {}
    for i in range(n_keys):
        key = cur.name(f"the name of metadata key {i + 1} of {n_keys}", limit=MAX_KEY_BYTES)
        if key in metadata:
            cur.fail(f"metadata key {key!r} appears twice; the file is damaged")
        metadata[key], kv_types[key] = _read_value(cur, key)
    alignment = _alignment(cur, metadata, kv_types)
    entries = [_read_tensor(cur, i, n_tensors) for i in range(n_tensors)]
    data_start = -(-cur.pos // alignment) * alignment
    tensors = _place(cur, entries, data_start, alignment, shard)
    return Header(version, metadata, kv_types, tensors, data_start)


def _check_magic(cur: Cursor) -> int:
    """Reads magic and version. Returns the version; explains whatever else the file is."""
    head = cur.data[:512].tobytes()
    if not head:
        cur.fail("the file is empty (0 bytes); the download failed: fetch it again")
    if head[:4] != b"GGUF":
        cur.fail(_what_is_it(head))
    cur.pos = 4
    version = cur.u32("the version")
    if version & 0xFFFF == 0 and version:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        cur.fail(
            f"the file is big-endian (version {swapped} with its bytes swapped); "
            f"only little-endian GGUF is supported: use the little-endian file of this model"
        )
    if version not in VERSIONS:
        older = "made by a tool from 2023" if version < VERSIONS[0] else "newer than this version of edgellm"
        cur.fail(f"GGUF version {version} is not supported (supported: 2 and 3): it is {older}")
    return version


def _what_is_it(head: bytes) -> str:
    """Says what a file that does not begin with GGUF's magic seems to be."""
    text = head.lstrip().lower()
    names = ("GGML", "GGMF", "GGJT", "GGLA")  # in the files mostly as a number, so backwards
    old = {spelt.encode(): n for n in names for spelt in (n, n.lower(), n.lower()[::-1])}
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        kind = "a web page (HTML): the link led to a page, a login or an error, not to the file"
    elif head[:4] in old:
        kind = f"a model in the {old[head[:4]]} format, which GGUF replaced in 2023: use a GGUF of this model"
    elif head[:4] == b"FUGG":
        kind = "a GGUF file with its bytes swapped, from a big-endian machine: use the little-endian file of this model"
    elif head.startswith(b"version https://git-lfs"):
        kind = "a Git LFS pointer, not the file itself: run `git lfs pull`, or download the file"
    elif head[:4] == b"PK\x03\x04":
        kind = "a zip archive (a PyTorch checkpoint or a wheel): use a GGUF of this model"
    elif head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd" or head[:6] == b"\xfd7zXZ\x00":
        kind = "a compressed file: unpack it first"
    elif head[8:9] == b"{":
        kind = "a safetensors file: use a GGUF of this model, or convert it"
    elif text.startswith((b"{", b"[")):
        kind = "JSON text, perhaps a server's error message saved as a model"
    elif not head.strip(b"\0"):
        kind = "zeros, as an interrupted download leaves them: fetch it again"
    else:
        kind = "something else"
    return f"not a GGUF file: it begins with {head[:16]!r}, expected b'GGUF'. It seems to be {kind}."


def _read_value(cur: Cursor, key: str) -> tuple[Value, KVType]:
    what = f"metadata key {key!r}"
    kind = cur.value_type(what)
    if kind is not ValueType.ARRAY:
        # Descriptions (name, author, licence text) must not keep a model from loading.
        errors = "replace" if key.startswith("general.") else "strict"
        return cur.scalar(kind, what, errors), KVType(kind)
    element = cur.value_type(f"the elements of {what}")
    if element is ValueType.ARRAY:
        cur.fail(f"{what} is an array of arrays; no known model has one, and it is not supported")
    limit = MAX_STRINGS if element is ValueType.STRING else MAX_HEADER_BYTES
    count = cur.count(f"the element count of {what}", min_bytes=1, limit=limit)
    return cur.array(element, count, what, key), KVType(kind, element, count)


def _alignment(cur: Cursor, metadata: dict[str, Value], kv_types: dict[str, KVType]) -> int:
    key = "general.alignment"
    value = metadata.get(key, DEFAULT_ALIGNMENT)
    if key in kv_types and kv_types[key].type is not ValueType.U32:
        cur.fail(f"{key} has type {kv_types[key]}; expected u32")
    if not isinstance(value, int) or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        cur.fail(f"{key} is {value}; expected a power of two from 1 to {MAX_ALIGNMENT}")
    return value


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    qtype: QType
    offset: int


def _read_tensor(cur: Cursor, index: int, total: int) -> _Entry:
    name = cur.name(f"the name of tensor {index + 1} of {total}", limit=MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    n_dims = cur.u32(f"the number of dims of {what}")
    if not 1 <= n_dims <= MAX_DIMS:
        cur.fail(f"{what} has {n_dims} dims; expected 1 to {MAX_DIMS}")
    ne = tuple(cur.u64(f"dim {k} of {what}") for k in range(n_dims))
    n_elements = math.prod(ne)
    if 0 in ne:
        cur.fail(f"{what} has a dim of zero: {list(ne)}")
    if n_elements > MAX_ELEMENTS:
        cur.fail(f"{what} has dims {list(ne)}: more than {MAX_ELEMENTS} elements are not plausible")
    type_id = cur.u32(f"the type of {what}")
    try:
        qtype = qtype_from_id(type_id)
    except GGUFError as e:
        cur.fail(f"{what}: {e}")
    if ne[0] % qtype.block:
        cur.fail(f"{what} has rows of {ne[0]} elements; {qtype} needs a multiple of {qtype.block}")
    return _Entry(name, ne[::-1], qtype, cur.u64(f"the offset of {what}"))


def _place(cur: Cursor, entries: list[_Entry], data_start: int, alignment: int, shard: int) -> dict[str, TensorInfo]:
    """Checks names, alignment, extents and overlap; returns the directory in file order."""
    tensors: dict[str, TensorInfo] = {}
    for e in entries:
        if e.name in tensors:
            cur.fail(f"tensor {e.name!r} appears twice; the file is damaged")
        if e.offset % alignment:
            cur.fail(f"tensor {e.name!r} has offset {e.offset}, which is not a multiple of {alignment}")
        n = math.prod(e.shape)
        size = e.qtype.n_bytes(n)
        tensors[e.name] = TensorInfo(e.name, e.shape, e.qtype, n, size, shard, data_start + e.offset)

    # All tensors packed without gaps end here: an offset beyond is nonsense, not the sign of a cut file.
    packed = data_start + sum(-(-t.n_bytes // alignment) * alignment for t in tensors.values())
    ordered = sorted(tensors.values(), key=lambda t: t.offset)
    cut = [t for t in ordered if t.offset + t.n_bytes > cur.end]
    for t in cut:
        if t.offset >= packed:
            cur.fail(
                f"tensor {t.name!r} begins at byte {t.offset}, but all tensors together end at byte {packed} "
                f"and the file has {cur.end} bytes; the file is damaged: download it again"
            )
    if cut:
        missing = max(t.offset + t.n_bytes for t in cut) - cur.end
        cur.fail(
            f"the file is truncated by {missing} bytes: it has {cur.end}, but tensor {cut[0].name!r} "
            f"needs bytes {cut[0].offset} to {cut[0].offset + cut[0].n_bytes} and "
            f"{len(cut)} of {len(tensors)} tensors are cut off. Download it again (or resume the download)."
        )
    for a, b in itertools.pairwise(ordered):
        if a.offset + a.n_bytes > b.offset:
            cur.fail(f"tensors {a.name!r} and {b.name!r} overlap at byte {b.offset}; the file is damaged")
    return tensors

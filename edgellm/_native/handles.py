"""The native engine as a Python object: arrays in, arrays out, error codes as exceptions.

    engine = Engine(program, EngineConfig(max_tokens=512, ...))
    out = engine.step(batch)          # one native call, the GIL released
    engine.close()

`Engine` copies nothing of the weights: it keeps the arrays of its `NativeModel` alive until it is closed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgellm._native.library import ffi, lib
from edgellm.core.errors import CapacityError, EngineError, NativeError, UnsupportedModel
from edgellm.core.types import F32, I32, Batch, StepOutput

OP_DTYPE = np.dtype([("code", "<i4"), ("v", "<i4", (4, 3)), ("w", "<i4", (8,)), ("i", "<i4", (7,)), ("f", "<f4", (4,))])
"""struct el_op; what the fields mean stands in edgellm.h."""

KV_TYPES = {"f16": 0, "f32": 1}
_I32 = np.dtype(np.int32)
_F32 = np.dtype(np.float32)


class BufferSpec(NamedTuple):
    """struct el_buffer: axis 0 tokens, 1 output rows; dtype 0 float32, 1 int32."""

    width: int
    axis: int = 0
    dtype: int = 0


class CacheLayerSpec(NamedTuple):
    """struct el_cache_layer."""

    cls: int
    layer: int
    n_heads: int
    k_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """n_stack * n_rows rows of n_cols weights in the file's layout.

    data: bytes-like, C-contiguous, any alignment (a view of the mapped file). pack: repack into tiles at load.
    """

    data: Any
    qtype: int
    n_rows: int
    n_cols: int
    n_stack: int = 1
    pack: bool = True


@dataclass(frozen=True, slots=True)
class NativeModel:
    """el_model: everything an engine is made from. Matrix i is w index i, vector i is VECTOR_BASE + i.

    ops: [N] of OP_DTYPE. vectors: float32, any shape. ropes: (cos, sin), each float32 [n_positions, n_rot / 2];
    their rows may be filled after the engine is made, before a step needs them. logits: index of the [R, V] buffer.
    """

    ops: NDArray[np.void]
    buffers: Sequence[BufferSpec]
    matrices: Sequence[Matrix]
    vectors: Sequence[F32]
    ropes: Sequence[tuple[F32, F32]]
    cache_layers: Sequence[CacheLayerSpec]
    n_classes: int
    n_act_slots: int
    n_vocab: int
    logits: int


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """el_config. n_threads 0: automatic. isa None: the best level. n_pages: one number per cache class."""

    max_tokens: int
    max_rows: int
    max_seqs: int
    n_ctx: int
    n_pages: Sequence[int]
    n_threads: int = 0
    k_type: str = "f16"
    v_type: str = "f16"
    isa: str | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine chose and holds. scratch and cache are address space; memory only where it was written."""

    isa: str
    n_threads: int
    weight_bytes: int
    scratch_bytes: int
    cache_bytes: int


def raise_error(code: int, message: str) -> NoReturn:
    """The exception for a status code of the library."""
    if code == 2:  # EL_E_UNSUPPORTED
        raise UnsupportedModel(message)
    if code == 3:  # EL_E_MEMORY
        raise CapacityError(message)
    raise NativeError(message, code)


class Engine:
    """Owns an el_engine. One thread at a time; usable only in the process that made it.

    Raises at construction: NativeError (malformed, or the system refused), UnsupportedModel (an op, weight type or ISA
    level this library does not have), CapacityError (memory), ValueError (an array of another type or shape).
    """

    __slots__ = (
        "__weakref__", "_c_batch", "_c_err", "_c_out", "_c_pages", "_c_strides", "_finalizer", "_lib", "_n_classes",
        "_n_vocab", "_pid", "_pointer", "_step", "info",
    )  # fmt: skip

    def __init__(self, model: NativeModel, config: EngineConfig) -> None:
        self._lib = lib()
        self._pid = os.getpid()
        c_model, keep = _c_model(model)
        c_config, keep_config = _c_config(config, model.n_classes)
        err = ffi.new("el_error *")
        pointer = self._lib.el_engine_new(c_model, c_config, err)
        del keep_config
        if pointer == ffi.NULL:
            raise_error(err.code, _text(err.message))
        self._pointer = pointer
        self._finalizer = weakref.finalize(self, _free, self._lib, pointer, self._pid, keep)
        self._n_classes, self._n_vocab = model.n_classes, model.n_vocab
        self.info = _info(self._lib, pointer)
        self._c_batch = ffi.new("el_batch *", {"size": ffi.sizeof("el_batch")})
        self._c_out = ffi.new("el_output *")
        self._c_err = err
        self._c_pages = ffi.new("int32_t *[]", max(1, self._n_classes))
        self._c_strides = ffi.new("int32_t []", max(1, self._n_classes))
        self._c_batch.pages = self._c_pages
        self._c_batch.page_stride = self._c_strides
        self._step = self._lib.el_step

    def step(self, batch: Batch) -> StepOutput:
        """Compute one step.

        Raises NativeError or ValueError on a malformed batch, EngineError when closed or in a forked child.
        """
        pointer = self._alive()
        b = self._c_batch
        n_tokens, n_seqs, n_rows = len(batch.tokens), len(batch.seq_start) - 1, len(batch.rows)
        top_k = batch.top_k if n_rows else 0
        b.n_tokens, b.n_seqs, b.n_rows, b.top_k = n_tokens, n_seqs, n_rows, top_k
        tokens = b.tokens = _ints(batch.tokens, n_tokens, "tokens")
        positions = b.positions = _ints(batch.positions, n_tokens, "positions")
        seq_start = b.seq_start = _ints(batch.seq_start, n_seqs + 1, "seq_start")
        rows = b.rows = _ints(batch.rows, n_rows, "rows")
        keep: list[Any] = [tokens, positions, seq_start, rows]
        if len(batch.pages) != self._n_classes:
            raise ValueError(f"batch.pages has {len(batch.pages)} block tables, expected {self._n_classes}")
        for c, table in enumerate(batch.pages):
            if table.ndim != 2 or table.shape[0] != n_seqs:
                raise ValueError(f"batch.pages[{c}] has shape {table.shape}, expected ({n_seqs}, pages)")
            entries = self._c_pages[c] = _ints(table, table.size, "pages")
            self._c_strides[c] = table.shape[1]
            keep.append(entries)
        edits = batch.adjust
        n = b.n_adjust = 0 if edits is None else len(edits.row)
        if edits is not None and n:
            row = b.adj_row = _ints(edits.row, n, "adjust.row")
            token = b.adj_token = _ints(edits.token, n, "adjust.token")
            rep = b.adj_rep = _floats(edits.rep, n, "adjust.rep")
            add = b.adj_add = _floats(edits.add, n, "adjust.add")
            keep += (row, token, rep, add)

        if not 0 <= top_k <= 1024 or n_seqs < 1:  # arrays are made from these before the library checks them
            raise ValueError(f"batch.top_k is {top_k} and n_seqs {n_seqs}, expected 0 to 1024 and at least 1")
        out = self._c_out
        result = StepOutput(
            top_ids=np.empty((n_rows, top_k), _I32),
            top_logits=np.empty((n_rows, top_k), _F32),
            status=np.empty(n_seqs, _I32),
            lse=np.empty(n_rows, _F32) if batch.want_lse else None,
            logits=np.empty((n_rows, self._n_vocab), _F32) if batch.want_logits else None,
        )
        status = out.status = ffi.from_buffer("int32_t[]", result.status)
        keep.append(status)
        if top_k:
            ids = out.top_ids = ffi.from_buffer("int32_t[]", result.top_ids)
            values = out.top_logits = ffi.from_buffer("float[]", result.top_logits)
            keep += (ids, values)
        out.lse = out.logits = ffi.NULL
        if result.lse is not None and n_rows:
            lse = out.lse = ffi.from_buffer("float[]", result.lse)
            keep.append(lse)
        if result.logits is not None and n_rows:
            logits = out.logits = ffi.from_buffer("float[]", result.logits)
            keep.append(logits)
        code = self._step(pointer, b, out, self._c_err)
        if code:
            raise_error(code, _text(self._c_err.message))
        return result

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy page `src` to `dst` in every layer of cache class `cls`."""
        code = self._lib.el_copy_page(self._alive(), cls, src, dst, self._c_err)
        if code:
            raise_error(code, _text(self._c_err.message))

    def release_pages(self, cls: int, pages: I32) -> None:
        """Give the memory of pages of class `cls` back to the system: their contents become undefined."""
        n = len(pages)
        code = self._lib.el_release_pages(self._alive(), cls, _ints(pages, n, "pages"), n, self._c_err)
        if code:
            raise_error(code, _text(self._c_err.message))

    def close(self) -> None:
        """Stop the threads and free the memory. Idempotent."""
        self._finalizer()
        self._pointer = None

    def _alive(self) -> Any:
        if self._pointer is None:
            raise EngineError("the engine is closed: open the model again")
        if os.getpid() != self._pid:
            raise EngineError(
                f"this engine belongs to process {self._pid} and its threads do not exist in a forked child "
                f"({os.getpid()}): open the model after the fork, or start the child with the 'spawn' method"
            )
        return self._pointer


def _free(library: Any, pointer: Any, pid: int, keep: object) -> None:
    if os.getpid() == pid:  # a forked child has no pool threads to join
        library.el_engine_free(pointer)


def _text(message: Any) -> str:
    return bytes(ffi.string(message)).decode("utf-8", "replace")


def _ints(array: I32, n: int, name: str) -> Any:
    if array.dtype != _I32 or array.size != n:
        raise ValueError(f"batch.{name} is {array.dtype}{list(array.shape)}, expected int32 with {n} entries")
    return ffi.from_buffer("int32_t[]", array)


def _floats(array: F32, n: int, name: str) -> Any:
    if array.dtype != _F32 or array.size != n:
        raise ValueError(f"batch.{name} is {array.dtype}{list(array.shape)}, expected float32 with {n} entries")
    return ffi.from_buffer("float[]", array)


def _info(library: Any, pointer: Any) -> EngineInfo:
    info = ffi.new("el_info *")
    library.el_engine_info(pointer, info)
    return EngineInfo(_text(info.isa), info.n_threads, info.weight_bytes, info.scratch_bytes, info.cache_bytes)


def _table(keep: list[Any], struct: str, rows: Sequence[tuple[Any, ...]]) -> Any:
    array = ffi.new(f"{struct}[]", list(rows)) if rows else ffi.NULL
    keep.append(array)
    return array


def _float_pointer(keep: list[Any], array: F32, what: str) -> Any:
    if array.dtype != _F32:
        raise ValueError(f"{what} is {array.dtype}, expected float32")
    pointer = ffi.from_buffer("float[]", array)
    keep.append(pointer)
    return pointer


def _c_model(m: NativeModel) -> tuple[Any, list[Any]]:
    """The el_model, and what must live as long as it is used."""
    if m.ops.dtype != OP_DTYPE or m.ops.ndim != 1:
        raise ValueError(f"ops is {m.ops.dtype}{list(m.ops.shape)}, expected a vector of {OP_DTYPE}")
    ops = ffi.from_buffer("el_op[]", m.ops)
    keep: list[Any] = [ops]
    weights = []
    for w in m.matrices:
        data = ffi.from_buffer(w.data)
        keep.append(data)
        weights.append((data, len(data), w.qtype, w.n_rows, w.n_cols, w.n_stack, int(w.pack)))
    vectors = [(_float_pointer(keep, v, f"vector {i}"), v.size) for i, v in enumerate(m.vectors)]
    ropes = []
    for i, (cos, sin) in enumerate(m.ropes):
        if cos.ndim != 2 or cos.shape != sin.shape:
            raise ValueError(f"rope table {i} has shapes {cos.shape} and {sin.shape}, expected [positions, n_rot / 2]")
        pair = [_float_pointer(keep, table, f"rope table {i}") for table in (cos, sin)]
        ropes.append((*pair, cos.shape[0], 2 * cos.shape[1]))
    model = ffi.new("el_model *")
    model.size = ffi.sizeof("el_model")
    model.n_ops, model.ops = len(m.ops), ops
    model.n_buffers, model.buffers = len(m.buffers), _table(keep, "el_buffer", m.buffers)
    model.n_weights, model.weights = len(weights), _table(keep, "el_weight", weights)
    model.n_vectors, model.vectors = len(vectors), _table(keep, "el_vector", vectors)
    model.n_ropes, model.ropes = len(ropes), _table(keep, "el_rope", ropes)
    model.n_cache_layers = len(m.cache_layers)
    model.cache_layers = _table(keep, "el_cache_layer", m.cache_layers)
    model.n_classes, model.n_act_slots = m.n_classes, m.n_act_slots
    model.n_vocab, model.logits = m.n_vocab, m.logits
    return model, keep


def _c_config(c: EngineConfig, n_classes: int) -> tuple[Any, list[Any]]:
    if len(c.n_pages) != n_classes:
        raise ValueError(f"n_pages has {len(c.n_pages)} entries, expected one for each of {n_classes} cache classes")
    for name in (c.k_type, c.v_type):
        if name not in KV_TYPES:
            raise ValueError(f"kv type {name!r}, expected {' or '.join(KV_TYPES)}")
    n_pages = ffi.new("int32_t[]", list(c.n_pages) or [0])
    isa = ffi.new("char[]", c.isa.encode()) if c.isa else ffi.NULL
    config = ffi.new("el_config *")
    config.size = ffi.sizeof("el_config")
    config.n_threads, config.max_tokens, config.max_rows = c.n_threads, c.max_tokens, c.max_rows
    config.max_seqs, config.n_ctx = c.max_seqs, c.n_ctx
    config.k_type, config.v_type = KV_TYPES[c.k_type], KV_TYPES[c.v_type]
    config.n_pages, config.isa = n_pages, isa
    return config, [n_pages, isa]

"""The native engine as a Python object: arrays in, arrays out, error codes as exceptions.

    engine = Engine(program, EngineConfig(max_tokens=512, ...))
    out = engine.step(batch)          # one native call, the GIL released
    out = engine.run(batch, picks, n_steps=8, ends=(2,))      # the same, several decode steps at once
    engine.close()

`Engine` copies nothing of the weights: it keeps the arrays of its `NativeModel` alive until it is closed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgellm._native.arrays import EditArrays, StepArrays, copy_in
from edgellm._native.library import ffi, lib
from edgellm.core.errors import CapacityError, EngineError, NativeError, UnsupportedModel
from edgellm.core.kv import KV_FORMATS
from edgellm.core.record import dataclass
from edgellm.core.types import F32, I32, Batch, Edits, Pick, RunOutput, StepOutput

OP_DTYPE = np.dtype([("code", "<i4"), ("v", "<i4", (4, 3)), ("w", "<i4", (8,)), ("i", "<i4", (7,)), ("f", "<f4", (4,))])
"""struct el_op; what the fields mean stands in edgellm.h."""

PHASE_TIME_DTYPE = np.dtype(
    [("first_op", "<i4"), ("n_ops", "<i4"), ("n_runs", "<i8"), ("wall", "<i8"), ("busy", "<i8")]
)
"""struct el_phase_time."""

EL_E_UNSUPPORTED, EL_E_MEMORY, EL_OP_LINEAR = 2, 3, 4
MAX_STEPS = 64
"""Most steps of one `Engine.run`."""

_F32 = np.dtype(np.float32)
_unpack = ffi.unpack

_process = [os.getpid()]
"""The running process: a list, so that a forked child can correct it (asking the system costs a call each time)."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


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
    source: descriptor of an open file and the offset of the same bytes in it, which repacking reads instead of data.
    tiles: bytes-like, what `pack_tiles` made of all rows, on a 64-byte line, to run from; then pack is False.
    """

    data: Any
    qtype: int
    n_rows: int
    n_cols: int
    n_stack: int = 1
    pack: bool = True
    source: tuple[int, int] | None = None
    tiles: Any = None


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
    """el_config. n_threads 0: automatic; n_decode_threads 0: as many. isa None: the best level. n_pages: one number per
    cache class. far_types: weight types whose kernels prefetch further ahead."""

    max_tokens: int
    max_rows: int
    max_seqs: int
    n_ctx: int
    n_pages: Sequence[int]
    n_threads: int = 0
    k_type: str = "f16"
    v_type: str = "f16"
    isa: str | None = None
    n_decode_threads: int = 0
    far_types: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine chose and holds. scratch and cache are address space; memory only where it was written."""

    isa: str
    n_threads: int
    weight_bytes: int
    scratch_bytes: int
    cache_bytes: int
    n_decode_threads: int = 0


class Engine:
    """Owns an el_engine. One thread at a time; usable only in the process that made it.

    Raises at construction: NativeError (malformed, or the system refused), UnsupportedModel (an op, weight type or ISA
    level this library does not have), CapacityError (memory), ValueError (an array of another type or shape).
    """

    __slots__ = (
        "__weakref__", "_begun", "_c_ends", "_c_picks", "_done", "_edits", "_ends", "_err", "_finalizer", "_halt",
        "_lib", "_main", "_n_done", "_new_arrays", "_pid", "_pointer", "_run_spec", "_run_tokens", "_side",
        "_step", "_times", "info",
    )  # fmt: skip

    def __init__(self, model: NativeModel, config: EngineConfig) -> None:
        self._lib = lib()
        self._pid = _process[0]
        c_model, keep = _c_model(model)
        c_config, keep_config = _c_config(config, model.n_classes)
        self._err = ffi.new("el_error *")
        pointer = self._lib.el_engine_new(c_model, c_config, self._err)
        del keep_config
        if pointer == ffi.NULL:
            self._raise(self._err.code)
        self._pointer = pointer
        self._finalizer = weakref.finalize(self, _free, self._lib, pointer, self._pid, keep)
        self.info = _info(self._lib, pointer)

        limits = config.max_tokens, config.max_seqs, config.max_rows
        self._new_arrays = partial(StepArrays, limits, model.n_classes, model.n_vocab, _n_hidden(model))
        self._main, self._step = self._new_arrays(), self._lib.el_step
        self._side: StepArrays | None = None
        self._begun: StepOutput | None = None
        self._done, self._n_done, self._halt = (ffi.new("int32_t *") for _ in range(3))
        self._c_picks = ffi.new("el_pick[]", config.max_seqs)
        self._ends: tuple[int, ...] = ()
        self._c_ends = ffi.NULL
        self._run_tokens = ffi.new("int32_t[]", MAX_STEPS * config.max_seqs)
        self._run_spec = ffi.new("el_run_spec *")
        self._run_spec.size = ffi.sizeof("el_run_spec")
        self._run_spec.picks, self._run_spec.halt = self._c_picks, self._halt
        self._run_spec.tokens = self._run_tokens
        self._edits = EditArrays(1)
        self._set_edit_room()

    def step(self, batch: Batch) -> StepOutput:
        """Compute one step.

        Raises NativeError or ValueError on a malformed batch, EngineError when closed or in a forked child.
        """
        pointer, arrays = self._alive(), self._main
        result = arrays.result_for(batch)
        code = self._step(pointer, arrays.batch, arrays.out, self._err)
        if code:
            self._raise(code)
        return arrays.fill(result)

    def begin(self, batch: Batch) -> None:
        """Begin a step that is computed in parts by `advance`; one that was not complete is given up.

        In between, `step` and `run` may compute sequences that write to other pages. Raises as `step` does, and
        CapacityError.
        """
        pointer = self._alive()
        if self._side is None:
            self._side = self._new_arrays()
        self._begun = None
        result = self._side.result_for(batch)
        code = self._lib.el_begin(pointer, self._side.batch, self._side.out, self._err)
        if code:
            self._raise(code)
        self._begun = result

    def advance(self, seconds: float) -> StepOutput | None:
        """Compute the step that was begun for about so long (inf: to its end); what came out, None where it is not
        complete yet. Raises as `step` does."""
        pointer, arrays, result = self._alive(), self._side, self._begun
        if arrays is None or result is None:
            raise NativeError("no step in parts was begun, or it is complete")
        nanoseconds = int(seconds * 1e9) if seconds < 1e9 else -1
        code = self._lib.el_continue(pointer, nanoseconds, self._done, self._err)
        if code:
            self._begun = None
            self._raise(code)
        if not self._done[0]:
            return None
        self._begun = None
        return arrays.fill(result)

    def run(self, batch: Batch, picks: Sequence[Pick], n_steps: int, ends: tuple[int, ...]) -> RunOutput:
        """Compute up to n_steps decode steps of a batch with one token and one output row per sequence.

        picks: one per sequence. ends: tokens after which the run stops; so it does when `halt` is called.
        Raises as `step` does.
        """
        pointer = self._alive()
        arrays = self._main
        n_seqs, _ = arrays.copy(batch)
        if len(picks) != n_seqs or not 1 <= n_steps <= MAX_STEPS:
            raise ValueError(f"{len(picks)} picks for {n_seqs} sequences, {n_steps} steps of at most {MAX_STEPS}")
        spec = self._run_spec
        if ends is not self._ends:
            self._ends, self._c_ends = ends, ffi.new("int32_t[]", ends or 1)
            spec.n_ends, spec.ends = len(ends), self._c_ends
        spec.n_steps = n_steps
        c_picks = self._c_picks
        kept: list[_Kept] = []
        for s, pick in enumerate(picks):
            p = c_picks[s]
            p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.choice, p.n_generated, edits = pick
            if edits is None:
                p.edits = ffi.NULL
            else:
                kept.append(self._kept(edits, n_steps))
                p.edits = kept[-1].c
        if kept and (need := sum([k.most + k.c.n_seen + n_steps for k in kept])) > self._edits.room:
            self._edits = EditArrays(2 * need)
            self._set_edit_room()
        code = self._lib.el_run(pointer, arrays.batch, spec, arrays.out, self._n_done, self._err)
        if code:
            for k in kept:
                k.n = -1
            self._raise(code)
        n_done = self._n_done[0]
        for k in kept:
            k.n += n_done
        tokens = _unpack(self._run_tokens, n_done * n_seqs)
        return RunOutput([tokens[s::n_seqs] for s in range(n_seqs)], _unpack(arrays.status, n_seqs))

    def _kept(self, edits: Edits, n_steps: int) -> _Kept:
        """The C side of a sequence's edits, having seen all its tokens and with room for n_steps more."""
        kept: _Kept | None = edits.kept
        n = len(edits.tokens)
        if kept is None or kept.n > n or kept.n < 0 or kept.c.n_tokens + n - kept.n + n_steps > kept.c.room:
            kept = edits.kept = _Kept(edits)
        if kept.n < n:
            new = edits.tokens[kept.n :]
            code = self._lib.el_edits_add(kept.c, ffi.new("int32_t[]", new), len(new), self._err)
            if code:
                self._raise(code)
            kept.n = n
        return kept

    def _set_edit_room(self) -> None:
        spec, e = self._run_spec, self._edits
        spec.edit_room, spec.edit_row, spec.edit_token = e.room, e.row, e.token
        spec.edit_rep, spec.edit_add = e.rep, e.add

    def halt(self, halted: bool = True) -> None:
        """Let `run` end after the step it is in, and every later one after its first, until halt(False). From any
        thread."""
        self._halt[0] = halted

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy page `src` to `dst` in every layer of cache class `cls`."""
        code = self._lib.el_copy_page(self._alive(), cls, src, dst, self._err)
        if code:
            self._raise(code)

    def read_page(self, cls: int, page: int, n_bytes: int) -> bytes:
        """The n_bytes of a page of class `cls`, all its layers."""
        data = bytearray(n_bytes)
        self._page_data(cls, page, data, False)
        return bytes(data)

    def write_page(self, cls: int, page: int, data: bytes | memoryview) -> None:
        """Set a page of class `cls` to what `read_page` returned."""
        self._page_data(cls, page, data, True)

    def _page_data(self, cls: int, page: int, data: bytes | bytearray | memoryview, write: bool) -> None:
        code = self._lib.el_page_data(self._alive(), cls, page, ffi.from_buffer(data), len(data), write, self._err)
        if code:
            self._raise(code)

    def release_pages(self, cls: int, pages: I32) -> None:
        """Give the memory of pages of class `cls` back to the system: their contents become undefined."""
        n = len(pages)
        ids = ffi.new("int32_t[]", n)
        copy_in(ids, pages, n, "pages")
        code = self._lib.el_release_pages(self._alive(), cls, ids, n, self._err)
        if code:
            self._raise(code)

    def time_phases(self, on: bool = True) -> NDArray[np.void]:
        """Let steps add what their phases take to the array that this returns, [phases + 1] of PHASE_TIME_DTYPE, in
        nanoseconds; the last is the selection. on=False: no longer (an empty array)."""
        pointer = self._alive()
        times = np.zeros(self._lib.el_n_phases(pointer) if on else 0, PHASE_TIME_DTYPE)
        array = ffi.from_buffer("el_phase_time[]", times) if on else ffi.NULL
        code = self._lib.el_time_phases(pointer, array, len(times), self._err)
        if code:
            self._raise(code)
        self._times = array  # alive as long as the library writes to it
        return times

    def close(self) -> None:
        """Stop the threads and free the memory. Idempotent."""
        self._finalizer()
        self._pointer = None

    def _alive(self) -> Any:
        if self._pointer is None:
            raise EngineError("the engine is closed: open the model again")
        if _process[0] != self._pid:
            raise EngineError(
                f"this engine belongs to process {self._pid} and its threads do not exist in a forked child "
                f"({_process[0]}): open the model after the fork, or start the child with the 'spawn' method"
            )
        return self._pointer

    def _raise(self, code: int) -> NoReturn:
        message = _text(self._err.message)
        if code == EL_E_UNSUPPORTED:
            raise UnsupportedModel(message)
        if code == EL_E_MEMORY:
            raise CapacityError(message)
        raise NativeError(message, code)


class _Kept:
    """The el_edits of a sequence, with its memory. n: how many of the sequence's tokens it has seen, or that come
    before those it has to see; -1: not known. most: edits that do not come from tokens seen."""

    __slots__ = ("_memory", "c", "most", "n")

    def __init__(self, e: Edits) -> None:
        n = len(e.tokens)
        self.n = n if e.last_n == 0 else 0 if e.last_n < 0 else max(0, n - e.last_n)
        room = 2 * (n - self.n) + 4 * MAX_STEPS if e.last_n else 0
        lists = (
            ffi.new("int32_t[]", list(e.bias)), ffi.new("double[]", list(e.bias.values())),
            ffi.new("int32_t[]", list(e.ends)),
        )  # fmt: skip
        memory = tuple(ffi.new("int32_t[]", room) for _ in range(3))
        self.most = len(e.bias) + len(e.ends)
        self._memory = lists, memory
        self.c = c = ffi.new("el_edits *")
        c.repeat, c.presence, c.frequency = e.repeat_penalty, e.presence_penalty, e.frequency_penalty
        c.min_tokens, c.last_n, c.room = e.min_tokens, e.last_n, room
        c.n_bias, c.n_ends = len(e.bias), len(e.ends)
        c.bias_tokens, c.bias, c.ends = lists
        c.tokens, c.seen, c.counts = memory


def _free(library: Any, pointer: Any, pid: int, keep: object) -> None:
    if os.getpid() == pid:  # a forked child has no pool threads to join
        library.el_engine_free(pointer)


def _n_hidden(model: NativeModel) -> int:
    """Columns of what the LINEAR multiplies that writes the logits; 0 where none does."""
    ops = model.ops
    heads = np.flatnonzero((ops["code"] == EL_OP_LINEAR) & (ops["v"][:, 1, 0] == model.logits))
    return int(ops["v"][heads[0], 0, 2]) if len(heads) else 0


def _text(message: Any) -> str:
    return bytes(ffi.string(message)).decode("utf-8", "replace")


def _info(library: Any, pointer: Any) -> EngineInfo:
    info = ffi.new("el_info *")
    library.el_engine_info(pointer, info)
    return EngineInfo(
        _text(info.isa),
        info.n_threads,
        info.weight_bytes,
        info.scratch_bytes,
        info.cache_bytes,
        info.n_decode_threads,
    )


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
        pack = int(w.pack) if w.source is None else 2 * int(w.pack)
        fd, offset = w.source or (-1, 0)
        tiles, n_tile_bytes = ffi.NULL, 0
        if w.tiles is not None:
            tiles = ffi.from_buffer(w.tiles)
            n_tile_bytes = len(tiles)
            keep.append(tiles)
        sizes = (w.qtype, w.n_rows, w.n_cols, w.n_stack)
        weights.append((data, len(data), *sizes, pack, fd, offset, tiles, n_tile_bytes))
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
        if name not in KV_FORMATS:
            raise ValueError(f"kv type {name!r}, expected one of {', '.join(KV_FORMATS)}")
    n_pages = ffi.new("int32_t[]", list(c.n_pages) or [0])
    isa = ffi.new("char[]", c.isa.encode()) if c.isa else ffi.NULL
    config = ffi.new("el_config *")
    config.size = ffi.sizeof("el_config")
    config.n_threads, config.max_tokens, config.max_rows = c.n_threads, c.max_tokens, c.max_rows
    config.max_seqs, config.n_ctx, config.n_decode_threads = c.max_seqs, c.n_ctx, c.n_decode_threads
    config.k_type, config.v_type = KV_FORMATS[c.k_type].code, KV_FORMATS[c.v_type].code
    config.n_pages, config.isa = n_pages, isa
    config.far_types = sum(1 << t for t in c.far_types)
    return config, [n_pages, isa]

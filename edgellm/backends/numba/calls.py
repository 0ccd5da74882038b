"""Calls of kernels as tables of words, and the entries that make a call of a row of words.

A row: the address of an entry, how many words the row has, then the arguments. An integer and a float32 are one word,
an array its address and its length, a tuple what its members are, None nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np.arrayobj import populate_array
from numpy.typing import NDArray

from edgellm.backends.numba.drive import ENTRY, I32, I64, STATE_WORDS, YIELD, drive
from edgellm.backends.numba.team import Team
from edgellm.backends.numba.vectors import types
from edgellm.core.errors import NativeError
from edgellm.core.record import dataclass

Array = NDArray[Any]
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Var:
    """An integer argument that is different in each step: Values.now[index]."""

    index: int


@dataclass(frozen=True, slots=True)
class Room:
    """An array argument that each thread has for itself: `length` elements from byte `offset` of its room."""

    dtype: Any
    offset: int
    length: int


class Rooms:
    """What each thread has for itself."""

    def __init__(self) -> None:
        self.n_bytes = 0

    def reserve(self, dtype: Any, length: int) -> Room:
        """Room for `length` elements more."""
        room = Room(np.dtype(dtype), self.n_bytes, length)
        self.n_bytes += -(-length * room.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return room


Shape = tuple[Any, ...]
"""The arguments of an entry: i an integer, f a float32, n None, (a, dtype) an array, (r, dtype) one in the room,
(t, ...) a tuple of these."""

_entries: dict[tuple[Any, Shape], int] = {}
_libraries: list[Any] = []  # whose code the entries are
_serial = count()


class Calls:
    """Calls in chunks, in phases: a phase begins when the one before is done."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._chunks: list[tuple[int, int]] = []
        self._entries: list[tuple[int, tuple[Any, Shape]]] = []
        self._vars: list[tuple[int, int]] = []
        self._kept: list[Array] = []  # whose addresses are among the words
        self._needs = 0

    @property
    def n(self) -> int:
        """How many chunks there are."""
        return len(self._chunks)

    def phase(self) -> None:
        """What follows needs all that was before."""
        self._needs = len(self._chunks)

    def chunk(self) -> None:
        """The calls that follow are made by one thread, in order."""
        self._chunks.append((self._needs, len(self._words)))

    def add(self, kernel: Any, *args: Any) -> None:
        """kernel(*args), in the last chunk."""
        start = len(self._words)
        self._words += [0, 0]
        self._entries.append((start, (kernel, tuple(self._put(a) for a in args))))
        self._words[start + 1] = len(self._words) - start

    def _put(self, arg: Any) -> Any:
        """Append an argument's words; its shape."""
        if arg is None:
            return "n"
        if isinstance(arg, tuple):
            return ("t", *(self._put(a) for a in arg))
        if isinstance(arg, Var):
            self._vars.append((len(self._words), arg.index))
            self._words.append(0)
            return "i"
        if isinstance(arg, Room):
            self._words += [arg.offset, arg.length]
            return ("r", arg.dtype)
        if isinstance(arg, np.ndarray):
            if arg.ndim != 1 or not arg.flags.c_contiguous:
                raise ValueError(f"an array of shape {arg.shape} and strides {arg.strides} is not flat")
            self._kept.append(arg)
            self._words += [arg.ctypes.data, len(arg)]
            return ("a", arg.dtype)
        if isinstance(arg, np.float32):
            self._words.append(int(arg.view(np.int32)))
            return "f"
        self._words.append(int(arg))
        return "i"

    def ready(self) -> Ready:
        """The calls, with every kernel compiled."""
        compile_entries(key for _, key in self._entries)
        for at, key in self._entries:
            self._words[at] = _entries[key]
        chunks = [*self._chunks, (0, len(self._words))]
        where = np.array(self._vars, np.int64).reshape(-1, 2)
        return Ready(
            np.array(self._words, np.int64),
            np.array(chunks, np.int64).reshape(-1),
            where[:, 0],
            where[:, 1],
            self._kept,
        )


class Ready:
    """Calls that can be made. where, which: words that are values of a step, and which ones."""

    def __init__(self, table: Array, chunks: Array, where: Array, which: Array, kept: list[Array]) -> None:
        self._table, self._chunks, self._where, self._which, self._kept = table, chunks, where, which, kept
        self._state = np.zeros(STATE_WORDS, np.int64)

    def run(self, team: Team, rooms: list[Array], values: Array) -> None:
        """Make all calls, with these values of this step. NativeError if a kernel raised, for want of memory."""
        self._table[self._where] = values[self._which]
        self._state[:] = 0

        def share(thread: int) -> int:
            return int(drive(self._table, self._chunks, self._state, rooms[thread].ctypes.data, YIELD))

        if any(team.run(share)):
            raise NativeError("a kernel failed: there is not enough memory for what it needs")


# ---- entries -------------------------------------------------------------------------------------------------------


@global_compiler_lock
def compile_entries(keys: Iterable[tuple[Any, Shape]]) -> None:
    """Entries for kernels with arguments of these shapes, where there are none yet."""
    missing = list(dict.fromkeys(key for key in keys if key not in _entries))
    if not missing:
        return
    context = cpu_target.target_context
    library = context.codegen().create_library("edgellm.entries")
    module = library.create_ir_module("edgellm.entries")
    names = []
    for kernel, shapes in missing:
        signature = tuple(_type(s) for s in shapes)
        kernel.compile(signature)
        compiled = kernel.overloads[signature]
        number = next(_serial)
        # Called by its address: linking its code would compile it again.
        llvmlite.binding.add_symbol(
            f"edgellm.kernel.{number}", compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        )
        result = compiled.signature.return_type
        callee = ir.Function(module, context.call_conv.get_function_type(result, signature), f"edgellm.kernel.{number}")
        entry = ir.Function(module, ENTRY, f"edgellm.entry.{number}")
        b = ir.IRBuilder(entry.append_basic_block())
        words = _Words(context, b, *entry.args)
        status, _ = context.call_conv.call_function(b, callee, result, signature, [words.take(s) for s in shapes])
        b.ret(b.zext(status.is_error, I32))
        names.append(entry.name)
    library.add_ir_module(module)
    library.finalize()
    _libraries.append(library)
    for key, name in zip(missing, names, strict=True):
        _entries[key] = library.get_pointer_to_function(name)


def _type(shape: Any) -> Any:
    """Numba's type of an argument."""
    if shape == "i":
        return types.int64
    if shape == "f":
        return types.float32
    if shape == "n":
        return types.none
    if shape[0] == "t":
        return types.Tuple([_type(s) for s in shape[1:]])
    return types.Array(_ELEMENTS[shape[1]], 1, "C")


_ELEMENTS = {np.dtype(t.name): t for t in (
    types.float32, types.int64, types.int32, types.uint16, types.int16, types.uint8, types.int8
)}  # fmt: skip


class _Words:
    """Reads arguments from the words of a row."""

    def __init__(self, context: Any, b: Any, words: Any, room: Any) -> None:
        self._context, self._b, self._words, self._room = context, b, words, room
        self._at = 0

    def _next(self) -> Any:
        word = self._b.load(self._b.gep(self._words, [ir.Constant(I64, self._at)]))
        self._at += 1
        return word

    def take(self, shape: Any) -> Any:
        """The argument of this shape, as LLVM has it."""
        b, context = self._b, self._context
        if shape == "i":
            return self._next()
        if shape == "f":
            return b.bitcast(b.trunc(self._next(), I32), ir.FloatType())
        if shape == "n":
            return context.get_dummy_value()
        if shape[0] == "t":
            return context.make_tuple(b, _type(shape), [self.take(s) for s in shape[1:]])
        array_type = _type(shape)
        address, length = self._next(), self._next()
        pointer = context.get_data_type(array_type.dtype).as_pointer()
        data = b.inttoptr(address, pointer) if shape[0] == "a" else b.bitcast(b.gep(self._room, [address]), pointer)
        array = context.make_array(array_type)(context, b)
        size = cgutils.intp_t(array_type.dtype.bitwidth // 8)
        populate_array(array, data, (length,), (size,), size, None)
        return array._getvalue()

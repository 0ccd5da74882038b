"""The compiled loop that makes a step's calls (calls.py), on every thread at once.

Chunks are taken in order. One may begin once the `needs` chunks of earlier phases are done; who finds that it may not
yet waits without having taken it, so that a thread that the system put aside keeps the others waiting for no more than
a chunk it had begun, and one that comes late for nothing at all. Waiting is spinning for some microseconds, then
giving the core to other threads.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.extending import intrinsic

from edgellm.backends.numba.compiled import function
from edgellm.backends.numba.vectors import call, is_x86, place, types

LINE = 16
"""Words of int64 from one counter to the next, so that no two share a cache line."""
TAKEN, DONE, FAILED = 0, LINE, 2 * LINE
STATE_WORDS = 3 * LINE
SPINS = 256
I32, I64, BYTES = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
ENTRY = ir.FunctionType(I32, [I64.as_pointer(), BYTES])
"""An entry: f(words, room) makes one call with the arguments in `words`; 0, or 1 where the kernel raised."""

YIELD = binding.address_of_symbol("sched_yield") or binding.address_of_symbol("SwitchToThread") or 0
"""What gives the core to other threads, of POSIX or Windows."""


@intrinsic
def read(_: Any, array: Any, i: Any) -> Any:
    """array[i] with all that other threads wrote before they changed it."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load_atomic(place(context, b, array, args[0], args[1], i, I64), "acquire", 8)

    return types.int64(array, i), generate


@intrinsic
def increase(_: Any, array: Any, i: Any) -> Any:
    """array[i] += 1."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", place(context, b, array, args[0], args[1], i, I64), ir.Constant(I64, 1), "acq_rel")

    return types.int64(array, i), generate


@intrinsic
def take(_: Any, array: Any, i: Any, n: Any) -> Any:
    """Whether array[i] was n; it is n + 1 then."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        at, before = place(context, b, array, args[0], args[1], i, I64), context.cast(b, args[2], n, types.int64)
        after = b.add(before, ir.Constant(I64, 1))
        return b.extract_value(b.cmpxchg(at, before, after, "acq_rel", "acquire"), 1)

    return types.boolean(array, i, n), generate


@intrinsic
def pause(_: Any) -> Any:
    """Tell the processor that this thread waits."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if is_x86(context):
            call(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
        elif context.codegen().magic_tuple()[0].startswith(("aarch64", "arm64")):
            call(b, "llvm.aarch64.hint", ir.VoidType(), [ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(_: Any, address: Any) -> Any:
    """Call the function at this address, which takes nothing."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.call(b.inttoptr(args[0], ir.FunctionType(I32, []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def enter(_: Any, table: Any, i: Any, room: Any) -> Any:
    """Call the entry at address table[i] with the words after it and a thread's room."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        at = place(context, b, table, args[0], args[1], i, I64)
        words = b.gep(at, [ir.Constant(I64, 2)])
        entry = b.inttoptr(b.load(at), ENTRY.as_pointer())
        return b.call(entry, [words, b.inttoptr(args[2], BYTES)])

    return types.int32(table, i, types.int64), generate


@function
def drive(table: Any, chunks: Any, state: Any, room: int, give: int) -> int:
    """Make the calls of `table` until none is left: 0, or 1 where a call failed, on this thread or another.

    table: rows of words (calls.py). chunks [n + 1, 2]: how many chunks must be done before, where its rows begin;
    the last tells where they end. state: TAKEN, DONE and FAILED, zeros at first. give: YIELD.
    """
    n, waited = len(chunks) // 2 - 1, 0
    while read(state, FAILED) == 0:
        c = read(state, TAKEN)
        if c >= n:
            return 0
        if read(state, DONE) < chunks[2 * c]:
            pause()
            waited += 1
            if waited > SPINS and give != 0:
                give_way(give)
            continue
        if not take(state, TAKEN, c):
            continue
        waited = 0
        i, end = chunks[2 * c + 1], chunks[2 * c + 3]
        while i < end:
            if enter(table, i, room) != 0:
                increase(state, FAILED)
                return 1
            i += table[i + 1]
        increase(state, DONE)
    return 1

"""Vectors for kernels: 16 float32 or int32, 32 int16, as values that Numba keeps in registers, and what is done with
them, each operation a few LLVM instructions without loops. They exist because plain loops over blocks of weights reach
a seventh of the speed.

Arrays are flat and contiguous, `i` counts their elements, nothing is checked. What one holds follows from its type:

    numbers        float32 float32 | uint16 f16 | int16 bf16 | uint8 fp8 e4m3 | int8 fp8 e5m2
    32 x 16 weights  uint8 nibbles 0..15 | uint16 nibbles -8..7 | int8 bytes | int16 (pack.py has the orders)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic, models, register_model

types: Any = numba.types

AHEAD = 2048
"""How many bytes before they are needed weights are fetched from memory."""

F32, I16, I32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)


class Vector(types.Type):  # type: ignore[misc]
    """A vector type: Numba's element type, its number, LLVM's type."""

    def __init__(self, element: Any, lanes: int, llvm: Any) -> None:
        self.element = element
        self.llvm = ir.VectorType(llvm, lanes)
        super().__init__(name=f"Vector({element} x {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.llvm)


FLOATS = Vector(types.float32, 16, F32)
INTS = Vector(types.int32, 16, I32)
SHORTS = Vector(types.int16, 32, I16)
WEIGHTS = types.UniTuple(SHORTS, 16)


# ---- LLVM ----------------------------------------------------------------------------------------------------------


def has(context: Any, *features: str) -> bool:
    """Whether the processor that is compiled for has one of these x86 features, or is an AArch64."""
    triple, _, flags = context.codegen().magic_tuple()
    return triple.startswith(("aarch64", "arm64")) or any(f"+{f}" in flags.split(",") for f in features)


def is_x86(context: Any) -> bool:
    """Whether x86 is compiled for."""
    return str(context.codegen().magic_tuple()[0]).startswith(("x86_64", "i386", "i686"))


def call(b: Any, name: str, result: Any, args: list[Any]) -> Any:
    """Call one of LLVM's intrinsics."""
    module = b.module
    declared = module.globals.get(name)
    if declared is None:
        declared = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(declared, args)


def every(vector: Any, value: float | int) -> Any:
    """The constant vector of one value."""
    return ir.Constant(vector, [value] * vector.count)


def lanes(b: Any, v: Any, chosen: list[int]) -> Any:
    """These lanes of a vector, as a vector."""
    unused = ir.Constant(v.type, ir.Undefined)
    return b.shuffle_vector(v, unused, ir.Constant(ir.VectorType(I32, len(chosen)), chosen))


def repeat(b: Any, scalar: Any, n: int) -> Any:
    """A vector of n times a scalar."""
    first = b.insert_element(ir.Constant(ir.VectorType(scalar.type, n), ir.Undefined), scalar, ir.Constant(I32, 0))
    return lanes(b, first, [0] * n)


def place(context: Any, b: Any, array_type: Any, array: Any, i: Any, i_type: Any, target: Any) -> Any:
    """The address of element i, as a pointer to `target`."""
    data = context.make_array(array_type)(context, b, array).data
    i = context.cast(b, i, i_type, types.intp)
    return b.bitcast(b.gep(data, [i]), target.as_pointer())


def halves_to_floats(context: Any, b: Any, h: Any) -> Any:
    """f16 bits in <16 x i16> as floats, exactly; a nan becomes quiet."""
    if has(context, "f16c", "avx512f"):
        return b.fpext(b.bitcast(h, ir.VectorType(ir.HalfType(), 16)), FLOATS.llvm)
    t = INTS.llvm
    u = b.zext(h, t)
    sign = b.shl(b.and_(u, every(t, 0x8000)), every(t, 16))
    a = b.shl(b.and_(u, every(t, 0x7FFF)), every(t, 13))
    one = every(FLOATS.llvm, 2.0**-14)
    small = b.fsub(b.bitcast(b.add(a, every(t, 113 << 23)), FLOATS.llvm), one)
    value = b.select(
        b.icmp_unsigned("<", a, every(t, 0x00800000)),
        b.bitcast(small, t),
        b.add(a, every(t, 112 << 23)),
    )
    quiet = b.select(b.icmp_unsigned(">", a, every(t, 0x0F800000)), b.and_(b.not_(a), every(t, 0x400000)), every(t, 0))
    special = b.add(b.add(a, every(t, 224 << 23)), quiet)
    value = b.select(b.icmp_unsigned(">=", a, every(t, 0x0F800000)), special, value)
    return b.bitcast(b.or_(sign, value), FLOATS.llvm)


def fused(context: Any, b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z rounded once. Without the instruction as in native/kernels/fp.h: the sum in float64, rounded to odd."""
    t = x.type
    n = t.count if isinstance(t, ir.VectorType) else 1
    if not is_x86(context) or has(context, "fma"):
        return call(b, f"llvm.fma.v{n}f32" if n > 1 else "llvm.fma.f32", t, [x, y, z])
    wide, bits = ir.DoubleType(), ir.IntType(64)
    if n > 1:
        wide, bits = ir.VectorType(wide, n), ir.VectorType(bits, n)

    def k(value: int) -> Any:
        return every(bits, value) if n > 1 else ir.Constant(bits, value)

    x, y, z = b.fpext(x, wide), b.fpext(y, wide), b.fpext(z, wide)
    p = b.fmul(x, y)
    s = b.fadd(p, z)
    d = b.fsub(s, p)
    error = b.fadd(b.fsub(p, b.fsub(s, d)), b.fsub(z, d))
    u, e = b.bitcast(s, bits), b.bitcast(error, bits)
    inward = b.lshr(b.xor(u, e), k(63))
    twice = b.shl(e, k(1))
    nonzero = b.lshr(b.or_(twice, b.sub(k(0), twice)), k(63))
    infinite = b.lshr(b.add(b.lshr(b.shl(u, k(1)), k(53)), k(1)), k(11))
    inexact = b.and_(nonzero, b.not_(infinite))
    u = b.sub(u, b.and_(b.and_(inexact, inward), b.not_(u)))
    return b.fptrunc(b.bitcast(b.or_(u, inexact), wide), t)


def pair_products(context: Any, b: Any, x: Any, y: Any) -> Any:
    """<32 x i16> times <32 x i16>, neighbours added: <16 x i32>."""
    if is_x86(context) and has(context, "avx512bw"):
        return call(b, "llvm.x86.avx512.pmaddw.d.512", INTS.llvm, [x, y])
    if is_x86(context) and has(context, "avx2"):
        parts = []
        for half in (list(range(16)), list(range(16, 32))):
            args = [lanes(b, x, half), lanes(b, y, half)]
            parts.append(call(b, "llvm.x86.avx2.pmadd.wd", ir.VectorType(I32, 8), args))
        return b.shuffle_vector(*parts, ir.Constant(INTS.llvm, list(range(16))))
    wide = ir.VectorType(I32, 32)
    p = b.mul(b.sext(x, wide), b.sext(y, wide))
    return b.add(lanes(b, p, list(range(0, 32, 2))), lanes(b, p, list(range(1, 32, 2))))


# ---- loads and stores ------------------------------------------------------------------------------------------------


def _reader(result: Any, build: Callable[[Any, Any, Any, Callable[[Any], Any]], Any]) -> Any:
    """f(array, i): build(context, builder, element type, read) makes the result; read(T) gives what lies there as T."""

    def typing(_: Any, array: Any, i: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            def read(target: Any) -> Any:
                return b.load(place(context, b, array, args[0], args[1], i, target), align=1)

            return build(context, b, array.dtype, read)

        return result(array, i), generate

    return intrinsic(typing)


def _numbers(context: Any, b: Any, element: Any, read: Callable[[Any], Any]) -> Any:
    if element == types.float32:
        return read(FLOATS.llvm)
    if element == types.int16:
        high = b.shl(b.zext(read(ir.VectorType(I16, 16)), INTS.llvm), every(INTS.llvm, 16))
        return b.bitcast(high, FLOATS.llvm)
    if element == types.uint16:
        return halves_to_floats(context, b, read(ir.VectorType(I16, 16)))
    t = ir.VectorType(I16, 16)
    u = b.zext(read(ir.VectorType(ir.IntType(8), 16)), t)
    if element == types.int8:
        return halves_to_floats(context, b, b.shl(u, every(t, 8)))
    sign, rest = b.shl(b.and_(u, every(t, 0x80)), every(t, 8)), b.and_(u, every(t, 0x7F))
    nan = b.icmp_unsigned("==", rest, every(t, 0x7F))
    h = b.or_(sign, b.select(nan, every(t, 0x7E00), b.shl(rest, every(t, 7))))
    return b.fmul(halves_to_floats(context, b, h), every(FLOATS.llvm, 256.0))


def _integers(context: Any, b: Any, element: Any, read: Callable[[Any], Any]) -> Any:
    if element == types.int32:
        return read(INTS.llvm)
    return b.sext(read(ir.VectorType(ir.IntType(element.bitwidth), 16)), INTS.llvm)


def _weights(context: Any, b: Any, element: Any, read: Callable[[Any], Any]) -> Any:
    """Element 2 j + h of pair j, that is weights 2 j and 2 j + 1 of 16 rows, for j = 0 .. 15."""
    per_short = {types.uint8: 4, types.uint16: 4, types.int8: 2, types.int16: 1}[element]
    t = SHORTS.llvm
    n = 16 // per_short
    whole = read(ir.ArrayType(t, n))
    out = []
    for j in range(16):
        v, field, bits = b.extract_value(whole, j // per_short), j % per_short, 16 // per_short
        if element == types.uint8:
            v = b.and_(b.lshr(v, every(t, field * bits)), every(t, 15))
        elif per_short > 1:
            v = b.ashr(b.shl(v, every(t, 16 - bits - field * bits)), every(t, 16 - bits))
        out.append(v)
    array = ir.Constant(ir.ArrayType(t, 16), ir.Undefined)
    for j, v in enumerate(out):
        array = b.insert_value(array, v, j)
    return array


load = _reader(FLOATS, _numbers)
"""16 numbers as floats."""
load_ints = _reader(INTS, _integers)
"""16 integers of an array of int8, int16 or int32."""
load_shorts = _reader(SHORTS, lambda c, b, e, read: read(SHORTS.llvm))
"""32 integers of an array of int16."""
load_pairs = _reader(SHORTS, lambda c, b, e, read: b.sext(read(ir.VectorType(ir.IntType(8), 32)), SHORTS.llvm))
"""32 integers of an array of int8."""
load_weights = _reader(WEIGHTS, _weights)
"""The weights of 16 rows and 32 columns, by pairs of columns."""
splat_at = _reader(FLOATS, lambda c, b, e, read: repeat(b, read(F32), 16))
"""16 times an element of a float32 array."""
splat_pair = _reader(SHORTS, lambda c, b, e, read: b.bitcast(repeat(b, read(I32), 16), SHORTS.llvm))
"""16 times two neighbours of an int16 array."""


@intrinsic
def store(_: Any, array: Any, i: Any, v: Any) -> Any:
    """array[i : i + lanes] = v."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store(args[2], place(context, b, array, args[0], args[1], i, v.llvm), align=1)
        return context.get_dummy_value()

    return types.void(array, i, v), generate


@intrinsic
def prefetch(_: Any, array: Any, i: Any) -> Any:
    """Have the cache line fetched that AHEAD bytes after array[i] lie in. It may be past the end."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        at = b.gep(place(context, b, array, args[0], args[1], i, ir.IntType(8)), [ir.Constant(ir.IntType(64), AHEAD)])
        call(b, "llvm.prefetch.p0", ir.VoidType(), [at, *(ir.Constant(I32, x) for x in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, i), generate


# ---- arithmetic ----------------------------------------------------------------------------------------------------


def _dot(first: int) -> Any:
    def typing(_: Any, w: Any, x: Any, i: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            total = None
            for j in range(8):
                at = b.add(context.cast(b, args[2], i, types.intp), ir.Constant(ir.IntType(64), 2 * j))
                pair = b.load(place(context, b, x, args[1], at, types.intp, I32), align=2)
                both = b.bitcast(repeat(b, pair, 16), SHORTS.llvm)
                product = pair_products(context, b, b.extract_value(args[0], first + j), both)
                total = product if total is None else b.add(total, product)
            return total

        return INTS(w, x, i), generate

    return intrinsic(typing)


dot_low, dot_high = _dot(0), _dot(8)
"""f(weights, x, i): of 16 rows the sum of weight times x[i + k], k = 0 .. 15, of columns 0 .. 15 or 16 .. 31."""


@intrinsic
def fma(_: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z rounded once, of float32 or vectors."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        args = [context.cast(b, a, t, signature.return_type) for a, t in zip(args, signature.args, strict=True)]
        return fused(context, b, *args)

    result = x if isinstance(x, Vector) else types.float32
    return result(result, result, result), generate


@intrinsic
def madd(_: Any, x: Any, y: Any) -> Any:
    """Products of int16, neighbours added: 16 int32."""
    return INTS(SHORTS, SHORTS), lambda context, b, signature, args: pair_products(context, b, *args)


@intrinsic
def add(_: Any, x: Any, y: Any) -> Any:
    """x + y of vectors."""
    floats = x == FLOATS
    return x(x, x), lambda context, b, signature, args: (b.fadd if floats else b.add)(*args)


@intrinsic
def mul(_: Any, x: Any, y: Any) -> Any:
    """x * y of vectors."""
    floats = x == FLOATS
    return x(x, x), lambda context, b, signature, args: (b.fmul if floats else b.mul)(*args)


@intrinsic
def neg(_: Any, x: Any) -> Any:
    """-x of floats: the sign turned."""
    return FLOATS(FLOATS), lambda context, b, signature, args: b.fneg(args[0])


@intrinsic
def to_floats(_: Any, x: Any) -> Any:
    """Integers as floats, to nearest even."""
    return FLOATS(INTS), lambda context, b, signature, args: b.sitofp(args[0], FLOATS.llvm)


@intrinsic
def splat(_: Any, x: Any) -> Any:
    """16 times x, a float32."""
    return FLOATS(types.float32), lambda context, b, signature, args: repeat(b, args[0], 16)


@intrinsic
def no_ints(_: Any) -> Any:
    """16 integer zeros."""
    return INTS(), lambda context, b, signature, args: every(INTS.llvm, 0)


@intrinsic
def fold16(_: Any, x: Any) -> Any:
    """The sum of 16 floats: i and i + 8, then i + 4, i + 2, i + 1."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = args[0]
        for n in (8, 4, 2, 1):
            v = b.fadd(lanes(b, v, list(range(n))), lanes(b, v, list(range(n, 2 * n))))
        return b.extract_element(v, ir.Constant(I32, 0))

    return types.float32(FLOATS), generate


@intrinsic
def set_rounding(_: Any, word: Any) -> Any:
    """Give this thread a floating-point control word and return the one it had; -1 is IEEE's: nearest, no flushing."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        triple = context.codegen().magic_tuple()[0]
        plain = b.icmp_signed("<", args[0], ir.Constant(args[0].type, 0))
        if is_x86(context):
            room = b.alloca(I32)
            pointer = b.bitcast(room, ir.IntType(8).as_pointer())
            call(b, "llvm.x86.sse.stmxcsr", ir.VoidType(), [pointer])
            before = b.zext(b.load(room), args[0].type)
            b.store(b.select(plain, ir.Constant(I32, 0x1F80), b.trunc(args[0], I32)), room)
            call(b, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [pointer])
            return before
        if triple.startswith(("aarch64", "arm64")):
            before = call(b, "llvm.aarch64.get.fpcr", args[0].type, [])
            call(b, "llvm.aarch64.set.fpcr", ir.VoidType(), [b.select(plain, ir.Constant(args[0].type, 0), args[0])])
            return before
        return args[0]

    return types.int64(types.int64), generate


@intrinsic
def bits(_: Any, x: Any) -> Any:
    """The 32 bits of a float32 as an int64 that is not negative."""
    build = lambda context, b, signature, args: b.zext(b.bitcast(args[0], I32), ir.IntType(64))  # noqa: E731
    return types.int64(types.float32), build


@intrinsic
def from_bits(_: Any, u: Any) -> Any:
    """The float32 with the low 32 bits of an int64."""
    build = lambda context, b, signature, args: b.bitcast(b.trunc(args[0], I32), F32)  # noqa: E731
    return types.float32(types.int64), build

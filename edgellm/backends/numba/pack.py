"""Weights of the file as panels: 16 rows interleaved, so that a vector's lanes are rows. Rows past the end mean
nothing.

A group is 32 columns of a panel as 16 vectors of pairs: vector j, lane 2 r + h is the weight at row r, column 2 j + h.
How it lies in memory says the array's type: uint8 and uint16 hold four vectors in the nibbles of 64 bytes, lowest
first, int8 two in their bytes, int16 one. Scales are float32, float16 (as uint16) or int8 and have 16 neighbours, one
for each row.

What a type does not keep apart in integers here is multiplied out, exactly: the IQ types of 256 columns are scale times
value as int16, with the scale of the block apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.backends.numba import matmul
from edgellm.core.record import dataclass
from edgellm.gguf.dequantize import IQ4_VALUES, MXFP4_VALUES, dequantize, e4m3_half
from edgellm.gguf.qtypes import QType
from edgellm.gguf.values import Bytes

Array = NDArray[Any]
ROWS = 16


@dataclass(frozen=True, slots=True)
class Panels:
    """A stack of matrices, packed. `arrays`: what `kernel` (of matmul.py) takes as w."""

    kernel: Callable[..., Any]
    arrays: tuple[Array, ...]
    n_rows: int
    n_cols: int
    n_panels: int
    n_stack: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """n blocks of a type, unpacked. q [n, block] as the array's type says; d, m [n, .] float32 or the bits of f16;
    s, mins [n, 16]."""

    q: Array
    d: Array
    m: Array | None = None
    s: Array | None = None
    mins: Array | None = None


def pack(data: Bytes, qtype: QType, n_stack: int, n_rows: int, n_cols: int) -> Panels:
    """n_stack matrices [n_rows, n_cols] of the file's bytes."""
    n_panels = -(-n_rows // ROWS)
    if qtype.block == 1:
        elements = data.view({QType.F32: np.float32, QType.F16: np.uint16, QType.BF16: np.int16}[qtype])
        out = np.zeros((n_stack, n_panels, n_cols, ROWS), elements.dtype)
        for s in range(n_stack):
            for p in range(n_panels):
                rows = elements.reshape(n_stack, n_rows, n_cols)[s, ROWS * p : ROWS * (p + 1)]
                out[s, p, :, : len(rows)] = rows.T
        return Panels(matmul.mm_floats, (out.reshape(-1),), n_rows, n_cols, n_panels, n_stack)
    unpack, kernel = _UNPACK[qtype]
    row_bytes = qtype.n_bytes(n_cols)
    raw = data.reshape(n_stack * n_rows, row_bytes)
    collected: list[list[Array]] = [[], [], [], [], []]
    step = max(1, (1 << 19) // (ROWS * n_cols)) * ROWS
    for s in range(n_stack):
        for row in range(0, n_rows, step):
            part = raw[s * n_rows + row : s * n_rows + min(row + step, n_rows)]
            short = -len(part) % ROWS
            if short:
                part = np.concatenate([part, np.zeros((short, row_bytes), np.uint8)])
            blocks = unpack(np.ascontiguousarray(part).reshape(-1, qtype.block_bytes))
            for to, array in zip(collected, _interleave(blocks, len(part)), strict=True):
                to.append(array)
    arrays = [np.concatenate(parts) for parts in collected]
    return Panels(kernel, tuple(arrays if kernel is matmul.mm_a256 else arrays[:3]), n_rows, n_cols, n_panels, n_stack)


def _interleave(blocks: Blocks, n_rows: int) -> list[Array]:
    """q, d, m, scales, minima of whole panels, flat."""
    q = blocks.q.reshape(n_rows // ROWS, ROWS, -1, 32)
    shape = (*q.shape[:3],)
    if q.dtype in (np.uint8, np.uint16):
        v = q.astype(np.uint8).reshape(*shape, 4, 2, 2, 2) & np.uint8(15)  # vector, byte, nibble, pair
        v = v[..., 0, :] | (v[..., 1, :] << np.uint8(4))
        packed = v.transpose(0, 2, 3, 1, 5, 4)  # panel, group, vector, row, pair, byte
    elif q.dtype == np.int8:
        packed = q.reshape(*shape, 8, 2, 2).transpose(0, 2, 3, 1, 5, 4)
    else:
        packed = q.reshape(*shape, 16, 2).transpose(0, 2, 3, 1, 4)
    flat = np.ascontiguousarray(packed).reshape(-1)

    def by_row(x: Array | None, dtype: Any) -> Array:
        if x is None:
            return np.empty(0, dtype)
        return np.ascontiguousarray(x.reshape(n_rows // ROWS, ROWS, -1).transpose(0, 2, 1), dtype).reshape(-1)

    minima = np.empty(0, np.int8)
    if blocks.mins is not None:
        pairs = blocks.mins.reshape(n_rows // ROWS, ROWS, -1, 2).transpose(0, 2, 1, 3)
        minima = np.ascontiguousarray(pairs, np.int8).reshape(-1)
    return [
        flat.view(q.dtype),
        by_row(blocks.d, blocks.d.dtype),
        by_row(blocks.m, blocks.d.dtype),
        by_row(blocks.s, np.int8),
        minima,
    ]


# ---- the types -----------------------------------------------------------------------------------------------------


def _f16(raw: Bytes) -> Array:
    """The bits of f16 numbers."""
    return np.ascontiguousarray(raw).view("<u2").astype(np.uint16, copy=False)


def _fields(raw: Bytes, width: int) -> Array:
    """Bytes [..., m] as fields of `width` bits, lowest first: [..., 8 // width, m]."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return (raw[..., None, :] >> shifts) & np.uint8((1 << width) - 1)


def _nibbles(raw: Bytes) -> Array:
    return _fields(raw, 4).reshape(-1, 32)


def _fifth(raw: Bytes) -> Array:
    return np.unpackbits(raw, axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(b: Bytes) -> Blocks:
    return Blocks((_nibbles(b[:, 2:]) ^ np.uint8(8)).astype(np.uint16), _f16(b[:, :2]))  # u - 8 modulo 16


def _q4_1(b: Bytes) -> Blocks:
    return Blocks(_nibbles(b[:, 4:]), _f16(b[:, :2]), _f16(b[:, 2:4]))


def _q5_0(b: Bytes) -> Blocks:
    return Blocks((_nibbles(b[:, 6:]) | _fifth(b[:, 2:6])).astype(np.int8) - np.int8(16), _f16(b[:, :2]))


def _q5_1(b: Bytes) -> Blocks:
    q = (_nibbles(b[:, 8:]) | _fifth(b[:, 4:8])).astype(np.int8)
    return Blocks(q, _f16(b[:, :2]), _f16(b[:, 2:4]))


def _q8_0(b: Bytes) -> Blocks:
    return Blocks(b[:, 2:].view(np.int8), _f16(b[:, :2]))


def _iq4_nl(b: Bytes) -> Blocks:
    return Blocks(IQ4_VALUES[_nibbles(b[:, 2:])], _f16(b[:, :2]))


def _mxfp4(b: Bytes) -> Blocks:
    e = b[:, :1].astype(np.uint32)
    d = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23)).astype(np.uint32)
    return Blocks(MXFP4_VALUES[_nibbles(b[:, 1:])], d.view(np.float32))


def _nvfp4(b: Bytes) -> Blocks:
    q = _fields(b[:, 4:].reshape(-1, 4, 8), 4).reshape(-1, 64)
    return Blocks(MXFP4_VALUES[q], np.ascontiguousarray(e4m3_half(b[:, :4])))


def _crumbs(qs: Bytes) -> Array:
    return _fields(qs.reshape(-1, 2, 32), 2).reshape(-1, 256)


def _twice(x: Array) -> Array:
    """Scales per 32 as scales per 16."""
    return np.repeat(x, 2, axis=1)


def _q2_k(b: Bytes) -> Blocks:
    s, mins = b[:, :16] & np.uint8(15), b[:, :16] >> np.uint8(4)
    return Blocks(_crumbs(b[:, 16:80]), _f16(b[:, 80:82]), _f16(b[:, 82:84]), s, mins)


def _q3_k(b: Bytes) -> Blocks:
    u = _crumbs(b[:, 32:96]) | (_fields(b[:, :32], 1).reshape(-1, 256) << np.uint8(2))
    low, top = _fields(b[:, 96:104], 4).reshape(-1, 16), _fields(b[:, 104:108], 2).reshape(-1, 16)
    s = (low | (top << np.uint8(4))).astype(np.int8) - np.int8(32)
    q = ((u.astype(np.int8) - np.int8(4)) & np.int8(15)).astype(np.uint16)
    return Blocks(q, _f16(b[:, 108:110]), None, s)


def _scales_k4(s: Bytes) -> tuple[Array, Array]:
    low, top = s[:, :8] & np.uint8(63), (s[:, :8] >> np.uint8(6)) << np.uint8(4)
    scale = np.concatenate([low[:, :4], (s[:, 8:] & np.uint8(15)) | top[:, :4]], axis=1)
    minimum = np.concatenate([low[:, 4:], (s[:, 8:] >> np.uint8(4)) | top[:, 4:]], axis=1)
    return _twice(scale), _twice(minimum)


def _nibbles256(qs: Bytes) -> Array:
    return _fields(qs.reshape(-1, 4, 32), 4).reshape(-1, 256)


def _q4_k(b: Bytes) -> Blocks:
    return Blocks(_nibbles256(b[:, 16:]), _f16(b[:, :2]), _f16(b[:, 2:4]), *_scales_k4(b[:, 4:16]))


def _q5_k(b: Bytes) -> Blocks:
    q = _nibbles256(b[:, 48:]) | (_fields(b[:, 16:48], 1).reshape(-1, 256) << np.uint8(4))
    return Blocks(q.astype(np.int8), _f16(b[:, :2]), _f16(b[:, 2:4]), *_scales_k4(b[:, 4:16]))


def _q6_k(b: Bytes) -> Blocks:
    low = _fields(b[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 256)
    q = (low | (_crumbs(b[:, 128:192]) << np.uint8(4))).astype(np.int8) - np.int8(32)
    return Blocks(q, _f16(b[:, 208:210]), None, np.ascontiguousarray(b[:, 192:208]).view(np.int8))


def _ternary(qtype: QType, at: int) -> Callable[[Bytes], Blocks]:
    """Read as Q2_K with scales and minima of one: weights are d u - d."""

    def unpack(b: Bytes) -> Blocks:
        ones = np.ones((len(b), 16), np.int8)
        d = _f16(b[:, at : at + 2])
        return Blocks((_in_units(b, qtype, at, 1) + 1).astype(np.uint8), d, d.copy(), ones, ones)

    return unpack


def _in_units(b: Bytes, qtype: QType, at: int, units: int) -> Array:
    """The integers that a block's scale, at byte `at`, multiplies in units of 1 / units."""
    b = b.copy()
    if qtype is QType.IQ1_M:  # the scale's nibbles are the top ones of four words
        b[:, 49::2] = (b[:, 49::2] & 15) | np.array([0x00, 0x00, 0xC0, 0x30], np.uint8)
    else:
        b[:, at : at + 2] = np.array([0x00, 0x3C], np.uint8)
    return (dequantize(b.reshape(-1), qtype, (len(b), 256)) * np.float32(units)).astype(np.int16)


def _multiplied(qtype: QType, units: int, at: int = 0) -> Callable[[Bytes], Blocks]:
    def unpack(b: Bytes) -> Blocks:
        if qtype is QType.IQ1_M:
            nibbles = (np.ascontiguousarray(b[:, 48:]).view("<u2") >> np.uint16(12)) << np.array(
                [0, 4, 8, 12], np.uint16
            )
            d = nibbles.sum(axis=1, keepdims=True, dtype=np.uint16)
        else:
            d = _f16(b[:, at : at + 2])
        ones = np.ones((len(b), 16), np.int8)
        return Blocks(_in_units(b, qtype, at, units), d.view(np.float16) * np.float32(1 / units), None, ones)

    return unpack


_UNPACK: dict[QType, tuple[Callable[[Bytes], Blocks], Callable[..., Any]]] = {
    QType.Q4_0: (_q4_0, matmul.mm_a16),
    QType.Q4_1: (_q4_1, matmul.mm_a16),
    QType.Q5_0: (_q5_0, matmul.mm_a16),
    QType.Q5_1: (_q5_1, matmul.mm_a16),
    QType.Q8_0: (_q8_0, matmul.mm_a16),
    QType.IQ4_NL: (_iq4_nl, matmul.mm_a16),
    QType.MXFP4: (_mxfp4, matmul.mm_a16),
    QType.NVFP4: (_nvfp4, matmul.mm_nvfp4),
    QType.Q2_K: (_q2_k, matmul.mm_a256),
    QType.Q3_K: (_q3_k, matmul.mm_a256),
    QType.Q4_K: (_q4_k, matmul.mm_a256),
    QType.Q5_K: (_q5_k, matmul.mm_a256),
    QType.Q6_K: (_q6_k, matmul.mm_a256),
    QType.TQ1_0: (_ternary(QType.TQ1_0, 52), matmul.mm_a256),
    QType.TQ2_0: (_ternary(QType.TQ2_0, 64), matmul.mm_a256),
    QType.IQ4_XS: (_multiplied(QType.IQ4_XS, 1), matmul.mm_a256),
    QType.IQ1_S: (_multiplied(QType.IQ1_S, 8), matmul.mm_a256),
    QType.IQ1_M: (_multiplied(QType.IQ1_M, 8), matmul.mm_a256),
    QType.IQ2_XXS: (_multiplied(QType.IQ2_XXS, 8), matmul.mm_a256),
    QType.IQ2_XS: (_multiplied(QType.IQ2_XS, 8), matmul.mm_a256),
    QType.IQ2_S: (_multiplied(QType.IQ2_S, 8), matmul.mm_a256),
    QType.IQ3_XXS: (_multiplied(QType.IQ3_XXS, 4), matmul.mm_a256),
    QType.IQ3_S: (_multiplied(QType.IQ3_S, 1), matmul.mm_a256),
}

"""What the bytes of each tensor type mean, as plain NumPy: the readable definition of the block formats.

Every function takes blocks uint8 [n, block_bytes] and gives float32 [n, block]. `d`, `m` are float16 scales
and minima, `q` the stored integers. Products and sums are rounded to float32 one by one, in the order written
here, so results equal those of the `gguf` package bit for bit. Native kernels never call this: the reference
backend and the tests do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import GGUFError
from edgellm.gguf import dequantize_iq as iq
from edgellm.gguf.qtypes import QType
from edgellm.gguf.values import Bytes

Floats = NDArray[np.float32]

_CHUNK = 1 << 20  # elements converted at a time: bounds the temporaries of a large tensor


def dequantize(data: Bytes, qtype: QType, shape: tuple[int, ...]) -> Floats:
    """The values of a tensor, float32 of `shape` (outermost first), C order.

    data: uint8, exactly the tensor's bytes. Raises GGUFError for a type that is not implemented here, for
    bytes that do not match the shape, and for rows that are not whole blocks.
    """
    convert = _DEQUANTIZE.get(qtype)
    if convert is None:
        raise GGUFError(f"type {qtype} cannot be dequantised; possible: {', '.join(t.name for t in _DEQUANTIZE)}")
    n_elements = math.prod(shape)
    if not shape or shape[-1] % qtype.block or data.size != qtype.n_bytes(n_elements):
        raise GGUFError(
            f"{data.size} bytes do not hold shape {shape} in {qtype}: "
            f"{qtype.block_bytes} bytes are {qtype.block} elements of a row"
        )
    blocks = np.ascontiguousarray(data).reshape(-1, qtype.block_bytes)
    out = np.empty((len(blocks), qtype.block), np.float32)
    step = max(_CHUNK // qtype.block, 1)
    with np.errstate(all="ignore"):  # a damaged scale may be infinite: so are its values, without a warning
        for i in range(0, len(blocks), step):
            out[i : i + step] = convert(blocks[i : i + step])
    return out.reshape(shape)


def can_dequantize(qtype: QType) -> bool:
    """Whether `dequantize` knows the type."""
    return qtype in _DEQUANTIZE


def _f16(raw: Bytes) -> Floats:
    """Little-endian float16 [n, 2k] -> float32 [n, k]."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _fields(raw: Bytes, bits: int) -> Bytes:
    """Splits bytes [..., m] into fields of `bits` bits, lowest first: [..., 8 // bits, m]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields: Bytes = (raw[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)
    return fields


def _bits(raw: Bytes) -> Bytes:
    """Bytes [n, m] as bits [n, 8 m], lowest first."""
    bits: Bytes = np.unpackbits(raw, axis=-1, bitorder="little")
    return bits


def _floats(q: NDArray[np.generic]) -> Floats:
    return q.astype(np.float32)


def _f32(b: Bytes) -> Floats:
    return b.view("<f4").astype(np.float32)


def _plain_f16(b: Bytes) -> Floats:
    return _f16(b)


def _bf16(b: Bytes) -> Floats:
    """The upper half of a float32."""
    words: NDArray[np.uint32] = b.view("<u2").astype(np.uint32) << np.uint32(16)
    return words.view(np.float32)


def _nibbles32(raw: Bytes) -> Bytes:
    """16 bytes -> 32 nibbles: the low ones are elements 0..15, the high ones 16..31."""
    return _fields(raw, 4).reshape(-1, 32)


def _q4_0(b: Bytes) -> Floats:
    """d | 16 x 2 nibbles. Value d (q - 8)."""
    q = _nibbles32(b[:, 2:]).astype(np.int8) - np.int8(8)
    return _f16(b[:, :2]) * _floats(q)


def _q4_1(b: Bytes) -> Floats:
    """d | m | 16 x 2 nibbles. Value d q + m."""
    return _f16(b[:, :2]) * _floats(_nibbles32(b[:, 4:])) + _f16(b[:, 2:4])


def _q5(high: Bytes, low: Bytes) -> Bytes:
    """Four low bits as nibbles, the fifth of element i is bit i of a 32-bit word."""
    q: Bytes = _nibbles32(low) | (_bits(high) << np.uint8(4))
    return q


def _q5_0(b: Bytes) -> Floats:
    """d | 32 fifth bits | 16 x 2 nibbles. Value d (q - 16)."""
    q = _q5(b[:, 2:6], b[:, 6:]).astype(np.int8) - np.int8(16)
    return _f16(b[:, :2]) * _floats(q)


def _q5_1(b: Bytes) -> Floats:
    """d | m | 32 fifth bits | 16 x 2 nibbles. Value d q + m."""
    return _f16(b[:, :2]) * _floats(_q5(b[:, 4:8], b[:, 8:])) + _f16(b[:, 2:4])


def _q8_0(b: Bytes) -> Floats:
    """d | 32 x int8. Value d q."""
    return _f16(b[:, :2]) * _floats(b[:, 2:].view(np.int8))


IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the values of E2M1, a float of a sign, two bits of exponent and one of mantissa."""


def _iq4_nl(b: Bytes) -> Floats:
    """d | 16 x 2 nibbles, indices of 16 values. Value d values[q]."""
    return _f16(b[:, :2]) * _floats(IQ4_VALUES[_nibbles32(b[:, 2:])])


def _e8m0_half(e: Bytes) -> Floats:
    """2 ** (e - 128), subnormal for 0 and 1: half of what the exponent means, for values that are doubled."""
    low, normal = np.uint32(0x00200000) << np.minimum(e, 1).astype(np.uint32), e.astype(np.uint32) - np.uint32(1)
    bits: NDArray[np.uint32] = np.where(e < 2, low, normal << np.uint32(23))
    return bits.view(np.float32)


def _mxfp4(b: Bytes) -> Floats:
    """Exponent e | 16 x 2 nibbles, floats of 4 bits. Value 2 ** (e - 128) values[q]."""
    return _e8m0_half(b[:, :1]) * _floats(MXFP4_VALUES[_nibbles32(b[:, 1:])])


def e4m3_half(e: Bytes) -> Floats:
    """Unsigned floats of 4 bits of exponent (bias 7) and 3 of mantissa, halved; 0x7f is 0, bit 7 is ignored."""
    exponent, mantissa = ((e >> np.uint8(3)) & np.uint8(15)).astype(np.int32), (e & np.uint8(7)).astype(np.int32)
    normal = exponent > 0
    value = np.ldexp(_floats(mantissa + 8 * normal), np.maximum(exponent, 1) - 11)
    halved: Floats = np.where(e == 0x7F, np.float32(0), value)
    return halved


def _nvfp4(b: Bytes) -> Floats:
    """4 scales e | 4 x 8 x 2 nibbles as in MXFP4. Value e / 2 values[q], 4 groups of 16: 8 low nibbles, 8 high ones."""
    q = _fields(b[:, 4:].reshape(-1, 4, 8), 4).reshape(-1, 4, 16)
    return (e4m3_half(b[:, :4])[:, :, None] * _floats(MXFP4_VALUES[q])).reshape(-1, 64)


# The k-quants: 256 elements in 8 groups of 32 or 16 groups of 16, each with an integer scale.


def _grouped(scale: Floats, q: Floats, minimum: Floats | None = None) -> Floats:
    """scale [n, g] times q [n, 256] in g groups, minus a minimum [n, g] if there is one."""
    n, groups = scale.shape
    values = scale[:, :, None] * q.reshape(n, groups, 256 // groups)
    if minimum is not None:
        values -= minimum[:, :, None]
    return values.reshape(n, 256)


def _two_bit(qs: Bytes) -> Bytes:
    """64 bytes -> 256 fields of 2 bits. Half h, field f, byte j is element 128 h + 32 f + j."""
    return _fields(qs.reshape(-1, 2, 32), 2).reshape(-1, 256)


def _q2_k(b: Bytes) -> Floats:
    """16 x (scale, min) nibbles | 64 x 4 two-bit q | d | dmin. Value d scale q - dmin min, groups of 16."""
    scales = b[:, :16]
    d, dmin = _f16(b[:, 80:82]), _f16(b[:, 82:84])
    scale, minimum = d * _floats(scales & np.uint8(15)), dmin * _floats(scales >> np.uint8(4))
    return _grouped(scale, _floats(_two_bit(b[:, 16:80])), minimum)


def _q3_k(b: Bytes) -> Floats:
    """32 bytes of third bits | 64 x 4 two-bit q | 12 bytes of scales | d. Value d (scale - 32) (q - 4).

    Groups of 16. Third bit of element e: bit e // 32 of byte e % 32. The 6-bit scale of group g has its low
    nibble in byte g % 8 (the high half of it for g >= 8), its two top bits in byte 8 + g % 4, field g // 4.
    """
    high = _fields(b[:, :32], 1).reshape(-1, 256)
    q = (_two_bit(b[:, 32:96]) | (high << np.uint8(2))).astype(np.int8) - np.int8(4)
    low, top = _fields(b[:, 96:104], 4).reshape(-1, 16), _fields(b[:, 104:108], 2).reshape(-1, 16)
    scale = (low | (top << np.uint8(4))).astype(np.int8) - np.int8(32)
    return _grouped(_f16(b[:, 108:110]) * _floats(scale), _floats(q))


def _scales_k4(s: Bytes) -> tuple[Floats, Floats]:
    """The 12 bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima, [n, 8] each.

    Groups 0..3: the low six bits of bytes 0..3 (scales) and 4..7 (minima). Groups 4..7: the low nibbles of
    bytes 8..11 (scales) and the high ones (minima), topped by the two high bits of bytes 0..3 and 4..7.
    """
    low, top = s[:, :8] & np.uint8(63), (s[:, :8] >> np.uint8(6)) << np.uint8(4)
    scale = np.concatenate([low[:, :4], (s[:, 8:] & np.uint8(15)) | top[:, :4]], axis=1)
    minimum = np.concatenate([low[:, 4:], (s[:, 8:] >> np.uint8(4)) | top[:, 4:]], axis=1)
    return _floats(scale), _floats(minimum)


def _nibbles256(qs: Bytes) -> Bytes:
    """128 bytes -> 256 nibbles. Quarter k, half f (low, high), byte j is element 64 k + 32 f + j."""
    return _fields(qs.reshape(-1, 4, 32), 4).reshape(-1, 256)


def _q4_k(b: Bytes) -> Floats:
    """d | dmin | 12 bytes of scales and minima | 128 x 2 nibbles. Value d scale q - dmin min, 8 groups."""
    scale, minimum = _scales_k4(b[:, 4:16])
    return _grouped(_f16(b[:, :2]) * scale, _floats(_nibbles256(b[:, 16:])), _f16(b[:, 2:4]) * minimum)


def _q5_k(b: Bytes) -> Floats:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles: bit e // 32 of byte e % 32."""
    scale, minimum = _scales_k4(b[:, 4:16])
    high = _fields(b[:, 16:48], 1).reshape(-1, 256)
    q = _nibbles256(b[:, 48:]) | (high << np.uint8(4))
    return _grouped(_f16(b[:, :2]) * scale, _floats(q), _f16(b[:, 2:4]) * minimum)


def _q6_k(b: Bytes) -> Floats:
    """128 bytes of low nibbles | 64 bytes of two top bits | 16 x int8 scales | d. Value d scale (q - 32).

    Groups of 16. Half h has 64 bytes of nibbles: the low ones are its elements 0..63, the high ones 64..127;
    and 32 bytes of top bits: field f, byte j is its element 32 f + j.
    """
    low = _fields(b[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 256)
    q = (low | (_two_bit(b[:, 128:192]) << np.uint8(4))).astype(np.int8) - np.int8(32)
    scale = np.ascontiguousarray(b[:, 192:208]).view(np.int8)
    return _grouped(_f16(b[:, 208:210]) * _floats(scale), _floats(q))


def _tq1_0(b: Bytes) -> Floats:
    """48 + 4 bytes of base 3 | d. Value d (q - 1).

    A byte is a fraction of 256: its digit n is the integer part of 3 times what n digits leave. Digit n of m bytes
    are m consecutive elements; m is 32, then 16, each with five digits, then 4 with four.
    """
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
    runs = [b[:, None, :32] * powers, b[:, None, 32:48] * powers, b[:, None, 48:52] * powers[:4]]
    left = np.concatenate([r.reshape(len(b), -1) for r in runs], axis=1).astype(np.uint16)
    q = ((left * np.uint16(3)) >> np.uint16(8)).astype(np.int8) - np.int8(1)
    return _f16(b[:, 52:54]) * _floats(q)


def _tq2_0(b: Bytes) -> Floats:
    """64 x 4 two-bit q, as in Q2_K | d. Value d (q - 1)."""
    return _f16(b[:, 64:66]) * _floats(_two_bit(b[:, :64]).astype(np.int8) - np.int8(1))


def _iq4_xs(b: Bytes) -> Floats:
    """d | 16 bits of scales' top pairs | 4 bytes of their low nibbles | 8 x 16 x 2 nibbles as in IQ4_NL.

    Value d (scale - 32) values[q], 8 groups.
    """
    top = _fields(b[:, 2:4], 2).transpose(0, 2, 1).reshape(-1, 8)
    low = _fields(b[:, 4:8], 4).transpose(0, 2, 1).reshape(-1, 8)
    scale = (low | (top << np.uint8(4))).astype(np.int8) - np.int8(32)
    q = _fields(b[:, 8:].reshape(-1, 8, 16), 4).reshape(-1, 256)
    return _grouped(_f16(b[:, :2]) * _floats(scale), _floats(IQ4_VALUES[q]))


_DEQUANTIZE: dict[QType, Callable[[Bytes], Floats]] = {
    QType.F32: _f32,
    QType.F16: _plain_f16,
    QType.BF16: _bf16,
    QType.Q4_0: _q4_0,
    QType.Q4_1: _q4_1,
    QType.Q5_0: _q5_0,
    QType.Q5_1: _q5_1,
    QType.Q8_0: _q8_0,
    QType.Q2_K: _q2_k,
    QType.Q3_K: _q3_k,
    QType.Q4_K: _q4_k,
    QType.Q5_K: _q5_k,
    QType.Q6_K: _q6_k,
    QType.IQ2_XXS: iq.iq2_xxs,
    QType.IQ2_XS: iq.iq2_xs,
    QType.IQ3_XXS: iq.iq3_xxs,
    QType.IQ1_S: iq.iq1_s,
    QType.IQ3_S: iq.iq3_s,
    QType.IQ2_S: iq.iq2_s,
    QType.IQ1_M: iq.iq1_m,
    QType.IQ4_NL: _iq4_nl,
    QType.IQ4_XS: _iq4_xs,
    QType.MXFP4: _mxfp4,
    QType.NVFP4: _nvfp4,
    QType.TQ1_0: _tq1_0,
    QType.TQ2_0: _tq2_0,
}

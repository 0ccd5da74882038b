"""Quantisation in plain NumPy, for tests and synthetic models: valid blocks with simple rounding.

Nothing here searches for better scales as the usual tools do; use their files for real models. The block
formats are documented in dequantize.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import GGUFError
from edgellm.gguf.dequantize import IQ4_VALUES, MXFP4_VALUES, Floats, dequantize, e4m3_half
from edgellm.gguf.qtypes import QType
from edgellm.gguf.values import Bytes

__all__ = ["dequantize", "quantize"]


def quantize(values: Floats, qtype: QType) -> Bytes:
    """The bytes of a tensor in type `qtype`, uint8 [n_bytes].

    values: finite floats of any shape; the last dim fills whole blocks. Raises GGUFError otherwise, for a
    type that is not implemented here, and where a scale exceeds float16.
    """
    convert = _QUANTIZE.get(qtype)
    if convert is None:
        raise GGUFError(f"type {qtype} cannot be quantised; possible: {', '.join(t.name for t in _QUANTIZE)}")
    x = np.ascontiguousarray(values, np.float32)
    if x.ndim == 0 or x.shape[-1] % qtype.block:
        raise GGUFError(f"shape {x.shape} has rows that are not whole {qtype} blocks of {qtype.block}")
    if not np.isfinite(x).all():
        raise GGUFError(f"values to quantise as {qtype} must be finite")
    blocks = convert(x.reshape(-1, qtype.block))
    return np.ascontiguousarray(blocks).reshape(-1)


def _f16(x: Floats) -> Bytes:
    """float32 [n, k] -> little-endian float16 as bytes [n, 2 k]; GGUFError on overflow."""
    with np.errstate(over="ignore"):
        half = x.astype("<f2")
    if not np.isfinite(half).all():
        raise GGUFError(f"a value of magnitude {np.abs(x).max():g} does not fit float16")
    return half.view(np.uint8)


def _back(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _steps(x: Floats, step: Floats, lo: int, hi: int) -> NDArray[np.int64]:
    """x / step rounded to integers and clipped to lo..hi; 0 where the step is 0."""
    q = np.divide(x, step, out=np.zeros_like(x), where=step != 0)
    return np.clip(np.rint(q), lo, hi).astype(np.int64)


def _u8(q: NDArray[np.int64]) -> Bytes:
    return q.astype(np.uint8)


def _pack(q: Bytes, bits: int, m: int) -> Bytes:
    """The inverse of dequantize._fields: [n, ..., k * m] -> bytes [n, ..., m], k = 8 // bits to a byte."""
    fields = q.reshape(*q.shape[:-1], 8 // bits, m)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    packed: Bytes = np.bitwise_or.reduce(fields << shifts, axis=-2)
    return packed


def _extreme(x: Floats) -> Floats:
    """The value of largest magnitude in each block, with its sign: [n, 1]."""
    found: Floats = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    return found


def _f32(x: Floats) -> Bytes:
    return x.astype("<f4").view(np.uint8)


def _bf16(x: Floats) -> Bytes:
    """Rounded to nearest, ties to even."""
    bits = x.view(np.uint32).astype(np.int64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    if ((rounded & 0x7FFF) == 0x7F80).any():
        raise GGUFError(f"a value of magnitude {np.abs(x).max():g} does not fit bfloat16")
    return rounded.astype("<u2").view(np.uint8)


def _q4_0(x: Floats) -> Bytes:
    d = _f16(_extreme(x) / np.float32(-8))
    q = _u8(_steps(x, _back(d), -8, 7) + 8)
    return np.concatenate([d, _pack(q, 4, 16)], axis=1)


def _q4_1(x: Floats) -> Bytes:
    low = x.min(axis=1, keepdims=True)
    d, m = _f16((x.max(axis=1, keepdims=True) - low) / 15), _f16(low)
    q = _u8(_steps(x - _back(m), _back(d), 0, 15))
    return np.concatenate([d, m, _pack(q, 4, 16)], axis=1)


def _q5_0(x: Floats) -> Bytes:
    d = _f16(_extreme(x) / np.float32(-16))
    q = _u8(_steps(x, _back(d), -16, 15) + 16)
    high = np.packbits(q >> np.uint8(4), axis=1, bitorder="little")
    return np.concatenate([d, high, _pack(q & np.uint8(15), 4, 16)], axis=1)


def _q5_1(x: Floats) -> Bytes:
    low = x.min(axis=1, keepdims=True)
    d, m = _f16((x.max(axis=1, keepdims=True) - low) / 31), _f16(low)
    q = _u8(_steps(x - _back(m), _back(d), 0, 31))
    high = np.packbits(q >> np.uint8(4), axis=1, bitorder="little")
    return np.concatenate([d, m, high, _pack(q & np.uint8(15), 4, 16)], axis=1)


def _q8_0(x: Floats) -> Bytes:
    d = _f16(np.abs(x).max(axis=1, keepdims=True) / 127)
    q = _steps(x, _back(d), -127, 127).astype(np.int8)
    return np.concatenate([d, q.view(np.uint8)], axis=1)


def _with_minima(x: Floats, group: int, top: int, top_scale: int) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
    """d, dmin, scales [n, 256 / group], minima, q [n, 256]: every `group` spans from min(0, its smallest) to its
    largest value in `top` steps; scales and minima are at most `top_scale`."""
    groups = x.reshape(-1, 256 // group, group)
    least = np.minimum(groups.min(axis=2), 0)
    step = (np.maximum(groups.max(axis=2), 0) - least) / top
    d, dmin = (_f16(v.max(axis=1, keepdims=True) / top_scale) for v in (step, -least))
    scale, minimum = _u8(_steps(step, _back(d), 0, top_scale)), _u8(_steps(-least, _back(dmin), 0, top_scale))
    shifted = groups + (_back(dmin) * minimum)[:, :, None]
    steps = np.broadcast_to((_back(d) * scale)[:, :, None], groups.shape)
    return d, dmin, scale, minimum, _u8(_steps(shifted, steps, 0, top)).reshape(-1, 256)


def _q2_k(x: Floats) -> Bytes:
    """Groups of 16, 3 steps; scales and minima up to 15."""
    d, dmin, scale, minimum, q = _with_minima(x, 16, 3, 15)
    packed = _pack(q.reshape(-1, 2, 128), 2, 32).reshape(-1, 64)
    return np.concatenate([scale | (minimum << np.uint8(4)), packed, d, dmin], axis=1)


def _q4_k(x: Floats) -> Bytes:
    """Groups of 32, 15 steps; scales and minima up to 63."""
    d, dmin, scale, minimum, q = _with_minima(x, 32, 15, 63)
    return np.concatenate([d, dmin, _pack_scales_k4(scale, minimum), _pack_nibbles256(q)], axis=1)


def _q5_k(x: Floats) -> Bytes:
    """Groups of 32, 31 steps; scales and minima up to 63."""
    d, dmin, scale, minimum, q = _with_minima(x, 32, 31, 63)
    high = _pack(q >> np.uint8(4), 1, 32)
    low = _pack_nibbles256(q & np.uint8(15))
    return np.concatenate([d, dmin, _pack_scales_k4(scale, minimum), high, low], axis=1)


def _pack_nibbles256(q: Bytes) -> Bytes:
    """The inverse of dequantize._nibbles256: [n, 256] -> [n, 128]."""
    return _pack(q.reshape(-1, 4, 64), 4, 32).reshape(-1, 128)


def _pack_scales_k4(scale: Bytes, minimum: Bytes) -> Bytes:
    """The inverse of dequantize._scales_k4: [n, 8] twice -> [n, 12]."""
    six, four = np.uint8(6), np.uint8(4)
    first = scale[:, :4] | ((scale[:, 4:] >> four) << six)
    second = minimum[:, :4] | ((minimum[:, 4:] >> four) << six)
    third = (scale[:, 4:] & np.uint8(15)) | ((minimum[:, 4:] & np.uint8(15)) << four)
    return np.concatenate([first, second, third], axis=1)


def _symmetric(x: Floats, top: int, top_scale: int) -> tuple[Bytes, NDArray[np.int64], Bytes]:
    """d, scales [n, 16], q [n, 256]: each group of 16 spans -top..top steps of its own, multiples of d up to
    `top_scale`; q has top + 1 added."""
    groups = x.reshape(-1, 16, 16)
    step = np.abs(groups).max(axis=2) / top
    d = _f16(step.max(axis=1, keepdims=True) / top_scale)
    scale = _steps(step, _back(d), 0, top_scale)
    steps = np.broadcast_to((_back(d) * scale.astype(np.float32))[:, :, None], groups.shape)
    return d, scale, _u8(_steps(groups, steps, -top - 1, top) + top + 1).reshape(-1, 256)


def _q3_k(x: Floats) -> Bytes:
    """Groups of 16, 3 steps to each side; scales up to 31, stored with 32 added."""
    d, scale, q = _symmetric(x, 3, 31)
    high = _pack(q >> np.uint8(2), 1, 32)
    low = _pack((q & np.uint8(3)).reshape(-1, 2, 128), 2, 32).reshape(-1, 64)
    six = _u8(scale + 32)
    scales = [_pack(six & np.uint8(15), 4, 8), _pack(six >> np.uint8(4), 2, 4)]
    return np.concatenate([high, low, *scales, d], axis=1)


def _q6_k(x: Floats) -> Bytes:
    """Groups of 16, 31 steps to each side; scales up to 127."""
    d, scale, q = _symmetric(x, 31, 127)
    q = q.reshape(-1, 2, 128)
    low = _pack(q & np.uint8(15), 4, 64).reshape(-1, 128)
    high = _pack(q >> np.uint8(4), 2, 32).reshape(-1, 64)
    return np.concatenate([low, high, scale.astype(np.int8).view(np.uint8), d], axis=1)


def _nearest(x: Floats, step: Floats, values: NDArray[np.int8]) -> Bytes:
    """Which of 16 values is nearest to x / step; of two equal ones the first. Where the step is 0: to 0."""
    q = np.divide(x, step, out=np.zeros_like(x), where=step != 0)
    return _u8(np.abs(q[..., None] - values.astype(np.float32)).argmin(axis=-1))


def _iq4_nl(x: Floats) -> Bytes:
    d = _f16(_extreme(x) / np.float32(-127))
    return np.concatenate([d, _pack(_nearest(x, _back(d), IQ4_VALUES), 4, 16)], axis=1)


def _mxfp4(x: Floats) -> Bytes:
    """The least power of two with which twelve steps reach the largest value, or twice that."""
    power = np.frexp(np.abs(x).max(axis=1, keepdims=True) / np.float32(12))[1]
    e = np.clip(power + 128, 0, 254)
    q = _nearest(x, np.ldexp(np.float32(1), e - 128), MXFP4_VALUES)
    return np.concatenate([e.astype(np.uint8), _pack(q, 4, 16)], axis=1)


def _nvfp4(x: Floats) -> Bytes:
    """The least scale with which twelve steps reach the largest value of each 16; GGUFError past the last one."""
    groups = x.reshape(-1, 4, 16)
    scales = e4m3_half(np.arange(127, dtype=np.uint8))
    e = np.searchsorted(scales, np.abs(groups).max(axis=2) / np.float32(12))
    if (e > 126).any():
        raise GGUFError(f"a value of magnitude {np.abs(x).max():g} does not fit NVFP4")
    q = _nearest(groups, np.broadcast_to(scales[e][:, :, None], groups.shape), MXFP4_VALUES)
    return np.concatenate([e.astype(np.uint8), _pack(q, 4, 8).reshape(-1, 32)], axis=1)


def _ternary(x: Floats) -> tuple[Bytes, Bytes]:
    """d, the largest magnitude, and q [n, 256] with 1 added."""
    d = _f16(np.abs(x).max(axis=1, keepdims=True))
    return d, _u8(_steps(x, _back(d), -1, 1) + 1)


def _base_3(q: Bytes, m: int, digits: int) -> Bytes:
    """[n, digits * m] -> [n, m]: the least fraction of 256 that begins with these digits, most significant first."""
    number = np.zeros((len(q), m), np.int64)
    for digit in q.reshape(len(q), digits, m).astype(np.int64).transpose(1, 0, 2):
        number = number * 3 + digit
    return _u8((number * 3 ** (5 - digits) * 256 + 242) // 243)


def _tq1_0(x: Floats) -> Bytes:
    d, q = _ternary(x)
    return np.concatenate(
        [_base_3(q[:, :160], 32, 5), _base_3(q[:, 160:240], 16, 5), _base_3(q[:, 240:], 4, 4), d], axis=1
    )


def _tq2_0(x: Floats) -> Bytes:
    d, q = _ternary(x)
    return np.concatenate([_pack(q.reshape(-1, 2, 128), 2, 32).reshape(-1, 64), d], axis=1)


def _iq4_xs(x: Floats) -> Bytes:
    """Groups of 32 as in IQ4_NL; scales from -31 to 31, stored with 32 added."""
    groups = x.reshape(-1, 8, 32)
    step = _extreme(x.reshape(-1, 32)).reshape(-1, 8) / np.float32(-127)
    d = _f16(np.abs(step).max(axis=1, keepdims=True) / 31)
    scale = _steps(step, _back(d), -31, 31)
    steps = np.broadcast_to((_back(d) * scale.astype(np.float32))[:, :, None], groups.shape)
    packed = _pack(_nearest(groups, steps, IQ4_VALUES), 4, 16).reshape(-1, 128)
    six = _u8(scale + 32)
    top, low = (_pack(part, bits, 1) for part, bits in _split_scales(six))
    return np.concatenate([d, top.reshape(-1, 2), low.reshape(-1, 4), packed], axis=1)


def _split_scales(six: Bytes) -> tuple[tuple[Bytes, int], tuple[Bytes, int]]:
    """Scales [n, 8] of 6 bits: the top pairs, four to a byte, and the low nibbles, two to a byte."""
    return ((six >> np.uint8(4)).reshape(-1, 2, 4), 2), ((six & np.uint8(15)).reshape(-1, 4, 2), 4)


_QUANTIZE: dict[QType, Callable[[Floats], Bytes]] = {
    QType.F32: _f32,
    QType.F16: _f16,
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
    QType.IQ4_NL: _iq4_nl,
    QType.IQ4_XS: _iq4_xs,
    QType.MXFP4: _mxfp4,
    QType.NVFP4: _nvfp4,
    QType.TQ1_0: _tq1_0,
    QType.TQ2_0: _tq2_0,
}

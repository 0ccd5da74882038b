"""Quantisation in plain NumPy, for tests and synthetic models: valid blocks with simple rounding.

Nothing here searches for better scales as the usual tools do; use their files for real models. The block
formats are documented in dequantize.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import GGUFError
from edgellm.gguf.dequantize import Floats, dequantize
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


def _q8_0(x: Floats) -> Bytes:
    d = _f16(np.abs(x).max(axis=1, keepdims=True) / 127)
    q = _steps(x, _back(d), -127, 127).astype(np.int8)
    return np.concatenate([d, q.view(np.uint8)], axis=1)


def _q4_k(x: Floats) -> Bytes:
    """Each group of 32 spans from min(0, its smallest) to its largest value in 15 steps."""
    groups = x.reshape(-1, 8, 32)
    least = np.minimum(groups.min(axis=2), 0)
    step = (np.maximum(groups.max(axis=2), 0) - least) / 15
    d, dmin = _f16(step.max(axis=1, keepdims=True) / 63), _f16((-least).max(axis=1, keepdims=True) / 63)
    scale, minimum = _u8(_steps(step, _back(d), 0, 63)), _u8(_steps(-least, _back(dmin), 0, 63))
    shifted = groups + (_back(dmin) * minimum)[:, :, None]
    q = _u8(_steps(shifted, np.broadcast_to((_back(d) * scale)[:, :, None], groups.shape), 0, 15))
    packed = _pack(q.reshape(-1, 4, 64), 4, 32).reshape(-1, 128)
    return np.concatenate([d, dmin, _pack_scales_k4(scale, minimum), packed], axis=1)


def _pack_scales_k4(scale: Bytes, minimum: Bytes) -> Bytes:
    """The inverse of dequantize._scales_k4: [n, 8] twice -> [n, 12]."""
    six, four = np.uint8(6), np.uint8(4)
    first = scale[:, :4] | ((scale[:, 4:] >> four) << six)
    second = minimum[:, :4] | ((minimum[:, 4:] >> four) << six)
    third = (scale[:, 4:] & np.uint8(15)) | ((minimum[:, 4:] & np.uint8(15)) << four)
    return np.concatenate([first, second, third], axis=1)


def _q6_k(x: Floats) -> Bytes:
    """Each group of 16 spans -31..31 steps of its own; the steps are multiples of d."""
    groups = x.reshape(-1, 16, 16)
    step = np.abs(groups).max(axis=2) / 31
    d = _f16(step.max(axis=1, keepdims=True) / 127)
    scale = _steps(step, _back(d), 0, 127)
    steps = np.broadcast_to((_back(d) * scale.astype(np.float32))[:, :, None], groups.shape)
    q = _u8(_steps(groups, steps, -32, 31) + 32).reshape(-1, 2, 128)
    low = _pack(q & np.uint8(15), 4, 64).reshape(-1, 128)
    high = _pack(q >> np.uint8(4), 2, 32).reshape(-1, 64)
    return np.concatenate([low, high, scale.astype(np.int8).view(np.uint8), d], axis=1)


_QUANTIZE: dict[QType, Callable[[Floats], Bytes]] = {
    QType.F32: _f32,
    QType.F16: _f16,
    QType.BF16: _bf16,
    QType.Q4_0: _q4_0,
    QType.Q4_1: _q4_1,
    QType.Q5_0: _q5_0,
    QType.Q8_0: _q8_0,
    QType.Q4_K: _q4_k,
    QType.Q6_K: _q6_k,
}

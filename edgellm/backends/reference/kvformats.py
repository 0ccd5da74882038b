"""What the formats of the KV cache keep of a float: rounding to a format and back, by the formulas of kernels.h."""

from __future__ import annotations

import numpy as np

from edgellm.core.types import F32

_TINY = np.float32(2.0**-120)


def kept(x: F32, kind: str) -> F32:
    """The values that a cache of this format holds after x [..., dim] was stored: float32, same shape.

    q8_0 and q4_0 have a scale per 32 dimensions of the last axis, which may end in a shorter block.
    """
    if kind == "f32":
        return x
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _ROUND[kind](np.ascontiguousarray(x, np.float32))


def _f16(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


def _bf16(x: F32) -> F32:
    u = x.view(np.uint32)
    rounded = (u + 0x7FFF + (u >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


def _fp8(x: F32, mantissa: int, smallest: float, largest: float) -> F32:
    """Nearest number of `mantissa` bits behind the first, not below the unit of `smallest` (normal); saturating."""
    exponent = np.frexp(np.maximum(np.abs(x), smallest))[1] - 1
    unit = np.ldexp(np.float32(1), exponent - mantissa)
    rounded: F32 = np.clip(np.rint(x / unit) * unit, np.float32(-largest), np.float32(largest))
    return rounded


def _e4m3(x: F32) -> F32:
    return np.where(np.isfinite(x), _fp8(x, 3, 2.0**-6, 448.0), np.float32(np.nan))


def _e5m2(x: F32) -> F32:
    return np.where(np.isfinite(x), _fp8(x, 2, 2.0**-14, 57344.0), x)


def _blocks(x: F32) -> tuple[F32, F32]:
    """x in blocks of 32 [..., n, 32], the last one with zeros, and the largest |x| of each [..., n, 1]."""
    short = -x.shape[-1] % 32
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)]).reshape(*x.shape[:-1], -1, 32)
    return padded, np.abs(padded).max(-1, keepdims=True)


def _up(d: F32) -> F32:
    """Positive numbers rounded up to bf16."""
    up: F32 = ((d.view(np.uint32) + 0xFFFF) & np.uint32(0xFFFF0000)).view(np.float32)
    return up


def _scaled(x: F32, blocks: F32, amax: F32, d: F32, low: int, high: int) -> F32:
    q = np.clip(np.rint(blocks * (np.float32(1) / d)), low, high)
    value = np.where(amax < _TINY, np.float32(0), np.where(np.isfinite(amax), q * d, np.float32(np.nan)))
    return np.ascontiguousarray(value.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]], np.float32)


def _q8_0(x: F32) -> F32:
    blocks, amax = _blocks(x)
    return _scaled(x, blocks, amax, _up(amax / np.float32(127)), -127, 127)


def _q4_0(x: F32) -> F32:
    blocks, amax = _blocks(x)
    negative = (blocks == -amax).any(-1, keepdims=True)
    d = _up(amax / np.float32(8))
    return _scaled(x, blocks, amax, np.where(negative, d, -d), -8, 7)


_ROUND = {"f16": _f16, "bf16": _bf16, "q8_0": _q8_0, "q4_0": _q4_0, "fp8_e4m3": _e4m3, "fp8_e5m2": _e5m2}

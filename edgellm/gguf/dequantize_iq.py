"""What the bytes of the IQ types mean whose groups of 4 or 8 elements are entries of a code book (grids.py).

As in dequantize.py, blocks uint8 [n, block_bytes] to float32 [n, 256], each product and sum rounded to float32 in the
order written here. `d` is a float16 scale, `s` a small integer scale of a group, `sign` +1 or -1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgellm.gguf.grids import codebook
from edgellm.gguf.values import Bytes

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]

_HALF, _QUARTER = np.float32(0.5), np.float32(0.25)


def _f16(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _words(raw: Bytes, bits: int) -> Words:
    """Little-endian integers of 16 or 32 bits, as uint32."""
    return np.ascontiguousarray(raw).view(f"<u{bits // 8}").astype(np.uint32)


def _split(x: NDArray[np.generic], shifts: list[int], mask: int) -> Words:
    """[n, m] -> [n, m * len(shifts)]: the fields of each integer that begin at these bits, in order."""
    fields: Words = (x.astype(np.uint32)[:, :, None] >> np.array(shifts, np.uint32)) & np.uint32(mask)
    return fields.reshape(len(x), -1)


def _signs(bits: NDArray[np.generic]) -> Floats:
    """Bytes [n, m] -> [n, m, 8] of +1 and -1: bit j set means element j is negative."""
    negative = np.unpackbits(bits.astype(np.uint8)[:, :, None], axis=2, bitorder="little")
    signs: Floats = np.float32(1) - 2 * negative.astype(np.float32)
    return signs


def _even(seven: Words) -> Words:
    """Seven signs and an eighth that makes the number of negative ones even."""
    parity = seven ^ (seven >> np.uint32(4))
    parity ^= parity >> np.uint32(2)
    parity ^= parity >> np.uint32(1)
    eight: Words = seven | ((parity & np.uint32(1)) << np.uint32(7))
    return eight


def _combine(scale: Floats, entries: NDArray[np.int8], signs: Floats) -> Floats:
    """scale [n, g] times entries and signs of 256 elements, in g equal groups."""
    n, groups = scale.shape
    values = scale[:, :, None] * entries.astype(np.float32).reshape(n, groups, -1)
    return (values * signs.reshape(n, groups, -1)).reshape(n, 256)


def iq2_xxs(b: Bytes) -> Floats:
    """d | 8 groups: 4 indices of 8 elements, 32 bits (4 x 7 signs, s). Value d (s + 1/2) / 4 entry sign."""
    groups = b[:, 2:].reshape(-1, 8, 8)
    index, rest = groups[:, :, :4].reshape(-1, 32), _words(groups[:, :, 4:].reshape(-1, 32), 32)
    scale = _f16(b[:, :2]) * (_HALF + (rest >> np.uint32(28)).astype(np.float32)) * _QUARTER
    return _combine(scale, codebook("IQ2_XXS")[index], _signs(_even(_split(rest, [0, 7, 14, 21], 127))))


def iq2_xs(b: Bytes) -> Floats:
    """d | 32 x 16 bits (9 of index, 7 signs) | 16 nibbles s. Value d (s + 1/2) / 4 entry sign, groups of 16."""
    both = _words(b[:, 2:66], 16)
    scale = _f16(b[:, :2]) * (_HALF + _split(b[:, 66:], [0, 4], 15).astype(np.float32)) * _QUARTER
    return _combine(scale, codebook("IQ2_XS")[both & np.uint32(511)], _signs(_even(both >> np.uint32(9))))


def iq2_s(b: Bytes) -> Floats:
    """d | 32 indices | 32 x 8 signs | 32 x 2 top bits of the indices | 16 nibbles s. Value as in IQ2_XS."""
    index = b[:, 2:34] | (_split(b[:, 66:74], [0, 2, 4, 6], 3) << np.uint32(8))
    scale = _f16(b[:, :2]) * (_HALF + _split(b[:, 74:], [0, 4], 15).astype(np.float32)) * _QUARTER
    return _combine(scale, codebook("IQ2_S")[index], _signs(b[:, 34:66]))


def iq3_xxs(b: Bytes) -> Floats:
    """d | 64 indices of 4 elements | 8 x 32 bits (4 x 7 signs, s). Value d (s + 1/2) / 2 entry sign, groups of 32."""
    rest = _words(b[:, 66:], 32)
    scale = _f16(b[:, :2]) * (_HALF + (rest >> np.uint32(28)).astype(np.float32)) * _HALF
    return _combine(scale, codebook("IQ3_XXS")[b[:, 2:66]], _signs(_even(_split(rest, [0, 7, 14, 21], 127))))


def iq3_s(b: Bytes) -> Floats:
    """d | 64 indices of 4 elements | 64 top bits of them | 32 x 8 signs | 8 nibbles s. Value d (2 s + 1) entry sign."""
    index = b[:, 2:66] | (_split(b[:, 66:74], list(range(8)), 1) << np.uint32(8))
    scale = _f16(b[:, :2]) * (1 + 2 * _split(b[:, 106:], [0, 4], 15)).astype(np.float32)
    return _combine(scale, codebook("IQ3_S")[index], _signs(b[:, 74:106]))


def _shifted(scale: Floats, index: NDArray[np.generic], minus: Words) -> Floats:
    """scale (entry + 1/8), or - 1/8 where `minus` is set; minus [n, m] for m equal groups."""
    n, m = minus.shape
    entries = codebook("IQ1_S")[index].astype(np.float32).reshape(n, m, -1)
    delta = np.where(minus != 0, np.float32(-0.125), np.float32(0.125))
    values: Floats = (entries + delta[:, :, None]).reshape(n, scale.shape[1], -1)
    scaled: Floats = scale[:, :, None] * values
    return scaled.reshape(n, 256)


def iq1_s(b: Bytes) -> Floats:
    """d | 32 indices | 8 x 16 bits (4 x 3 top bits of indices, 3 of s, minus). Value d (2 s + 1) (entry +- 1/8)."""
    rest = _words(b[:, 34:], 16)
    index = b[:, 2:34] | (_split(rest, [0, 3, 6, 9], 7) << np.uint32(8))
    scale = _f16(b[:, :2]) * (2 * _split(rest, [12], 7) + 1).astype(np.float32)
    return _shifted(scale, index, _split(rest, [15], 1))


def iq1_m(b: Bytes) -> Floats:
    """32 indices | 32 nibbles (3 top bits, minus) | 4 x 16 bits (4 x 3 of s, a nibble of d). Value as in IQ1_S.

    Groups of 16; entries of 8 elements have a sign of the eighth of their own.
    """
    rest = _words(b[:, 48:], 16)
    d = _split(rest, [12], 15) << np.array([0, 4, 8, 12], np.uint32)
    scale = (2 * _split(rest, [0, 3, 6, 9], 7) + 1).astype(np.float32)
    scale = d.sum(axis=1, keepdims=True).astype("<u2").view("<f2").astype(np.float32) * scale
    index = b[:, :32] | (_split(b[:, 32:48], [0, 4], 7) << np.uint32(8))
    return _shifted(scale, index, _split(b[:, 32:48], [3, 7], 1))

"""Random matrices as the bytes of any weight type, those that quantize.py cannot write included."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgellm.gguf.dequantize import dequantize
from edgellm.gguf.qtypes import QType
from edgellm.gguf.quantize import quantize

CODEBOOKS = {QType.IQ1_S, QType.IQ1_M, QType.IQ2_XXS, QType.IQ2_XS, QType.IQ2_S, QType.IQ3_XXS, QType.IQ3_S}


def random_matrix(
    rng: np.random.Generator, qtype: QType, shape: tuple[int, ...], deviation: float
) -> NDArray[np.uint8]:
    """Normal values, quantised; of the types of code books any blocks, scaled to that standard deviation."""
    if qtype not in CODEBOOKS:
        return quantize(rng.normal(0, deviation, shape).astype(np.float32), qtype)
    raw = rng.integers(0, 256, (int(np.prod(shape)) // qtype.block, qtype.block_bytes), dtype=np.uint8)
    set_scale(raw, qtype, 1)
    set_scale(raw, qtype, deviation / float(dequantize(raw.reshape(-1), qtype, shape).std()))
    return raw.reshape(-1)


def set_scale(blocks: NDArray[np.uint8], qtype: QType, d: float) -> None:
    """Give all blocks [n, block_bytes] of a type of code books the scale d."""
    bits = np.array([d], "<f2").view("<u2")
    if qtype is not QType.IQ1_M:
        blocks[:, :2] = bits.view(np.uint8)
        return
    words = blocks[:, 48:].copy().view("<u2")  # d is in their top nibbles
    nibbles = (bits >> np.array([0, 4, 8, 12], np.uint16)) & np.uint16(15)
    blocks[:, 48:] = ((words & np.uint16(0x0FFF)) | (nibbles << np.uint16(12))).astype("<u2").view(np.uint8)

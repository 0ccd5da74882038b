"""What a machine can run: the largest model that fits its memory and answers at a pace that one can read along."""

from __future__ import annotations

from typing import NamedTuple

PACE = 8.0
"""Tokens a second at least."""
REACHED = 0.9
"""Share of the memory's rate that decoding reaches."""
BESIDE = 1 << 29
"""Bytes for the program, its scratch and others beside weights and KV cache."""
CONTEXTS = (32768, 16384, 8192, 4096)

# Billions of weights, and bytes of f16 K and V a token, of common models: Qwen3 0.6B and 1.7B, Llama 3.2 1B and 3B,
# Qwen3 4B, 8B, 14B and 32B, Llama 3.3 70B.
SIZES = (
    ("0.6B", 0.6, 114_688),
    ("1B", 1.24, 32_768),
    ("1.7B", 1.7, 114_688),
    ("3B", 3.2, 114_688),
    ("4B", 4.0, 147_456),
    ("8B", 8.2, 147_456),
    ("14B", 14.8, 163_840),
    ("32B", 32.8, 262_144),
    ("70B", 70.6, 327_680),
)
QUANTS = (("Q8_0", 8.5), ("Q6_K", 6.6), ("Q5_K_M", 5.7), ("Q4_K_M", 4.9))
"""Quantisations with their bits per weight, the best first; the last is what is meant where none is named."""


class Advice(NamedTuple):
    """A size of model and its quantisation, the bytes of its weights, a context that fits beside them, and the tokens
    a second to expect (None where the memory's rate is not known)."""

    size: str
    quant: str
    n_bytes: int
    n_ctx: int
    tokens_per_second: float | None


def advise(available: int, bandwidth: float | None) -> Advice | None:
    """The largest size that fits and keeps pace as Q4_K_M, in the best quantisation that does so too. Where none keeps
    pace, the smallest that fits; None where nothing fits. available: bytes of memory; bandwidth: bytes/s."""
    fitting = [found for size in SIZES if (found := _fit(size, *QUANTS[-1], available, bandwidth))]
    if not fitting:
        return None
    paced = [found for found in fitting if found.tokens_per_second is None or found.tokens_per_second >= PACE]
    if not paced:
        return fitting[0]
    size = next(s for s in SIZES if s[0] == paced[-1].size)
    for quant, bits in QUANTS:
        found = _fit(size, quant, bits, available, bandwidth)
        if found and (found.tokens_per_second is None or found.tokens_per_second >= PACE):
            return found
    return paced[-1]


def largest(available: int, bandwidth: float | None) -> Advice | None:
    """The largest size that fits at all, as Q4_K_M."""
    fitting = [found for size in SIZES if (found := _fit(size, *QUANTS[-1], available, bandwidth))]
    return fitting[-1] if fitting else None


def _fit(
    size: tuple[str, float, int], quant: str, bits: float, available: int, bandwidth: float | None
) -> Advice | None:
    name, billions, kv_bytes = size
    n_bytes = int(billions * 1e9 * bits / 8)
    left = available - n_bytes - BESIDE
    n_ctx = next((n for n in CONTEXTS if n * kv_bytes <= left), None)
    if n_ctx is None:
        return None
    return Advice(name, quant, n_bytes, n_ctx, None if bandwidth is None else REACHED * bandwidth / n_bytes)

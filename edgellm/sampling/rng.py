"""Counter-based random numbers: a draw depends on (seed, choice, tokens generated so far) and on nothing else.

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

from functools import lru_cache

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox(key: int, counter: int) -> tuple[int, int, int, int]:
    """Four 32-bit words for a 64-bit key and a 128-bit counter."""
    c0, c1, c2, c3 = counter & _MASK, counter >> 32 & _MASK, counter >> 64 & _MASK, counter >> 96 & _MASK
    for k0, k1 in _round_keys(key):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _MASK, p0 >> 32 ^ c3 ^ k1, p0 & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, n_generated: int) -> float:
    """A float64 in [0, 1) with 53 random bits for the n_generated-th token of choice number `choice`."""
    a, b, _, _ = philox(seed & (2**64 - 1), n_generated | choice << 64)
    return ((a << 32 | b) >> 11) * 2.0**-53


def second_uniform(seed: int, choice: int, n_generated: int) -> float:
    """Another number in [0, 1) for the same token, independent of `uniform`'s."""
    _, _, c, d = philox(seed & (2**64 - 1), n_generated | choice << 64)
    return ((c << 32 | d) >> 11) * 2.0**-53


@lru_cache(maxsize=256)
def _round_keys(key: int) -> tuple[tuple[int, int], ...]:
    return tuple(((key & _MASK) + i * _W0 & _MASK, (key >> 32) + i * _W1 & _MASK) for i in range(10))

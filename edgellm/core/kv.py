"""The formats of the KV cache: names, sizes, and how K and V choose apart."""

from __future__ import annotations

from edgellm.core.record import dataclass


@dataclass(frozen=True, slots=True)
class KVFormat:
    """code: el_kvtype of the native core. bytes_32: of 32 values, scale included. padded: a head's dimensions are
    stored as whole blocks of 32."""

    code: int
    bytes_32: int
    padded: bool = False

    def n_bytes(self, dim: int, n_tokens: int) -> int:
        """Bytes of one head's K or V of n_tokens tokens, a multiple of 32."""
        return n_tokens * (-(-dim // 32) * 32 if self.padded else dim) * self.bytes_32 // 32


KV_FORMATS = {
    "f16": KVFormat(0, 64),
    "bf16": KVFormat(2, 64),
    "q8_0": KVFormat(3, 34, padded=True),
    "q4_0": KVFormat(4, 18, padded=True),
    "fp8_e4m3": KVFormat(5, 32),
    "fp8_e5m2": KVFormat(6, 32),
    "f32": KVFormat(1, 128),
}

KV_ALIASES = {"fp8": "fp8_e4m3"}

KV_NAMES = (*KV_FORMATS, *KV_ALIASES)
"""All names that a user may write."""


def kv_name(name: str) -> str:
    """The format that a name means: itself, unless it is an alias."""
    return KV_ALIASES.get(name, name)


def kv_pair_name(k_type: str, v_type: str) -> str:
    """One name for the formats of K and V: "f16", or "q8_0+f16" where they differ."""
    return k_type if k_type == v_type else f"{k_type}+{v_type}"

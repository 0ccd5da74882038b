"""The sizes that nearly every family reads in the same way."""

from __future__ import annotations

import numpy as np

from edgellm.core.errors import UnsupportedModel
from edgellm.core.record import dataclass
from edgellm.models.build import Builder
from edgellm.models.keys import MAX_LAYERS, Keys
from edgellm.models.tables import PlanError


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes of a model. Tuples hold one number per layer; head sizes are those of full-attention layers.

    n_layer: without the trailing prediction layers of some files (`n_extra` of them).
    n_ff: 0 where the file does not say.
    """

    n_layer: int
    n_extra: int
    n_embd: int
    n_ctx: int
    n_vocab: int
    eps: float
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    k_dim: int
    v_dim: int
    n_rot: int
    n_ff: tuple[int, ...]
    n_expert: int
    n_expert_used: int


RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


def read_dims(k: Keys, b: Builder, eps: str = RMS_EPS) -> Dims:
    """Reads the common keys. A model without attention has heads, k_dim, v_dim and n_rot 0. eps: the norms' key."""
    n_all = k.integer("block_count", lo=1, hi=MAX_LAYERS)
    n_extra = k.integer("nextn_predict_layers", 0, hi=n_all - 1)
    n = n_all - n_extra
    n_embd = k.integer("embedding_length", lo=1)
    heads = k.integers("attention.head_count", n, 0, hi=1 << 16)
    kv_heads = k.integers("attention.head_count_kv", n, 0, hi=1 << 16) if k.has("attention.head_count_kv") else heads
    _check_heads(k, b, n_embd, heads, kv_heads)
    head_dim = n_embd // max(heads) if max(heads) else 0
    k_dim = k.integer("attention.key_length", head_dim, lo=1, hi=1 << 16)
    v_dim = k.integer("attention.value_length", head_dim, lo=1, hi=1 << 16)
    n_rot = k.integer("rope.dimension_count", k_dim, hi=1 << 16)
    n_expert = k.integer("expert_count", 0, hi=1 << 16)
    n_used = k.integer("expert_used_count", 0, hi=1 << 16)
    if not n_used <= n_expert or (n_expert and not n_used):
        raise UnsupportedModel(
            f"metadata key '{k.arch}.expert_used_count' is {n_used} with {n_expert} experts; expected 1..{n_expert}"
        )
    if not k.flag("attention.causal", True):
        raise UnsupportedModel(f"metadata key '{k.arch}.attention.causal' is false: an encoder, which cannot generate")
    return Dims(
        n_layer=n,
        n_extra=n_extra,
        n_embd=n_embd,
        n_ctx=k.integer("context_length", lo=1, hi=1 << 26),
        n_vocab=b.shape("token_embd.weight")[0],
        eps=k.number(eps),
        heads=heads,
        kv_heads=kv_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        n_rot=n_rot,
        n_ff=k.integers("feed_forward_length", n, 0),
        n_expert=n_expert,
        n_expert_used=n_used,
    )


def _check_heads(k: Keys, b: Builder, n_embd: int, heads: tuple[int, ...], kv_heads: tuple[int, ...]) -> None:
    """UnsupportedModel for numbers of heads that no attention can have. Layers without attention have none."""
    if not max(heads):
        tensor = next((name for name in b.file.tensors if ".attn_q" in name), None)
        if tensor is not None:
            found = "is 0" if k.has("attention.head_count") else "is missing"
            raise UnsupportedModel(
                f"metadata key '{k.arch}.attention.head_count' {found}, but there is attention to compute "
                f"({tensor}): expected the number of its heads"
            )
    if max(heads) > n_embd and not k.has("attention.key_length"):
        raise UnsupportedModel(
            f"metadata key '{k.arch}.attention.head_count' is {max(heads)}, more than the {n_embd} dimensions of "
            f"embedding_length: heads of no size"
        )
    for i, (h, g) in enumerate(zip(heads, kv_heads, strict=True)):
        if g and h % g:
            raise UnsupportedModel(
                f"metadata key '{k.arch}.attention.head_count_kv' is {g} in layer {i}, which does not divide the {h} "
                f"heads of attention.head_count"
            )


def windowed(k: Keys, n_layer: int, period: int) -> tuple[bool, ...]:
    """Which layers have a sliding window: an array of flags, or all but every n-th (the last of each n)."""
    name = "attention.sliding_window_pattern"
    if k.is_array(name):
        return k.flags(name, n_layer)
    period = k.integer(name, period, hi=1 << 16)
    return tuple(period == 0 or i % period < period - 1 for i in range(n_layer))


def f32(x: float) -> float:
    """x rounded to float32."""
    return float(np.float32(x))


def sqrt32(x: float) -> float:
    """The float32 square root of x."""
    return float(np.sqrt(np.float32(x)))


def rsqrt32(x: float) -> float:
    """1 / sqrt(x), each step rounded to float32. PlanError unless x > 0."""
    if not x > 0:
        raise PlanError(
            f"the attention scale is 1 / sqrt(size of a head), which is {x}: attention.head_count and "
            f"embedding_length or attention.key_length say so"
        )
    return float(np.float32(1.0) / np.sqrt(np.float32(x)))

"""Rope tables from a file's metadata: base, linear scaling, YaRN, LongRoPE, divisors of the frequencies.

The keys stand under `<arch>.rope.scaling.`; scale = 1 / `factor` is that of the frequencies.

| type | a pair's frequency | cos and sin are multiplied by |
| --- | --- | --- |
| none | as trained | `attn_factor` |
| linear, longrope | times scale | `attn_factor` |
| yarn | times scale, but for the pairs that turn fast (`yarn_beta_fast`, `yarn_beta_slow`) | also 1 + ln(factor) / 10 |

Divisors are applied with every type, where the file has the tensors: `rope_freqs`, or `rope_factors_short` and `_long`.
"""

from __future__ import annotations

import math

from edgellm.core.errors import UnsupportedModel
from edgellm.models.build import Builder
from edgellm.models.keys import Keys
from edgellm.models.rope import ln, turning_pair
from edgellm.models.tables import LongRope, RopeTable, Temperature, Yarn

KINDS = ("none", "linear", "yarn", "longrope")
MAX_CONTEXT = 1 << 26
LONG, SHORT, FREQS = "rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight"


def rope_table(
    k: Keys,
    n_rot: int,
    factors: int | None = None,
    *,
    longrope: LongRope | None = None,
    base: float | None = None,
    log_multiplier: float = 0.0,
) -> RopeTable:
    """The table of the file's base (or of `base`) and scaling.

    factors, longrope: divisors, as in RopeTable. log_multiplier: YaRN's `yarn_log_multiplier`, of which the factor on
    cos and sin is freed, for families that know the key. UnsupportedModel for values that no table could have.
    """
    kind = scaling_type(k)
    if kind == "longrope" and longrope is None:
        raise UnsupportedModel(
            f"metadata key '{k.arch}.rope.scaling.type' is 'longrope', but the divisors that go with it "
            f"({SHORT}, {LONG}) are missing, or not known of {k.arch} models"
        )
    k.flag("rope.scaling.finetuned", False)  # how the model came about; nothing is computed from it
    base = _positive(k, "rope.freq_base", 10000.0) if base is None else base
    factor = k.number("rope.scaling.factor", 0.0) or k.number("rope.scale_linear", 0.0) or 1.0
    if kind == "none":
        factor = 1.0
    if factor <= 0:
        raise UnsupportedModel(f"metadata key '{k.arch}.rope.scaling.factor' is {factor}, expected a number above 0")
    attn_factor = _positive(k, "rope.scaling.attn_factor", 1.0)
    n_ctx = original_context(k)
    fast, slow = _positive(k, "rope.scaling.yarn_beta_fast", 32.0), _positive(k, "rope.scaling.yarn_beta_slow", 1.0)
    ext = k.number("rope.scaling.yarn_ext_factor", -1.0)
    ext = float(kind == "yarn") if ext < 0 else ext
    own = k.number("rope.scaling.yarn_attn_factor", 1.0)
    yarn = None
    if ext > 0:
        if not (base > 1 and ext <= 1):
            raise UnsupportedModel(
                f"YaRN needs rope.freq_base above 1 and rope.scaling.yarn_ext_factor up to 1; found {base} and {ext}"
            )
        low = math.floor(turning_pair(n_rot, base, n_ctx, fast))
        high = math.ceil(turning_pair(n_rot, base, n_ctx, slow))
        yarn = Yarn(float(max(0, low)), float(min(n_rot - 1, high)), ext)
        magnitude = yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, log_multiplier)
        if abs(own - 1.0) > 1e-3 and abs(own - magnitude) > 1e-3 * magnitude:
            raise UnsupportedModel(
                f"metadata key '{k.arch}.rope.scaling.yarn_attn_factor' is {own}, but a YaRN factor of {factor} goes "
                f"with {magnitude:.6g}; edgellm knows no other"
            )
        attn_factor *= magnitude
    else:
        attn_factor *= own
    return RopeTable(n_rot, base, factors, factor, attn_factor, yarn, longrope)


def scaling_type(k: Keys) -> str:
    """The file's kind of scaling, one of KINDS."""
    kind = k.text("rope.scaling.type", "linear")
    if kind not in KINDS:
        raise UnsupportedModel(
            f"metadata key '{k.arch}.rope.scaling.type' is '{kind[:40]}'; edgellm knows {', '.join(KINDS)}"
        )
    return kind


def original_context(k: Keys) -> int:
    """Tokens of the context before it was extended; the trained context where the file does not say."""
    trained = k.integer("context_length", lo=1, hi=MAX_CONTEXT)
    return k.integer("rope.scaling.original_context_length", 0, hi=MAX_CONTEXT) or trained


def yarn_magnitude(factor: float, multiplier: float) -> float:
    """YaRN's factor on cos and sin: 1 + multiplier * ln(factor) / 10, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1 or multiplier == 0 else 1.0 + multiplier * ln(factor) / 10


def long_factors(b: Builder, k: Keys, n_rot: int) -> LongRope | None:
    """The divisors in `rope_factors_short` and `rope_factors_long`; None where the file has neither."""
    if not b.has(SHORT) and not b.has(LONG):
        return None
    return LongRope(original_context(k), b.numbers(SHORT, n_rot // 2), b.numbers(LONG, n_rot // 2))


def divided_table(b: Builder, k: Keys, n_rot: int, log_multiplier: float = 0.0) -> RopeTable:
    """The table of llama and its kin: the long and short divisors with the type longrope, otherwise `rope_freqs`."""
    if scaling_type(k) == "longrope":
        return rope_table(k, n_rot, longrope=long_factors(b, k, n_rot), log_multiplier=log_multiplier)
    factors = b.shared_vector(FREQS) if b.has(FREQS) else None
    return rope_table(k, n_rot, factors, log_multiplier=log_multiplier)


def temperature(k: Keys) -> Temperature | None:
    """The factor of `attention.temperature_scale` on queries far into the context; None where there is none."""
    scale = k.number("attention.temperature_scale", 0.0)
    return Temperature(scale, original_context(k)) if scale else None


def _positive(k: Keys, name: str, default: float) -> float:
    value = k.number(name, default)
    if value <= 0:
        raise UnsupportedModel(f"metadata key '{k.arch}.{name}' is {value}, expected a number above 0")
    return value

"""Scaled positions: from metadata keys to a table, against formulas written down apart from the code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edgellm.core.errors import UnsupportedModel
from edgellm.models import load_plan
from edgellm.models.plan import Plan, RopeTable
from edgellm.models.rope import RopeCache, inverse_frequencies
from edgellm.models.tables import LongRope, Temperature, Yarn

U32, F32, STR, BOOL = "UINT32", "FLOAT32", "STRING", "BOOL"
SCALING = "llama.rope.scaling."
LONG, SHORT, FREQS = "rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight"
YARN = {
    f"{SCALING}type": [STR, "yarn"],
    f"{SCALING}factor": [F32, 8.0],
    f"{SCALING}original_context_length": [U32, 4096],
}
LONGROPE = {f"{SCALING}type": [STR, "longrope"], f"{SCALING}original_context_length": [U32, 100]}


def table_of(variant: Any, metadata: dict[str, Any], tensors: dict[str, Any] | None = None) -> RopeTable:
    return load_plan(variant("llama-dense", metadata, tensors)).plan.ropes[0]


def yarn_frequencies(
    n_rot: int, base: float, factor: float, n_ctx: int, fast: float = 32.0, slow: float = 1.0
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Frequencies after the YaRN paper's section 3.2, in float64."""

    def pair(turns: float) -> float:
        return n_rot * math.log(n_ctx / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), n_rot - 1)
    own = 1 - np.clip((np.arange(n_rot // 2) - low) / max(high - low, 0.001), 0, 1)
    f = base ** (-np.arange(0, n_rot, 2) / n_rot)
    return np.asarray(f / factor * (1 - own) + f * own)


def test_linear(variant: Any) -> None:
    for key in (f"{SCALING}factor", "llama.rope.scale_linear"):
        assert table_of(variant, {key: [F32, 4.0]}).scale_factor == 4.0
    off = {f"{SCALING}factor": [F32, 4.0], f"{SCALING}type": [STR, "none"], f"{SCALING}finetuned": [BOOL, True]}
    assert table_of(variant, off).scale_factor == 1.0


def test_yarn(variant: Any) -> None:
    table = table_of(variant, YARN)
    assert (table.scale_factor, table.factors) == (8.0, 0)
    assert table.attn_factor == pytest.approx(1 + 0.1 * math.log(8), rel=1e-15)
    assert np.allclose(inverse_frequencies(table), yarn_frequencies(128, 1e4, 8.0, 4096), rtol=1e-14, atol=0)


def test_yarn_keys(variant: Any) -> None:
    more = {
        f"{SCALING}yarn_beta_fast": [F32, 8.0],
        f"{SCALING}yarn_beta_slow": [F32, 0.5],
        f"{SCALING}yarn_ext_factor": [F32, 1.0],
        f"{SCALING}attn_factor": [F32, 1.5],
        "llama.rope.freq_base": [F32, 500000.0],
    }
    table = table_of(variant, {**YARN, **more})
    expected = yarn_frequencies(128, 5e5, 8.0, 4096, 8.0, 0.5)
    assert np.allclose(inverse_frequencies(table), expected, rtol=1e-14, atol=0)
    assert table.attn_factor == pytest.approx(1.5 * (1 + 0.1 * math.log(8)), rel=1e-15)
    assert table_of(variant, {**YARN, f"{SCALING}original_context_length": [U32, 0]}).yarn == Yarn(1.0, 26.0)
    assert table_of(variant, {**YARN, f"{SCALING}yarn_ext_factor": [F32, -1.0]}).yarn is not None
    off = table_of(variant, {**YARN, f"{SCALING}yarn_ext_factor": [F32, 0.0], f"{SCALING}yarn_attn_factor": [F32, 2.0]})
    assert (off.yarn, off.scale_factor, off.attn_factor) == (None, 8.0, 2.0)


def test_yarn_attn_factor_is_known_or_refused(variant: Any) -> None:
    for value in (1.0, 1.2079441):
        assert table_of(variant, {**YARN, f"{SCALING}yarn_attn_factor": [F32, value]}).attn_factor > 1.2
    with pytest.raises(UnsupportedModel, match=r"yarn_attn_factor' is 1.5, but a YaRN factor of 8.0 goes with 1.20794"):
        table_of(variant, {**YARN, f"{SCALING}yarn_attn_factor": [F32, 1.5]})


def test_longrope(variant: Any) -> None:
    tensors = {FREQS: None, LONG: [64], SHORT: [64]}
    file = variant("llama-dense", {**LONGROPE, f"{SCALING}attn_factor": [F32, 1.25]}, tensors)
    plan = load_plan(file).plan
    table = plan.ropes[0]
    assert table.longrope is not None
    assert (table.longrope.n_ctx, len(table.longrope.short), table.attn_factor) == (100, 64, 1.25)
    for n_ctx, name in ((100, SHORT), (101, LONG)):
        cache = RopeCache(table, n_ctx)
        cache.ensure(3)
        factors = np.frombuffer(file.data(name), np.float32).astype(np.float64)
        angle = 2 * 1e4 ** (-np.arange(0, 128, 2) / 128) / factors
        assert np.allclose(cache.cos[2], np.cos(angle) * 1.25, atol=1e-7)
        assert np.allclose(cache.sin[2], np.sin(angle) * 1.25, atol=1e-7)
        assert plan.long_context(n_ctx) == (name == LONG)
    assert Plan.from_bytes(plan.to_bytes()) == plan


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({FREQS: None}, "rope_factors_long.weight\\) are missing"),
        ({FREQS: None, LONG: [64]}, "tensor 'rope_factors_short.weight' is missing"),
        ({FREQS: None, SHORT: [64]}, "tensor 'rope_factors_long.weight' is missing"),
        ({FREQS: None, SHORT: [64], LONG: [63]}, r"rope_factors_long.weight has shape \[63\], expected 64 numbers"),
        ({SHORT: [64], LONG: [64]}, "tensor 'rope_freqs.weight' would go unused"),
    ],
)
def test_longrope_needs_its_tensors(variant: Any, tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        load_plan(variant("llama-dense", LONGROPE, tensors))


def test_long_factors_without_their_type_are_not_ignored(variant: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"tensor 'rope_factors_long.weight' would go unused"):
        load_plan(variant("llama-dense", {}, {LONG: [64], SHORT: [64]}))
    with pytest.raises(UnsupportedModel, match="not known of gemma3 models"):
        load_plan(variant("gemma3-dense", {"gemma3.rope.scaling.type": [STR, "longrope"]}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope.freq_base", [F32, 0.0], "rope.freq_base' is 0.0, expected a number above 0"),
        ("rope.freq_base", [F32, 1.0], "YaRN needs rope.freq_base above 1"),
        ("rope.scaling.factor", [F32, -2.0], "rope.scaling.factor' is -2.0, expected a number above 0"),
        ("rope.scaling.factor", [F32, float("inf")], "expected a finite number"),
        ("rope.scaling.attn_factor", [F32, 0.0], "attn_factor' is 0.0, expected a number above 0"),
        ("rope.scaling.yarn_beta_fast", [F32, 0.0], "yarn_beta_fast' is 0.0"),
        ("rope.scaling.yarn_beta_slow", [F32, -1.0], "yarn_beta_slow' is -1.0"),
        ("rope.scaling.yarn_ext_factor", [F32, 2.0], "yarn_ext_factor up to 1"),
        ("rope.scaling.original_context_length", [U32, 4_000_000_000], "expected a whole number in 0..67108864"),
        ("rope.scaling.yarn_log_multiplier", [F32, 1.0], "yarn_log_multiplier' = 1.0 would be ignored"),
        ("rope.scaling.alpha", [F32, 1000.0], "alpha' = 1000.0 would be ignored"),
    ],
)
def test_bad_values(variant: Any, key: str, value: list[Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        table_of(variant, {**YARN, f"llama.{key}": value})


def test_temperature_multiplies_the_rows() -> None:
    plain, warm = RopeTable(8, 1e4), RopeTable(8, 1e4, attn_factor=1.5, temperature=Temperature(0.25, 100))
    a, b = RopeCache(plain, 400), RopeCache(warm, 400)
    a.ensure(400)
    b.ensure(400)
    for p in (0, 99, 100, 255, 256, 399):
        factor = 1.5 * (1 + 0.25 * math.log(1 + p // 100))
        assert np.allclose(b.cos[p], a.cos[p] * factor, rtol=1e-6)
        assert np.allclose(b.sin[p], a.sin[p] * factor, rtol=1e-6)


def test_gpt_oss_window_layers_have_a_ramp_of_their_own(variant: Any) -> None:
    scaling = {f"gpt-oss.{k.removeprefix('llama.')}": v for k, v in YARN.items()}
    plan = load_plan(variant("gpt-oss-moe", {**scaling, "gpt-oss.rope.freq_base_swa": [F32, 500.0]})).plan
    n_rot = plan.ropes[0].n_rot
    frequencies = {r.base: inverse_frequencies(r) for r in plan.ropes}
    for base in (1e4, 500.0):
        assert np.allclose(frequencies[base], yarn_frequencies(n_rot, base, 8.0, 4096), rtol=1e-14, atol=0)


def test_deepseek2_scales_the_attention(variant: Any) -> None:
    def scale(**changes: Any) -> float:
        metadata = {f"deepseek2.rope.scaling.{k}": v for k, v in changes.items()}
        plan = load_plan(variant("deepseek2-moe", metadata)).plan
        assert all(r.attn_factor == 1.0 for r in plan.ropes)
        return next(op.scale for op in plan.ops if type(op).__name__ == "Attention")

    yarn = {"type": [STR, "yarn"], "factor": [F32, 40.0], "original_context_length": [U32, 64]}
    stretch = scale(**yarn, yarn_log_multiplier=[F32, 0.0707]) / scale()
    assert stretch == pytest.approx((1 + 0.0707 * math.log(40)) ** 2, rel=1e-6)
    refused: list[dict[str, Any]] = [yarn, {"factor": [F32, 2.0]}, {"attn_factor": [F32, 1.1]}]
    for changes in refused:
        with pytest.raises(UnsupportedModel, match="whose attention scale depends on it"):
            scale(**changes)


def test_divisors_by_context() -> None:
    longrope = LongRope(100, (1.0, 2.0), (3.0, 4.0))
    assert [longrope.divisors(n) for n in (1, 100, 101)] == [(1.0, 2.0), (1.0, 2.0), (3.0, 4.0)]

"""What families read from a file, where an architecture's variants differ; their numbers are in tests/parity."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.core.errors import UnsupportedModel
from edgellm.models import load_plan
from edgellm.models.plan import Plan

U32, F32, STR, BOOL = "UINT32", "FLOAT32", "STRING", "BOOL"


def ops(plan: Plan, kind: str) -> list[Any]:
    return [op for op in plan.ops if type(op).__name__ == kind]


def windows(plan: Plan) -> list[int]:
    return [op.window for op in ops(plan, "Attention")]


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("exaone4-sharp", "exaone4.attention.sliding_window", [U32, 4096], "sliding_window' = 4096 would be ignored"),
        ("granite-sharp", "granite.logit_scale", None, "'granite.logit_scale' is missing"),
        ("granite-sharp", "granite.logit_scale", [F32, 0.0], "logit_scale 0.0"),
        ("granite-sharp", "granite.rope.dimension_count", [U32, 64], "rope.dimension_count 64"),
        ("smollm3-nope", "smollm3.rope.dimension_count", [U32, 64], "rope.dimension_count is 64"),
        ("mistral3-yarn", "mistral3.rope.dimension_count", [U32, 64], "mistral3 heads have one size"),
        ("mistral3-yarn", "mistral3.attention.temperature_scale", [F32, -0.5], "temperature -0.5"),
        ("cohere2-sharp", "cohere2.attention.sliding_window", None, "sliding_window' is missing"),
        ("gptneox-sharp", "gptneox.use_parallel_residual", None, "use_parallel_residual' is missing"),
        ("phi2-sharp", "phi2.attention.layer_norm_epsilon", None, "layer_norm_epsilon' is missing"),
        ("ernie4_5-sharp", "ernie4_5.rope.dimension_sections", ["arr:INT32", [1, 2, 3, 4]], "would be ignored"),
        ("glm4-sharp", "glm4.rope.dimension_sections", ["arr:INT32", [8, 8]], "expected a number or an array of 4"),
        ("ernie4_5-moe-sharp", "ernie4_5-moe.interleave_moe_layer_step", [U32, 0], "expected a whole number in 1.."),
    ],
)
def test_what_a_family_does_not_take(variant: Any, name: str, key: str, value: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        load_plan(variant(name, {key: value}))


def test_phi3_takes_its_tensors_apart(variant: Any) -> None:
    plan = load_plan(variant("phi3-longrope")).plan
    fused = [(w.row0, w.shape) for w in plan.weights if w.tensor == "blk.1.ffn_up.weight"]
    assert fused == [(0, (384, 256)), (384, (384, 256))]
    assert windows(plan) == [0, 0]
    with pytest.raises(UnsupportedModel, match=r"rows 0..767 are needed|rows 384..767 are needed"):
        load_plan(variant("phi3-longrope", tensors={"blk.0.ffn_up.weight": [700, 256]}))
    with pytest.raises(UnsupportedModel, match=r"rows 768..799 of tensor 'blk.0.ffn_up.weight' would go unused"):
        load_plan(variant("phi3-longrope", tensors={"blk.0.ffn_up.weight": [800, 256]}))


def test_layers_without_positions(variant: Any) -> None:
    def rotations(name: str, metadata: dict[str, Any] | None = None) -> int:
        return len(ops(load_plan(variant(name, metadata)).plan, "Rope"))

    assert rotations("smollm3-nope") == 2 * 4
    assert rotations("cohere2-sharp") == 2 * 4
    assert rotations("exaone4-deep") == 2 * 48
    assert rotations("granite-nope") == 0
    assert rotations("granite-nope", {"granite.rope.scaling.finetuned": [BOOL, True]}) == 2 * 2


def test_windows(variant: Any) -> None:
    assert windows(load_plan(variant("cohere2-sharp")).plan) == [32, 32, 32, 0, 32]
    assert windows(load_plan(variant("exaone4-deep")).plan) == [32, 32, 32, 0] * 16
    assert windows(load_plan(variant("olmo2-sharp")).plan) == [32, 0]
    off = {"olmo2.attention.sliding_window": [U32, 0], "olmo2.attention.sliding_window_pattern": None}
    assert windows(load_plan(variant("olmo2-sharp", off)).plan) == [0, 0]


def test_factors_of_minicpm_have_defaults(variant: Any) -> None:
    plan = load_plan(variant("minicpm-sharp", {"minicpm.residual_scale": None})).plan
    assert ops(plan, "Embed")[0].scale == 12.0
    assert [op.factor for op in ops(plan, "Scale")] == pytest.approx([1.4 / 2**0.5] * 4, rel=1e-6)


def test_glm4_pairs_or_halves(variant: Any) -> None:
    assert {op.mode for op in ops(load_plan(variant("glm4-sharp")).plan, "Rope")} == {"neox"}
    assert {op.mode for op in ops(load_plan(variant("glm4-pairs")).plan, "Rope")} == {"norm"}


def test_a_bias_that_the_graph_leaves_out_is_taken_by_name(variant: Any) -> None:
    names = {w.tensor for w in load_plan(variant("ernie4_5-sharp")).plan.weights}
    assert "blk.0.attn_output.bias" not in names
    assert "blk.0.attn_q.bias" in names

"""Loading: what a family needs must be there, and nothing in the file is ignored in silence."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.core.errors import UnsupportedModel
from edgellm.models import architectures, load_plan
from edgellm.models import families as families_package
from edgellm.models.spec import family_of

U32, F32, STR = "UINT32", "FLOAT32", "STRING"


def test_architectures_are_the_files() -> None:
    files = {p.stem for p in Path(families_package.__path__[0]).glob("*.py")} - {"__init__"}
    assert {a.replace("-", "_") for a in architectures()} == files
    assert {"llama", "gemma3", "qwen35", "mamba2", "deepseek2", "gpt-oss", "gemma4"} <= set(architectures())
    for arch in architectures():
        assert family_of(arch).name == arch


@pytest.mark.parametrize("arch", ["bloom", "gpt_oss", "../llama", "", "families.llama", "__init__"])
def test_unknown_architecture(variant: Any, arch: str) -> None:
    file = variant("llama-dense", {"general.architecture": [STR, arch]}) if arch else None
    with pytest.raises(UnsupportedModel, match=r"is not supported; edgellm runs .*llama"):
        load_plan(file) if file else family_of(arch)


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_other_kinds_of_file(variant: Any, kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"holds a {kind}"):
        load_plan(variant("llama-dense", {"general.type": [STR, kind]}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.clamp_kqv", [F32, 8.0]),
        ("llama.attention.scale", [F32, 0.1]),
        ("llama.attn_logit_softcapping", [F32, 50.0]),
        ("llama.attention.sliding_window", [U32, 4096]),
        ("llama.future.feature", [STR, "on"]),
        ("llama.expert_weights_scale", [F32, 2.5]),
        ("llama.swiglu_clamp_exp", ["arr:FLOAT32", [0.0, 7.0]]),
    ],
)
def test_unknown_key_is_refused_by_name(variant: Any, key: str, value: list[Any]) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{key}' = .*would be ignored.*strict=False \(--no-strict\)"):
        load_plan(variant("llama-dense", {key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.clamp_kqv", [F32, 0.0]),
        ("llama.future.flag", ["BOOL", False]),
        ("llama.future.limit", [F32, float("-inf")]),
        ("llama.future.index", ["INT32", -1]),
        ("llama.future.name", [STR, ""]),
        ("llama.future.list", ["arr:FLOAT32", [0.0, 0.0]]),
        ("other.thing", [F32, 3.0]),
        ("llama.vocab_size", [U32, 128]),
    ],
)
def test_neutral_and_foreign_keys_pass(variant: Any, key: str, value: list[Any]) -> None:
    assert load_plan(variant("llama-dense", {key: value})).info.deviations == ()


def test_unused_tensor_is_refused_by_name(variant: Any) -> None:
    file = variant("llama-dense", tensors={"blk.1.attn_q_norm.weight": [128]})
    with pytest.raises(UnsupportedModel, match=r"tensor 'blk.1.attn_q_norm.weight' would go unused"):
        load_plan(file)


def test_many_problems_are_counted(variant: Any) -> None:
    file = variant("llama-dense", {f"llama.new.{i}": [U32, 7] for i in range(9)})
    with pytest.raises(UnsupportedModel, match=r"llama.new.3.* \(and 5 more\)"):
        load_plan(file)


def test_strict_off_warns_and_marks(variant: Any, caplog: pytest.LogCaptureFixture) -> None:
    file = variant("llama-dense", {"llama.new": [U32, 7]}, {"extra.weight": [4, 4]})
    with caplog.at_level(logging.WARNING, logger="edgellm"):
        plan, info = load_plan(file, strict=False)
    assert len(plan.ops) > 10
    assert len(info.deviations) == 2
    assert "llama.new" in info.deviations[0]
    assert "extra.weight" in info.deviations[1]
    assert "strict is off" in caplog.text


@pytest.mark.parametrize("tensor", ["blk.1.ffn_up.weight", "output_norm.weight", "token_embd.weight"])
def test_missing_tensor(variant: Any, tensor: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"tensor '{tensor}' is missing; a llama model needs it"):
        load_plan(variant("llama-dense", tensors={tensor: None}), strict=False)


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        ("blk.1.attn_q.weight", [256, 320], r"K is 256 from x \(buffer 'h'\) but 320 in blk.1.attn_q.weight"),
        ("blk.1.attn_k.weight", [250, 256], r"blk.1.attn_k.weight has 250 rows, expected 256"),
        ("blk.0.attn_k.bias", [255], r"N1 is 256 from blk.0.attn_k.weight but 255 in blk.0.attn_k.bias"),
        ("blk.0.ffn_norm.weight", [128], r"N / groups is 256 from x but 128 in blk.0.ffn_norm.weight"),
        ("output.weight", [127, 256], r"output.weight has 127 rows, expected 128"),
        ("rope_freqs.weight", [63], r"rope table 0: rope_freqs.weight is a vector \[63\], expected a vector of 64"),
        ("blk.0.attn_q.scale", [2], r"blk.0.attn_q.scale has shape \[2\], expected one finite number"),
        ("blk.1.ffn_down.weight", [256, 384, 1, 1], r"blk.1.ffn_down.weight"),
    ],
)
def test_wrong_shape(variant: Any, tensor: str, shape: list[int], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{message}.*does not fit its own description"):
        load_plan(variant("llama-dense", tensors={tensor: shape}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("llama.block_count", None, "'llama.block_count' is missing and has no default"),
        ("llama.block_count", [U32, 0], "is 0, expected a whole number in 1..1024"),
        ("llama.block_count", [U32, 4_000_000_000], "expected a whole number in 1..1024"),
        ("llama.context_length", [STR, "long"], "is 'long', expected a whole number"),
        ("llama.attention.head_count", [F32, 2.0], "expected a whole number"),
        ("llama.attention.head_count", ["arr:UINT32", [2]], "is \\[2\\], expected a number or an array of 2"),
        ("llama.attention.layer_norm_rms_epsilon", [F32, float("nan")], "expected a finite number"),
        ("llama.attention.layer_norm_rms_epsilon", None, "is missing"),
        ("llama.attention.causal", ["BOOL", False], "an encoder, which cannot generate"),
        ("llama.rope.scaling.type", [STR, "dynamic"], "is 'dynamic'; edgellm knows none, linear, yarn, longrope"),
        ("llama.rope.dimension_count", [U32, 64], "heads have one size and rotate whole"),
        ("llama.expert_used_count", [U32, 3], "is 3 with 0 experts"),
        ("llama.nextn_predict_layers", [U32, 2], "expected a whole number in 0..1"),
    ],
)
def test_bad_metadata(variant: Any, key: str, value: list[Any] | None, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        load_plan(variant("llama-dense", {key: value} if value else {key: None}))


def test_gemma3_rope_of_window_and_global_layers(variant: Any) -> None:
    changes = {
        "gemma3.rope.scaling.factor": [F32, 8.0],
        "gemma3.rope.freq_base": [F32, 1e6],
        "gemma3.final_logit_softcapping": [F32, 30.0],
        "gemma3.attn_logit_softcapping": [F32, 50.0],
    }
    plan = load_plan(variant("gemma3-dense", changes)).plan
    assert [(r.base, r.scale_factor) for r in plan.ropes] == [(1e6, 8.0), (1e4, 1.0)]
    attention = [op for op in plan.ops if type(op).__name__ == "Attention"]
    assert [(a.window, a.softcap) for a in attention] == [(32, 50.0), (0, 50.0)]
    assert plan.ops[-1].cap == 30.0


def test_gemma3_patterns(variant: Any) -> None:
    def windows(**changes: Any) -> list[int]:
        metadata = {f"gemma3.attention.{k}": v for k, v in changes.items()}
        plan = load_plan(variant("gemma3-dense", metadata)).plan
        return [op.window for op in plan.ops if type(op).__name__ == "Attention"]

    assert windows() == [32, 0]
    assert windows(sliding_window_pattern=None) == [32, 32]
    assert windows(sliding_window_pattern=[U32, 1]) == [0, 0]
    assert windows(sliding_window_pattern=[U32, 2]) == [32, 0]
    assert windows(sliding_window=None, sliding_window_pattern=None) == [0, 0]


def test_tied_embeddings(variant: Any) -> None:
    plan, info = load_plan(variant("llama-dense", tensors={"output.weight": None}))
    assert [w.role for w in plan.weights if w.tensor == "token_embd.weight"] == ["embedding", "matrix"]
    assert info.deviations == ()


def test_fused_qkv_with_separate_biases(variant: Any) -> None:
    tensors: dict[str, Any] = {
        f"blk.0.attn_{c}.{part}": None for c in "qkv" for part in ("weight", "scale", "input_scale")
    }
    plan = load_plan(variant("llama-dense", tensors={**tensors, "blk.0.attn_qkv.weight": [768, 256]})).plan
    rows = [(w.row0, w.shape) for w in plan.weights if w.tensor == "blk.0.attn_qkv.weight"]
    assert rows == [(0, (256, 256)), (256, (256, 256)), (512, (256, 256))]


def test_information(variant: Any) -> None:
    plan, info = load_plan(variant("llama-moe", {"general.name": [STR, "Tiny"]}))
    assert (info.arch, info.name, info.n_layer, info.n_embd, info.n_vocab) == ("llama", "Tiny", 2, 256, 128)
    assert (info.heads, info.kv_heads, info.head_dim, info.n_ff) == (2, 2, 128, 384)
    assert (info.n_expert, info.n_expert_used, info.n_ctx_train) == (2, 2, 256)
    assert info.bits_per_weight == 32.0
    assert info.n_params == sum(int(np.prod(t.shape)) for t in variant("llama-moe").tensors.values())
    assert plan.n_vocab == 128


def test_information_of_a_model_without_attention(variant: Any) -> None:
    _, info = load_plan(variant("mamba2-dense"))
    assert (info.heads, info.kv_heads, info.head_dim, info.n_ff, info.n_layer) == (0, 0, 0, 0, 2)


def test_buffers_are_shared_by_the_layers(variant: Any) -> None:
    plan = load_plan(variant("llama-dense")).plan
    assert sorted(b.name for b in plan.buffers) == sorted(["x", "h", "qkv", "att", "ff", "ff_up", "t", "out", "logits"])
    plan = load_plan(variant("gemma4-e2b")).plan
    names = [(b.name, b.width) for b in plan.buffers]
    assert len(set(names)) == len(names)
    assert len(names) < 20


def test_cache_classes(variant: Any) -> None:
    def shape(name: str) -> list[tuple[str, int, int]]:
        return [(c.kind, c.window, len(c.layers)) for c in load_plan(variant(name)).plan.caches]

    assert shape("gemma3-dense") == [("window", 32, 1), ("full", 0, 1)]
    assert shape("qwen35-dense") == [("state", 0, 2), ("full", 0, 1)]
    assert shape("mamba2-dense") == [("state", 0, 4)]
    assert shape("deepseek2-moe") == [("latent", 0, 2)]
    assert shape("gemma4-e2b") == [("window", 8, 4), ("full", 0, 1)]

"""Every kind of damage that leaves the container sound: metadata, tensors and vocabulary that do not make a model.

One list; damage to the container is listed in tests/unit/gguf/test_corrupt.py, to sets of files in test_split.py.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz.image import ARRAY, STRING, Image, Key
from fuzz.seeds import BOOL, F32, I32, U32, gemma3, gpt_oss, llama, llama_linear, phi3, qwen3moe
from limits import seconds

import edgellm
from edgellm import _native
from edgellm.core.errors import GGUFError, ModelError, TokenizerError, UnsupportedModel
from edgellm.gguf.qtypes import QType

Damage = Callable[[Image], None]
MAX_SECONDS, MAX_BYTES = 1.0, 64 << 20


def put(name: str, value: Any, kind: int = U32, element: int = 0) -> Damage:
    """Set a key, or add it."""

    def damage(image: Image) -> None:
        fresh = Key(name.encode(), kind, value, element)
        at = image.find(name.encode())
        if at is None:
            image.keys.append(fresh)
        else:
            image.keys[at] = fresh

    return damage


def drop(name: str) -> Damage:
    """Take a key or a tensor away."""

    def damage(image: Image) -> None:
        before = len(image.keys) + len(image.tensors)
        image.keys = [k for k in image.keys if k.name != name.encode()]
        image.tensors = [t for t in image.tensors if t.name != name.encode()]
        assert len(image.keys) + len(image.tensors) == before - 1

    return damage


def reshape(name: str, *ne: int, qtype: QType | None = None, rename: str | None = None) -> Damage:
    """Give a tensor other dims (contiguous first), type or name, and as many bytes as that takes."""

    def damage(image: Image) -> None:
        (t,) = [t for t in image.tensors if t.name == name.encode()]
        t.ne = list(ne) or t.ne
        t.type = t.type if qtype is None else int(qtype)
        t.name = t.name if rename is None else rename.encode()
        t.fit()

    return damage


def add(name: str, like: str) -> Damage:
    """A tensor more, with the shape of another."""

    def damage(image: Image) -> None:
        (t,) = [t for t in image.copy().tensors if t.name == like.encode()]
        t.name = name.encode()
        image.tensors.append(t)

    return damage


def elements(name: str, change: Callable[[list[Any]], list[Any]]) -> Damage:
    """Change the elements of an array."""

    def damage(image: Image) -> None:
        at = image.find(name.encode())
        assert at is not None
        image.keys[at] = image.keys[at].changed(value=change(list(image.keys[at].value)))

    return damage


def token(i: int, text: bytes) -> Damage:
    """Another text for a token."""
    return elements("tokenizer.ggml.tokens", lambda v: [*v[:i], text, *v[i + 1 :]])


NAN, INF = float("nan"), float("inf")
NO_MODEL: list[tuple[str, Callable[[], Image], Damage, type[ModelError], str]] = [
    # what it is
    ("no architecture", llama, drop("general.architecture"), UnsupportedModel, "'general.architecture' is missing"),
    ("architecture a number", llama, put("general.architecture", 7), UnsupportedModel, "'general.architecture'"),
    ("unknown architecture", llama, put("general.architecture", b"x", STRING), UnsupportedModel, "architecture 'x'"),
    ("a projector", llama, put("general.type", b"mmproj", STRING), UnsupportedModel, "mmproj (general.type)"),
    ("type an array", llama, put("general.type", [1, 2], ARRAY, U32), UnsupportedModel, "[1 2] (general.type)"),
    # required hyper-parameters: missing, zero, absurd, of another type
    *[
        (f"no {k}", llama, drop(f"llama.{k}"), UnsupportedModel, f"'llama.{k}' is missing")
        for k in ("block_count", "embedding_length", "context_length", "attention.layer_norm_rms_epsilon")
    ],
    *[
        (f"{k} zero", llama, put(f"llama.{k}", 0), UnsupportedModel, f"'llama.{k}' is 0, expected")
        for k in ("block_count", "embedding_length", "context_length")
    ],
    *[
        (f"{k} huge", llama, put(f"llama.{k}", (1 << 32) - 1), UnsupportedModel, f"'llama.{k}' is 4294967295")
        for k in ("block_count", "embedding_length", "context_length", "attention.head_count", "feed_forward_length")
    ],
    *[
        (f"{k} text", llama, put(f"llama.{k}", b"12", STRING), UnsupportedModel, f"'llama.{k}' is '12', expected")
        for k in ("block_count", "embedding_length", "context_length", "attention.head_count", "rope.freq_base")
    ],
    ("block_count true", llama, put("llama.block_count", 1, BOOL), UnsupportedModel, "'llama.block_count' is True"),
    ("block_count negative", llama, put("llama.block_count", -1, I32), UnsupportedModel, "'llama.block_count' is -1"),
    ("block_count too many", llama, put("llama.block_count", 2), UnsupportedModel, "tensor 'blk.1."),
    ("block_count too few", gemma3, put("gemma3.block_count", 1), UnsupportedModel, "tensor 'blk.1."),
    ("no heads", llama, put("llama.attention.head_count", 0), UnsupportedModel, "attention.head_count' is 0"),
    ("heads unsaid", llama, drop("llama.attention.head_count"), UnsupportedModel, "attention.head_count' is missing"),
    ("more heads than dims", llama, put("llama.attention.head_count", 65), UnsupportedModel, "heads of no size"),
    ("heads do not divide", llama, put("llama.attention.head_count_kv", 3), UnsupportedModel, "head_count_kv' is 3"),
    (
        "heads of too few layers", gemma3, put("gemma3.attention.head_count", [2], ARRAY, U32),
        UnsupportedModel, "'gemma3.attention.head_count' is [2]",
    ),
    ("key_length zero", gemma3, put("gemma3.attention.key_length", 0), UnsupportedModel, "key_length' is 0"),
    ("other key_length", gemma3, put("gemma3.attention.key_length", 16), UnsupportedModel, "blk.0.attn_q.weight"),
    ("other embedding_length", llama, put("llama.embedding_length", 32), UnsupportedModel, "key_length 8"),
    ("other feed_forward_length", llama, put("llama.feed_forward_length", 64), UnsupportedModel, "ffn_gate.weight"),
    ("odd rotation", llama, put("llama.rope.dimension_count", 15), UnsupportedModel, "rope.dimension_count is 15"),
    ("eps not a number", llama, put("llama.attention.layer_norm_rms_epsilon", NAN, F32), UnsupportedModel, "epsilon"),
    ("eps below zero", llama, put("llama.attention.layer_norm_rms_epsilon", -1.0, F32), UnsupportedModel, "eps"),
    ("rope base zero", llama, put("llama.rope.freq_base", 0.0, F32), UnsupportedModel, "base"),
    ("rope base infinite", llama, put("llama.rope.freq_base", INF, F32), UnsupportedModel, "rope.freq_base' is inf"),
    ("unknown scaling", llama_linear, put("llama.rope.scaling.type", b"x", STRING), UnsupportedModel, "scaling.type"),
    ("scaling by zero", llama_linear, put("llama.rope.scaling.factor", -1.0, F32), UnsupportedModel, "factor"),
    ("window zero", gpt_oss, put("gpt-oss.attention.sliding_window", 0), UnsupportedModel, "sliding_window' is 0"),
    (
        "window flags too few", gemma3, put("gemma3.attention.sliding_window_pattern", [1], ARRAY, BOOL),
        UnsupportedModel, "sliding_window_pattern",
    ),
    ("softcap below zero", gemma3, put("gemma3.final_logit_softcapping", -1.0, F32), UnsupportedModel, "cap"),
    ("no experts used", qwen3moe, put("qwen3moe.expert_used_count", 0), UnsupportedModel, "expert_used_count' is 0"),
    ("more used than are", qwen3moe, put("qwen3moe.expert_used_count", 5), UnsupportedModel, "expert_used_count' is 5"),
    ("fewer experts", qwen3moe, put("qwen3moe.expert_count", 3), UnsupportedModel, "ffn_gate_inp.weight has 4 rows"),
    (
        "stack of other size", qwen3moe, reshape("blk.0.ffn_down_exps.weight", 32, 32, 3),
        UnsupportedModel, "ffn_down_exps.weight has 3 experts, but expert_count is 4",
    ),
    ("a key that changes results", llama, put("llama.logit_scale", 2.0, F32), UnsupportedModel, "'llama.logit_scale'"),
    # tensors
    ("no embedding", llama, drop("token_embd.weight"), UnsupportedModel, "'token_embd.weight' is missing"),
    ("no norm", llama, drop("blk.0.attn_norm.weight"), UnsupportedModel, "'blk.0.attn_norm.weight' is missing"),
    ("a tensor too many", llama, add("blk.0.x.weight", "output_norm.weight"), UnsupportedModel, "'blk.0.x.weight'"),
    ("norm of other size", llama, reshape("blk.0.attn_norm.weight", 32), UnsupportedModel, "attn_norm.weight"),
    ("norm a matrix", llama, reshape("blk.0.attn_norm.weight", 32, 2), UnsupportedModel, "attn_norm.weight"),
    ("matrix turned", llama, reshape("blk.0.ffn_up.weight", 96, 64), UnsupportedModel, "ffn_up.weight"),
    ("matrix flat", llama, reshape("blk.0.ffn_up.weight", 6144), UnsupportedModel, "ffn_up.weight"),
    ("matrix of rank 4", llama, reshape("blk.0.ffn_up.weight", 64, 96, 1, 1), UnsupportedModel, "ffn_up.weight"),
    ("embedding a vector", llama, reshape("token_embd.weight", 64), UnsupportedModel, "token_embd.weight"),
    ("output of other rows", llama, reshape("output.weight", 64, 270), UnsupportedModel, "output.weight"),
    ("matrix of integers", llama, reshape("blk.0.ffn_up.weight", qtype=QType.I32), UnsupportedModel, "ffn_up.weight"),
    ("norm of integers", llama, reshape("output_norm.weight", qtype=QType.I64), UnsupportedModel, "output_norm.weight"),
    ("rope factors too few", llama_linear, reshape("rope_freqs.weight", 2), UnsupportedModel, "rope_freqs.weight"),
    ("long factors too many", phi3, reshape("rope_factors_long.weight", 32), UnsupportedModel, "rope_factors_long"),
    # a vocabulary that does not fit the model
    (
        "more tokens than rows", llama, elements("tokenizer.ggml.tokens", lambda v: [*v, b"one", b"two"]),
        GGUFError, "tokenizer.ggml.tokens has 271 entries, but token_embd.weight has 269 rows",
    ),
    *[
        (f"{k} past the end", llama, put(f"tokenizer.ggml.{k}_token_id", 269), GGUFError, f"{k}_token_id is 269")
        for k in ("bos", "eos", "eot", "padding", "fim_pre")
    ],
    ("eos text", llama, put("tokenizer.ggml.eos_token_id", b"2", STRING), GGUFError, "eos_token_id is '2'"),
    ("eos a list", llama, put("tokenizer.ggml.eos_token_id", [2, 3], ARRAY, U32), GGUFError, "eos_token_id is array"),
    ("eos true", llama, put("tokenizer.ggml.eos_token_id", 1, BOOL), GGUFError, "eos_token_id is True"),
    ("eos negative", llama, put("tokenizer.ggml.eos_token_id", -5, I32), GGUFError, "eos_token_id is -5"),
]  # fmt: skip

NO_TEXT: list[tuple[str, Callable[[], Image], Damage, str]] = [
    ("unknown kind", llama, put("tokenizer.ggml.model", b"x", STRING), "tokenizer 'x' (tokenizer.ggml.model)"),
    ("unknown words", llama, put("tokenizer.ggml.pre", b"x", STRING), "'x' (tokenizer.ggml.pre)"),
    ("no tokens", llama, drop("tokenizer.ggml.tokens"), "no tokenizer.ggml.tokens"),
    ("tokens numbers", llama, put("tokenizer.ggml.tokens", [1, 2], ARRAY, I32), "tokenizer.ggml.tokens"),
    ("tokens one text", llama, put("tokenizer.ggml.tokens", b"abc", STRING), "tokenizer.ggml.tokens"),
    ("tokens a number", llama, put("tokenizer.ggml.tokens", 3), "tokenizer.ggml.tokens"),
    ("a token not UTF-8", llama, token(5, b"\xff"), "string 5 is not valid UTF-8"),
    ("types too few", llama, elements("tokenizer.ggml.token_type", lambda v: v[:9]), "tokenizer.ggml.token_type"),
    ("types text", llama, put("tokenizer.ggml.token_type", [b"1"], ARRAY, STRING), "tokenizer.ggml.token_type"),
    ("types one number", llama, put("tokenizer.ggml.token_type", 1), "tokenizer.ggml.token_type"),
    ("scores too few", llama_linear, elements("tokenizer.ggml.scores", lambda v: v[:-1]), "tokenizer.ggml.scores"),
    ("scores text", llama_linear, put("tokenizer.ggml.scores", [b"0"], ARRAY, STRING), "tokenizer.ggml.scores"),
    ("no merges", llama, drop("tokenizer.ggml.merges"), "tokenizer.ggml.merges"),
    ("merges numbers", llama, put("tokenizer.ggml.merges", [1, 2], ARRAY, I32), "tokenizer.ggml.merges"),
    ("merges not UTF-8", llama, put("tokenizer.ggml.merges", [b"\xff a"], ARRAY, STRING), "string 0 is not valid"),
    ("byte token negative", llama_linear, token(10, b"<0x-1>"), "<0x-1>"),
    ("byte token not hex", llama_linear, token(10, b"<0xZZ>"), "<0xZZ>"),
    ("byte token of three", llama_linear, token(10, b"<0x100>"), "<0x100>"),
    ("byte token empty", llama_linear, token(10, b""), "10"),
    ("suppressed text", llama, put("tokenizer.ggml.suppress_tokens", [b"a"], ARRAY, STRING), "suppress_tokens"),
]


def within_bounds(action: Callable[[], object]) -> None:
    """Do it, in under a second and 64 MB."""
    tracemalloc.start()
    start = time.process_time()
    try:
        action()
    finally:
        taken, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert taken < seconds(3 * MAX_SECONDS)  # tracing takes most of it
    assert peak < MAX_BYTES


def refused(path: Path, kind: type[Exception], words: str, action: Callable[[], object]) -> None:
    def run() -> None:
        with pytest.raises(kind) as caught:
            action()
        assert words in str(caught.value)

    within_bounds(run)


@pytest.mark.skipif(not _native.available(), reason=_native.why_not())
@pytest.mark.parametrize(("name", "seed", "damage", "kind", "words"), NO_MODEL, ids=[k[0] for k in NO_MODEL])
def test_no_model(tmp_path: Path, name: str, seed, damage: Damage, kind: type[ModelError], words: str) -> None:
    image = seed()
    damage(image)
    path = tmp_path / "m.gguf"
    path.write_bytes(image.to_bytes())
    refused(path, kind, words, lambda: edgellm.LLM(path, n_threads=1, max_seqs=1))


@pytest.mark.parametrize(("name", "seed", "damage", "words"), NO_TEXT, ids=[k[0] for k in NO_TEXT])
def test_no_text(tmp_path: Path, name: str, seed, damage: Damage, words: str) -> None:
    """Text calls raise; the model still runs on token ids."""
    image = seed()
    damage(image)
    path = tmp_path / "m.gguf"
    path.write_bytes(image.to_bytes())

    def use() -> None:
        tokenizer = edgellm.Tokenizer.from_gguf(path)
        _ = tokenizer.suppressed_ids
        tokenizer.encode("hello")
        tokenizer.decode([10])

    refused(path, TokenizerError, words, use)
    if _native.available():
        with edgellm.LLM(path, n_threads=1, max_seqs=1) as llm:
            assert llm.logits([1, 2]).shape == (2, 269)


def test_ids_that_mean_none(tmp_path: Path) -> None:
    """Converters write -1 for a special token that a model has not."""
    image = llama()
    for name, value, kind in (("padding", (1 << 32) - 1, U32), ("eom", -1, I32)):
        put(f"tokenizer.ggml.{name}_token_id", value, kind)(image)
    path = tmp_path / "m.gguf"
    path.write_bytes(image.to_bytes())
    with edgellm.LLM(path, n_threads=1, max_seqs=1) as llm:
        assert llm.logits([1]).shape == (1, 269)

"""Small sound models of several architectures, weight types and vocabularies: what the fuzzers start from."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzz.image import Entry, Image, Key
from matrices import random_matrix

from edgellm.backends.lower import ACT_FORMATS
from edgellm.gguf.qtypes import QType
from edgellm.tokenizer.pieces import byte_to_char

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ("h e", "l l", "he ll", "hell o", "\u0120 w", "o r", "\u0120w or", "l d", "\u0120wor ld", "t h", "th e")


def key(name: str, value: Any) -> Key:
    """The key with the value type that files use for such a value."""
    raw = name.encode()
    if isinstance(value, bool):
        return Key(raw, BOOL, int(value))
    if isinstance(value, int):
        return Key(raw, U32, value)
    if isinstance(value, float):
        return Key(raw, F32, value)
    if isinstance(value, str):
        return Key(raw, STRING, value.encode())
    if isinstance(value[0], bool):
        return Key(raw, ARRAY, [int(v) for v in value], BOOL)
    if isinstance(value[0], str):
        return Key(raw, ARRAY, [v.encode() for v in value], STRING)
    return Key(raw, ARRAY, list(value), F32 if isinstance(value[0], float) else I32)


def byte_level() -> dict[str, Any]:
    """A byte-level vocabulary of 256 bytes, eleven merges and two control tokens."""
    tokens = [*byte_to_char().values(), *(m.replace(" ", "") for m in MERGES), "<|im_start|>", "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 3],
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def pieces() -> dict[str, Any]:
    """A SentencePiece vocabulary: three control tokens, 256 byte tokens, a few pieces, as long as byte_level's."""
    words = ["\u2581", "h", "e", "l", "o", "he", "ll", "hell", "hello", "\u2581hello"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(words))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": True,
    }


N_VOCAB = 269
"""Tokens of both vocabularies."""


def image(arch: str, vocabulary: dict[str, Any], keys: dict[str, Any], shapes: dict[str, tuple[int, ...]],
          types: Sequence[QType]) -> Image:  # fmt: skip
    """A model whose matrices have the given types in turn, as far as the native core has them; vectors are F32."""
    usable = [t for t in types if t in ACT_FORMATS]
    tensors: list[Entry] = []
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        qtype = usable[len(tensors) % len(usable)] if len(shape) > 1 and name.endswith(".weight") else QType.F32
        if shape[-1] % qtype.block:
            qtype = QType.F16
        data = random_matrix(rng, qtype, shape, 0.3).tobytes()
        tensors.append(Entry(name.encode(), list(shape[::-1]), int(qtype), data))
    all_keys = {"general.architecture": arch, "general.name": "seed", "general.alignment": 32}
    all_keys |= {f"{arch}.{k}": v for k, v in keys.items()} | vocabulary
    return Image([key(k, v) for k, v in all_keys.items()], tensors)


def common(d: int, f: int, heads: int, kv: int, layers: int, n_ctx: int = 128) -> dict[str, Any]:
    """Keys that every architecture here has."""
    return {
        "context_length": n_ctx,
        "embedding_length": d,
        "block_count": layers,
        "feed_forward_length": f,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }


def attention(i: int, d: int, head: int, heads: int, kv: int) -> dict[str, tuple[int, ...]]:
    """The tensors of an attention with separate matrices."""
    at = f"blk.{i}."
    return {
        f"{at}attn_norm.weight": (d,),
        f"{at}attn_q.weight": (heads * head, d),
        f"{at}attn_k.weight": (kv * head, d),
        f"{at}attn_v.weight": (kv * head, d),
        f"{at}attn_output.weight": (d, heads * head),
    }


def ffn(i: int, d: int, f: int) -> dict[str, tuple[int, ...]]:
    """A gated FFN with its norm."""
    at = f"blk.{i}.ffn_"
    return {f"{at}norm.weight": (d,), f"{at}gate.weight": (f, d), f"{at}up.weight": (f, d), f"{at}down.weight": (d, f)}


def moe(i: int, d: int, f: int, n: int) -> dict[str, tuple[int, ...]]:
    """A router and its experts, without the norm."""
    at = f"blk.{i}.ffn_"
    return {
        f"{at}gate_inp.weight": (n, d),
        f"{at}gate_exps.weight": (n, f, d),
        f"{at}up_exps.weight": (n, f, d),
        f"{at}down_exps.weight": (n, d, f),
    }


def outer(d: int, *, tied: bool = False) -> dict[str, tuple[int, ...]]:
    """Embeddings, the last norm, and the output matrix unless that is the embeddings."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (N_VOCAB, d), "output_norm.weight": (d,)}
    return shapes if tied else {**shapes, "output.weight": (N_VOCAB, d)}


def llama() -> Image:
    shapes = outer(64) | attention(0, 64, 16, 4, 2) | ffn(0, 64, 96)
    keys = common(64, 96, 4, 2, 1) | {"rope.freq_base": 10000.0, "rope.dimension_count": 16, "vocab_size": N_VOCAB}
    types = (QType.Q8_0, QType.Q4_1, QType.Q5_0, QType.F16, QType.Q4_0, QType.Q5_1, QType.BF16, QType.F32)
    return image("llama", byte_level(), keys, shapes, types)


def llama_linear() -> Image:
    shapes = outer(32, tied=True) | attention(0, 32, 8, 4, 4) | ffn(0, 32, 32) | {"rope_freqs.weight": (4,)}
    keys = common(32, 32, 4, 4, 1) | {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    found = image("llama", pieces(), keys, shapes, (QType.F32, QType.F16, QType.Q8_0, QType.IQ4_NL, QType.MXFP4))
    found.tensors[-1].data = struct.pack("<4f", 1.0, 1.5, 2.0, 8.0)
    return found


def k_quants() -> Image:
    shapes = outer(256, tied=True) | attention(0, 256, 128, 2, 1) | ffn(0, 256, 256)
    types = (QType.Q6_K, QType.Q4_K, QType.Q5_K, QType.Q3_K, QType.Q2_K, QType.IQ4_XS, QType.TQ1_0)
    return image("llama", byte_level(), common(256, 256, 2, 1, 1), shapes, types)


def code_books() -> Image:
    shapes = outer(256, tied=True) | attention(0, 256, 128, 2, 1) | ffn(0, 256, 256)
    types = (QType.IQ1_M, QType.IQ1_S, QType.IQ2_XXS, QType.IQ2_XS, QType.IQ2_S, QType.IQ3_XXS, QType.IQ3_S)
    return image("llama", byte_level(), common(256, 256, 2, 1, 1), shapes, types)


def gemma3() -> Image:
    shapes = outer(64, tied=True)
    for i in range(2):
        at = f"blk.{i}."
        shapes |= attention(i, 64, 32, 2, 1) | ffn(i, 64, 64)
        shapes |= {f"{at}{n}.weight": (32,) for n in ("attn_q_norm", "attn_k_norm")}
        shapes |= {f"{at}{n}.weight": (64,) for n in ("post_attention_norm", "post_ffw_norm")}
    keys = common(64, 64, 2, 1, 2) | {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [True, False],
        "rope.freq_base": 1e6,
        "final_logit_softcapping": 30.0,
    }
    return image("gemma3", pieces(), keys, shapes, (QType.Q8_0, QType.Q5_0, QType.Q4_1, QType.NVFP4))


def qwen3moe() -> Image:
    shapes = outer(32) | attention(0, 32, 16, 2, 1) | {"blk.0.ffn_norm.weight": (32,)} | moe(0, 32, 32, 4)
    shapes |= {f"blk.0.attn_{n}_norm.weight": (16,) for n in "qk"}
    keys = common(32, 32, 2, 1, 1) | {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    return image("qwen3moe", byte_level(), keys, shapes, (QType.F32, QType.Q8_0, QType.F16, QType.Q4_1))


def phi3() -> Image:
    d, f = 64, 64
    shapes = outer(d) | {
        "blk.0.attn_norm.weight": (d,),
        "blk.0.attn_qkv.weight": (3 * d, d),
        "blk.0.attn_output.weight": (d, d),
        "blk.0.ffn_norm.weight": (d,),
        "blk.0.ffn_up.weight": (2 * f, d),
        "blk.0.ffn_down.weight": (d, f),
        "rope_factors_long.weight": (16,),
        "rope_factors_short.weight": (16,),
    }
    keys = common(d, f, 2, 2, 1) | {"rope.scaling.original_context_length": 64, "attention.sliding_window": 64}
    found = image("phi3", pieces(), keys, shapes, (QType.Q8_0, QType.Q5_0, QType.F16))
    for t in found.tensors[-2:]:
        t.data = struct.pack("<16f", *(1.0 + i / 8 for i in range(16)))
    return found


def gpt_oss() -> Image:
    shapes = outer(32)
    for i in range(1):
        at = f"blk.{i}."
        shapes |= attention(i, 32, 16, 2, 1) | moe(i, 32, 32, 2)
        shapes |= {f"{at}post_attention_norm.weight": (32,), f"{at}attn_sinks.weight": (2,)}
        shapes |= {f"{at}attn_{n}.bias": (s,) for n, s in (("q", 32), ("k", 16), ("v", 16), ("output", 32))}
        shapes |= {f"{at}ffn_gate_inp.bias": (2,)} | {f"{at}ffn_{n}_exps.bias": (2, 32) for n in ("gate", "up", "down")}
    keys = common(32, 32, 2, 1, 1) | {
        "attention.sliding_window": 32,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "expert_count": 2,
        "expert_used_count": 1,
        "expert_feed_forward_length": 32,
    }
    return image("gpt-oss", byte_level(), keys, shapes, (QType.F16, QType.Q8_0))


SEEDS: dict[str, Callable[[], Image]] = {
    f.__name__: f for f in (llama, llama_linear, k_quants, code_books, gemma3, qwen3moe, phi3, gpt_oss)
}
"""Every seed by name."""


def without_text(image: Image) -> Image:
    """The model for token ids only: its vocabulary and template left out."""
    out = image.copy()
    out.keys = [k for k in out.keys if not k.name.startswith(b"tokenizer.")]
    out.keys.append(key("tokenizer.ggml.model", "none"))
    return out

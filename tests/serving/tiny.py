"""A model of a few kilobytes with a real byte-level vocabulary, and backends that follow a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgellm.backends import select
from edgellm.backends.fake import FakeBackend, Script
from edgellm.gguf.qtypes import QType
from edgellm.gguf.writer import Tensor, write
from edgellm.tokenizer.pieces import byte_to_char

D, F, HEADS = 32, 64, 2

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MERGED = ("he", "ll", "hell", "hello", "Ġw", "or", "Ġwor", "Ġworld", "ld", "th", "the", "Ġthe", "ST", "OP", "STOP")
_MERGES = (
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "t h", "th e", "Ġ the", "S T", "O P",
    "ST OP",
)  # fmt: skip
BYTES = list(byte_to_char().values())
TOKENS = [*BYTES, *_MERGED, "<|im_start|>", "<|im_end|>"]
N_VOCAB = len(TOKENS)
START, END = N_VOCAB - 2, N_VOCAB - 1


def metadata(n_ctx: int = 256, template: str | None = CHATML, **more: Any) -> dict[str, Any]:
    """Keys of the tiny model; `more` replaces or adds keys, None takes one away."""
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": n_ctx,
        "llama.embedding_length": D,
        "llama.block_count": 1,
        "llama.feed_forward_length": F,
        "llama.attention.head_count": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1] * (N_VOCAB - 2) + [3, 3],
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.bos_token_id": START,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template,
    }
    keys.update(more)
    return {k: v for k, v in keys.items() if v is not None}


def write_tiny(path: Path, n_ctx: int = 256, template: str | None = CHATML, **more: Any) -> Path:
    """Writes the tiny model: a llama of one layer with random float32 weights."""
    rng = np.random.default_rng(7)
    shapes = {
        "token_embd.weight": (N_VOCAB, D),
        "output_norm.weight": (D,),
        "output.weight": (N_VOCAB, D),
        "blk.0.attn_norm.weight": (D,),
        "blk.0.attn_q.weight": (D, D),
        "blk.0.attn_k.weight": (D, D),
        "blk.0.attn_v.weight": (D, D),
        "blk.0.attn_output.weight": (D, D),
        "blk.0.ffn_norm.weight": (D,),
        "blk.0.ffn_gate.weight": (F, D),
        "blk.0.ffn_up.weight": (F, D),
        "blk.0.ffn_down.weight": (D, F),
    }
    tensors = [Tensor(n, s, QType.F32, rng.normal(0, 0.5, s).astype(np.float32)) for n, s in shapes.items()]
    return write(path, metadata(n_ctx, template, **more), tensors)


def ids(text: str) -> list[int]:
    """One token a byte: what the vocabulary spells any text with, merges left out."""
    spelt = byte_to_char()
    return [TOKENS.index(spelt[b]) for b in text.encode()]


def saying(*answers: str | Sequence[int], end: bool = True) -> Script:
    """A script that answers every prompt: byte by byte, or with the token ids given; then ends the turn.

    A history that continues no prompt seen before is a new prompt. The k-th one gets the k-th answer; the last answer
    serves all that follow.
    """
    said = [ids(a) if isinstance(a, str) else list(a) for a in answers]
    prompts: list[list[int]] = []

    def script(history: Sequence[int]) -> int:
        past = list(history)
        for k, prompt in enumerate(prompts):
            answer = said[min(k, len(said) - 1)]
            n = len(past) - len(prompt)
            if n >= 0 and past[: len(prompt)] == prompt and past[len(prompt) :] == answer[:n]:
                break
        else:
            prompts.append(past)
            n, answer = 0, said[min(len(prompts) - 1, len(said) - 1)]
        if n < len(answer):
            return answer[n]
        return END if end else answer[-1]

    return script


def install(monkeypatch: Any, backend: FakeBackend) -> FakeBackend:
    """Makes `backend` what LLM gets for "native" and "auto"."""
    table: dict[str, Callable[[], Any]] = select.BACKENDS
    monkeypatch.setitem(table, "native", lambda: backend)
    return backend

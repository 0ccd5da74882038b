"""Small vocabularies as GGUF metadata, and naive encoders that say what merging must give."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgellm.tokenizer.pieces import byte_to_char

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def metadata(model: str, tokens: list[tuple[str, int]], **keys: Any) -> dict[str, Any]:
    """Metadata of a vocabulary; `keys` are `tokenizer.ggml.<key>`."""
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [text for text, _ in tokens],
        "tokenizer.ggml.token_type": np.array([kind for _, kind in tokens], np.int32),
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def byte_level(merges: list[str], special: list[tuple[str, int]], **keys: Any) -> dict[str, Any]:
    """All 256 bytes, the results of `merges`, then `special` tokens."""
    texts = [*byte_to_char().values(), *dict.fromkeys(m.replace(" ", "") for m in merges)]
    tokens = [(text, NORMAL) for text in texts]
    return metadata("gpt2", tokens + special, **{"pre": "gpt-2", "merges": merges, **keys})


def sentencepiece(pieces: dict[str, float], special: list[tuple[str, int]], **keys: Any) -> dict[str, Any]:
    """<unk>, <s>, </s>, all 256 bytes, `special` tokens, then `pieces` with their scores."""
    tokens = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    tokens += [(f"<0x{b:02X}>", BYTE) for b in range(256)]
    tokens += special
    scores = [0.0] * len(tokens) + list(pieces.values())
    tokens += [(piece, NORMAL) for piece in pieces]
    return metadata("llama", tokens, scores=np.array(scores, np.float32), **keys)


def merge_by_rank(word: bytes, merges: list[str]) -> list[str]:
    """Byte-pair merging as it is defined: the earliest merge anywhere, leftmost first, until none is left."""
    letters = byte_to_char()
    parts = [letters[b] for b in word]
    ranks = {tuple(m.split(" ")): i for i, m in reversed(list(enumerate(merges)))}
    while True:
        found = [(ranks[pair], i) for i in range(len(parts) - 1) if (pair := (parts[i], parts[i + 1])) in ranks]
        if not found:
            return parts
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def merge_by_score(text: str, pieces: dict[str, float]) -> list[str]:
    """Merging as SentencePiece defines it: the best score anywhere, leftmost first; the rest falls to bytes."""
    parts = list(text.replace(" ", "▁"))
    while True:
        found = [
            (-np.float32(pieces[pair]), i) for i in range(len(parts) - 1) if (pair := parts[i] + parts[i + 1]) in pieces
        ]
        if not found:
            break
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out: list[str] = []
    for part in parts:
        out += [part] if part in pieces else [f"<0x{b:02X}>" for b in part.encode()]
    return out

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


def plain_utf8(merges: list[str], special: list[tuple[str, int]] | None = None, **keys: Any) -> dict[str, Any]:
    """<pad>, <eos>, <bos>, all 256 bytes as tokens, `special`, then characters and results of `merges`."""
    tokens = [(text, CONTROL) for text in ("<pad>", "<eos>", "<bos>")]
    tokens += [(f"<0x{b:02X}>", BYTE) for b in range(256)]
    tokens += special or []
    texts = dict.fromkeys(c for m in merges for c in m if c != " ") | dict.fromkeys(m.replace(" ", "") for m in merges)
    tokens += [(text, NORMAL) for text in texts]
    return metadata("gemma4", tokens, merges=merges, bos_token_id=2, eos_token_id=1, **keys)


def byte_texts(text: str) -> list[str]:
    """A text as byte tokens."""
    return [f"<0x{b:02X}>" for b in text.encode()]


def merge_by_rank(word: bytes, merges: list[str]) -> list[str]:
    """Byte-pair merging of a word in the byte alphabet."""
    letters = byte_to_char()
    return merge_parts([letters[b] for b in word], merges)


def merge_parts(parts: list[str], merges: list[str]) -> list[str]:
    """Byte-pair merging as it is defined: the earliest merge anywhere, leftmost first, until none is left."""
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


def large(n_tokens: int, n_merges: int) -> dict[str, Any]:
    """A byte-level vocabulary of a real one's size: words of four letters, each with one merge or several."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = [a + b for a in letters for b in letters]
    words = [a + b for a in pairs for b in pairs][: n_tokens - 256 - len(pairs)]
    merges = [f"{p[0]} {p[1]}" for p in pairs] + [f"{w[:2]} {w[2:]}" for w in words]
    merges += [f"{w[:3]} {w[3]}" for w in words][: n_merges - len(merges)]
    special = [(f"<|reserved_{i}|>", CONTROL) for i in range(256)]
    out = byte_level([], special, pre="llama-bpe", bos_token_id=0)
    texts = [*byte_to_char().values(), *pairs, *words]
    tokens = [(text, NORMAL) for text in texts] + special
    return out | metadata("gpt2", tokens, pre="llama-bpe", merges=merges, bos_token_id=0)

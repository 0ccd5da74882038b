#!/usr/bin/env python3
"""Write a GGUF file of a given shape with random weights, directly as quantised blocks: gigabytes in seconds.

    python scripts/synthetic.py 1b /tmp/1b.gguf                  # Llama-3.2-1B's shape, Q4_K_M's mix
    python scripts/synthetic.py 8b /tmp/8b.gguf --mix q8_0
    python scripts/synthetic.py 1b /tmp/small.gguf --layers 4

For measuring speed and memory: the blocks are valid, every value is finite, and activations stay of ordinary size;
what the model says means nothing. There is no vocabulary: token ids only. Other runtimes read these files too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.gguf.qtypes import QType
from edgellm.gguf.writer import Tensor, write


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama-like model."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    tied: bool
    context: int = 131072
    rope_base: float = 500000.0


SHAPES = {
    "135m": Shape(30, 576, 1536, 9, 3, 64, 49152, True, 8192, 100000.0),
    "1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, True),
    "3b": Shape(28, 3072, 8192, 24, 8, 128, 128256, True),
    "8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, False),
}

BLOCKS_AT_ONCE = 1 << 16

# f16 fields of a block: (offset, largest magnitude of what they multiply). The scale is chosen so that a weight has
# about the standard deviation 1 / sqrt(columns); mins ("m") are set to centre the values around zero.
FIELDS: dict[QType, list[tuple[int, float]]] = {
    QType.Q4_0: [(0, 4.6)],
    QType.Q4_1: [(0, 4.6), (2, -7.5 / 4.6)],
    QType.Q5_0: [(0, 9.2)],
    QType.Q5_1: [(0, 9.2), (2, -15.5 / 9.2)],
    QType.Q8_0: [(0, 74.0)],
    QType.Q2_K: [(80, 9.0), (82, 6.0)],
    QType.Q3_K: [(108, 48.0)],
    QType.Q4_K: [(0, 160.0), (2, 22.0)],
    QType.Q5_K: [(0, 320.0), (2, 22.0)],
    QType.Q6_K: [(208, 1400.0)],
    QType.TQ1_0: [(52, 0.8)],
    QType.TQ2_0: [(64, 1.1)],
    QType.IQ1_S: [(0, 7.2)],
    QType.IQ2_XXS: [(0, 53.0)],
    QType.IQ2_XS: [(0, 56.0)],
    QType.IQ2_S: [(0, 56.0)],
    QType.IQ3_XXS: [(0, 142.0)],
    QType.IQ3_S: [(0, 140.0)],
    QType.IQ4_NL: [(0, 74.0)],
    QType.IQ4_XS: [(0, 1300.0)],
}


def mix_q4_k_m(shape: Shape, name: str, layer: int) -> QType:
    """Q4_K, but Q6_K for the output and for attn_v and ffn_down of half the layers, as llama.cpp's quantiser does."""
    if name in ("token_embd", "output"):
        return QType.Q6_K if name == "output" or shape.tied else QType.Q4_K
    n = shape.layers
    more = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
    return QType.Q6_K if more and name in ("attn_v", "ffn_down") else QType.Q4_K


def mix_of(name: str) -> Callable[[Shape, str, int], QType]:
    """The type of every matrix for a mix: q4_k_m, or one type for all."""
    if name == "q4_k_m":
        return mix_q4_k_m
    qtype = QType[name.upper()]
    if qtype not in FIELDS and qtype not in (QType.F32, QType.F16, QType.BF16):
        raise SystemExit(
            f"no random blocks of type {name}: there are q4_k_m, {', '.join(t.name.lower() for t in FIELDS)}"
        )
    return lambda *_: qtype


def blocks(qtype: QType, rows: int, columns: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a matrix in pieces."""
    rng = np.random.default_rng(seed)
    deviation = columns**-0.5
    left = rows * columns // qtype.block
    if qtype in (QType.F32, QType.F16, QType.BF16):
        while left:
            n = min(left, BLOCKS_AT_ONCE * 32)
            x = rng.standard_normal(n, np.float32) * np.float32(deviation)
            if qtype is QType.BF16:
                yield (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            else:
                yield x.astype(np.float32 if qtype is QType.F32 else np.float16).view(np.uint8)
            left -= n
        return
    size = qtype.n_bytes(qtype.block)
    while left:
        n = min(left, BLOCKS_AT_ONCE)
        data = np.frombuffer(rng.bytes(n * size), np.uint8).reshape(n, size).copy()
        first = 1.0
        for i, (offset, magnitude) in enumerate(FIELDS[qtype]):
            spread = rng.uniform(0.7, 1.3, n)
            scale = first * magnitude if magnitude < 0 else deviation / magnitude * spread
            first = scale if i == 0 else first
            data[:, offset : offset + 2] = np.asarray(scale, np.float16).reshape(n, 1).view(np.uint8)
        yield data.reshape(-1)
        left -= n


def tensors(shape: Shape, mix: Callable[[Shape, str, int], QType]) -> list[Tensor]:
    """Every tensor of the model."""
    d, kv, q = shape.width, shape.kv_heads * shape.head, shape.heads * shape.head
    out: list[Tensor] = []

    def matrix(full: str, name: str, layer: int, rows: int, columns: int) -> None:
        qtype, seed = mix(shape, name, layer), len(out)
        if columns % qtype.block:
            qtype = QType.Q5_0 if qtype in (QType.Q4_K, QType.Q5_K) else QType.Q8_0
        out.append(Tensor(full, (rows, columns), qtype, lambda: blocks(qtype, rows, columns, seed)))

    def norm(full: str) -> None:
        out.append(Tensor(full, (d,), QType.F32, np.ones(d, np.float32)))

    matrix("token_embd.weight", "token_embd", 0, shape.vocab, d)
    norm("output_norm.weight")
    if not shape.tied:
        matrix("output.weight", "output", 0, shape.vocab, d)
    for i in range(shape.layers):
        at = f"blk.{i}."
        norm(f"{at}attn_norm.weight")
        for name, rows, columns in (
            ("attn_q", q, d), ("attn_k", kv, d), ("attn_v", kv, d), ("attn_output", d, q),
        ):  # fmt: skip
            matrix(f"{at}{name}.weight", name, i, rows, columns)
        norm(f"{at}ffn_norm.weight")
        for name, rows, columns in (("ffn_gate", shape.ffn, d), ("ffn_up", shape.ffn, d), ("ffn_down", d, shape.ffn)):
            matrix(f"{at}{name}.weight", name, i, rows, columns)
    return out


def metadata(shape: Shape, name: str) -> dict[str, Any]:
    """The keys of a llama without vocabulary."""
    return {
        "general.architecture": "llama",
        "general.name": name,
        "llama.vocab_size": shape.vocab,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": shape.ffn,
        "llama.rope.dimension_count": shape.head,
        "llama.rope.freq_base": shape.rope_base,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head,
        "llama.attention.value_length": shape.head,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "none",
    }


def main(argv: list[str]) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--mix", default="q4_k_m", help="q4_k_m, or one type for all matrices (q4_k_m)")
    parser.add_argument("--layers", type=int, help="other than the shape's own")
    args = parser.parse_args(argv)
    shape = SHAPES[args.shape]
    if args.layers:
        shape = replace(shape, layers=args.layers)
    path = write(args.path, metadata(shape, f"synthetic {args.shape} {args.mix}"), tensors(shape, mix_of(args.mix)))
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The self-test: the logits of a tiny model, whose hash is published and the same on every machine.

    check("native", "avx2")      # Check(backend="native", level="avx2", digest="…", ok=True, seconds=0.02)

The model is a llama of four layers, made here of pseudo-random bytes: integers alone decide every bit of it. Its
matrices take every weight type in turn, and its text crosses pages and a segment of attention, in steps of many tokens
and of one. A kernel, a table or a constant of the core that is not as published changes the hash.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgellm.backends.base import BackendConfig
from edgellm.backends.select import select_backend
from edgellm.core.errors import EdgeLLMError, EngineError
from edgellm.core.types import F32, I32, PAGE_TOKENS, Batch
from edgellm.gguf.qtypes import QType
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.writer import Tensor, write
from edgellm.models.spec import load_plan

LOGITS_SHA256 = "b6a25090aafe12ae4878908cf9b07d72278fc4e8970b63848c33c422c4bbb073"
"""Of the float32 logits [264, 250], little-endian, after each token of TOKENS, with f16 KV. Changing it bumps
NUMERICS_VERSION."""

MODEL_SHA256 = "f68d12b6b6b72e942d2e924ce56a45db921eec77c60b31fb40ef79d15c2e23aa"
"""Of the model's file. Rounding hides some of its bits from the logits."""

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4, 256, 4, 2, 32, 250
STEPS = (192, 1, 31, 1, 36, 3)
"""Tokens of each step."""
TOKENS = tuple((7 * i + 3) % VOCABULARY for i in range(sum(STEPS)))
"""The text: every token of the vocabulary."""

# Where a block has float16 scales, and their exponent: a weight gets a standard deviation near 1 / sqrt(WIDTH). The
# mantissa is random. The minimum of a Q4_1 or Q5_1 block is negative.
NEGATIVE = np.uint16(0x8000)
SCALES: dict[QType, tuple[tuple[int, int, int | np.uint16], ...]] = {
    QType.Q4_0: ((0, -7, 0),),
    QType.Q4_1: ((0, -7, 0), (2, -4, NEGATIVE)),
    QType.Q5_0: ((0, -8, 0),),
    QType.Q5_1: ((0, -8, 0), (2, -4, NEGATIVE)),
    QType.Q8_0: ((0, -11, 0),),
    QType.Q2_K: ((80, -8, 0), (82, -8, 0)),
    QType.Q3_K: ((108, -10, 0),),
    QType.Q4_K: ((0, -12, 0), (2, -9, 0)),
    QType.Q5_K: ((0, -13, 0), (2, -9, 0)),
    QType.Q6_K: ((208, -14, 0),),
    QType.IQ1_S: ((0, -7, 0),),
    QType.IQ2_XXS: ((0, -10, 0),),
    QType.IQ2_XS: ((0, -10, 0),),
    QType.IQ2_S: ((0, -10, 0),),
    QType.IQ3_XXS: ((0, -12, 0),),
    QType.IQ3_S: ((0, -12, 0),),
    QType.IQ4_NL: ((0, -11, 0),),
    QType.IQ4_XS: ((0, -14, 0),),
    QType.TQ1_0: ((52, -4, 0),),
    QType.TQ2_0: ((64, -4, 0),),
}
TYPES = (*SCALES, QType.IQ1_M, QType.MXFP4, QType.NVFP4, QType.F32, QType.F16, QType.BF16)
"""The weight types of the matrices, in turn."""


class Check(NamedTuple):
    """One run of the self-test. digest: of the logits, "" where there are none. ok: it is the published one, and so is
    the model's. why_not: what is wrong, or ""."""

    backend: str
    level: str
    digest: str
    ok: bool
    seconds: float
    why_not: str = ""


def check(backend: str, level: str | None = None, path: Path | None = None) -> Check:
    """Run the model on a backend at a level (None: its best). path: a file other than what `write_model` makes."""
    start, digest, wrong = time.perf_counter(), "", []
    try:
        with tempfile.TemporaryDirectory(prefix="edgellm-selftest-") as folder:
            path = path or write_model(Path(folder) / "selftest.gguf")
            if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != MODEL_SHA256:
                wrong.append(f"the model's file has the hash {found}, published is {MODEL_SHA256}")
            digest = hashlib.sha256(logits(path, backend, level).astype("<f4").tobytes()).hexdigest()
        if digest != LOGITS_SHA256:
            wrong.append(f"the logits have the hash {digest}, published is {LOGITS_SHA256}")
    except (EdgeLLMError, OSError) as e:
        wrong.append(str(e))
    return Check(backend, level or "", digest, not wrong, time.perf_counter() - start, "; ".join(wrong))


def logits(path: Path, backend: str, level: str | None = None, n_threads: int | None = None) -> F32:
    """float32 [264, 250]: the logits after each token of TOKENS. Raises what opening and running a model raises, and
    EngineError when a value is not finite."""
    n_pages = -(-len(TOKENS) // PAGE_TOKENS)
    with GGUFFile(path) as file:
        plan = load_plan(file).plan
        config = BackendConfig(
            n_ctx=n_pages * PAGE_TOKENS, max_tokens=max(STEPS), max_rows=max(STEPS), max_seqs=1, n_pages=(n_pages,),
            isa=level, n_threads=n_threads,
        )  # fmt: skip
        executable = select_backend(backend).compile(plan, file, config)
        try:
            pages = _i32([range(n_pages)[::-1]])
            done, out = 0, []
            for n in STEPS:
                tokens, positions = _i32(TOKENS[done : done + n]), _i32(range(done, done + n))
                step = executable.run(
                    Batch(tokens, positions, _i32([0, n]), (pages,), _i32(range(n)), top_k=0, want_logits=True)
                )
                if step.status.any() or step.logits is None:
                    raise EngineError("the self-test's model has logits that are not finite")
                out.append(step.logits)
                done += n
        finally:
            executable.close()
    return np.concatenate(out)


def write_model(path: Path) -> Path:
    """Write the model; returns its path."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
    for i in range(LAYERS):
        matrices = {"attn_q": (q, WIDTH), "attn_k": (kv, WIDTH), "attn_v": (kv, WIDTH), "attn_output": (WIDTH, q)}
        matrices |= {f"ffn_{name}": (WIDTH, WIDTH) for name in ("gate", "up", "down")}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in matrices.items()}
        shapes |= {f"blk.{i}.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
    tensors, types = [], [*TYPES, *TYPES]
    for name, shape in shapes.items():
        qtype = QType.F32
        if len(shape) == 2:
            qtype = next(t for t in types if shape[1] % t.block == 0)
            types.remove(qtype)
        data = _blocks(name, qtype, int(np.prod(shape)) // qtype.block, positive=len(shape) == 1)
        tensors.append(Tensor(f"{name}.weight", shape, qtype, data))
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "edgellm self-test",
        "llama.context_length": 512,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_DIM,
        "llama.attention.value_length": HEAD_DIM,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": VOCABULARY,
        "tokenizer.ggml.model": "no_vocab",
    }
    return write(path, metadata, tensors)


def _blocks(name: str, qtype: QType, n: int, *, positive: bool) -> NDArray[np.uint8]:
    """n blocks of random bytes with ordinary scales, uint8 [n, block_bytes]; positive: numbers from 0.5 to 1."""
    raw = hashlib.shake_128(name.encode()).digest(n * qtype.block_bytes)
    blocks: NDArray[np.uint8] = np.frombuffer(raw, np.uint8).reshape(n, qtype.block_bytes).copy()
    words = blocks.view("<u2") if qtype.block_bytes % 2 == 0 else None
    for offset, exponent, sign in SCALES.get(qtype, ()):
        field = blocks[:, offset : offset + 2].copy().view("<u2")
        blocks[:, offset : offset + 2] = (_f16(field, exponent) | sign).astype("<u2").view(np.uint8)
    if qtype is QType.F32:
        bits = blocks.view("<u4")
        bits[:] = (bits & 0x007FFFFF) | 126 << 23 if positive else (bits & 0x807FFFFF) | 122 << 23
    elif qtype is QType.F16 and words is not None:
        words[:] = _f16(words, -5) | (words & NEGATIVE)
    elif qtype is QType.BF16 and words is not None:
        words[:] = (words & 0x807F) | 122 << 7
    elif qtype is QType.IQ1_M and words is not None:  # the scale's nibbles are the top ones of the last four words
        scale = _f16(words[:, 24:25].copy(), -7)
        for i in range(4):
            words[:, 24 + i] = (words[:, 24 + i] & 0x0FFF) | (scale[:, 0] >> (4 * i) & 15) << 12
    elif qtype is QType.MXFP4:
        blocks[:, 0] = 121 + (blocks[:, 0] & 1)
    elif qtype is QType.NVFP4:
        blocks[:, :4] = 8 | (blocks[:, :4] & 7)
    return blocks


def _f16(bits: NDArray[np.uint16], exponent: int) -> NDArray[np.uint16]:
    """float16 from 2 ** exponent on to twice that, its mantissa from `bits`."""
    return ((bits & 0x03FF) | (exponent + 15) << 10).astype("<u2")


def _i32(values: object) -> I32:
    return np.array(values, np.int32)

"""Every weight type from a file to logits: loads natively, means what the reference says, same bits every way."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrices import random_matrix
from numpy.typing import NDArray
from parity.driver import Timeline, batch, compiled, teacher_forced, usable

from edgellm.backends.lower import A16, A256, ACT_FORMATS, FLOAT
from edgellm.backends.reference.interpret import Step
from edgellm.core.types import F32
from edgellm.gguf.qtypes import QType
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.writer import Tensor, write
from edgellm.models import load_plan

TYPES = list(ACT_FORMATS)
LAYERS, VOCAB, CONTEXT = 2, 200, 64
TOKENS = [int(i) for i in np.random.default_rng(3).integers(0, VOCAB, 40)]
LIMIT = 1e-6
"""NMSE, as for the golden architectures."""
COST = {A16: 5e-4, A256: 1.5e-3, FLOAT: LIMIT}
"""NMSE that activations of 8 bits may cost this model: 3.0e-4 to 3.5e-4 and 0.9e-3 to 1.1e-3 were measured."""
ALIKE = 1e-10
"""NMSE with activations rounded alike: 1e-13 was measured."""


def dims(qtype: QType) -> tuple[int, int, int, int]:
    """Width, feed-forward width, heads, key-value heads; the vocabulary's rows are no multiple of 16."""
    return {1: (88, 150, 2, 1), 32: (576, 640, 9, 3), 64: (576, 640, 9, 3), 256: (256, 512, 4, 2)}[qtype.block]


@pytest.fixture(scope="session")
def tiny_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[QType], Path]:
    """A llama of two layers whose matrices are all of one type."""
    folder = tmp_path_factory.mktemp("types")

    def make(qtype: QType) -> Path:
        path = folder / f"{qtype}.gguf"
        if path.exists():
            return path
        d, f, heads, kv_heads = dims(qtype)
        kv = d // heads * kv_heads
        shapes = {"token_embd": (VOCAB, d), "output": (VOCAB, d)}
        for i in range(LAYERS):
            matrices = {"attn_q": (d, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, d)}
            matrices |= {"ffn_gate": (f, d), "ffn_up": (f, d), "ffn_down": (d, f)}
            shapes |= {f"blk.{i}.{name}": shape for name, shape in matrices.items()}
        rng = np.random.default_rng(int(qtype))
        tensors = []
        for name, shape in shapes.items():
            data = random_matrix(rng, qtype, shape, shape[1] ** -0.5)
            tensors.append(Tensor(f"{name}.weight", shape, qtype, data))
        for name in ["output_norm", *(f"blk.{i}.{n}_norm" for i in range(LAYERS) for n in ("attn", "ffn"))]:
            x = rng.normal(1, 0.2, (d,)).astype(np.float32)
            tensors.append(Tensor(f"{name}.weight", (d,), QType.F32, x))
        metadata: dict[str, Any] = {
            "general.architecture": "llama",
            "llama.context_length": CONTEXT,
            "llama.embedding_length": d,
            "llama.block_count": LAYERS,
            "llama.feed_forward_length": f,
            "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": kv_heads,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.vocab_size": VOCAB,
            "tokenizer.ggml.model": "no_vocab",
        }
        return write(path, metadata, tensors)

    return make


def logits(path: Path, backend: str, chunks: tuple[int, ...] = (40,), **changes: object) -> NDArray[np.float32]:
    with GGUFFile(path) as file:
        plan = load_plan(file)[0]
        executable, pages = compiled(usable(backend), plan, file, **changes)
        try:
            return teacher_forced(executable, plan, TOKENS, chunks, Timeline(pages))
        finally:
            executable.close()


def rounded(x: F32, fmt: int) -> F32:
    """Activations as the kernels of a format see them (native/kernels/kernels.h)."""
    if fmt == FLOAT:
        return x
    blocks = x.reshape(-1, 16 if fmt == A16 else 256)
    top = np.abs(blocks).max(axis=1, keepdims=True)
    q = np.rint(blocks * (np.float32(127) / top))
    return (q * (top / np.float32(127))).reshape(x.shape)


def first_tokens(path: Path, backend: str) -> NDArray[np.float32]:
    """Logits of 8 sequences of one token each."""
    with GGUFFile(path) as file:
        plan = load_plan(file)[0]
        executable, pages = compiled(usable(backend), plan, file)
        try:
            out = executable.run(batch(plan, [(Timeline(pages), [t]) for t in TOKENS[:8]])).logits
        finally:
            executable.close()
    assert out is not None
    return out


@pytest.mark.parametrize("qtype", TYPES, ids=str)
def test_the_native_core_means_what_the_reference_says(
    qtype: QType,
    tiny_of: Callable[[QType], Path],
    nmse: Callable[[NDArray[Any], NDArray[Any]], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny_of(qtype)
    assert nmse(logits(path, "reference"), logits(path, "native")) < COST[ACT_FORMATS[qtype]]

    # With activations rounded alike the two agree, except where a value lies so near a half that it was rounded the
    # other way, which the next roundings multiply: hence the median, of tokens that do not see each other.
    plain = Step.part
    monkeypatch.setattr(Step, "part", lambda step, x, part: plain(step, rounded(x, ACT_FORMATS[qtype]), part))
    pairs = zip(first_tokens(path, "reference"), first_tokens(path, "native"), strict=True)
    assert np.median([nmse(a, b) for a, b in pairs]) < ALIKE


@pytest.mark.parametrize("qtype", TYPES, ids=str)
def test_same_bits_in_every_layout_level_and_batch(qtype: QType, tiny_of: Callable[[QType], Path]) -> None:
    path = tiny_of(qtype)
    want = logits(path, "native", weights="tiles")
    ways: list[dict[str, Any]] = [
        {"weights": "mmap"},
        {"weights": "mmap", "isa": "scalar", "n_threads": 1},
        {"weights": "tiles", "isa": "scalar"},
        {"weights": "tiles", "n_threads": 3, "chunks": (1,)},
        {"weights": "mmap", "n_threads": 1, "chunks": (1, 2, 5, 13, 1)},
    ]
    for way in ways:
        got = logits(path, "native", **way)
        assert np.array_equal(want.view(np.uint32), got.view(np.uint32)), way


def test_the_types_are_those_of_the_core(repository: Path) -> None:
    source = (repository / "native" / "kernels" / "tiles.c").read_text(encoding="utf-8")
    rows = re.findall(r"\{EL_(\w+), (\d+), \d+, \d+, .+, (EL_ACT_A16|EL_ACT_A256|-1)\},", source)
    formats = {"EL_ACT_A16": A16, "EL_ACT_A256": A256, "-1": FLOAT}
    assert {QType[name]: formats[act] for name, _, act in rows} == ACT_FORMATS
    assert all(QType[name].block == int(block) for name, block, _ in rows)

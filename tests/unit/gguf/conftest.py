"""A small GGUF with every kind of metadata and several tensor types, as files and as bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgellm.gguf import QType, ValueType
from edgellm.gguf.quantize import quantize
from edgellm.gguf.writer import Tensor, Typed, write

METADATA = {
    "general.architecture": "llama",
    "general.name": "tiny Grüße 日本",
    "a.u8": Typed(200, ValueType.U8),
    "a.i8": Typed(-100, ValueType.I8),
    "a.u16": Typed(60000, ValueType.U16),
    "a.i16": Typed(-30000, ValueType.I16),
    "a.u32": 4_000_000_000,
    "a.i32": -7,
    "a.f32": 0.5,
    "a.bool": True,
    "a.u64": 1 << 40,
    "a.i64": -(1 << 40),
    "a.f64": Typed(0.1, ValueType.F64),
    "a.empty": "",
    "array.strings": ["eins", "", "drei", "日本"],
    "array.f32": np.arange(5, dtype=np.float32),
    "array.i32": np.arange(-3, 3, dtype=np.int32),
    "array.bool": [True, False, True],
    "array.u64": np.array([1 << 63], np.uint64),
    "array.none": Typed([], ValueType.ARRAY, ValueType.STRING),
}


def tensor(name: str, shape: tuple[int, ...], qtype: QType, seed: int = 0) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(name, shape, qtype, quantize(values, qtype))


@pytest.fixture(scope="session")
def tensors() -> list[Tensor]:
    return [
        tensor("token_embd.weight", (16, 256), QType.Q8_0, 1),
        tensor("blk.0.norm.weight", (33,), QType.F32, 2),
        tensor("blk.0.q.weight", (8, 256), QType.Q4_K, 3),
        tensor("blk.0.exps.weight", (2, 3, 32), QType.Q4_1, 4),
        tensor("blk.0.four.weight", (2, 1, 3, 32), QType.Q5_0, 5),
    ]


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory, tensors: list[Tensor]) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", METADATA, tensors)


@pytest.fixture(scope="session")
def metadata() -> dict[str, object]:
    return dict(METADATA)


@pytest.fixture(scope="session")
def make_tensor():
    return tensor

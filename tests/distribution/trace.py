"""Records what the native engine is given, as a file that native/tests/replay.c runs without Python (format there).

with recording(path):
    ...                      # make one native executable, run batches on it, close it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from numpy.typing import ArrayLike

from edgellm._native import Engine, EngineConfig, NativeModel
from edgellm.backends.native import executable
from edgellm.core.kv import KV_FORMATS
from edgellm.core.types import Batch, StepOutput

LINE = 64


@contextlib.contextmanager
def recording(path: Path) -> Iterator[None]:
    """Native engines made inside write what they were given to `path` when they are closed."""

    class Recorder(Engine):
        def __init__(self, model: NativeModel, config: EngineConfig) -> None:
            super().__init__(model, config)
            self.given, self.batches = (model, config), list[Batch]()

        def step(self, batch: Batch) -> StepOutput:
            self.batches.append(batch)
            return super().step(batch)

        def close(self) -> None:
            write(path, *self.given, self.batches)
            super().close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executable, "Engine", Recorder)
        yield


def write(path: Path, m: NativeModel, c: EngineConfig, batches: Sequence[Batch]) -> None:
    kv = [KV_FORMATS[t].code for t in (c.k_type, c.v_type)]
    counts = [len(x) for x in (m.ops, m.buffers, m.matrices, m.vectors, m.ropes)]
    with path.open("wb") as file:
        file.write(b"ELTRACE1".ljust(LINE, b"\0"))
        fields = [*counts, m.n_classes, len(m.cache_layers), m.n_act_slots, m.n_vocab, m.logits]
        put_i32(file, [*fields, c.max_tokens, c.max_rows, c.max_seqs, c.n_ctx, *kv, len(batches)])
        put(file, m.ops.tobytes())
        put_i32(file, m.buffers)
        put_i32(file, m.cache_layers)
        put_i32(file, list(c.n_pages))
        for w in m.matrices:
            put_i32(file, [w.qtype, w.n_rows, w.n_cols, w.n_stack, int(w.pack)])
            put(file, bytes(w.data))
        for v in m.vectors:
            put(file, v.tobytes())
        for cos, sin in m.ropes:
            put_i32(file, [cos.shape[0], 2 * cos.shape[1]])
            put(file, cos.tobytes())
            put(file, sin.tobytes())
        for b in batches:
            put_i32(file, [len(b.tokens), len(b.seq_start) - 1, len(b.rows)])
            for array in (b.tokens, b.positions, b.seq_start, b.rows, *b.pages):
                put_i32(file, array)


def put(file: BinaryIO, data: bytes) -> None:
    file.write(len(data).to_bytes(8, "little").ljust(LINE, b"\0"))
    file.write(data.ljust(-(-len(data) // LINE) * LINE, b"\0"))


def put_i32(file: BinaryIO, numbers: ArrayLike) -> None:
    put(file, np.ascontiguousarray(numbers, "<i4").tobytes())

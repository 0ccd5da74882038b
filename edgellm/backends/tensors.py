"""A plan's weights in a file, as the backends that lower plans take them."""

from __future__ import annotations

import numpy as np

from edgellm.backends.lower import Program
from edgellm.core.errors import UnsupportedModel
from edgellm.core.types import F32
from edgellm.gguf.dequantize import can_dequantize, dequantize
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.values import Bytes
from edgellm.models.plan import Plan
from edgellm.models.tables import Weight


def vector(file: GGUFFile, weight: Weight) -> F32:
    """A tensor as float32, flat. UnsupportedModel for a type without numbers."""
    info = file.tensors[weight.tensor]
    if not can_dequantize(info.qtype):
        raise UnsupportedModel(
            f"{file.path}: {weight.tensor} has type {info.qtype}, which cannot be turned into numbers; expected F32"
        )
    return np.ascontiguousarray(dequantize(file.read(weight.tensor), info.qtype, info.shape), np.float32).reshape(-1)


def matrix_bytes(file: GGUFFile, weight: Weight, backend: str) -> tuple[Bytes, int, int]:
    """Rows row0 .. of a tensor (of every matrix of a stack) in the file's bytes; where they begin within the tensor;
    the number of matrices. UnsupportedModel, in the name of `backend`, for a part of every matrix of a stack."""
    info = file.tensors[weight.tensor]
    n_rows, n_cols = weight.shape[-2], weight.shape[-1]
    n_stack = int(np.prod(weight.shape[:-2], dtype=np.int64))
    data = file.data(weight.tensor)
    row_bytes = info.qtype.n_bytes(n_cols)
    start = 0
    if n_stack == 1:
        start = weight.row0 * row_bytes
        data = data[start : start + n_rows * row_bytes]
    elif n_stack * n_rows * row_bytes != len(data):
        raise UnsupportedModel(
            f"{weight.tensor}: the {backend} backend takes whole expert stacks in this release, found rows "
            f'{weight.row0} to {weight.row0 + n_rows} of each: open the model with backend="reference"'
        )
    return data, start, n_stack


def bytes_per_step(file: GGUFFile, plan: Plan, program: Program) -> int:
    """Bytes of weights one decode step reads, in the file's own size (all experts counted)."""
    return sum(bytes_by_type(file, plan, program).values())


def bytes_by_type(file: GGUFFile, plan: Plan, program: Program) -> dict[int, int]:
    """The same by weight type."""
    found: dict[int, int] = {}
    for w in program.packed:
        weight = plan.weights[w]
        rows, qtype = int(np.prod(weight.shape[:-1], dtype=np.int64)), file.tensors[weight.tensor].qtype
        found[int(qtype)] = found.get(int(qtype), 0) + rows * qtype.n_bytes(weight.shape[-1])
    return found

"""Reads every tensor of a file and looks for numbers that cannot be: infinite or undefined scales and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.core.record import dataclass, field
from edgellm.gguf.qtypes import QType
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.values import Bytes

CHUNK = 16 << 20
"""Bytes looked at in one go."""

SCALES: dict[QType, tuple[int, ...]] = {
    QType.Q4_0: (0,), QType.Q4_1: (0, 2), QType.Q5_0: (0,), QType.Q5_1: (0, 2), QType.Q8_0: (0,), QType.Q8_1: (0, 2),
    QType.Q2_K: (80, 82), QType.Q3_K: (108,), QType.Q4_K: (0, 2), QType.Q5_K: (0, 2), QType.Q6_K: (208,),
    QType.IQ2_XXS: (0,), QType.IQ2_XS: (0,), QType.IQ2_S: (0,), QType.IQ3_XXS: (0,), QType.IQ3_S: (0,),
    QType.IQ1_S: (0,), QType.IQ4_NL: (0,), QType.IQ4_XS: (0,), QType.TQ1_0: (52,), QType.TQ2_0: (64,),
}  # fmt: skip
"""Where a block has its float16 scales and minima, in bytes from its start."""

_EXPONENTS: dict[QType, tuple[str, int]] = {
    QType.F16: ("<u2", 0x7C00),
    QType.BF16: ("<u2", 0x7F80),
    QType.F32: ("<u4", 0x7F800000),
    QType.F64: ("<u8", 0x7FF0000000000000),
}
"""The integer type of a plain number and the bits that are all set when it is not finite."""

_INTEGERS = frozenset({QType.I8, QType.I16, QType.I32, QType.I64})

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """n_bytes: that were read. bad: per damaged tensor its name, type and how many blocks (or values) are damaged.
    unchecked: types whose scales are not looked at; their tensors were read all the same."""

    n_tensors: int
    n_bytes: int
    bad: list[dict[str, Any]] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def verify(file: GGUFFile, progress: Progress | None = None) -> Report:
    """Read all tensors, `CHUNK` bytes at a time; memory does not grow with the file."""
    total = sum(t.n_bytes for t in file.tensors.values())
    done, bad, unchecked = 0, [], set()
    for name, info in file.tensors.items():
        data, step = file.data(name), max(CHUNK // info.qtype.block_bytes, 1) * info.qtype.block_bytes
        n_bad = 0
        for at in range(0, len(data), step):
            part = data[at : at + step]
            found = count_bad(part, info.qtype)
            if found is None:
                unchecked.add(info.qtype.name)
                int(part[::4096].sum(dtype=np.uint64))  # every page is read
            else:
                n_bad += found
            done += len(part)
            if progress is not None:
                progress(done, total, "verifying")
        if n_bad:
            bad.append({"tensor": name, "type": info.qtype.name, "blocks": n_bad})
        file.drop_pages(name)
    return Report(len(file.tensors), total, bad, sorted(unchecked))


def count_bad(data: Bytes, qtype: QType) -> int | None:
    """Blocks in whole blocks of `data` with a scale that is not finite; None for a type that is not looked at."""
    if qtype in _INTEGERS:
        return 0
    if qtype in _EXPONENTS:
        kind, mask = _EXPONENTS[qtype]
        words: NDArray[Any] = np.ascontiguousarray(data).view(kind)
        bits = words.dtype.type(mask)
        return int(np.count_nonzero((words & bits) == bits))
    blocks = data.reshape(-1, qtype.block_bytes)
    if qtype == QType.MXFP4:  # one exponent byte, 255 is no number
        return int(np.count_nonzero(blocks[:, 0] == 255))
    if qtype not in SCALES:
        return None
    wrong = np.zeros(len(blocks), np.bool_)
    for at in SCALES[qtype]:
        wrong |= (blocks[:, at + 1] & np.uint8(0x7C)) == 0x7C
    return int(np.count_nonzero(wrong))

"""From the final hidden states of a text's tokens to one vector: pooling and normalisation, the same bits always."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.core.errors import RequestError
from edgellm.core.types import F32

POOLINGS = ("mean", "last", "cls")
_OF_FILE = {0: "mean", 1: "mean", 2: "cls", 3: "last"}
"""`<arch>.pooling_type`: 0 leaves it open, as files without the key do; 4 is a reranker's, which is no embedding."""


def pooling_of(metadata: Mapping[str, Any], arch: str, wanted: str | None) -> str:
    """How texts are pooled: as `wanted`, else as the file says, else "mean". RequestError for what is not known."""
    if wanted is not None:
        if wanted not in POOLINGS:
            raise RequestError(f"pooling must be one of {', '.join(POOLINGS)}, found {wanted!r:.80}")
        return wanted
    number = metadata.get(f"{arch}.pooling_type", 0)
    if number not in _OF_FILE:
        raise RequestError(
            f"the file says {arch}.pooling_type = {number!r:.80}, which is no embedding's (4 is a reranker's): "
            f"pass pooling= one of {', '.join(POOLINGS)}"
        )
    return _OF_FILE[number]


class Pool:
    """Takes the hidden states [n, D] of tokens first .. stop-1 as they are computed; `vector` is their mean, [D].

    Sums are float64, in the order of the tokens, so that a text's vector does not depend on how its steps were cut.
    """

    def __init__(self, pooling: str, n_tokens: int) -> None:
        self.rows = {"mean": (0, n_tokens), "last": (n_tokens - 1, n_tokens), "cls": (0, 1)}[pooling]
        self._sum: NDArray[np.float64] | None = None
        self._n = 0

    def take(self, at: int, rows: F32) -> None:
        """The states of tokens first + at, ...; those that are computed again, after a preemption, are passed over."""
        for row in rows[self._n - at :]:
            if self._sum is None:
                self._sum = row.astype(np.float64)
            else:
                self._sum += row
            self._n += 1

    def vector(self, normalize: bool) -> F32:
        """The pooled vector, float32 [D]; normalize: of length 1 (zeros stay)."""
        assert self._sum is not None  # noqa: S101 - a request that ended without an error has delivered
        mean = self._sum / self._n
        length = math.sqrt(math.fsum((mean * mean).tolist())) if normalize else 1.0
        out: F32 = (mean / (length or 1.0)).astype(np.float32)
        return out

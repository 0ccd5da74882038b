"""What `save_state` keeps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgellm.core.record import dataclass


@dataclass(frozen=True, slots=True)
class LlamaState:
    """The tokens that were evaluated, int32 [n_tokens], and the seed: by the same-bits rule nothing else matters."""

    input_ids: NDArray[np.int32]
    n_tokens: int
    seed: int | None

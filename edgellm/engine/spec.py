"""What an engine is told of its model and its memory."""

from __future__ import annotations

from edgellm.core.record import dataclass
from edgellm.engine.scheduler import Budget
from edgellm.kvcache.spec import ClassSpec


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What the engine needs to know of the model and of its memory.

    n_ctx: longest sequence in tokens; a pool of a class that keeps every token holds at least one such sequence.
    budget: limits of a step, as the executable was compiled for.
    prefix_cache: keep what was computed for requests that begin alike.
    max_requests: further ones are refused while so many have not ended.
    check: verify the page ledger after every step (tests).
    """

    n_ctx: int
    n_vocab: int
    classes: tuple[ClassSpec, ...]
    n_pages: tuple[int, ...]
    budget: Budget
    check: bool = False
    prefix_cache: bool = True
    max_requests: int = 4096

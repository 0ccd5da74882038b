"""What a request's failure is reported as."""

from __future__ import annotations

import logging

from edgellm.core.errors import CapacityError, EdgeLLMError, EngineError, NumericsError

log = logging.getLogger(__name__)


def not_finite() -> NumericsError:
    """The error of a sequence whose activations stopped being numbers."""
    return NumericsError("a non-finite value appeared in the model's activations for this request")


def no_room(pinned: bool) -> CapacityError:
    """The error of a request for which there is no room although nothing else runs; pinned: sessions keep pages."""
    sessions = "close sessions, whose pages stay, or " if pinned else ""
    return CapacityError(f"the KV cache has no room for this request: {sessions}open the model with a larger kv_memory")


def typed(e: Exception) -> EdgeLLMError:
    """What a request's failure is reported as: itself where it is one of ours, else an EngineError, logged."""
    if isinstance(e, EdgeLLMError):
        return e
    log.error("a request failed", exc_info=e)
    error = EngineError(f"the request failed: {type(e).__name__}: {e}")
    error.__cause__ = e
    return error

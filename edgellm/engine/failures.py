"""What a request's failure is reported as."""

from __future__ import annotations

import logging

from edgellm.core.errors import EdgeLLMError, EngineError, NumericsError

log = logging.getLogger(__name__)


def not_finite() -> NumericsError:
    """The error of a sequence whose activations stopped being numbers."""
    return NumericsError("a non-finite value appeared in the model's activations for this request")


def typed(e: Exception) -> EdgeLLMError:
    """What a request's failure is reported as: itself where it is one of ours, else an EngineError, logged."""
    if isinstance(e, EdgeLLMError):
        return e
    log.error("a request failed", exc_info=e)
    error = EngineError(f"the request failed: {type(e).__name__}: {e}")
    error.__cause__ = e
    return error

"""The part of an executable that the engine uses."""

from __future__ import annotations

from typing import Protocol

from edgellm.core.types import Batch, StepOutput


class Runner(Protocol):
    """Runs one step at a time; owned by the engine thread."""

    def run(self, batch: Batch) -> StepOutput:
        """Compute one step."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...

"""What the ledger knows of a cache class."""

from __future__ import annotations

from edgellm.core.record import dataclass
from edgellm.core.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """One cache class as the ledger sees it: kind "full" | "window" | "latent" | "state"; window in tokens."""

    kind: str
    window: int = 0

    def first_page(self, next_position: int) -> int:
        """The first page that a token at or after next_position can see."""
        if self.kind != "window" or not self.window:
            return 0
        return max(0, next_position - self.window + 1) // PAGE_TOKENS

"""How many tokens of prompts a step may take beside sequences that decode, from how long steps have taken."""

from __future__ import annotations

from edgellm.core.record import dataclass

LONGEST = 2.25
"""A step with prompts in it takes about so many times as long as one without, at most."""

LEAST, FIRST = 1, 32
"""Tokens of prompts that a step takes in any case, and before anything was measured."""

KEEP = 0.8
"""Weight of what was known before, against a new measurement."""


@dataclass(slots=True)
class Pace:
    """Seconds of a step in which sequences only decode, and of a token of a prompt beside them; 0.0: not yet known."""

    decode: float = 0.0
    token: float = 0.0

    def note(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """A step with so many sequences that decoded and tokens of prompts took so long."""
        if not n_prefill:
            self.decode = _mean(self.decode, seconds)
        elif n_decode:
            self.token = _mean(self.token, max(0.0, seconds - self.decode) / n_prefill)
        elif not self.token:
            self.token = seconds / n_prefill

    def prefill(self, most: int) -> int:
        """Tokens of prompts for the next step, if sequences decode in it; at most `most`."""
        if not self.decode or not self.token:
            return min(most, FIRST)
        return min(most, max(LEAST, int((LONGEST - 1) * self.decode / self.token)))


def _mean(known: float, new: float) -> float:
    return new if not known else KEEP * known + (1 - KEEP) * new

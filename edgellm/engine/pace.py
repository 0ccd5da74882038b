"""How many tokens of prompts a step may take beside sequences that decode, from how long steps have taken."""

from __future__ import annotations

from edgellm.core.record import dataclass

LONGEST = 2.25
"""A step with prompts in it takes about so many times as long as one without, at most; longer where many wait."""

LONGEST_SECONDS = 0.1
"""However many wait, a step with prompts in it takes about so long at most, or LONGEST times one without."""

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

    def prefill(self, most: int, n_decode: int = 1, n_waiting: int = 1) -> int:
        """Tokens of prompts for the next step, if sequences decode in it; at most `most`.

        Where more sequences wait for their first token than decode, they get more of the step's time, in proportion, up
        to LONGEST_SECONDS: else a step for a few would keep many waiting.
        """
        if not self.decode or not self.token:
            return min(most, FIRST)
        seconds = (LONGEST - 1) * self.decode
        share = n_waiting / max(n_decode, 1)
        if share > 1:
            seconds = max(seconds, min(share * seconds, LONGEST_SECONDS - self.decode))
        return min(most, max(LEAST, int(seconds / self.token)))


def _mean(known: float, new: float) -> float:
    return new if not known else KEEP * known + (1 - KEEP) * new

"""How much of prompts is computed beside sequences that decode, from how long steps have taken.

In one step with them (`prefill`: tokens), or, where a step can be computed in parts, between their steps (`flight`:
tokens; `slice`: seconds at a time).
"""

from __future__ import annotations

from edgellm.core.record import dataclass

LONGEST = 2.5
"""A step with prompts in it takes about so many times as long as one without, at most; longer where many wait."""

LONGEST_SECONDS = 0.1
"""However many wait, a step with prompts in it takes about so long at most, or LONGEST times one without."""

LEAST, FIRST = 1, 32
"""Tokens of prompts that a step takes in any case, and before anything was measured."""

KEEP, KEEP_MORE, KEEP_LESS = 0.8, 0.95, 0.5
"""Weight of what was known before against a new measurement; against a higher and a lower one of a step in which
sequences only decode: what disturbs a measurement makes it longer."""

FLIGHT_SECONDS, FLIGHT_LEAST = 0.2, 32
"""A flight takes about so long, slices together, and so many tokens at least: who comes meanwhile waits for its end."""

SLICE = 0.005
"""Seconds of a slice before anything was measured."""

LEAST_SLICE = 0.5
"""A slice takes so much of a decode step's time at least: prompts must end, too."""

REFRESH = 32
"""After so many steps with prompts one goes without: what decoding alone takes is not to be seen in the others."""

OTHER = 1.25
"""How many times more or fewer sequences decode where what was measured tells nothing any more."""


@dataclass(slots=True)
class Pace:
    """Seconds of a step in which sequences only decode, of a pause between two slices of a flight, and of a token of a
    prompt beside them; 0.0: not yet known. late: by how much slices are longer than they should be.

    n_decode: how many sequences decode in such a step. n_since: steps with prompts beside them since it was measured.
    is_stale: `decode` is still that of another number of sequences.
    """

    decode: float = 0.0
    pause: float = 0.0
    token: float = 0.0
    late: float = 0.0
    n_decode: int = 1
    n_paused: int = 1
    n_since: int = 0
    is_stale: bool = False

    def note(self, n_decode: int, n_prefill: int, seconds: float, in_flight: bool = False) -> None:
        """A step with so many sequences that decoded and tokens of prompts took so long.

        in_flight: between the slices of a flight, where it takes longer: they push what it needs out of the caches.
        """
        if in_flight:
            if not self.decode or _differ(n_decode, self.n_decode):
                self.decode, self.n_decode, self.n_since, self.is_stale = seconds, n_decode, 0, True
        elif not n_prefill:
            known = 0.0 if self.is_stale or _differ(n_decode, self.n_decode) else self.decode
            self.decode = _mean(known, seconds, KEEP_MORE if seconds > known else KEEP_LESS)
            self.n_decode, self.n_since, self.is_stale = n_decode, 0, False
        elif n_decode:
            self.n_since += 1
            self.token = _mean(self.token, max(0.0, seconds - self.decode) / n_prefill, KEEP)
        elif not self.token:
            self.token = seconds / n_prefill

    def prefill(self, most: int, n_decode: int = 1, n_waiting: int = 1) -> int:
        """Tokens of prompts for the next step, if sequences decode in it; at most `most`.

        0, never twice running, where it is time to see how long decoding alone takes. Where more sequences wait for
        their first token than decode, they get more of the step's time, in proportion, up to LONGEST_SECONDS: else a
        step for a few would keep many waiting.
        """
        if not self.decode or not self.token:
            return min(most, FIRST)
        other = _differ(n_decode, self.n_decode)
        if n_decode and self.n_since and (other or self.n_since >= REFRESH):
            self.n_decode, self.n_since, self.is_stale = n_decode, 0, other or self.is_stale
            return 0
        return min(most, max(LEAST, int(self._beside(n_decode, n_waiting) / self.token)))

    def flight(self, most: int) -> int:
        """Tokens of prompts for the next flight, at most `most`."""
        return min(most, max(FLIGHT_LEAST, int(FLIGHT_SECONDS / self.token)) if self.token else FIRST)

    def landed(self, n_tokens: int, seconds: float) -> None:
        """A flight of so many tokens took so long, all its slices together."""
        self.token = _mean(self.token, seconds / n_tokens, KEEP_LESS)

    def paused(self, n_decode: int, seconds: float) -> None:
        """From the end of a slice to the next it took so long: a step in which so many sequences decode, and whatever
        else there was to do."""
        self.pause = _mean(0.0 if _differ(n_decode, self.n_paused) else self.pause, seconds, KEEP)
        self.n_paused = n_decode

    def sliced(self, late: float) -> None:
        """A slice took so much longer than it should."""
        self.late = KEEP * self.late + (1 - KEEP) * late

    def slice(self, n_decode: int, n_waiting: int) -> float:
        """Seconds of a flight before the next step of sequences that decode."""
        if not n_decode:
            return LONGEST_SECONDS
        if not self.decode:
            return SLICE
        longer = max(0.0, self.pause - self.decode) + self.late
        return max(self._beside(n_decode, n_waiting) - longer, LEAST_SLICE * self.decode)

    def _beside(self, n_decode: int, n_waiting: int) -> float:
        """Seconds that a step may take longer for what is computed beside sequences that decode."""
        seconds = (LONGEST - 1) * self.decode
        share = n_waiting / max(n_decode, 1)
        if share > 1:
            seconds = max(seconds, min(share * seconds, LONGEST_SECONDS - self.decode))
        return seconds


def _differ(a: int, b: int) -> bool:
    """Whether steps in which so many sequences decode tell nothing of each other."""
    few, many = sorted((a, b))
    return many > OTHER * few


def _mean(known: float, new: float, keep: float) -> float:
    return new if not known else keep * known + (1 - keep) * new

"""DRY ("don't repeat yourself", P. E. Weidmann): a token that would continue a repetition is penalised, the more so the
longer the repetition.

    tokens    ... a b c d ... a b c      d would continue a repetition of 3: it loses multiplier * base^(3 - allowed)

No repetition reaches across a sequence breaker: a text such as a line break, found in the text of one token or across
several.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgellm.core.config import MAX_BIAS, ResolvedParams

_FLOAT_MAX = 3.4028234663852886e38


class Dry:
    """The penalties of one sequence. token_bytes: the bytes a token stands for, for the breakers."""

    __slots__ = ("_allowed", "_breakers", "_bytes", "_last_n", "_n", "_penalties", "_since", "_single", "_tail")

    def __init__(self, params: ResolvedParams, token_bytes: Callable[[int], bytes]) -> None:
        self._allowed, self._last_n = params.dry_allowed_length, params.dry_penalty_last_n
        self._breakers = [s.encode() for s in params.dry_sequence_breakers]
        self._bytes = token_bytes
        self._penalties = [params.dry_multiplier]
        power = 1.0
        while params.dry_base > 1.000001 and power * params.dry_base <= _FLOAT_MAX:
            power *= params.dry_base
            self._penalties.append(min(params.dry_multiplier * power, MAX_BIAS))
        self._n = 0  # tokens looked at for breakers
        self._since = 0  # tokens after the last breaker
        self._tail = b""
        self._single: dict[int, bool] = {}

    @staticmethod
    def wanted(params: ResolvedParams) -> bool:
        """Whether these parameters ask for it."""
        return params.dry_multiplier > 0.0 and params.dry_base >= 1.0 and params.dry_penalty_last_n != 0

    def penalties(self, tokens: list[int]) -> dict[int, float]:
        """What the token after `tokens` loses if it is this one. `tokens` continues what the last call saw."""
        allowed = self._allowed
        w = np.array(tokens if self._last_n < 0 else tokens[-self._last_n :], np.int64)
        self._look(tokens, len(w))
        most = min(len(w), self._since)
        if len(w) <= allowed or most < allowed:
            return {}
        most = min(most, allowed + len(self._penalties) - 1)
        # lengths[j]: how many tokens up to j equal those up to the end.
        lengths = np.zeros(len(w) - 1, np.int64)
        at, depth = np.flatnonzero(w[:-1] == w[-1]), 0
        while depth < most and len(at):
            depth += 1
            lengths[at] = depth
            at = at[at >= depth]
            at = at[w[at - depth] == w[len(w) - 1 - depth]]
        found: dict[int, int] = {}
        for j in np.flatnonzero(lengths >= allowed).tolist():
            token = int(w[j + 1])
            found[token] = max(found.get(token, 0), int(lengths[j]))
        last = len(self._penalties) - 1
        return {t: self._penalties[min(n - allowed, last)] for t, n in found.items() if not self._is_breaker(t)}

    def _look(self, tokens: list[int], n_window: int) -> None:
        """Find the last breaker; what lies before the window does not matter."""
        for token in tokens[max(self._n, len(tokens) - n_window) :]:
            piece = self._bytes(token)
            text = self._tail + piece
            self._since += 1
            for b in self._breakers:
                if text.find(b, max(0, len(self._tail) - len(b) + 1)) >= 0:
                    self._since = 0
            longest = max((len(b) for b in self._breakers), default=1)
            self._tail = text[len(text) - longest + 1 :] if len(text) >= longest else text
        self._n = len(tokens)

    def _is_breaker(self, token: int) -> bool:
        """Whether the token's own text holds a breaker: such tokens are never penalised."""
        if token not in self._single:
            piece = self._bytes(token)
            self._single[token] = any(b in piece for b in self._breakers)
        return self._single[token]

"""Speculative decoding: guesses at the next tokens, which one step of several rows verifies.

    Guesser        where guesses come from: PromptLookup here, DraftModel in draft_model.py
    Policy         how long a guess may be, from how often such guesses were right and what steps cost
    Speculation    both, for the engine: pieces of a step become longer by their guesses, and what was right is counted

A guess never changes a result: each of its tokens is kept only where the sampler, with the draw that belongs to the
position, chooses the same one. What the policy decides (from measured times) changes time alone.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from edgellm.core.record import dataclass, field
from edgellm.engine.request import Sequence
from edgellm.engine.scheduler import Budget, Piece

MAX_GUESS = 16
"""Tokens of a guess at most."""

PLAIN_STEPS = 4
"""Steps in one native call at most, where nothing is guessed, before it is tried again."""


class Guesser(Protocol):
    """Makes guesses. `kind` first says how good a guess it could make: an index into `priors`, or None for none."""

    priors: tuple[float, ...]

    def kind(self, seq: Sequence) -> int | None:
        """The kind of the guess that could be made now."""
        ...

    def guess(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        """At most so many tokens for each sequence; all had a kind just now."""
        ...

    def forget(self, seq: Sequence) -> None:
        """The sequence has ended."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...


# -- prompt lookup ---------------------------------------------------------------------------------------------------


class PromptLookup:
    """Guesses that what followed the last few tokens earlier in the same text follows them again."""

    priors: tuple[float, ...] = (0.3, 0.5, 0.75, 0.9)
    """How often a guessed token is right, to begin with, by the length of what came before both times."""

    def kind(self, seq: Sequence) -> int | None:
        """By the length of the match; None where the last three tokens are new."""
        if seq.guesser is None:
            seq.guesser = Index()
        index: Index = seq.guesser
        length = index.find(seq.tokens)
        return None if length < GRAM else bisect_left(_LENGTHS, length + 1) - 1

    def guess(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        """What came after the match; where it reaches the end of the text, it goes on with itself."""
        out = []
        for seq, n in wanted:
            tokens, start = seq.tokens, seq.guesser.at
            guess = tokens[start : start + n]
            while len(guess) < n:
                guess.append(guess[len(guess) - (len(tokens) - start)])
            out.append(guess)
        return out

    def forget(self, seq: Sequence) -> None:
        """Nothing to free."""
        seq.guesser = None

    def close(self) -> None:
        """Nothing to free."""


GRAM = 3
"""Tokens that have to be the same before anything is guessed."""

MAX_MATCH = 16
_LENGTHS = (GRAM, 4, 6, 10)


class Index:
    """Where in a growing list of tokens each run of GRAM tokens was last followed by another. at: the latest find."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        self._n = 0  # tokens whose runs are known
        self._distance = 0
        self.at = 0

    def find(self, tokens: list[int]) -> int:
        """Finds the place to copy from, `at`; how many tokens before it equal those at the end (0 for none)."""
        n, after = len(tokens), self._after
        for i in range(max(self._n, GRAM), n):
            after[tuple(tokens[i - GRAM : i])] = i
        self._n = max(self._n, n)
        best = 0
        found = after.get(tuple(tokens[n - GRAM :])) if n >= GRAM else None
        for at in (found, n - self._distance if self._distance else None):  # the second: where the last copy came from
            if at is None:
                continue
            length = 0
            while length < min(MAX_MATCH, at) and tokens[at - 1 - length] == tokens[n - 1 - length]:
                length += 1
            if length > best:
                best, self.at = length, at
        self._distance = n - self.at if best >= GRAM else self._distance
        return best


# -- how much to guess -----------------------------------------------------------------------------------------------


class Costs:
    """Seconds of a step by its number of tokens, learnt from steps that decode."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._known: list[int] = []

    def add(self, n_tokens: int, seconds: float) -> None:
        """A step of n_tokens took so long."""
        old = self._seconds.get(n_tokens)
        if old is None:
            self._known = sorted([*self._known, n_tokens])
        # slow ones are mostly another program's doing
        self._seconds[n_tokens] = seconds if old is None else old + (0.1 if seconds > old else 0.3) * (seconds - old)

    def of(self, n_tokens: int) -> float:
        """What a step of n_tokens costs; between and beyond the known numbers, by a straight line."""
        known, seconds = self._known, self._seconds
        if not known:
            return 1.0 + GUESSED_SLOPE * n_tokens
        i = bisect_left(known, n_tokens)
        if i < len(known) and known[i] == n_tokens:
            return seconds[n_tokens]
        if i == 0:
            return seconds[known[0]]
        low = known[i - 1]
        if i == len(known):
            return seconds[low] * (1.0 + GUESSED_SLOPE * (n_tokens - low) / (1.0 + GUESSED_SLOPE * low))
        high = known[i]
        return seconds[low] + (seconds[high] - seconds[low]) * (n_tokens - low) / (high - low)


GUESSED_SLOPE = 0.1
"""What a token more adds to a step of one, where nothing is known yet."""

WEIGHT, DECAY, FADE = 2.0, 0.9, 0.97


class Record:
    """How often one sequence's guesses of each kind were right: decaying counts around the guesser's priors."""

    def __init__(self, priors: tuple[float, ...]) -> None:
        self._priors = priors
        self._right = [0.0] * len(priors)
        self._tried = [0.0] * len(priors)

    def chance(self, kind: int) -> float:
        """That the next guessed token is right."""
        return (self._right[kind] + WEIGHT * self._priors[kind]) / (self._tried[kind] + WEIGHT)

    def learn(self, kind: int, n_guessed: int, n_right: int) -> None:
        """A guess was verified: tokens after the first wrong one say nothing."""
        self._right[kind] = DECAY * self._right[kind] + n_right
        self._tried[kind] = DECAY * self._tried[kind] + n_right + (n_right < n_guessed)

    def fade(self, kind: int) -> None:
        """A guess that did not seem worth its while was not made: believe the bad news a little less."""
        self._right[kind] *= FADE
        self._tried[kind] *= FADE


def best_length(chance: float, most: int, n_tokens: int, gained: float, costs: Costs) -> int:
    """How many tokens to guess: the number with most tokens of answers a second, 0 where none is better than none.

    n_tokens: of the step so far, each sequence's own included. gained: tokens that it is expected to yield.
    """
    plain = gained / costs.of(n_tokens)
    best, best_rate = 0, plain * (1.0 + MARGIN)
    expected, power = 0.0, 1.0
    for k in range(1, most + 1):
        power *= chance
        expected += power
        rate = (gained + expected) / costs.of(n_tokens + k)
        if rate > best_rate:
            best, best_rate = k, rate
    return best


MARGIN = 0.02
"""A guess has to promise so much more speed than none."""


# -- for the engine ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SpecStats:
    """Counts since start: verified guesses, and by position in them how many tokens were guessed and were right."""

    guesses: int = 0
    guessed: list[int] = field(default_factory=lambda: [0] * MAX_GUESS)
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_GUESS)
    lengths: list[int] = field(default_factory=lambda: [0] * (MAX_GUESS + 1))


class Speculation:
    """Lengthens the decode pieces of a step by guesses. Used by the engine thread.

    on: False guesses nothing; any thread may set it.
    always: guess as much as can be guessed, whatever it seems to cost (to measure, and to test).
    """

    def __init__(self, guesser: Guesser, *, always: bool = False) -> None:
        self.guesser, self.costs, self.stats = guesser, Costs(), SpecStats()
        self._always, self.on = always, True

    def extend(self, pieces: list[Piece], budget: Budget) -> list[Piece]:
        """The pieces, those of sequences that decode with their guesses (`seq.draft`) behind them."""
        if not self.on:
            return pieces
        tokens = budget.tokens - sum(p.count for p in pieces)
        rows = budget.rows - sum(p.rows for p in pieces)
        n_tokens, gained = 0, 0.0
        for p in pieces:
            n_tokens += p.count == 1
            gained += p.count == 1
        wanted: list[tuple[Sequence, int]] = []
        for p in pieces:
            seq = p.seq
            if p.count != 1 or p.rows != 1 or not seq.n_generated or seq.request.logit_rows is not None:
                continue
            most = min(MAX_GUESS, tokens, rows, seq.max_tokens - seq.n_generated - 1)
            kind = self.guesser.kind(seq) if most > 0 else None
            if kind is None:
                continue
            if seq.record is None:
                seq.record = Record(self.guesser.priors)
            chance = seq.record.chance(kind)
            n = most if self._always else best_length(chance, most, n_tokens, gained, self.costs)
            if n == 0:
                seq.record.fade(kind)
            elif seq.tables.grow(p.start + 1 + n):
                seq.guessed_kind = kind
                wanted.append((seq, n))
                tokens, rows, n_tokens = tokens - n, rows - n, n_tokens + n
                gained += sum(chance**i for i in range(1, n + 1))
        if not wanted:
            return pieces
        for (seq, _), guess in zip(wanted, self.guesser.guess(wanted), strict=True):
            seq.draft = guess
        return [Piece(p.seq, p.start, 1 + len(p.seq.draft), 1 + len(p.seq.draft)) if p.seq.draft else p for p in pieces]

    def learn(self, seq: Sequence, n_guessed: int, n_right: int) -> None:
        """A guess was verified; its first n_right tokens were right."""
        if seq.record is not None:
            seq.record.learn(seq.guessed_kind, n_guessed, n_right)
        stats = self.stats
        stats.guesses += 1
        stats.lengths[n_right] += 1
        for i in range(n_guessed):
            stats.guessed[i] += 1
            stats.accepted[i] += i < n_right

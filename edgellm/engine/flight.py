"""Prompts in flight: a step of prompts that is computed in parts, a few milliseconds after each step of those that
decode. So a long prompt is computed in chunks as large as where nobody decodes, and nobody waits longer for it.

What is in flight is `state.flight`. A sequence that ends meanwhile is not waited for, and keeps nobody: its pages stay
until the flight lands (`state.held`). Where pages are needed for those that decode, the flight is given up.
"""

from __future__ import annotations

import time

from edgellm.core.types import Batch, StepOutput
from edgellm.engine.pace import Pace
from edgellm.engine.runner import PartRunner, Runner
from edgellm.engine.scheduler import Piece, State, end_flight


class Flight:
    """Begins such a step and advances it. n_tokens, seconds: of the step in flight, and what it has taken so far.

    paused: when the last slice ended, 0.0 where it was no part of the step in flight.
    """

    def __init__(self, runner: PartRunner, state: State, pace: Pace) -> None:
        self._runner, self._state, self._pace = runner, state, pace
        self.n_tokens, self.seconds, self.paused = 0, 0.0, 0.0

    @staticmethod
    def split(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
        """The pieces of those that decode, and prompts for a flight beside them: none where nobody decodes."""
        decoding = [p for p in pieces if p.start + 1 == len(p.seq.tokens)]
        if not decoding or len(decoding) == len(pieces):
            return pieces, []
        return decoding, [p for p in pieces if p.start + 1 < len(p.seq.tokens)]

    def begin(self, pieces: list[Piece], batch: Batch) -> None:
        """Take off, with a batch of these pieces."""
        self._runner.begin(batch)
        self._state.flight = pieces
        self.n_tokens, self.seconds, self.paused = len(batch.tokens), 0.0, 0.0

    def advance(self, n_decode: int, n_waiting: int) -> tuple[list[Piece], StepOutput] | None:
        """Compute for as long as those that decode may wait; the pieces and what came out, once that is complete."""
        begin = time.perf_counter()
        if self.paused and n_decode:
            self._pace.paused(n_decode, begin - self.paused)
        seconds = self._pace.slice(n_decode, n_waiting)
        out = self._runner.advance(seconds)
        self.paused = time.perf_counter()
        self.seconds += self.paused - begin
        if out is None:
            self._pace.sliced(self.paused - begin - seconds)
            return None
        pieces = self._state.flight
        end_flight(self._state)
        self._pace.landed(self.n_tokens, self.seconds)
        return pieces, out


def flight_of(runner: Runner, state: State, pace: Pace) -> Flight | None:
    """None where steps cannot be computed in parts; nor with a recurrent state, which a flight that is given up would
    leave half moved on."""
    if not isinstance(runner, PartRunner) or any(spec.kind == "state" for spec in state.ledger.classes):
        return None
    return Flight(runner, state, pace)

"""The part of an executable that the engine uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from edgellm.core.types import Batch, Pick, RunOutput, StepOutput


class Runner(Protocol):
    """Runs one step at a time; owned by the engine thread."""

    def run(self, batch: Batch) -> StepOutput:
        """Compute one step."""
        ...

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy page `src` to `dst` in every layer of cache class `cls`."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...


@runtime_checkable
class MultiStepRunner(Runner, Protocol):
    """A runner that can also compute several decode steps in one call, while there is nothing to decide.

    The tokens are those of as many calls of `run` with Sampler.pick after each.
    """

    def run_steps(self, batch: Batch, picks: Sequence[Pick], n_steps: int, ends: tuple[int, ...]) -> RunOutput:
        """Compute up to n_steps steps of a batch with one token and one output row per sequence and no edits, whose
        pages hold n_steps positions more. Ends early after a step in which a sequence failed, a token of `ends` was
        chosen, or `halt` was called."""
        ...

    def halt(self, halted: bool = True) -> None:
        """End `run_steps` after the step it is in; halt(False) allows runs again. From any thread."""
        ...


@runtime_checkable
class PartRunner(Runner, Protocol):
    """A runner that can also compute a step in parts, between other steps. Its results are those of `run`."""

    def begin(self, batch: Batch) -> None:
        """Begin a step, whose batch is copied; the one begun before, if it is not complete, is given up."""
        ...

    def advance(self, seconds: float) -> StepOutput | None:
        """Compute it for about so long (inf: to its end); what came out, None where it is not complete yet."""
        ...


@runtime_checkable
class PageStore(Protocol):
    """A runner whose pages can be read and written: what sessions are saved with. Each returns what the other takes."""

    def read_page(self, cls: int, page: int) -> bytes:
        """The contents of a page (or state slot) of cache class `cls`."""
        ...

    def write_page(self, cls: int, page: int, data: bytes | memoryview) -> None:
        """Set the contents of a page."""
        ...


@runtime_checkable
class PageReturn(Protocol):
    """A runner that can give the memory of pages back to the system."""

    def release_pages(self, cls: int, pages: list[int]) -> None:
        """Pages of class `cls`, ascending, whose contents are needed no more, and become undefined."""
        ...

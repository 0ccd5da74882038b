"""How far a list of prompts has come: a bar on the terminal, or the caller's function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]
"""Called with (prompts done, prompts in all), first with 0."""


@contextmanager
def reporting(progress: bool | Report, n: int) -> Iterator[Callable[[int], object]]:
    """What to call with the number of prompts done: nothing, the caller's function, or a bar on stderr for True."""
    if callable(progress):
        progress(0, n)
        yield lambda done: progress(done, n)
    elif not progress:
        yield lambda done: None
    else:
        from rich.console import Console  # a program without bars does without
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=n)
            yield lambda done: bar.update(task, completed=done)

"""Progress of downloads on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Download:
    """A context manager that is also the hub's progress callback; shows nothing until called."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, int] = {}

    def __call__(self, done: int, total: int, label: str) -> None:
        """Report `done` of `total` bytes of `label` (total 0: unknown)."""
        if not sys.stderr.isatty():
            tenth = done * 10 // total if total else 0
            if self._said.get(label) != tenth:
                self._said[label] = tenth
                print(f"{label}: {done / 1e6:.0f} of {total / 1e6:.0f} MB", file=sys.stderr)
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._progress.start()
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total or None)
        self._progress.update(self._tasks[label], completed=done, total=total or None)

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

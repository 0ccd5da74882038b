"""Progress on stderr: a bar on a terminal; elsewhere a line now and then for downloads."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


class Bars:
    """A context manager that shows nothing until something is reported; on leaving, bars stop where they are."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, int] = {}

    def download(self, done: int, total: int, label: str) -> None:
        """`done` of `total` bytes of `label` (total 0: unknown)."""
        if not sys.stderr.isatty():
            tenth = done * 10 // total if total else 0
            if self._said.get(label) != tenth:
                self._said[label] = tenth
                amount = f": {done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else ""
                print(f"{label}{amount}", file=sys.stderr)
            return
        from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

        columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._update(label, done, total, columns, transient=False)

    def work(self, done: int, total: int, label: str) -> None:
        """`done` of `total` bytes of something that is done on this machine: shown on a terminal only."""
        if sys.stderr.isatty():
            self.download(done, total, label)

    def load(self, stage: str, fraction: float) -> None:
        """`fraction` (0 to 1) of a stage of opening a model. Of its begin and end alone nothing is shown."""
        if sys.stderr.isatty() and (0.0 < fraction < 1.0 or stage in self._tasks):
            self._update(stage, fraction, 1.0, (), transient=True)

    def _update(
        self, label: str, done: float, total: float, columns: tuple[ProgressColumn, ...], *, transient: bool
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                *columns,
                console=Console(stderr=True),
                transient=transient,
            )
            self._progress.start()
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total or None)
        self._progress.update(self._tasks[label], completed=done, total=total or None)

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

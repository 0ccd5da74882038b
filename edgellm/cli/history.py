"""What was typed, in a file of bounded size: one JSON string a line, the newest last."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

MAX_ENTRIES = 1000
MAX_ENTRY = 1 << 16
"""Characters; a longer entry (a pasted file) is remembered until the chat ends, not stored."""
MAX_BYTES = 4 << 20
"""A file larger than this is read from its end only."""


class FileHistory(History):
    """prompt_toolkit's history in `path`. A line that begins with a blank is not stored, as in a shell.

    Nothing here fails: where the file cannot be read or written, `why_not` says so and the history lives in memory.
    enabled: whether new lines are stored.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.enabled = True
        self.why_not = ""

    def load_history_strings(self) -> Iterable[str]:
        """The newest first. A file that has grown is cut to its newest MAX_ENTRIES."""
        try:
            with open(self._path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MAX_BYTES))
                raw = file.read(MAX_BYTES).splitlines()
        except FileNotFoundError:
            return []
        except OSError as e:
            self.why_not = f"the history {self._path} cannot be read: {e.strerror or e}"
            return []
        entries = [entry for line in raw if (entry := _entry(line)) is not None]
        if len(raw) > 2 * MAX_ENTRIES or size > MAX_BYTES:
            self._rewrite(entries[-MAX_ENTRIES:])
        return entries[: -MAX_ENTRIES - 1 : -1]

    def store_string(self, string: str) -> None:
        """Append an entry."""
        if not self.enabled or string.startswith(" ") or not 0 < len(string) <= MAX_ENTRY:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, _line(string))  # one write: chats side by side do not mix their lines
            finally:
                os.close(handle)
        except OSError as e:
            self.why_not = f"the history {self._path} cannot be written: {e.strerror or e}"

    def _rewrite(self, entries: list[str]) -> None:
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(handle, "wb") as file:
                file.writelines(map(_line, entries))
            os.replace(temporary, self._path)
        except OSError as e:
            with suppress(OSError):
                temporary.unlink()
            self.why_not = f"the history {self._path} cannot be shortened: {e.strerror or e}"


def _line(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entry(line: bytes) -> str | None:
    """A line's entry; None for a line that was cut or written by somebody else."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, str) and 0 < len(entry) <= MAX_ENTRY else None

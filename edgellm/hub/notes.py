"""What is known about the files fetched from a repository: a small JSON file in its folder of the cache.

It says what the files must be (so that they can be checked without the network), under which licence they
came, and which model `u/r` without a quantisation stands for. A file that is missing or unreadable means
that nothing is known; it is written anew with the next fetch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from edgellm.core.record import dataclass, field

NAME = ".edgellm.json"
_SCHEMA = 1
_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class FileNote:
    """size in bytes; checksum and its kind as in web.Checksum; commit: the one it was fetched from."""

    size: int
    checksum: str
    kind: str
    commit: str


@dataclass(frozen=True, slots=True)
class Notes:
    """license: its name, "" if unknown. default: the first file of what `u/r` alone means, "" if never asked."""

    license: str = ""
    default: str = ""
    files: dict[str, FileNote] = field(default_factory=dict)


def load(folder: Path) -> Notes:
    """The notes of a repository's folder; empty ones if there are none that can be read."""
    try:
        with open(folder / NAME, "rb") as file:
            return _parse(json.loads(file.read(_LIMIT)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Notes()


def _parse(document: dict[str, Any]) -> Notes:
    if document["schema"] != _SCHEMA:
        return Notes()
    files = {}
    for name, note in document["files"].items():
        files[str(name)] = FileNote(int(note["size"]), str(note["checksum"]), str(note["kind"]), str(note["commit"]))
    return Notes(str(document["license"]), str(document["default"]), files)


def save(folder: Path, notes: Notes) -> None:
    """Writes the notes, at once or not at all. The folder's lock must be held. OSError."""
    files = {
        name: {"size": n.size, "checksum": n.checksum, "kind": n.kind, "commit": n.commit}
        for name, n in sorted(notes.files.items())
    }
    document = {"schema": _SCHEMA, "license": notes.license, "default": notes.default, "files": files}
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{NAME}.part"
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(part, folder / NAME)

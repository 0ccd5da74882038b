"""The cache folder: what lies where in it.

CACHE/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf    a finished model of the catalogue
CACHE/models/hf/u/r/m-Q4_K_M.gguf                            one of the repository u/r on Hugging Face
CACHE/models/hf/u/r@REVISION/...                             the same of a revision other than main
CACHE/models/.../.download/                                  a download in progress, or its remains
CACHE/tiles/m-0123456789abcdef.tiles                         a tile cache, of a model wherever that lies (tiles.py)
CACHE/locks/smollm2-135m.lock, CACHE/locks/hf--u--r.lock     held while one process changes that folder

Only what lies in the cache is ever written or deleted; other programs' files are used where they are. This module
is all that opening a model of the catalogue needs, and stays cheap to import.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgellm.core import env
from edgellm.hub.catalogue import CatalogEntry

DOWNLOADS = ".download"

Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in total, what is being done); a new text begins a new bar."""


def models_dir() -> Path:
    """The folder of the cache that holds models; it may not exist yet."""
    return env.CACHE.get() / "models"


def entry_path(entry: CatalogEntry) -> Path:
    """Where the model of a catalogue entry lies, or will lie."""
    return models_dir() / entry.folder / entry.file


def lock_path(folder: str) -> Path:
    """The lock file for a folder of the cache. It is never deleted: others may be waiting on it."""
    return env.CACHE.get() / "locks" / f"{folder}.lock"


def is_present(entry: CatalogEntry) -> bool:
    """Whether the entry's model is in the cache with the right size (its hash was checked when it came)."""
    try:
        return entry_path(entry).stat().st_size == entry.size
    except OSError:
        return False

"""Models on this machine: the cache folder, what is in it, and taking things out of it.

CACHE/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf    a finished model
CACHE/models/smollm2-135m/.download/                         a download in progress, or its remains
CACHE/locks/smollm2-135m.lock                                held while one process changes that folder
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from edgellm.core import env
from edgellm.core.errors import ModelError, ModelNotFound
from edgellm.gguf.split import shard_paths
from edgellm.hub import catalogue
from edgellm.hub.catalogue import CatalogEntry
from edgellm.hub.lock import file_lock

DOWNLOADS = ".download"

Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in total, what is being done); a new text begins a new bar."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in the cache. `size`: bytes, all files of a split model. `modified`: UTC."""

    name: str
    path: Path
    size: int
    modified: datetime


def models_dir() -> Path:
    """The folder of the cache that holds models; it may not exist yet."""
    return env.CACHE.get() / "models"


def entry_path(entry: CatalogEntry) -> Path:
    """Where the model of a catalogue entry lies, or will lie."""
    return models_dir() / entry.folder / entry.file


def lock_path(entry: CatalogEntry) -> Path:
    """The lock file of an entry. It is never deleted: others may be waiting on it."""
    return env.CACHE.get() / "locks" / f"{entry.folder}.lock"


def is_present(entry: CatalogEntry) -> bool:
    """Whether the entry's model is in the cache with the right size (its hash was checked when it came)."""
    try:
        return entry_path(entry).stat().st_size == entry.size
    except OSError:
        return False


def list_local() -> list[LocalModel]:
    """Models in the cache, by name.

    Catalogue models are listed under their names; other GGUF files, put there by hand, under their path
    within the folder, without the suffix. Unfinished and damaged downloads are left out.
    """
    root = models_dir()
    named = {entry_path(e): e for e in catalogue.catalog()}
    found = []
    for path in sorted(root.rglob("*.gguf")) if root.is_dir() else ():
        inside = path.relative_to(root)
        if DOWNLOADS in inside.parts:
            continue
        paths = shard_paths(path) or [path]
        if path != paths[0]:
            continue
        try:
            stats = [p.stat() for p in paths]
        except OSError:
            continue
        entry, size = named.get(path), sum(s.st_size for s in stats)
        if entry is not None and size != entry.size:
            continue
        name = entry.name if entry is not None else inside.with_suffix("").as_posix()
        when = datetime.fromtimestamp(max(s.st_mtime for s in stats), tz=timezone.utc)
        found.append(LocalModel(name, path, size, when))
    return sorted(found, key=lambda m: m.name)


def remove(name: str) -> int:
    """Deletes a model from the cache, with the remains of its downloads. Returns the bytes that were freed.

    Only what `list_local` lists, or a catalogue entry's own folder, can be removed. ModelNotFound if nothing
    of that name is there; ModelError if the system does not allow it.
    """
    entry = catalogue.find(name)
    try:
        if entry is not None:
            with file_lock(lock_path(entry)):
                return _remove_folder(entry)
        for model in list_local():
            if model.name == name:
                for path in shard_paths(model.path) or [model.path]:
                    path.unlink()
                with contextlib.suppress(OSError):  # not empty: other models are in it
                    if model.path.parent != models_dir():
                        model.path.parent.rmdir()
                return model.size
    except OSError as e:
        if isinstance(e, ModelError):
            raise
        raise ModelError(f"{name} cannot be removed: {e}; close the programs that use it") from e
    listed = ", ".join(m.name for m in list_local()) or "none"
    raise ModelNotFound(f"{name} is not in the model cache {models_dir()}; models there: {listed}")


def _remove_folder(entry: CatalogEntry) -> int:
    folder = entry_path(entry).parent
    sizes = [p.stat().st_size for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
    if not sizes:
        raise ModelNotFound(f"{entry.name} is not in the model cache {models_dir()}; nothing to remove")
    shutil.rmtree(folder)
    return sum(sizes)

"""Which tile cache a model is run from: one that is there, or one that is written because it was asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from edgellm.backends.native.lower import Program
from edgellm.backends.native.tilefile import Entry, Tiles, lay_out, open_tiles, write
from edgellm.core.errors import CacheError, ConfigError
from edgellm.gguf.reader import GGUFFile
from edgellm.hub import tiles as caches
from edgellm.models.plan import Plan

log = logging.getLogger(__name__)

Progress = Callable[[float], None]


def obtain(
    file: GGUFFile, plan: Plan, program: Program, weights: str, progress: Progress | None = None, n_threads: int = 0
) -> Tiles:
    """The cache for weights="cache" (found beside the model or in the cache directory, else written there), or for
    "cache:FILE" (that one, as it is). CacheError, GGUFError, ConfigError, UnsupportedModel."""
    entries = lay_out(file, plan, program)
    named = weights.partition(":")[2]
    if named:
        return open_tiles(Path(named).expanduser(), file, entries)
    found = _find(file, entries)
    if found is None:
        path = caches.in_cache(file.path)
        write(path, file, entries, progress, n_threads)
        found = open_tiles(path, file, entries)
    return found


def find(file: GGUFFile, plan: Plan, program: Program) -> Tiles | None:
    """A good cache of a model, None where there is none. One that is there but cannot be used is a warning."""
    try:
        there = [path for path in caches.places(file.path) if path.exists()]
    except (ConfigError, OSError):  # no cache directory
        return None
    return _find(file, lay_out(file, plan, program)) if there else None


def _find(file: GGUFFile, entries: list[Entry]) -> Tiles | None:
    for path in caches.places(file.path):
        if path.exists():
            try:
                return open_tiles(path, file, entries)
            except CacheError as e:
                log.warning("%s", e)
    return None

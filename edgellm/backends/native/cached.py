"""Which tile cache a model is run from: one that is there, or one that is written because it was asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from edgellm.backends.lower import Program, lower
from edgellm.backends.native.tilefile import Entry, Tiles, is_good, lay_out, open_tiles, write
from edgellm.core.errors import CacheError, NativeError, UnsupportedModel
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


def has_cache(file: GGUFFile, plan: Plan) -> bool:
    """Whether weights="auto" would run this model from a tile cache; says nothing of those it would not."""
    try:
        program = lower(plan, lambda tensor: file.tensors[tensor].qtype)
        return any(is_good(path, file, lay_out(file, plan, program)) for path in caches.places(file.path))
    except (UnsupportedModel, NativeError):
        return False


def find(file: GGUFFile, plan: Plan, program: Program) -> Tiles | None:
    """A good cache of a model, None where there is none. One that is there but cannot be used is a warning."""
    there = any(os.path.exists(path) for path in caches.places(file.path))
    return _find(file, lay_out(file, plan, program)) if there else None


def _find(file: GGUFFile, entries: list[Entry]) -> Tiles | None:
    for path in caches.places(file.path):
        if os.path.exists(path):
            try:
                return open_tiles(path, file, entries)
            except CacheError as e:
                log.warning("%s", e)
    return None

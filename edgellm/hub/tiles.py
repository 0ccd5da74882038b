"""Tile caches: files that keep a model's weights as the tiles they are repacked into. Where they lie, which there are.

What is in one, all numbers little-endian:

    0    16 bytes  MAGIC
    16   u32       FORMAT
    20   u32       bytes of the header
    24   u64       bytes of the file
    32   32 bytes  SHA-256 of the header
    64             the header: JSON in UTF-8, see `read_header`
                   zeros up to a multiple of ALIGNMENT, then the tiles, each matrix on a multiple of ALIGNMENT

A cache is found beside its model (model.gguf.tiles) or in the cache directory, under a name that follows from the
model's path. `edgellm.backends.native.tilefile` writes caches and decides whether one belongs to a model.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import struct
from pathlib import Path
from typing import Any

from edgellm.core import env
from edgellm.core.errors import CacheError, ConfigError
from edgellm.core.record import dataclass
from edgellm.hub.local import models_dir
from edgellm.hub.lock import growing

SUFFIX = ".tiles"
MAGIC = b"edgellm tiles\r\n\n"
FORMAT = 1
PREAMBLE = struct.Struct("<16sIIQ32s")
MAX_HEADER = 16 << 20
"""Bytes of a header at most: some thousand matrices take one."""
ALIGNMENT = 4096


class NotACache(ValueError):
    """A file is something else than a tile cache."""


@dataclass(frozen=True, slots=True)
class TileCache:
    """A tile cache. source: path of the (first) file it was made from, None where it cannot be read. size: bytes."""

    path: Path
    source: Path | None
    size: int

    @property
    def orphaned(self) -> bool:
        """Whether it is of no use any more: unreadable, or its model is gone."""
        return self.source is None or _is_gone(self.source)


def tiles_dir() -> Path:
    """Where caches lie, but for those beside their models. Raises ConfigError where there is no cache directory."""
    return env.CACHE.get() / "tiles"


def beside(model: Path) -> Path:
    """The cache beside a model's (first) file."""
    return model.with_name(model.name + SUFFIX)


def in_cache(model: Path) -> Path:
    """The cache of a model's (first) file in the cache directory."""
    real = os.path.realpath(model)
    stem = re.sub(r"[^A-Za-z0-9_.+-]", "_", Path(real).name.removesuffix(".gguf"))[:60]
    return tiles_dir() / f"{stem}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:16]}{SUFFIX}"


def places(model: Path) -> list[Path]:
    """Where a model's cache is looked for, in order."""
    try:
        return [beside(model), in_cache(model)]
    except ConfigError:  # no cache directory
        return [beside(model)]


def of_model(model: Path) -> list[TileCache]:
    """The caches of a model that are there."""
    return [cache for path in places(model) if (cache := _described(path)) is not None]


def all_caches() -> list[TileCache]:
    """Every cache in the cache directory, and those beside models in it. ConfigError as `tiles_dir`."""
    found = [*_files(tiles_dir(), recursive=False), *_files(models_dir(), recursive=True)]
    return [cache for path in found if (cache := _described(path)) is not None]


def remove_of(model: Path) -> int:
    """Deletes the caches of a model, and what interrupted packing left. The bytes that were freed.

    A file beside the model that is no cache stays. Raises CacheError where a cache cannot be deleted.
    """
    freed = 0
    for path in places(model):
        if _described(path) is not None:
            try:
                freed += _delete(path)
            except OSError as e:
                raise CacheError(f"the tile cache {path} cannot be deleted: {e.strerror or e}") from e
        freed += _unlink_unless_growing(part_of(path))
    return freed


def remove_orphans(below: Path | None = None) -> int:
    """Deletes caches whose model is gone, damaged ones and what is left of interrupted packing.

    below: only caches of models in that folder. Returns the bytes that were freed.
    """
    freed = 0
    root = None if below is None else Path(os.path.realpath(below))
    for cache in all_caches():
        inside = root is None or (cache.source is not None and root in cache.source.parents)
        if cache.orphaned and inside:
            freed += _unlink(cache.path)
    if below is None:
        freed += sum(_unlink_unless_growing(path) for path in tiles_dir().glob(f"*{SUFFIX}.part"))
    return freed


def part_of(path: Path) -> Path:
    """Where a cache grows until it is complete."""
    return path.with_name(path.name + ".part")


def start_of_tiles(n_header: int) -> int:
    """The byte where the tiles begin behind a header of n_header bytes."""
    return -(-(PREAMBLE.size + n_header) // ALIGNMENT) * ALIGNMENT


def open_cache(path: Path) -> int:
    """A descriptor to read a cache from; it does not wait where the name is a pipe's. Raises OSError."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))


def read_header(fd: int) -> tuple[dict[str, Any], int]:
    """The header of an open cache, as it was written, and the byte where its tiles begin. ValueError: what is wrong.

    Keys: edgellm (version), layout (of the tiles), source (path of the model's first file), files ([size, mtime in ns]
    of each of the model's), model (the model's hash), matrices ([tensor, first row, type, matrices, rows, columns,
    offset, bytes] of each), piece (bytes hashed at once), sha256 (of each matrix: of the hashes of its pieces).
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise NotACache("it is not a regular file")
    os.lseek(fd, 0, os.SEEK_SET)
    first = os.read(fd, PREAMBLE.size)
    if first[:16] != MAGIC:
        raise NotACache(f"it begins with {first[:16]!r}, expected {MAGIC!r}: it is no tile cache")
    if len(first) < PREAMBLE.size:
        raise ValueError(f"it has {len(first)} bytes, fewer than its preamble: it is cut short")
    _, version, n_header, size, digest = PREAMBLE.unpack(first)
    if version != FORMAT:
        raise ValueError(f"its format is {version}, expected {FORMAT}")
    if size != status.st_size:
        raise ValueError(f"it has {status.st_size} bytes, expected {size}: it is cut short or was written over")
    if not 2 <= n_header <= min(MAX_HEADER, size - PREAMBLE.size):
        raise ValueError(f"its header has {n_header} bytes, in a file of {size}")
    text = os.read(fd, n_header)
    if hashlib.sha256(text).digest() != digest:
        raise ValueError("its header is damaged: the checksum differs")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"its header is not JSON: {e}") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header, start_of_tiles(n_header)


def _described(path: Path) -> TileCache | None:
    try:
        fd = open_cache(path)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        source = read_header(fd)[0].get("source")
        if not isinstance(source, str) or "\0" in source:
            return TileCache(path, None, size)
        return TileCache(path, Path(source), size)
    except NotACache:  # none of ours: never touched
        return None
    except (OSError, ValueError):
        return TileCache(path, None, size)
    finally:
        os.close(fd)


def _files(folder: Path, *, recursive: bool) -> list[Path]:
    try:
        found = folder.rglob(f"*{SUFFIX}") if recursive else folder.glob(f"*{SUFFIX}")
        return sorted(p for p in found if p.is_file())
    except OSError:
        return []


def _unlink_unless_growing(path: Path) -> int:
    def busy() -> None:
        raise BlockingIOError

    if os.path.lexists(path):
        with contextlib.suppress(OSError), growing(path, busy):
            return _unlink(path)
    return 0


def _unlink(path: Path) -> int:
    with contextlib.suppress(OSError):
        return _delete(path)
    return 0


def _delete(path: Path) -> int:
    """Deletes a file; the bytes that were freed, 0 where somebody else was quicker. OSError."""
    with contextlib.suppress(FileNotFoundError):
        size = path.lstat().st_size
        path.unlink()
        return size
    return 0


def _is_gone(path: Path) -> bool:
    """Whether there is no such file; False where that cannot be told."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError as e:
        return e.errno == errno.ENAMETOOLONG
    return False

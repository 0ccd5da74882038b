"""A tile cache's file: laying it out, opening it for one model and program, writing and verifying it.

    entries = lay_out(file, plan, program)
    write(path, file, entries)                  # atomically; at once for a second process that wanted the same
    tiles = open_tiles(path, file, entries)     # mapped read-only, shared with every process that maps it
    tiles.arrays.get(i)                         # of matrix i of the program, None where it is not multiplied with

A cache belongs to a model and a program: its header must say what we would write now, entry for entry, but for the
checksums. So no size or offset is ever taken from the file. The format stands in `edgellm.hub.tiles`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

import numpy as np

from edgellm._native import (
    TILE_ROWS,
    default_threads,
    pack_tiles,
    room_for_tiles,
    tile_bytes,
    tile_layout,
    usable_level,
)
from edgellm.backends.lower import Program
from edgellm.core import env
from edgellm.core.errors import CacheError, ConfigError, GGUFError, UnsupportedModel
from edgellm.core.files import read_at, write_at
from edgellm.core.record import dataclass
from edgellm.core.version import __version__
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.values import Bytes
from edgellm.hub import tiles as caches
from edgellm.hub.lock import growing
from edgellm.models.plan import Plan

PIECE = 4 << 20
"""Bytes of tiles that are packed, hashed and written at once, about."""
MARGIN = 64 << 20
"""Disk space to leave free."""

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One matrix (or stack of n_stack): rows row0 .. of a tensor; offset, n_bytes: of its tiles, from the first on."""

    matrix: int
    tensor: str
    row0: int
    qtype: int
    row_bytes: int
    n_stack: int
    n_rows: int
    n_cols: int
    offset: int
    n_bytes: int

    @property
    def panel_bytes(self) -> int:
        return self.n_bytes // (self.n_stack * -(-self.n_rows // TILE_ROWS))


@dataclass(frozen=True, slots=True)
class Piece:
    """n_rows rows of one matrix from its row `first` (of the whole stack) on; offset, n_bytes: of their tiles."""

    entry: Entry
    first: int
    n_rows: int
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """An open cache. arrays: matrix of the program -> its tiles, a view of the map, which lives as long as one does."""

    path: Path
    n_bytes: int
    arrays: dict[int, Bytes]
    checksums: list[str]


def lay_out(file: GGUFFile, plan: Plan, program: Program) -> list[Entry]:
    """The matrices that a program multiplies with, and where their tiles go. UnsupportedModel where there are none."""
    entries: list[Entry] = []
    at = 0
    for i, w in enumerate(program.matrices):
        if w not in program.packed:
            continue
        weight = plan.weights[w]
        qtype = file.tensors[weight.tensor].qtype
        n_rows, n_cols = weight.shape[-2], weight.shape[-1]
        n_stack = math.prod(weight.shape[:-2])
        n_bytes = n_stack * tile_bytes(int(qtype), n_rows, n_cols)
        if n_bytes == 0:
            raise UnsupportedModel(f"{weight.tensor}: there are no tiles for {n_rows} x {n_cols} of type {qtype.name}")
        entries.append(
            Entry(
                i, weight.tensor, weight.row0, int(qtype), qtype.n_bytes(n_cols), n_stack, n_rows, n_cols, at, n_bytes
            )
        )
        at += -(-n_bytes // caches.ALIGNMENT) * caches.ALIGNMENT
    return entries


def pieces(entry: Entry) -> Iterator[Piece]:
    """An entry in the pieces that are hashed, in order; each is whole panels of one matrix of the stack."""
    panels, at = max(1, PIECE // entry.panel_bytes), entry.offset
    for s in range(entry.n_stack):
        for row in range(0, entry.n_rows, panels * TILE_ROWS):
            n_rows = min(panels * TILE_ROWS, entry.n_rows - row)
            n_bytes = -(-n_rows // TILE_ROWS) * entry.panel_bytes
            yield Piece(entry, s * entry.n_rows + row, n_rows, at, n_bytes)
            at += n_bytes


def total_bytes(entries: Sequence[Entry]) -> int:
    """Bytes of all tiles, each matrix rounded up to a multiple of the alignment."""
    return -(-(entries[-1].offset + entries[-1].n_bytes) // caches.ALIGNMENT) * caches.ALIGNMENT if entries else 0


def open_tiles(path: Path, file: GGUFFile, entries: Sequence[Entry]) -> Tiles:
    """Open and map a cache. CacheError, with the reason, unless it is complete and belongs to this model as it is now.

    The tiles themselves are not read: `damaged` does that. The model's file is read where its hash is not known yet.
    """
    try:
        fd = caches.open_cache(path)
    except OSError as e:
        raise CacheError(f"{path} cannot be opened as a tile cache: {e.strerror or e}") from e
    try:
        header, start = caches.read_header(fd)
        checksums = header.pop("sha256", None)
        header.pop("source", None)  # a model may have moved together with its cache
        model = header.pop("model", None)
        expected = _header(file, entries)
        if header != expected:
            raise ValueError(_difference(header, expected))
        if model != file.fingerprint():  # asked last: it may read the whole file
            raise ValueError(f"it was made from another model ({model!s:.12}, this is {file.fingerprint():.12})")
        if not _are_checksums(checksums, len(entries)):
            raise ValueError("its list of checksums is damaged")
        size = os.fstat(fd).st_size
        if size != start + total_bytes(entries):
            raise ValueError(f"it has {size} bytes, expected {start + total_bytes(entries)}")
        mapped = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError, OverflowError) as e:
        raise CacheError(
            f"the tile cache {path} is of no use for {file.path}: {e}. `edgellm pack` makes it anew"
        ) from None
    finally:
        os.close(fd)
    data = np.frombuffer(mapped, np.uint8)
    arrays: dict[int, Bytes] = {}
    for entry in entries:
        arrays[entry.matrix] = data[start + entry.offset : start + entry.offset + entry.n_bytes]
    return Tiles(path, size, arrays, list(checksums))


def write(
    path: Path, file: GGUFFile, entries: Sequence[Entry], progress: Progress | None = None, n_threads: int = 0
) -> None:
    """Write a cache, unless `path` is a good one already: in path.part, which gets its name when it is complete and
    safe on the disk. Another process that writes the same file is waited for. n_threads 0: automatic.

    Raises CacheError, GGUFError.
    """
    part, ours = caches.part_of(path), True
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with growing(part) as fd:
            try:
                if not is_good(path, file, entries):
                    _refuse_to_replace(path)
                    _write(fd, part, file, entries, progress, n_threads)
                    os.replace(part, path)
                    ours = False  # from now on that name is somebody else's
                    _sync_folder(path.parent)
            finally:
                if ours:  # while it is locked: whoever waits for it begins with a new one
                    os.unlink(part)
    except CacheError:
        raise
    except OSError as e:
        raise CacheError(
            f"the tile cache {path} cannot be written: {e.strerror or e}. Choose another place with "
            f"`edgellm pack --output`, or set EDGELLM_CACHE"
        ) from e


def _refuse_to_replace(path: Path) -> None:
    """CacheError where `path` is something else than a cache: the model itself, say. In our own folder all is ours."""
    with contextlib.suppress(ConfigError):  # no cache directory
        if path.parent == caches.tiles_dir():
            return
    try:
        fd = caches.open_cache(path)
    except FileNotFoundError:
        return
    try:
        caches.read_header(fd)
    except caches.NotACache as e:
        raise CacheError(f"{path} is not replaced: {e}. Choose another name") from None
    except ValueError:  # a damaged one
        pass
    finally:
        os.close(fd)


def is_good(path: Path, file: GGUFFile, entries: Sequence[Entry]) -> bool:
    """Whether `path` is a complete cache of this model."""
    try:
        open_tiles(path, file, entries)
    except CacheError:
        return False
    return True


def damaged(tiles: Tiles, entries: Sequence[Entry], progress: Progress | None = None) -> list[str]:
    """The tensors whose tiles are not as they were written: reads and hashes them all. CacheError."""
    try:
        fd = caches.open_cache(tiles.path)
    except OSError as e:
        raise CacheError(f"{tiles.path} cannot be read: {e.strerror or e}") from e
    start = tiles.n_bytes - total_bytes(entries)
    rooms = local()

    def digest(piece: Piece) -> bytes:
        room = _room(rooms, "tiles", piece.n_bytes)
        return hashlib.sha256(room.data if _read(fd, room, start + piece.offset) else b"").digest()

    try:
        found = _hash_all(entries, digest, progress)
    except OSError as e:
        raise CacheError(f"{tiles.path} cannot be read: {e.strerror or e}") from e
    finally:
        os.close(fd)
    return [e.tensor for e, a, b in zip(entries, found, tiles.checksums, strict=True) if a != b]


def _write(
    fd: int, part: Path, file: GGUFFile, entries: Sequence[Entry], progress: Progress | None, n_threads: int
) -> None:
    header = {**_header(file, entries), "model": file.fingerprint(), "source": os.path.realpath(file.path)}
    blank = _text({**header, "sha256": ["0" * 64] * len(entries)})
    start = caches.start_of_tiles(len(blank))
    size = start + total_bytes(entries)
    os.ftruncate(fd, 0)
    free = shutil.disk_usage(part.parent).free
    if free < size + MARGIN:
        raise CacheError(
            f"the tile cache of {file.path} needs {(size + MARGIN) / 1e6:.0f} MB in {part.parent}, but "
            f"{free / 1e6:.0f} MB are free: free space there, or choose another place with `edgellm pack --output`"
        )
    if hasattr(os, "posix_fallocate"):
        with contextlib.suppress(OSError):  # a file system without it; one that is full says so below
            os.posix_fallocate(fd, 0, size)
    os.ftruncate(fd, size)
    rooms, isa = local(), usable_level(env.ISA.get())

    def pack(piece: Piece) -> bytes:
        e = piece.entry
        rows = _room(rooms, "rows", piece.n_rows * e.row_bytes)
        room = _room(rooms, "tiles", piece.n_bytes)
        source, at = file.source(e.tensor)
        if not _read(source, rows, at + (e.row0 + piece.first) * e.row_bytes):
            raise GGUFError(f"{file.path}: {e.tensor} has become shorter: another program has cut the file short")
        pack_tiles(e.qtype, piece.n_rows, e.n_cols, rows, room, isa)
        _write_all(fd, room, start + piece.offset)
        return hashlib.sha256(room.data).digest()

    text = _text({**header, "sha256": _hash_all(entries, pack, progress, n_threads)})
    file.check_unchanged()
    if len(text) != len(blank):
        raise CacheError(f"{part}: the header has {len(text)} bytes, expected {len(blank)}")
    preamble = caches.PREAMBLE.pack(caches.MAGIC, caches.FORMAT, len(text), size, hashlib.sha256(text).digest())
    _write_all(fd, np.frombuffer(preamble + text, np.uint8), 0)
    os.fsync(fd)


def _hash_all(
    entries: Sequence[Entry], work: Callable[[Piece], bytes], progress: Progress | None, n_threads: int = 0
) -> list[str]:
    """Do `work`, which returns a piece's hash, for all pieces on all threads; the hash of each entry."""
    parts = [p for e in entries for p in pieces(e)]
    total, done = max(1, sum(p.n_bytes for p in parts)), 0
    digests = {e.matrix: hashlib.sha256() for e in entries}
    pool = ThreadPoolExecutor(n_threads or env.THREADS.get() or default_threads(), "edgellm-tiles")
    try:
        for piece, digest in zip(parts, pool.map(work, parts), strict=True):
            digests[piece.entry.matrix].update(digest)
            done += piece.n_bytes
            if progress is not None:
                progress(done / total)
    finally:
        pool.shutdown(cancel_futures=True)
    return [digests[e.matrix].hexdigest() for e in entries]


def _header(file: GGUFFile, entries: Sequence[Entry]) -> dict[str, Any]:
    """What the header of this model's cache says, but for the model's hash and the checksums."""
    return {
        "edgellm": __version__,
        "layout": tile_layout(),
        "files": [[s.st_size, s.st_mtime_ns] for s in map(os.stat, file.paths)],
        "matrices": [[e.tensor, e.row0, e.qtype, e.n_stack, e.n_rows, e.n_cols, e.offset, e.n_bytes] for e in entries],
        "piece": PIECE,
    }


_WHY = {
    "edgellm": "it was written by edgellm {}, this is {}",
    "layout": "its tiles have layout {}, expected {}",
    "files": "the model's file has changed since it was written (sizes and times were {}, are {})",
}


def _difference(header: dict[str, Any], expected: dict[str, Any]) -> str:
    """The first thing in which a header is not as expected, in words."""
    for key, text in _WHY.items():
        if header.get(key) != expected[key]:
            return text.format(*(str(h.get(key))[:200] for h in (header, expected)))
    return "its table of matrices is not this model's"


def _are_checksums(value: object, n: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == n
        and all(isinstance(v, str) and re.fullmatch("[0-9a-f]{64}", v) for v in value)
    )


def _text(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


def _room(rooms: Any, name: str, n_bytes: int) -> Bytes:
    """n_bytes of this thread's own memory called `name`; what an earlier call with the name gave is used again."""
    room: Bytes | None = getattr(rooms, name, None)
    if room is None or len(room) < n_bytes:
        room = room_for_tiles(n_bytes)
        setattr(rooms, name, room)
    return room[:n_bytes]


def _read(fd: int, room: Bytes, at: int) -> bool:
    """Fill `room` from byte `at` of a file on; False where it ends before that. OSError."""
    done = 0
    while done < len(room):
        n = read_at(fd, room.data[done:], at + done)
        if n == 0:
            return False
        done += n
    return True


def _write_all(fd: int, data: Bytes, at: int) -> None:
    done = 0
    while done < len(data):
        done += write_at(fd, data.data[done:], at + done)


def _sync_folder(folder: Path) -> None:
    """Make a rename safe against a loss of power, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

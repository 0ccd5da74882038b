"""A model's hash, a function of every byte of its files, and the list of hashes that are known already.

    digest([(read, size), ...])     # reads everything, on a few threads
    remember(files, value)          # in the cache directory, under what the system says about each file
    recall(files)                   # the hash of these files as they were when they were opened, or None

A hash that is recalled must be as good as one that was computed. Where a file was written to, its time of change
(ctime) is another, and no program can set it back. So a hash is only remembered where the file system keeps that time
(FAT does not, nor does Windows: there files are read again in every process), and where the file had been left alone
for a while: times are rounded. What this cannot see is a program that held a page of the file mapped and modified
before, and writes to the page again within the seconds in which the system does not look.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgellm.core import env
from edgellm.core.errors import ConfigError

log = logging.getLogger(__name__)

CHUNK = 4 << 20
"""Bytes that are hashed by themselves; another value, other hashes."""
PIECE = 1 << 20
"""Bytes read at once: they stay in a processor's cache until they are hashed."""
MOST_THREADS = 4
"""Threads that hash: two of them take 10 GB/s, about what memory gives."""

FORMAT = 1
MOST_MODELS = 256
SETTLED_NS = 2 * 10**9
"""How long ago a file must have changed: longer than any file system rounds its times."""
KEEPS_CTIME = frozenset(
    "apfs bcachefs btrfs ext2 ext3 ext4 f2fs hfs nfs nfs4 ntfs3 overlay tmpfs ufs virtiofs xfs zfs 9p".split()
)
"""File systems whose time of change follows every write, and cannot be set."""

Read = Callable[[memoryview, int], None]
"""Fills a buffer with a file's bytes from the one at that place on. Raises GGUFError where they are not there."""


class Opened(NamedTuple):
    """A file and what the system said about it when it was opened."""

    path: Path
    status: os.stat_result


def digest(files: Sequence[tuple[Read, int]], n_threads: int = 0) -> str:
    """The hash of a model's files, of (reader, bytes) each, in order: 64 hex digits.

    SHA-256 over each file's size (8 bytes, little-endian) followed by the XXH3-128 of each of its chunks. The same
    with any number of threads (0: a few). Raises what a reader raises.
    """
    from xxhash import xxh3_128

    places = [(f, at) for f, (_, size) in enumerate(files) for at in range(0, size, CHUNK)]
    left, failures = deque(enumerate(places)), list[BaseException]()
    found = [b""] * len(places)

    def work() -> None:
        room = memoryview(bytearray(PIECE))
        try:
            while not failures:
                i, (f, at) = left.popleft()
                read, size = files[f]
                chunk = xxh3_128()
                for first in range(at, min(at + CHUNK, size), PIECE):
                    piece = room[: min(PIECE, size - first)]
                    read(piece, first)
                    chunk.update(piece)
                found[i] = chunk.digest()
        except IndexError:  # nothing is left
            pass
        except BaseException as e:
            failures.append(e)

    n = min(n_threads or min(MOST_THREADS, os.cpu_count() or 1), len(places))
    helpers = [threading.Thread(target=work, name="edgellm-hash", daemon=True) for _ in range(n - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if failures:
        raise failures[0]
    total = hashlib.sha256()
    at = 0
    for _, size in files:
        n_chunks = -(-size // CHUNK)
        total.update(size.to_bytes(8, "little"))
        total.update(b"".join(found[at : at + n_chunks]))
        at += n_chunks
    return total.hexdigest()


def list_path() -> Path:
    """Where hashes are remembered. Raises ConfigError where there is no cache directory."""
    return env.CACHE.get() / "fingerprints.json"


def recall(files: Sequence[Opened]) -> str | None:
    """The hash of these files, where it is known."""
    key = _key(files)
    return next((value for known, value in _load() if known == key), None)


def remember(files: Sequence[Opened], value: str, begin_ns: int) -> None:
    """Keep a hash for later processes, where it is certain to stay right; begin_ns: when reading began, of time_ns.

    The files are as they were when they were opened. Where the list cannot be written, nothing is kept.
    """
    if any(begin_ns - f.status.st_ctime_ns < SETTLED_NS or not _keeps_ctime(f.path) for f in files):
        return
    key = _key(files)
    paths = [row[0] for row in key]
    others = [(known, v) for known, v in _load() if [row[0] for row in known] != paths]
    models = [*others, (key, value)][-MOST_MODELS:]
    try:
        folder = list_path().parent
        folder.mkdir(parents=True, exist_ok=True)
        fd, part = tempfile.mkstemp(dir=folder, prefix="fingerprints-", suffix=".part")
        try:
            with open(fd, "w", encoding="utf-8") as file:
                json.dump({"format": FORMAT, "models": models}, file)
            os.replace(part, list_path())
        except BaseException:
            os.unlink(part)
            raise
    except (OSError, ConfigError, ValueError) as e:
        log.info("the hash of %s cannot be kept: %s", files[0].path, e)


def forget() -> int:
    """Remove the list of known hashes. The bytes that were freed. Raises OSError."""
    try:
        size = list_path().stat().st_size
        list_path().unlink()
    except FileNotFoundError:
        return 0
    return size


def _key(files: Sequence[Opened]) -> list[list[Any]]:
    return [[os.path.realpath(path), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for path, s in files]


def _load() -> list[tuple[list[list[Any]], str]]:
    """The models on the list, the last remembered one last; none where it is not there or not as it was written."""
    try:
        with open(list_path(), encoding="utf-8") as file:
            found = json.load(file)
        if found["format"] != FORMAT:
            return []
        models = [(key, value) for key, value in found["models"]]
        if all(re.fullmatch("[0-9a-f]{64}", value) and [row[0] for row in key] for key, value in models):
            return models
    except (OSError, ConfigError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        pass
    return []


def _keeps_ctime(path: Path) -> bool:
    import psutil

    real = Path(os.path.realpath(path))
    mounts = [p for p in psutil.disk_partitions(all=True) if real.is_relative_to(p.mountpoint)]
    # of those mounted at one place, the last one is seen
    return bool(mounts) and max(reversed(mounts), key=lambda p: len(p.mountpoint)).fstype in KEEPS_CTIME

"""Pages of the prefix cache in files: what was evicted, and what was there when the engine ended, comes back.

    DIR/<fingerprint>-<backend>/3f/3fa0...-0     one page: 32 tokens of one cache class

    edgellm page 1\\n     the version of this format
    {...}\\n              JSON: fingerprint, class, key of the page before, the 32 tokens
    page                 as a backend of this fingerprint reads and writes it
    length, CRC-32       8 and 4 bytes, of the page

A page's name is the hash of its salt and of all tokens up to its end: the same in every process, which may share a
directory. Files come into being in one move, and are compared before they are used: with the fingerprint, with the
tokens one by one, with their checksum. One that is not as it should be is a miss, with a warning, and is removed. When
they take more than the limit, those go first that were not used for longest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from edgellm.core.errors import CacheError
from edgellm.core.record import dataclass

log = logging.getLogger(__name__)

FIRST_LINE = b"edgellm page 1\n"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
_TAIL = struct.Struct("<QI")

KEPT = 0.9
"""Where the limit is passed, files are removed until they take this share of it."""

MOST_WAITING = 64 << 20
"""Bytes that may wait to be written; what is evicted beyond them is lost, so that no step waits for a disk."""

READERS = min(4, os.cpu_count() or 1)
"""Threads that read pages, beside the one that asks for them."""

STALE = 3600.0
"""Seconds after which a part of a file was left behind by a process that has ended."""


class Address(NamedTuple):
    """Where a page of 32 tokens belongs, in every process: the hash of all up to its end, of all before it, and it."""

    key: bytes
    parent: bytes
    tokens: tuple[int, ...]


def root_key(salt: str) -> bytes:
    """The key of no tokens yet, of this salt."""
    return _hash(b"edgellm prefix\0", salt.encode("utf-8", "surrogatepass"))


def child_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of these tokens behind `parent`."""
    return _hash(parent, b"".join(t.to_bytes(4, "little") for t in tokens))


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        digest.update(part)
    return digest.digest()


@dataclass(slots=True)
class StoreStats:
    """Counts since start. seconds_reading: from files into place, by whoever reads. lost_pages: were evicted faster
    than the disk takes them, and found no room in the queue of those to be written. removed_pages: made room for newer
    ones.
    """

    read_pages: int = 0
    read_bytes: int = 0
    seconds_reading: float = 0.0
    written_pages: int = 0
    written_bytes: int = 0
    lost_pages: int = 0
    removed_pages: int = 0
    damaged_files: int = 0


class DiskStore:
    """The files of one fingerprint under `folder`, whose files of all fingerprints take `limit` bytes at most.

    Pages are written by a thread of its own. `read` and `has` see what still waits for it. For one engine thread; any
    number of processes may use the folder. Raises CacheError where it cannot be made or listed.
    """

    def __init__(self, folder: str | os.PathLike[str], fingerprint: str, limit: int) -> None:
        self._root, self._fingerprint, self.limit = Path(folder), fingerprint, limit
        self._folder = self._root / fingerprint
        self.stats = StoreStats()
        self._rooms = threading.local()
        self._waiting: dict[tuple[bytes, int], tuple[Address, bytes]] = {}
        self._order: deque[tuple[bytes, int]] = deque()
        self._backlog = 0
        self._news = threading.Condition()
        self._closing = self._complained = False
        self._latest = 0
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._total = sum(size for _, size, _ in self._files(clean=True))
        except OSError as e:
            raise CacheError(f"{self._root}: the directory of the prefix cache cannot be used: {e}") from e
        self._thread = threading.Thread(target=self._write_all, name="edgellm-disk", daemon=True)
        self._thread.start()
        self._readers = ThreadPoolExecutor(READERS, "edgellm-disk")

    # -- reading -----------------------------------------------------------------------------------------------------

    def has(self, key: bytes, cls: int) -> bool:
        """Whether there is a file of this name; `read` says whether it is sound."""
        return (key, cls) in self._waiting or self._path(key, cls).exists()

    def read(self, address: Address, cls: int, use: Callable[[bytes | memoryview], None]) -> bool:
        """Call `use` with a page's bytes, which are its own for that long. From any thread.

        False where they are not there, or not as they should be.
        """
        with self._news:
            waiting = self._waiting.get((address.key, cls))
        if waiting is not None:
            use(waiting[1])
            return self._count(waiting[1])
        path = self._path(address.key, cls)
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                room = getattr(self._rooms, "bytes", bytearray())
                if len(room) < size:
                    room = self._rooms.bytes = bytearray(size)
                view = memoryview(room)[:size]
                n = file.readinto(view)
        except FileNotFoundError:
            return False
        except OSError as e:
            log.warning("%s: a page of the prefix cache cannot be read, and is computed again: %s", path, e)
            return False
        head = self._head(address, cls)
        data = view[len(head) : max(len(head), size - _TAIL.size)]
        sound = n == size and view[: len(head)] == head and len(view) == len(head) + len(data) + _TAIL.size
        if not sound or _TAIL.unpack(view[-_TAIL.size :]) != (len(data), zlib.crc32(data)):
            self._discard(path)
            return False
        use(data)
        return self._count(data)

    def read_all(self, wanted: Sequence[tuple[Address, int, Callable[[bytes | memoryview], None]]]) -> list[bool]:
        """The same for several pages, side by side: most of the time goes into memory that is touched for the first
        time."""
        if not wanted:
            return []
        first, *others = wanted
        reading = [self._readers.submit(self.read, *one) for one in others]
        return [self.read(*first), *(r.result() for r in reading)]

    def _count(self, data: bytes | memoryview) -> bool:
        with self._news:
            self.stats.read_pages += 1
            self.stats.read_bytes += len(data)
        return True

    def touch(self, key: bytes, cls: int) -> bool:
        """Mark a page as used now; False where it is not there."""
        if (key, cls) in self._waiting:
            return True
        try:
            os.utime(self._path(key, cls), ns=self._now())
        except OSError:
            return False
        return True

    def _now(self) -> tuple[int, int]:
        """The time as `os.utime` takes it, later than the last one: file systems tell it in steps of milliseconds only,
        in which many pages are used."""
        with self._news:
            self._latest = max(self._latest + 1000, time.time_ns())  # as fine as they keep it: 100 ns, and less
            return self._latest, self._latest

    def _discard(self, path: Path) -> None:
        with self._news:  # several threads read
            self.stats.damaged_files += 1
        log.warning(
            "%s: this page of the prefix cache is damaged, cut short, or of another version or model: it is removed, "
            "and computed again",
            path,
        )
        path.unlink(missing_ok=True)

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be written that what is evicted soon would be lost."""
        return self._backlog > MOST_WAITING // 2

    def wait(self, seconds: float) -> None:
        """Until less waits to be written, or so long."""
        with self._news:
            self._news.wait_for(lambda: not self.is_behind, seconds)

    def write(self, address: Address, cls: int, data: bytes, wait: bool = False) -> bool:
        """Have a page written; False where the queue is full. wait: until there is room in it."""
        with self._news:
            if wait:
                self._news.wait_for(lambda: self._backlog + len(data) <= MOST_WAITING or not self._backlog)
            elif self._backlog and self._backlog + len(data) > MOST_WAITING:
                self.stats.lost_pages += 1
                if self.stats.lost_pages == 1:
                    log.info(
                        "%s: pages are evicted faster than they are written, and some are lost: LLM.stats and /metrics "
                        "count them",
                        self._root,
                    )
                return False
            if (address.key, cls) not in self._waiting:
                self._waiting[address.key, cls] = (address, data)
                self._order.append((address.key, cls))
                self._backlog += len(data)
                self._news.notify_all()
        return True

    def close(self) -> None:
        """Write what waits and end the thread. Idempotent."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join()
        self._readers.shutdown()

    def _write_all(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: bool(self._order) or self._closing)
                if not self._order:
                    return
                name = self._order[0]
                address, data = self._waiting[name]
            try:
                self._write(address, name[1], data)
                if self._total > self.limit:
                    self._prune()
            except OSError as e:
                if not self._complained:
                    log.warning("%s: pages of the prefix cache cannot be written: %s", self._folder, e)
                self._complained = True
            with self._news:
                self._order.popleft()
                del self._waiting[name]
                self._backlog -= len(data)
                self._news.notify_all()

    def _write(self, address: Address, cls: int, data: bytes) -> None:
        path = self._path(address.key, cls)
        head, tail = self._head(address, cls), _TAIL.pack(len(data), zlib.crc32(data))
        part = path.with_name(f"{path.name}.{os.getpid()}-{id(self):x}.part")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(os.open(part, _FLAGS, 0o600), "wb", buffering=0) as file:
                for piece in (head, data, tail):
                    if file.write(piece) != len(piece):
                        raise OSError(f"{part}: the disk took less than was written")
            os.utime(part, ns=self._now())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self._total += len(head) + len(data) + len(tail)
        self.stats.written_pages += 1
        self.stats.written_bytes += len(data)

    def _prune(self) -> None:
        """Remove the files that were not used for longest, of any fingerprint; other processes may do so, too."""
        files = sorted(self._files())
        self._total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._total <= self.limit * KEPT:
                break
            path.unlink(missing_ok=True)
            self._total -= size
            self.stats.removed_pages += 1

    # -- files -------------------------------------------------------------------------------------------------------

    def _path(self, key: bytes, cls: int) -> Path:
        name = key.hex()
        return self._folder / name[:2] / f"{name}-{cls}"

    def _head(self, address: Address, cls: int) -> bytes:
        fields = {
            "fingerprint": self._fingerprint, "class": cls, "parent": address.parent.hex(), "tokens": address.tokens,
        }  # fmt: skip
        return FIRST_LINE + json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    def _files(self, clean: bool = False) -> list[tuple[int, int, Path]]:
        """Nanosecond of last use, bytes and path of every page under the root. clean: removes what processes left
        behind."""
        found: list[tuple[int, int, Path]] = []
        for path in self._root.glob("el*/[0-9a-f][0-9a-f]/*"):
            try:
                stat = path.stat()
            except OSError:  # removed by another process just now
                continue
            if not path.name.endswith(".part"):
                found.append((stat.st_mtime_ns, stat.st_size, path))
            elif clean and stat.st_mtime < time.time() - STALE:
                path.unlink(missing_ok=True)
        return found

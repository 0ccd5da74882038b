"""Opens GGUF models: read-only memory maps, metadata, and tensors as views into the maps."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np

from edgellm.core.errors import GGUFError, ModelNotFound
from edgellm.core.files import read_at
from edgellm.core.record import dataclass
from edgellm.gguf import split
from edgellm.gguf.header import Header, TensorInfo, parse_header
from edgellm.gguf.values import Bytes, KVType, Value

__all__ = ["GGUFFile", "TensorInfo"]

_SAME = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
_FIRST_BYTES = 1 << 20  # of the header, read at once; a long vocabulary takes more
_READ_BYTES = 1 << 30  # systems read at most about 2 GiB at once


class _File:
    """A file opened for reading at any place, by several threads. OSError and ValueError where it cannot be opened."""

    __slots__ = ("fd", "path")

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))

    def read(self, first: int, n: int) -> Bytes:
        """n bytes from byte `first` on. GGUFError where the file has become shorter."""
        out: Bytes = np.empty(n, np.uint8)
        self.read_into(out.data, first)
        return out

    def read_into(self, view: memoryview, first: int) -> None:
        """Fills `view` from byte `first` on. GGUFError where the file has become shorter."""
        n, done = len(view), 0
        while done < n:
            try:
                got = read_at(self.fd, view[done : done + _READ_BYTES], first + done)
            except OSError as e:
                raise GGUFError(f"{self.path}: cannot be read at byte {first + done}: {e.strerror}") from e
            if not got:
                raise GGUFError(
                    f"{self.path}: the file ends before byte {first + n}, though it was longer when it was opened: "
                    f"another program has cut it short; open it again when that is done"
                )
            done += got

    def twin(self) -> _File:
        """The same open file with a descriptor of its own. OSError."""
        twin = _File.__new__(_File)
        twin.path, twin.fd = self.path, -1
        twin.fd = os.dup(self.fd)
        return twin

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


@dataclass(slots=True)
class _Shard:
    """One file, open and mapped. `data` is the whole file, read-only; all are None after closing.

    status: what the system said about the file before anything was read.
    """

    path: Path
    status: os.stat_result
    header: Header
    file: _File | None
    map: mmap.mmap | None
    data: Bytes | None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.status.st_size

    def again(self) -> _File:
        """The file with a descriptor of its own, after closing, too. GGUFError where it is not there as it was."""
        try:
            if self.file is not None:
                return self.file.twin()
            file = _File(self.path)
            self.check(os.fstat(file.fd))
        except OSError as e:
            raise GGUFError(f"{self.path}: cannot be opened again: {e.strerror or e}") from e
        return file

    def check(self, now: os.stat_result, whole: bool = False) -> None:
        """GGUFError where the file is another, or was written to, since it was opened.

        whole: also where it may have been, since only its time of change is another (a new name changes that, too).
        """
        if any(getattr(now, x) != getattr(self.status, x) for x in (*_SAME, "st_ctime_ns")[: None if whole else -1]):
            raise GGUFError(
                f"{self.path}: the file has changed since it was opened, another program has written to it or put "
                f"another one in its place; open it again when that is done"
            )

    def read(self, first: int, n: int) -> Bytes:
        """n bytes from byte `first` on, copied. GGUFError where they are gone, or the file is closed."""
        if self.file is None:
            raise GGUFError(f"{self.path}: the file is closed; open it again to read from it")
        return self.file.read(first, n)

    def close(self) -> None:
        self.data = None
        if self.file is not None:
            self.file.close()
            self.file = None
        if self.map is not None:
            # Views that were handed out keep the map alive; it goes with the last of them.
            with contextlib.suppress(BufferError):
                self.map.close()
            self.map = None


class GGUFFile:
    """A GGUF model, opened read-only: a file, any file of a split set, or a folder with one model in it.

    Everything the header declares has been checked against the size of the file when the constructor
    returns. Raises ModelNotFound if there is no such file and GGUFError if it is not a usable GGUF.

    Metadata is copied, so it outlives `close`; so do tensor views that were handed out. Reading is
    thread-safe. Where another program cuts the file short meanwhile, `read` raises GGUFError; touching a view that
    `data` gave kills the process with SIGBUS, as with any memory map.

    Attributes:
        path: the file, or the first file of a split set.
        version: 2 or 3.
        metadata: key -> bool, int, float, str, NumPy array (read-only) or StringArray.
        kv_types: key -> KVType, the declared types.
        tensors: name -> TensorInfo, in file order, over all files of a set.
    """

    path: Path
    version: int
    metadata: Mapping[str, Value]
    kv_types: Mapping[str, KVType]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._shards: list[_Shard] = []
        self._fingerprint: str | None = None
        self._hashing, self._opening = threading.Lock(), threading.Lock()
        try:
            self._open(_locate(Path(path)))
        except BaseException:
            self.close()
            raise
        first = self._shards[0]
        self.path = first.path
        self.version = first.header.version
        self.metadata = MappingProxyType(first.header.metadata)
        self.kv_types = MappingProxyType(first.header.kv_types)
        self.tensors = MappingProxyType({k: t for s in self._shards for k, t in s.header.tensors.items()})

    def _open(self, path: Path) -> None:
        shard = _open_shard(path, 0)
        self._shards.append(shard)
        count = split.split_count(shard.header, str(path))
        if count == 1:
            return
        paths = split.find_set(path, count)
        shard.close()
        self._shards.clear()
        for i, p in enumerate(paths):
            self._shards.append(_open_shard(p, i))
        split.check_set(paths, [s.header for s in self._shards])

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the model, in order."""
        return tuple(s.path for s in self._shards)

    @property
    def n_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(s.size for s in self._shards)

    def data(self, name: str) -> Bytes:
        """The bytes of one tensor: a read-only uint8 view into the map. KeyError for an unknown name."""
        info = self.tensors[name]
        data = self._shards[info.shard].data
        if data is None:
            raise GGUFError(f"{self.path}: the file is closed; open it again to read tensor {name!r}")
        return data[info.offset : info.offset + info.n_bytes]

    def read(self, name: str, first: int = 0, n: int | None = None) -> Bytes:
        """n bytes of one tensor from byte `first` on (all of them), copied. GGUFError where they are gone."""
        info = self.tensors[name]
        shard = self._shards[info.shard]
        return shard.read(info.offset + first, info.n_bytes - first if n is None else n)

    def source(self, name: str) -> tuple[int, int]:
        """File descriptor and first byte of a tensor, for reading it without the map; valid until `close`."""
        info = self.tensors[name]
        file = self._shards[info.shard].file
        if file is None:
            raise GGUFError(f"{self.path}: the file is closed; open it again to read tensor {name!r}")
        return file.fd, info.offset

    def drop_pages(self, name: str) -> None:
        """Takes the whole pages of one tensor out of this process's memory; touching them reads them again.

        Pages shared with a neighbouring tensor stay. Does nothing where the system has no such call.
        """
        info = self.tensors[name]
        first = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (info.offset + info.n_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        _drop(self._shards[info.shard].map, first, last)

    def fingerprint(self) -> str:
        """A hash of every byte of all files, 64 hex digits: the same for the same bytes, wherever the files lie.

        The first call reads the files (two threads take 10 GB/s), unless a process has done so since they last
        changed: the cache directory remembers it (`edgellm.gguf.digest`). Works after `close`, too, while the files
        are where they were. A file must not change while it is open: GGUFError where its size or time of modification
        is another when its fingerprint is asked for first. Where a program has set that time back, the hash is that
        of the bytes as they are then. Thread-safe; others wait for the first. After an error the next call tries again.
        """
        with self._hashing:
            if self._fingerprint is None:
                self._fingerprint = self._hash()
            return self._fingerprint

    def _hash(self) -> str:
        from edgellm.gguf import digest

        opened = [digest.Opened(s.path, s.status) for s in self._shards]
        known = digest.recall(opened)
        if known is not None:
            return known
        with contextlib.ExitStack() as open_files:
            files: list[_File] = []
            for shard in self._shards:
                with self._opening:  # or `close` could take the descriptor away meanwhile
                    files.append(shard.again())
                open_files.callback(files[-1].close)
            begin = time.time_ns()
            value = digest.digest([(f.read_into, s.size) for f, s in zip(files, self._shards, strict=True)])
            now = [os.fstat(f.fd) for f in files]
        for shard, status in zip(self._shards, now, strict=True):
            shard.check(status)
        if [s.status.st_ctime_ns for s in self._shards] == [status.st_ctime_ns for status in now]:
            digest.remember(opened, value, begin)
        return value

    def check_unchanged(self) -> None:
        """GGUFError where the system says that a file has changed since it was opened, or where it is closed."""
        for shard in self._shards:
            if shard.file is None:
                raise GGUFError(f"{self.path}: the file is closed")
            shard.check(os.fstat(shard.file.fd), whole=True)

    def close(self) -> None:
        """Unmaps the files. Views that were handed out stay valid and keep their file mapped. Idempotent."""
        with self._opening:
            for shard in self._shards:
                shard.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def _locate(path: Path) -> Path:
    """The file to open first: `path` itself, or the model in the folder `path`."""
    try:
        mode = os.stat(path).st_mode
    except ValueError as e:  # a null byte in the name
        raise ModelNotFound(f"{str(path)!r} is not a usable path: {e}") from None
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"{path}: no such file or folder") from None
    except OSError as e:
        raise GGUFError(f"{path}: cannot be opened: {e.strerror}") from e
    if stat.S_ISDIR(mode):
        try:
            return split.model_in_directory(path)
        except ModelNotFound:  # an OSError too
            raise
        except OSError as e:
            raise GGUFError(f"{path}: cannot be listed: {e.strerror}") from e
    if not stat.S_ISREG(mode):
        raise GGUFError(f"{path}: a device, pipe or socket; give the path of a model file")
    return path


def _open_shard(path: Path, index: int) -> _Shard:
    """Opens one file, parses its header and maps it. The header is read, not mapped."""
    try:
        file = _File(path)
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file") from None
    except (OSError, ValueError) as e:
        raise GGUFError(f"{path}: cannot be opened: {getattr(e, 'strerror', None) or e}") from e
    try:
        status = os.fstat(file.fd)
        size = status.st_size
        start = file.read(0, min(size, _FIRST_BYTES))
        header = parse_header(start, str(path), index, size=size, more=lambda n: file.read(0, n))
        # A file with no bytes cannot be mapped, but has been refused by now.
        mapped = mmap.mmap(file.fd, size, access=mmap.ACCESS_READ)
    except GGUFError as e:
        file.close()
        hint = split.raw_part_hint(path)
        if hint:
            raise GGUFError(f"{e}{hint}") from e
        raise
    except (OSError, ValueError, OverflowError) as e:
        file.close()
        raise GGUFError(f"{path}: cannot be opened: {getattr(e, 'strerror', None) or e}") from e
    except BaseException:
        file.close()
        raise
    return _Shard(path, status, header, file, mapped, np.frombuffer(mapped, np.uint8))


def _drop(mapped: mmap.mmap | None, first: int, last: int) -> None:
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if mapped is not None and advice is not None and first < last:
        with contextlib.suppress(OSError):
            mapped.madvise(advice, first, last - first)

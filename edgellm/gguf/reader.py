"""Opens GGUF models: read-only memory maps, metadata, and tensors as views into the maps."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np

from edgellm.core.errors import GGUFError, ModelNotFound
from edgellm.gguf import split
from edgellm.gguf.header import Header, TensorInfo, parse_header
from edgellm.gguf.values import Bytes, KVType, Value

__all__ = ["GGUFFile", "TensorInfo"]

_SAMPLES = 64
_SAMPLE_BYTES = 1024


@dataclass(slots=True)
class _Shard:
    """One mapped file. `data` is the whole file, read-only; both are None after closing."""

    path: Path
    size: int
    header: Header
    map: mmap.mmap | None
    data: Bytes | None

    def close(self) -> None:
        self.data = None
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
    thread-safe. A file that another process cuts short while it is mapped kills the reader with SIGBUS,
    as with any memory map.

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

    def drop_pages(self, name: str) -> None:
        """Takes the whole pages of one tensor out of this process's memory; touching them reads them again.

        Pages shared with a neighbouring tensor stay. Does nothing where the system has no such call.
        """
        info = self.tensors[name]
        first = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (info.offset + info.n_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        _drop(self._shards[info.shard].map, first, last)

    def fingerprint(self) -> str:
        """A cheap hash of the model, 64 hex digits: the same for the same bytes, wherever the file lies.

        SHA-256 over every file's header and size, and 1 KiB at each of 64 places spread evenly over the
        tensors' bytes. It tells models apart; it does not prove that a file is intact.
        """
        if self._fingerprint is None:
            self._fingerprint = self._hash()
        return self._fingerprint

    def _hash(self) -> str:
        digest = hashlib.sha256()
        for shard in self._shards:
            if shard.data is None:
                raise GGUFError(f"{self.path}: the file is closed; open it again to compute its fingerprint")
            digest.update(shard.size.to_bytes(8, "little"))
            digest.update(shard.data[: shard.header.data_start].data)
        infos = list(self.tensors.values())
        ends = list(accumulate(t.n_bytes for t in infos))
        for i in range(_SAMPLES if ends else 0):
            at = ends[-1] * i // _SAMPLES
            k = bisect_right(ends, at)
            begin = at - (ends[k] - infos[k].n_bytes)
            digest.update(self.data(infos[k].name)[begin : begin + _SAMPLE_BYTES].data)
        return digest.hexdigest()

    def close(self) -> None:
        """Unmaps the files. Views that were handed out stay valid and keep their file mapped. Idempotent."""
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
    """Maps one file and parses its header."""
    mapped: mmap.mmap | None = None
    data: Bytes = np.empty(0, np.uint8)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size:
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                data = np.frombuffer(mapped, np.uint8)
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file") from None
    except (OSError, ValueError, OverflowError) as e:
        raise GGUFError(f"{path}: cannot be opened: {getattr(e, 'strerror', None) or e}") from e
    try:
        header = parse_header(data, str(path), index)
    except GGUFError as e:
        hint = split.raw_part_hint(path)
        if hint:
            raise GGUFError(f"{e}{hint}") from e
        raise
    # The header has been copied or decoded: its pages need not stay in this process's memory.
    _drop(mapped, 0, header.data_start // mmap.PAGESIZE * mmap.PAGESIZE)
    return _Shard(path, size, header, mapped, data)


def _drop(mapped: mmap.mmap | None, first: int, last: int) -> None:
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if mapped is not None and advice is not None and first < last:
        with contextlib.suppress(OSError):
            mapped.madvise(advice, first, last - first)

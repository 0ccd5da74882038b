"""A lock between processes (and threads), held on a file; the system releases it when its holder dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edgellm.core.errors import DownloadError

_POLL = 0.1  # seconds between attempts


@contextmanager
def file_lock(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Holds the lock `path`, waiting as long as it takes; `on_wait` is called before each further attempt.

    DownloadError if the file cannot be made or its file system has no locks.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as e:
        raise DownloadError(
            f"the model cache {path.parent.parent} cannot be written ({e.strerror}); "
            f"set EDGELLM_CACHE to a folder that can"
        ) from e
    try:
        while not _try(fd, path):
            if on_wait is not None:
                on_wait()
            time.sleep(_POLL)
        try:
            yield
        finally:
            _release(fd)
    finally:
        os.close(fd)


@contextmanager
def growing(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[int]:
    """Opens a file that one process at a time writes before it renames it; creates it where it is not there.

    Yields its descriptor while holding its lock; then `path` is that file, not one that a former holder has renamed or
    deleted. What it holds is unknown. Waits as long as it takes; `on_wait` as in `file_lock`. OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    while True:
        fd = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
        try:
            while not _try(fd, path):
                if on_wait is not None:
                    on_wait()
                time.sleep(_POLL)
            try:
                if _is(path, fd):
                    yield fd
                    return
            finally:
                _release(fd)
        finally:
            os.close(fd)


def _is(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _try(fd: int, path: Path) -> bool:
        try:
            os.lseek(fd, 0, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _release(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try(fd: int, path: Path) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as e:
            raise DownloadError(
                f"{path}: the file system of the model cache has no locks ({e.strerror}); "
                f"set EDGELLM_CACHE to a folder on a local disk"
            ) from e
        return True

    def _release(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

"""Files: reading and writing at a place on every system, and reading one that a person named, whatever it is."""

from __future__ import annotations

import os
import stat
import threading

_seeking = threading.Lock()  # where reading at a place means going there first


def read_at(fd: int, room: memoryview, at: int) -> int:
    """Read into `room` from byte `at` on; how many bytes came, 0 at the end of the file. OSError."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [room], at)
    with _seeking:  # Windows
        os.lseek(fd, at, os.SEEK_SET)
        data = os.read(fd, len(room))
    room[: len(data)] = data
    return len(data)


def write_at(fd: int, data: memoryview, at: int) -> int:
    """Write `data` to byte `at` on; how many bytes were taken. OSError."""
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, data, at)
    with _seeking:
        os.lseek(fd, at, os.SEEK_SET)
        return os.write(fd, data)


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes. OSError where it cannot be read; ValueError where it is
    longer or something else: a device may have no end, and a pipe that nobody writes to would be waited for."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise ValueError(f"is larger than {limit >> 20} MiB")
    return data

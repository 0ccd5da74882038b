"""Files at a place, with and without the calls that Windows lacks, and files that a person named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edgellm.core.files import read_at, read_regular, write_at


@pytest.mark.parametrize("windows", [False, True])
def test_reading_and_writing_at_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: bool) -> None:
    if windows:
        for name in ("preadv", "pwrite"):
            monkeypatch.delattr(os, name, raising=False)
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0))
    try:
        assert write_at(fd, memoryview(b"second"), 5) == 6
        assert write_at(fd, memoryview(b"first"), 0) == 5
        room = bytearray(20)
        assert read_at(fd, memoryview(room)[2:6], 3) == 4
        assert bytes(room[:7]) == b"\0\0stse\0"
        assert read_at(fd, memoryview(room), 8) == 3
        assert bytes(room[:3]) == b"ond"
        assert read_at(fd, memoryview(room), 11) == 0
    finally:
        os.close(fd)


def test_a_file_that_a_person_named(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12\r\n")
    assert read_regular(path, 4) == b"12\r\n"
    with pytest.raises(ValueError, match="is larger than 0 MiB"):
        read_regular(path, 3)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing", 3)


@pytest.mark.skipif(sys.platform == "win32", reason="devices and pipes are files of POSIX systems")
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match="is not a regular file"):
            read_regular(path, 1 << 20)

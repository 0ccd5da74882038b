"""The hash of a model: of every byte, the same with any number of threads, remembered only where that is sound."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core.errors import GGUFError
from edgellm.gguf import digest
from edgellm.gguf.reader import GGUFFile


def reader(data: bytes) -> tuple[digest.Read, int]:
    def read(room: memoryview, at: int) -> None:
        assert at + len(room) <= len(data)
        room[:] = data[at : at + len(room)]

    return read, len(data)


def hash_of(*files: bytes, n_threads: int = 0) -> str:
    return digest.digest([reader(data) for data in files], n_threads)


def by_definition(*files: bytes) -> str:
    total = hashlib.sha256()
    for data in files:
        total.update(len(data).to_bytes(8, "little"))
        for at in range(0, len(data), digest.CHUNK):
            total.update(xxhash.xxh3_128(data[at : at + digest.CHUNK]).digest())
    return total.hexdigest()


def test_the_value_is_the_same_everywhere() -> None:
    """Pinned: files that were saved with one fingerprint are used with it on other machines and in later releases."""
    data = bytes(range(256)) * ((digest.CHUNK + digest.PIECE) // 256) + b"end"
    assert hash_of(b"abc", data) == by_definition(b"abc", data)
    assert hash_of(b"abc", data) == "45a9b613b0336a89723b1f09b5432c4372326074a5863625ef071629ca0869d4"


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.integers(1, 5))
def test_by_definition(files: list[bytes], n_threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "CHUNK", 64)
        patch.setattr(digest, "PIECE", 24)
        assert hash_of(*files, n_threads=n_threads) == by_definition(*files)


def test_every_bit_and_every_boundary_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "CHUNK", 64)
    monkeypatch.setattr(digest, "PIECE", 24)
    data = bytes(range(150))
    seen = {hash_of(data), hash_of(data[:64], data[64:]), hash_of(data[:70], data[70:]), hash_of(data + b"\0")}
    seen |= {hash_of(data[:-1]), hash_of(data[64:128] + data[:64] + data[128:])}
    assert len(seen) == 6
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        seen.add(hash_of(bytes(changed)))
    assert len(seen) == 6 + 8 * len(data)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_reader_that_fails(monkeypatch: pytest.MonkeyPatch, n_threads: int) -> None:
    monkeypatch.setattr(digest, "CHUNK", 64)

    def read(room: memoryview, at: int) -> None:
        if at >= 640:
            raise GGUFError("gone")

    before = threading.enumerate()
    with pytest.raises(GGUFError, match="gone"):
        digest.digest([(read, 6400)], n_threads)
    assert [t.name for t in threading.enumerate() if t not in before] == []


# -- files -------------------------------------------------------------------------------------------------------------


def fingerprint(path: Path) -> str:
    with GGUFFile(path) as file:
        return file.fingerprint()


def flip(path: Path, at: int = -1) -> None:
    """Another last bit of one byte, in place, with the old time of modification."""
    until_later(path)
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns


def until_later(path: Path) -> None:
    """Until the system's clock for files has gone on since the last change of this one."""
    probe = path.with_name("probe")
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_ctime_ns > path.stat().st_ctime_ns:
            return


class Hashed(NamedTuple):
    path: Path
    reads: list[int]


@pytest.fixture
def hashed(model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hashed:
    """A model, and how often files were read for their hash; its own cache directory, and no time to wait."""
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digest, "SETTLED_NS", 0)
    monkeypatch.setattr(digest, "_keeps_ctime", lambda path: True)
    reads: list[int] = []
    real = digest.digest

    def counted(files: Any, n_threads: int = 0) -> str:
        reads.append(len(files))
        return real(files, n_threads)

    monkeypatch.setattr(digest, "digest", counted)
    return Hashed(Path(shutil.copyfile(model_file, tmp_path / "m.gguf")), reads)


def test_one_bit_anywhere(hashed: Hashed) -> None:
    seen = {fingerprint(hashed.path)}
    with GGUFFile(hashed.path) as file:
        last = max(t.offset + t.n_bytes for t in file.tensors.values())
        first = min(t.offset for t in file.tensors.values())
    places = [last - 1, *range(first, last, 997)]
    for at in places:
        flip(hashed.path, at)
        seen.add(fingerprint(hashed.path))
    assert len(seen) == 1 + len(places)


def test_the_same_bytes_elsewhere(hashed: Hashed, tmp_path: Path) -> None:
    copy = tmp_path / "other" / "name.gguf"
    copy.parent.mkdir()
    shutil.copyfile(hashed.path, copy)
    os.utime(copy, ns=(1, 1))
    assert fingerprint(copy) == fingerprint(hashed.path)
    assert hashed.reads == [1, 1]


@pytest.mark.skipif(os.name == "nt", reason="Windows does not say when a file last changed")
def test_a_file_is_read_once(hashed: Hashed) -> None:
    first = fingerprint(hashed.path)
    for _ in range(3):
        assert fingerprint(hashed.path) == first
    assert hashed.reads == [1]
    flip(hashed.path)
    second = fingerprint(hashed.path)
    assert second != first
    assert fingerprint(hashed.path) == second
    assert hashed.reads == [1, 1]
    flip(hashed.path)  # as it was, but nobody can know
    assert fingerprint(hashed.path) == first
    assert hashed.reads == [1, 1, 1]


def test_what_changed_just_now_is_read_again(hashed: Hashed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "SETTLED_NS", 10**18)
    assert fingerprint(hashed.path) == fingerprint(hashed.path)
    assert hashed.reads == [1, 1]
    assert not digest.list_path().exists()


@pytest.mark.parametrize(
    ("mounts", "kept"),
    [
        ([("/", "ext4")], True),
        ([("/", "ext4"), ("{}", "vfat")], False),
        ([("/", "vfat"), ("{}", "xfs")], True),
        ([("{}", "xfs"), ("{}", "fuse.sshfs")], False),  # the last one mounted there is what is seen
        ([("{}x", "ext4")], False),
        ([], False),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="paths as others write them")
def test_file_systems(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: list[tuple[str, str]], kept: bool
) -> None:
    class Mount(NamedTuple):
        mountpoint: str
        fstype: str

    folder = str(model_file.resolve().parent)
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digest, "SETTLED_NS", 0)
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [Mount(m.format(folder), kind) for m, kind in mounts])
    fingerprint(model_file)
    assert digest.list_path().exists() == kept


GARBAGE = [
    b"", b"{", b"\xff", b"[]", b"{}", b'{"format": 2, "models": []}', b'{"format": 1}',
    b'{"format": 1, "models": 5}', b'{"format": 1, "models": [5]}', b'{"format": 1, "models": [[[], "x"]]}',
    b'{"format": 1, "models": [[[["p"]], 7]]}', b'{"format": 1, "models": [[[5], "' + b"0" * 64 + b'"]]}',
    b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE)
def test_a_damaged_list(hashed: Hashed, text: bytes) -> None:
    first = fingerprint(hashed.path)
    digest.list_path().write_bytes(text)
    assert fingerprint(hashed.path) == first
    assert hashed.reads == [1, 1]
    assert fingerprint(hashed.path) == first  # it was written anew
    assert hashed.reads == [1, 1]


def test_no_place_for_the_list(hashed: Hashed, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    assert fingerprint(hashed.path) == fingerprint(hashed.path)
    assert hashed.reads == [1, 1]
    assert (tmp_path / "cache").read_bytes() == b"a file where the folder should be"


def test_the_list_is_bounded(hashed: Hashed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "MOST_MODELS", 3)
    paths = [Path(shutil.copyfile(hashed.path, tmp_path / f"{i}.gguf")) for i in range(5)]
    for path in (*paths, *paths[2:]):
        fingerprint(path)
    assert len(hashed.reads) == 5
    flip(paths[2])
    fingerprint(paths[2])
    found = json.loads(digest.list_path().read_text())["models"]
    assert [Path(key[0][0]).name for key, _ in found] == ["3.gguf", "4.gguf", "2.gguf"]
    assert [p.name for p in digest.list_path().parent.iterdir()] == ["fingerprints.json"]
    assert digest.forget() > 0
    assert digest.forget() == 0
    assert list(digest.list_path().parent.iterdir()) == []


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    other = Path(shutil.copyfile(path, path.with_name("other")))
    path.unlink()
    other.rename(path)


@pytest.mark.parametrize(("change", "close"), [(rewrite, False), (rewrite, True), (replace, True), (Path.unlink, True)])
def test_changed_since_it_was_opened(hashed: Hashed, change: Callable[[Path], None], close: bool) -> None:
    with GGUFFile(hashed.path) as file:
        if close:
            file.close()
        change(hashed.path)
        for _ in range(2):
            with pytest.raises(GGUFError, match=r"has changed since it was opened|cannot be opened again"):
                file.fingerprint()
    assert not digest.list_path().exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps open files where they are")
def test_another_name_meanwhile(hashed: Hashed) -> None:
    """Nothing has been written, but the time of change is another: right, and not remembered."""
    with GGUFFile(hashed.path) as file:
        until_later(hashed.path)
        hashed.path.rename(hashed.path.with_name("new.gguf"))
        found = file.fingerprint()
    assert not digest.list_path().exists()
    assert fingerprint(hashed.path.with_name("new.gguf")) == found
    assert hashed.reads == [1, 1]


def test_threads_wait_for_the_first(hashed: Hashed) -> None:
    with GGUFFile(hashed.path) as file:
        found: list[str] = []
        threads = [threading.Thread(target=lambda: found.append(file.fingerprint())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert hashed.reads == [1]

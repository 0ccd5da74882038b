"""Tile caches: same bits, never a stale, foreign or damaged one, whole or not there whatever happens meanwhile."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz.seeds import k_quants, llama

import edgellm
from edgellm import _native
from edgellm.backends.lower import lower
from edgellm.backends.native import tilefile
from edgellm.core.errors import CacheError, ConfigError, GGUFError
from edgellm.gguf import digest
from edgellm.gguf.reader import GGUFFile
from edgellm.hub import tiles as caches
from edgellm.models.spec import load_plan

pytestmark = [
    pytest.mark.skipif(not _native.available(), reason="the native library is not here"),
    pytest.mark.skipif(sys.platform != "linux", reason="the other systems' layers are not there yet"),
]

TOKENS = [1, 2, 3, 200, 9]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model of k-quants, and an empty cache directory."""
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "m.gguf"
    path.write_bytes(k_quants().to_bytes())
    return path


def entries_of(file: GGUFFile) -> list[tilefile.Entry]:
    plan = load_plan(file)[0]
    return tilefile.lay_out(file, plan, lower(plan, lambda tensor: file.tensors[tensor].qtype))


def pack(path: Path, to: Path | None = None) -> Path:
    to = to or caches.in_cache(path)
    with GGUFFile(path) as file:
        tilefile.write(to, file, entries_of(file))
    return to


def logits(path: Path, weights: str) -> tuple[str, bytes]:
    """What it ran from, and the logits of TOKENS."""
    with edgellm.LLM(path, weights=weights, n_ctx=64, n_threads=2) as llm:
        return llm.info.weights, llm.logits(TOKENS).tobytes()


def in_cache(path: Path) -> list[str]:
    folder = caches.in_cache(path).parent
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_same_bits_and_written_once(model: Path) -> None:
    expected = logits(model, "tiles")[1]
    assert in_cache(model) == []
    assert logits(model, "cache") == ("cache", expected)
    (name,) = in_cache(model)
    status = (caches.in_cache(model)).stat()
    assert logits(model, "cache") == ("cache", expected)
    again = (caches.in_cache(model)).stat()
    assert (again.st_ino, again.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert in_cache(model) == [name]
    assert logits(model, f"cache:{caches.in_cache(model)}") == ("cache", expected)


def test_the_tiles_are_those_of_the_tensors(model: Path) -> None:
    path = pack(model)
    with GGUFFile(model) as file:
        entries = entries_of(file)
        found = tilefile.open_tiles(path, file, entries)
        assert len(entries) == 8
        assert {e.n_rows % 16 for e in entries} != {0}
        for e in entries:
            room = _native.room_for_tiles(e.n_bytes)
            rows = file.read(e.tensor, e.row0 * e.row_bytes, e.n_rows * e.row_bytes)
            _native.pack_tiles(e.qtype, e.n_rows, e.n_cols, rows, room)
            assert np.array_equal(found.arrays[e.matrix], room)
            assert found.arrays[e.matrix].ctypes.data % 64 == 0
        assert tilefile.damaged(found, entries) == []


def test_large_matrices_are_cut_into_pieces(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written does not depend on the size of pieces, but for the checksums."""
    whole = pack(model).read_bytes()
    monkeypatch.setattr(tilefile, "PIECE", 1)
    with GGUFFile(model) as file:
        entries = entries_of(file)
        assert not tilefile.is_good(caches.in_cache(model), file, entries)
        path = pack(model)
        assert tilefile.damaged(tilefile.open_tiles(path, file, entries), entries) == []
        for e in entries:
            cut = list(tilefile.pieces(e))
            assert len(cut) == e.n_bytes // e.panel_bytes
            assert sum(p.n_bytes for p in cut) == e.n_bytes
            assert sum(p.n_rows for p in cut) == e.n_stack * e.n_rows
        total = tilefile.total_bytes(entries)
    assert path.read_bytes()[-total:] == whole[-total:]


def test_auto_uses_a_cache_and_never_writes_one(model: Path) -> None:
    kind, expected = logits(model, "auto")
    assert (kind, in_cache(model)) == ("tiles", [])
    path = pack(model)
    assert logits(model, "auto") == ("cache", expected)
    assert logits(model, "tiles") == ("tiles", expected), "what is asked for by name is done"
    assert logits(model, "mmap") == ("mmap", expected)
    path.rename(caches.beside(model))
    assert logits(model, "auto") == ("cache", expected)
    assert in_cache(model) == []


def touch(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    os.utime(model, ns=(1, 1))


def upgrade(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tilefile, "__version__", "99")


def new_layout(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tilefile, "tile_layout", lambda: 99)


def other_model(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    """The same sizes, shapes and times of modification; another last bit of a weight."""
    status = model.stat()
    data = bytearray(model.read_bytes())
    with GGUFFile(model) as file:
        info = list(file.tensors.values())[-1]
        data[info.offset + info.n_bytes - 1] ^= 1
    while model.stat().st_ctime_ns == status.st_ctime_ns:  # the clock of a file system goes in steps
        model.write_bytes(data)
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))


def known_model(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    """The same, and the hash of the model as it was when it was packed is remembered."""
    patch.setattr(digest, "SETTLED_NS", 0)
    patch.setattr(digest, "_keeps_ctime", lambda path: True)
    with GGUFFile(model) as file:
        file.fingerprint()
    assert digest.list_path().exists()
    other_model(model, path, patch)


def other_architecture(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    model.write_bytes(llama().to_bytes())


def cut(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    os.truncate(path, path.stat().st_size - 1)


def emptied(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    os.truncate(path, 0)


def longer(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    with open(path, "ab") as f:
        f.write(b"\0")


def flipped(model: Path, path: Path, patch: pytest.MonkeyPatch) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


CHANGES: dict[Callable[[Path, Path, pytest.MonkeyPatch], None], str] = {
    touch: "the model's file has changed",
    upgrade: f"written by edgellm {edgellm.__version__}, this is 99",
    new_layout: "layout 1, expected 99",
    other_model: "made from another model",
    known_model: "made from another model",
    other_architecture: "the model's file has changed",
    cut: "cut short",
    emptied: "begins with b''",
    longer: "written over",
    flipped: "its header is damaged",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_a_stale_foreign_or_damaged_cache_is_never_used(
    model: Path, change: Callable[[Path, Path, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = pack(model)
    change(model, path, monkeypatch)
    before = path.read_bytes()
    expected = logits(model, "tiles")[1]
    with pytest.raises(CacheError, match=CHANGES[change]) as e:
        logits(model, f"cache:{path}")
    assert isinstance(e.value, OSError)
    assert str(path) in str(e.value)
    with caplog.at_level(logging.WARNING, "edgellm"):
        assert logits(model, "auto") == ("tiles", expected)
    assert CHANGES[change] in caplog.text
    assert path.read_bytes() == before, "it was not asked for"
    assert logits(model, "cache") == ("cache", expected), "it was written anew"
    assert in_cache(model) == [path.name]
    with GGUFFile(model) as file:
        assert tilefile.is_good(path, file, entries_of(file))


def test_no_byte_of_the_header_can_be_wrong(model: Path) -> None:
    path = pack(model)
    whole = path.read_bytes()
    end = caches.PREAMBLE.size + caches.PREAMBLE.unpack(whole[: caches.PREAMBLE.size])[2]
    rng = random.Random(3)
    with GGUFFile(model) as file:
        entries = entries_of(file)
        for at in [*range(caches.PREAMBLE.size), *rng.sample(range(caches.PREAMBLE.size, end), 200)]:
            for change in (1, 0x80, 0xFF):
                data = bytearray(whole)
                data[at] ^= change
                path.write_bytes(data)
                with pytest.raises(CacheError):
                    tilefile.open_tiles(path, file, entries)
        for n in [*range(200), *rng.sample(range(len(whole)), 200)]:
            path.write_bytes(whole[:n])
            with pytest.raises(CacheError):
                tilefile.open_tiles(path, file, entries)
        path.write_bytes(whole)
        tilefile.open_tiles(path, file, entries)


def write_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header of a cache, with a checksum that is right again."""
    import hashlib

    data = path.read_bytes()
    n = caches.PREAMBLE.unpack(data[: caches.PREAMBLE.size])[2]
    header = json.loads(data[64 : 64 + n])
    text = change(header)
    text = text if isinstance(text, bytes) else json.dumps(header).encode()
    body = data[caches.start_of_tiles(n) :]
    head = text + bytes(caches.start_of_tiles(len(text)) - 64 - len(text))
    size = 64 + len(head) + len(body)
    preamble = caches.PREAMBLE.pack(caches.MAGIC, caches.FORMAT, len(text), size, hashlib.sha256(text).digest())
    path.write_bytes(preamble + head + body)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["matrices"][0].__setitem__(6, 1 << 40),
        lambda h: h["matrices"][0].__setitem__(7, 1 << 40),
        lambda h: h["matrices"][0].__setitem__(4, -1),
        lambda h: h["matrices"].pop(),
        lambda h: h.pop("matrices"),
        lambda h: h.__setitem__("matrices", None),
        lambda h: h.__setitem__("files", {}),
        lambda h: h.__setitem__("sha256", h["sha256"][1:]),
        lambda h: h.__setitem__("sha256", "0" * len(h["sha256"])),
        lambda h: h["sha256"].__setitem__(0, 7),
        lambda h: h.pop("sha256"),
        lambda h: h.__setitem__("more", 1),
        lambda h: b"[]",
        lambda h: b"{",
        lambda h: b"\xff\xfe",
        lambda h: b"[" * 100_000,
    ],
)
def test_a_header_that_lies(model: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = pack(model)
    write_header(path, lambda h: None)
    with GGUFFile(model) as file:
        entries = entries_of(file)
        tilefile.open_tiles(path, file, entries)
        write_header(path, change)
        with pytest.raises(CacheError):
            tilefile.open_tiles(path, file, entries)
    assert [c.path for c in caches.of_model(model)] == [path]


def test_damaged_tiles_are_named(model: Path) -> None:
    path = pack(model)
    with GGUFFile(model) as file:
        entries = entries_of(file)
        start = path.stat().st_size - tilefile.total_bytes(entries)
        chosen = [entries[0], entries[-1]]
        with open(path, "r+b") as f:
            for e, at in zip(chosen, (0, entries[-1].n_bytes - 1), strict=True):
                f.seek(start + e.offset + at)
                byte = f.read(1)
                f.seek(start + e.offset + at)
                f.write(bytes([byte[0] ^ 4]))
        found = tilefile.open_tiles(path, file, entries)
        assert tilefile.damaged(found, entries) == [e.tensor for e in chosen]


def test_damaged_tiles_do_no_harm(model: Path) -> None:
    """Any bytes for tiles: numbers, or a request that fails because they are not finite."""
    path = pack(model)
    whole = path.read_bytes()
    with GGUFFile(model) as file:
        start = len(whole) - tilefile.total_bytes(entries_of(file))
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(6):
        path.write_bytes(whole[:start] + rng.bytes(len(whole) - start))
        try:
            seen.add(logits(model, f"cache:{path}")[0])
        except edgellm.NumericsError:
            seen.add("not finite")
    assert seen <= {"cache", "not finite"}


def test_a_moved_model_takes_its_cache_along(model: Path, tmp_path: Path) -> None:
    pack(model, caches.beside(model))
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for path in (model, caches.beside(model)):
        shutil.copy2(path, folder / path.name)
    assert logits(folder / model.name, "auto")[0] == "cache"


@pytest.mark.parametrize("name", ["é" * 100 + ".gguf", "a b\n'.gguf", "n" * 250, "x.bin"])
def test_any_name(model: Path, name: str) -> None:
    """Names that are too long to have a cache beside them, and others, have one in the cache directory."""
    path = model.rename(model.with_name(name))
    expected = logits(path, "tiles")[1]
    assert logits(path, "auto") == ("tiles", expected)
    assert logits(path, "cache") == ("cache", expected)
    assert logits(path, "auto") == ("cache", expected)
    assert in_cache(path) == [caches.in_cache(path).name]
    assert [c.path for c in caches.of_model(path)] == [caches.in_cache(path)]
    assert caches.remove_of(path) > 0


def test_without_a_home(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    for name in ("EDGELLM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert logits(model, "auto")[0] == "tiles"
    with pytest.raises(ConfigError, match="EDGELLM_CACHE is not set"):
        logits(model, "cache")
    pack(model, caches.beside(model))
    assert logits(model, "auto")[0] == "cache"


def test_what_cannot_be_named(model: Path, tmp_path: Path) -> None:
    for name in (tmp_path / "none.tiles", tmp_path, model):
        with pytest.raises(CacheError, match=r"tile cache"):
            logits(model, f"cache:{name}")
    for weights in ("cache:", "cach", "caches", "", 7):
        with pytest.raises(ConfigError, match="weights must be one of"):
            logits(model, weights)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="weights"):
        edgellm.LLM(model, weights="cache", backend="reference")


def test_nothing_else_is_replaced(model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    other = tmp_path / "empty"
    other.touch()
    for target in (model, other):
        with pytest.raises(CacheError, match="is not replaced"):
            pack(model, target)
    assert (model.read_bytes(), other.read_bytes()) == (whole, b"")
    with pytest.raises(CacheError, match="is not replaced: it is not a regular file"):
        pack(model, tmp_path)
    with pytest.raises(CacheError, match="cannot be written"):
        pack(model, model / "below")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "m.gguf"]


@pytest.mark.parametrize("failing", ["pwrite", "fsync", "replace"])
def test_a_failure_leaves_nothing(model: Path, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tilefile.os, failing, full)
        with pytest.raises(CacheError, match="No space left on device"):
            logits(model, "cache")
    assert in_cache(model) == []


def test_space_is_checked_first(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(model.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000_000))
    with pytest.raises(CacheError, match=r"needs \d+ MB .* 10 MB are free"):
        logits(model, "cache")
    assert in_cache(model) == []


def test_a_model_cut_short_while_it_is_packed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GGUFFile(model) as file:
        entries = entries_of(file)
        file.fingerprint()
        os.truncate(model, 4096)
        with pytest.raises(GGUFError, match="become shorter"):
            tilefile.write(caches.in_cache(model), file, entries)
    assert in_cache(model) == []


def test_a_model_that_changes_while_it_is_packed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tilefile._hash_all

    def meanwhile(*args: Any) -> list[str]:
        other_model(model, model, monkeypatch)
        return real(*args)

    monkeypatch.setattr(tilefile, "_hash_all", meanwhile)
    with GGUFFile(model) as file, pytest.raises(GGUFError, match="has changed since it was opened"):
        tilefile.write(caches.in_cache(model), file, entries_of(file))
    assert in_cache(model) == []


def test_a_second_start_does_not_read_the_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "SETTLED_NS", 0)
    monkeypatch.setattr(digest, "_keeps_ctime", lambda path: True)
    expected = logits(model, "cache")
    monkeypatch.setattr(digest, "digest", None)
    assert logits(model, "auto") == expected


CHILD = """
import itertools, os, signal, sys
import edgellm
from edgellm.backends.native import tilefile
moment = sys.argv[2]

def dying(name, after):
    # Several threads write: each call has a number of its own.
    real, numbers = getattr(os, name), itertools.count(1)
    def call(*args, **more):
        last = next(numbers) == int(sys.argv[3])
        if last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*args, **more)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(os, name, call)

if moment != "never":
    dying(moment.split()[1], moment.startswith("after"))
print(edgellm.LLM(sys.argv[1], weights="cache", n_ctx=64, n_threads=2).info.weights)
"""


@pytest.mark.parametrize(
    ("moment", "count"),
    [("before pwrite", 1), ("after pwrite", 3), ("before fsync", 1), ("before replace", 1), ("after replace", 1)],
)
def test_killed_at_any_moment(model: Path, moment: str, count: int) -> None:
    command = [sys.executable, "-c", CHILD, str(model), moment, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
    path, finished = caches.in_cache(model), moment == "after replace"
    assert path.exists() == finished
    assert caches.part_of(path).exists() != finished
    expected = logits(model, "tiles")[1]
    assert logits(model, "auto") == ("cache" if finished else "tiles", expected)
    assert logits(model, "cache") == ("cache", expected)
    assert in_cache(model) == [path.name]


def test_several_processes_pack_at_once(model: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(model), "never", "0"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(c.communicate(timeout=120), c.returncode) for c in children] == [(("cache\n", ""), 0)] * 3
    assert in_cache(model) == [caches.in_cache(model).name]
    with GGUFFile(model) as file:
        assert tilefile.is_good(caches.in_cache(model), file, entries_of(file))


def test_the_next_one_to_pack_keeps_its_part(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a cache has its name, the name of the part belongs to whoever comes next."""
    part = caches.part_of(caches.in_cache(model))

    def replace(source: Path, target: Path, real: Callable[[Path, Path], None] = os.replace) -> None:
        real(source, target)
        part.write_bytes(b"the next")

    with monkeypatch.context() as patch:
        patch.setattr(tilefile.os, "replace", replace)
        pack(model)
    assert part.read_bytes() == b"the next"
    assert logits(model, "cache")[0] == "cache"


def test_the_map_is_shared_and_survives_its_name(model: Path) -> None:
    path = pack(model)
    expected = logits(model, "tiles")[1]
    with edgellm.LLM(model, weights="cache", n_ctx=64, n_threads=2) as llm:
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
        assert [line.split()[1] for line in lines] == ["r--s"]
        assert caches.remove_of(model) > 0
        assert llm.logits(TOKENS).tobytes() == expected
    assert in_cache(model) == []


def test_orphans(model: Path, tmp_path: Path) -> None:
    path = pack(model)
    other = tmp_path / "other.gguf"
    shutil.copy2(model, other)
    gone = pack(other)
    stray = caches.tiles_dir() / "notes.tiles"
    stray.write_text("somebody's notes")
    part = caches.part_of(caches.in_cache(tmp_path / "third.gguf"))
    part.write_bytes(b"half")
    assert caches.remove_orphans() == 4
    other.unlink()
    assert {c.path: c.orphaned for c in caches.all_caches()} == {path: False, gone: True}
    assert caches.remove_orphans(tmp_path / "cache" / "models") == 0
    assert caches.remove_orphans() == path.stat().st_size
    assert in_cache(model) == sorted([path.name, stray.name])

"""The numba backend: every weight type and cache format gives the native core's bits; what is refused; its threads."""

from __future__ import annotations

import gc
import os
import platform
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernels.test_weight_types import TYPES, logits, tiny_of
from numpy.typing import NDArray
from parity.driver import Timeline, batch, compiled, usable

from edgellm import _native
from edgellm.core.errors import ConfigError, EngineError, NativeError
from edgellm.core.types import Adjust, StepOutput
from edgellm.engine.selftest import LOGITS_SHA256, check
from edgellm.gguf.qtypes import QType
from edgellm.gguf.reader import GGUFFile
from edgellm.models import load_plan

pytest.importorskip("numba", reason='Numba is not installed: pip install "edgellm[numba]"')

from edgellm.backends.numba import backend, rows
from edgellm.backends.numba import compiled as compiled_code
from edgellm.backends.numba.team import Team

__all__ = ["tiny_of"]  # a fixture

native = pytest.mark.skipif(not _native.available(), reason="the native library is not here")
FORMATS = [("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("fp8_e5m2", "q8_0"), ("q4_0", "fp8_e5m2")]
FORMATS += [("bf16", "fp8_e4m3")]  # f32: all other tests
"""Few pairs of types of arrays: each is compiled."""
Tiny = Callable[[QType], Path]


def same(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    return np.array_equal(a.view(np.int32), b.view(np.int32))


@native
@pytest.mark.parametrize("qtype", TYPES, ids=str)
def test_every_weight_type_has_the_native_bits(qtype: QType, tiny_of: Tiny) -> None:
    path = tiny_of(qtype)
    assert same(logits(path, "numba", (7, 1)), logits(path, "native"))


@native
@pytest.mark.parametrize(("k_type", "v_type"), FORMATS)
def test_every_cache_format_has_the_native_bits(k_type: str, v_type: str, tiny_of: Tiny) -> None:
    path = tiny_of(QType.Q8_0)
    got = logits(path, "numba", (9, 1), k_type=k_type, v_type=v_type)
    assert same(got, logits(path, "native", k_type=k_type, v_type=v_type))


def test_the_published_hash() -> None:
    found = check("numba")
    assert found.ok, found.why_not
    assert found.digest == LOGITS_SHA256


def step(path: Path, backend: str, **options: object) -> StepOutput:
    """One step of three sequences with five, one and two tokens."""
    with GGUFFile(path) as file:
        plan = load_plan(file)[0]
        executable, pages = compiled(usable(backend), plan, file)
        try:
            work = [(Timeline(pages), tokens) for tokens in ([5, 6, 7, 8, 9], [1], [3, 4])]
            return executable.run(batch(plan, work, **options))
        finally:
            executable.close()


@native
def test_selection_is_the_native_one(tiny_of: Tiny) -> None:
    i32, f32 = np.int32, np.float32
    edits = Adjust(
        np.array([0, 0, 1, 2], i32), np.array([3, 199, 0, 7], i32), np.array([1.3, 1, 2, 1], f32),
        np.array([0, -np.inf, 0.25, 5], f32),
    )  # fmt: skip
    wanted = {"rows": [0, 4, 5], "top_k": 40, "want_lse": True, "adjust": edits}
    a, b = (step(tiny_of(QType.Q8_0), backend, **wanted) for backend in ("numba", "native"))
    assert np.array_equal(a.top_ids, b.top_ids)
    for x, y in ((a.top_logits, b.top_logits), (a.logits, b.logits), (a.lse, b.lse)):
        assert x is not None
        assert y is not None
        assert same(x, y)
    assert not a.status.any()


def test_a_sequence_that_is_not_finite_fails_alone(tiny_of: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgellm.backends.numba import program

    whole = program.dequantize

    def damaged(*args: object) -> NDArray[np.float32]:
        values = whole(*args)  # type: ignore[arg-type]
        values[5:6, 0] = np.inf
        return values

    monkeypatch.setattr(program, "dequantize", damaged)
    out = step(tiny_of(QType.Q8_0), "numba", rows=[0, 4, 5, 7], top_k=2)
    assert out.status.tolist() == [0, 1, 0]
    assert out.logits is not None
    assert np.isfinite(out.logits[[0, 1, 3]]).all()


@native
def test_a_copied_page_is_the_page(tiny_of: Tiny) -> None:
    for kind in ("f16", "q8_0"):
        with GGUFFile(tiny_of(QType.Q8_0)) as file:
            plan = load_plan(file)[0]
            executable, pages = compiled(usable("numba"), plan, file, k_type=kind, v_type=kind)
            line, other = Timeline(pages), Timeline(pages)
            executable.run(batch(plan, [(line, [1, 2, 3])]))
            other.grow(3)
            other.n = 3
            executable.copy_page(0, line.tables[0][0], other.tables[0][0])
            a, b = (executable.run(batch(plan, [(x, [4])])).logits for x in (line, other))
            assert a is not None
            assert b is not None
            assert same(a, b)
            with pytest.raises(ValueError, match=r"expected 0\.\.63"):
                executable.copy_page(0, 0, 64)
            with pytest.raises(ValueError, match="class 1 does not exist"):
                executable.copy_page(1, 0, 0)
            executable.close()
            executable.close()
            with pytest.raises(NativeError, match="closed"):
                executable.run(batch(plan, [(line, [4])]))


def test_a_closed_executable_holds_nothing(tiny_of: Tiny) -> None:
    with GGUFFile(tiny_of(QType.Q8_0)) as file:
        executable, _ = compiled(usable("numba"), load_plan(file)[0], file)
        machine = weakref.ref(executable._machine)  # type: ignore[attr-defined]
        executable.close()
        gc.collect()
        assert machine() is None


def test_a_forked_child_is_told_and_does_not_hang(tiny_of: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with GGUFFile(tiny_of(QType.Q8_0)) as file:
        plan = load_plan(file)[0]
        executable, pages = compiled(usable("numba"), plan, file, n_threads=2)
        with monkeypatch.context() as child:
            child.setattr(backend.os, "getpid", lambda: 1)
            with pytest.raises(EngineError, match="do not exist in a forked child"):
                executable.run(batch(plan, [(Timeline(pages), [4])]))
        executable.close()


def test_nothing_is_left_of_one_without_room(tiny_of: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(backend, "Machine", full)
    with GGUFFile(tiny_of(QType.Q8_0)) as file, pytest.raises(MemoryError):
        compiled(usable("numba"), load_plan(file)[0], file, n_threads=3)
    assert not [t for t in threading.enumerate() if t.name.startswith("edgellm-numba")]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the word is x86's")
def test_what_others_set_in_the_processor_changes_nothing_and_stays(tiny_of: Tiny) -> None:
    path = tiny_of(QType.Q8_0)
    plain, small = logits(path, "numba"), np.array([1.2e-38], np.float32)
    before = rows.control(0x9FC0)  # flush to zero, as a library built with -ffast-math sets it
    try:
        flushed, halved = logits(path, "numba"), small * np.float32(0.5)
    finally:
        rows.control(before)
    assert same(flushed, plain)
    assert halved[0] == 0
    assert (small * np.float32(0.5))[0] > 0


def test_compiled_code_is_kept_where_something_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = compiled_code.folder.__wrapped__
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path))
    kept = find()
    assert kept is not None
    assert kept.parent == tmp_path / "numba"
    assert kept.is_dir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "file"))
    assert find() is None
    old = tmp_path / "numba" / "old"
    old.mkdir()
    os.utime(old, (0, 0))
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path))
    assert find() == kept
    assert not old.exists()


def twice(x: int) -> int:
    return 2 * x


def test_code_that_cannot_be_kept_or_read_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from numba.core.caching import IndexDataCacheFile

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    def files() -> list[Path]:
        return [x for x in tmp_path.rglob("*") if x.is_file()]

    monkeypatch.setattr(compiled_code, "folder", lambda: tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(IndexDataCacheFile, "_save_data", full)
        assert compiled_code.function(twice)(4) == 8
        assert not [x for x in files() if x.suffix == ".nbc"]
    assert compiled_code.function(twice)(4) == 8
    assert files()
    for damaged in ("*.nbi", "*.nbc"):
        for path in tmp_path.rglob(damaged):
            path.write_bytes(path.read_bytes()[:-20])
        again = compiled_code.function(twice)
        assert again(4) == 8
        assert not again.stats.cache_hits
        kept = compiled_code.function(twice)
        assert kept(4) == 8
        assert kept.stats.cache_hits


def test_what_it_refuses(tiny_of: Tiny) -> None:
    with GGUFFile(tiny_of(QType.Q8_0)) as file:
        plan = load_plan(file)[0]
        with pytest.raises(ConfigError, match="no ISA levels"):
            compiled(usable("numba"), plan, file, isa="avx2")
        with pytest.raises(ConfigError, match="only the native backend runs from a tile cache"):
            compiled(usable("numba"), plan, file, weights="cache")


def test_a_team_does_every_share_and_passes_on_what_is_raised() -> None:
    team = Team(3)
    seen: list[tuple[int, str]] = []
    for _ in range(50):
        team.run(lambda i: seen.append((i, threading.current_thread().name)))
    assert sorted(i for i, _ in seen) == sorted([0, 1, 2] * 50)
    assert len({name for _, name in seen}) == 3

    def failing(i: int) -> None:
        if i == 2:
            raise ValueError("share 2")

    with pytest.raises(ValueError, match="share 2"):
        team.run(failing)
    team.run(lambda i: None)
    team.close()
    team.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("edgellm-numba")]


def test_a_team_that_cannot_begin_fails_and_one_without_threads_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def begin() -> None:
        begun.append(threading.current_thread().name)
        if len(begun) == 2:
            raise ValueError("begin")

    team = Team(2, begin)
    team.run(lambda i: 0)
    with pytest.raises(ValueError, match="begin"):
        team.run(lambda i: 0)
    assert team.run(lambda i: i) == [0, 1]
    team.close()
    assert begun == ["edgellm-numba-1"] * 3

    start = threading.Thread.start

    def no_third(thread: threading.Thread) -> None:
        if thread.name == "edgellm-numba-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_third)
    with pytest.raises(RuntimeError, match="new thread"):
        Team(5)
    assert not [t for t in threading.enumerate() if t.name.startswith("edgellm-numba")]

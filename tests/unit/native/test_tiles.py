"""Tiles made outside an engine: the same bytes at every level, pinned by the layout's version, and used in place."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from unit.native.conftest import CONFIG, Tiny, make_batch

from edgellm import _native
from edgellm._native import Engine, Matrix
from edgellm.core.errors import NativeError
from edgellm.core.types import F32
from edgellm.gguf.qtypes import QType

pytestmark = pytest.mark.skipif(not _native.available(), reason="the native library is not here")

LAYOUT = 1
PINNED = {
    QType.Q4_0: "8af5cc54361eda16",
    QType.Q4_1: "8bab8ce4c354ab82",
    QType.Q5_0: "7f1f9748a95e346f",
    QType.Q5_1: "a105c164836b1e48",
    QType.Q8_0: "1020bdca97e17fc8",
    QType.Q2_K: "da188e513094ab46",
    QType.Q3_K: "b37d05b0563f4e58",
    QType.Q4_K: "1e11bb6f7eee8608",
    QType.Q5_K: "f29eff80fec601b5",
    QType.Q6_K: "5569df95d3736aab",
    QType.IQ1_S: "70a00e6e81b27e4b",
    QType.IQ1_M: "fd47c979d3081b8d",
    QType.IQ2_XXS: "53ef8fc40657126c",
    QType.IQ2_XS: "13c1fd73f2bcad4f",
    QType.IQ2_S: "c84789c6fc36206e",
    QType.IQ3_XXS: "c560cf18f5afaa5e",
    QType.IQ3_S: "56ee0a5d2f9d8f75",
    QType.F16: "532929cb65ee6e6e",
    QType.BF16: "cb1a0fe059a7bde9",
    QType.F32: "d0f4fc34c0192e58",
}
"""SHA-256 of the tiles of `rows`, 16 digits. Where one changes, TILE_LAYOUT in native/core/weights.c is raised too."""
LEVELS = [name for name, usable, _ in _native.isa_levels() if usable] if _native.available() else []


def rows(qtype: QType, n_rows: int, n_cols: int) -> NDArray[np.uint8]:
    """Rows of any bytes, without numbers that are not finite."""
    rng = np.random.default_rng(int(qtype))
    return rng.integers(0, 60, n_rows * qtype.n_bytes(n_cols), dtype=np.uint8)


def packed(qtype: QType, n_rows: int, n_cols: int, isa: str | None = None) -> NDArray[np.uint8]:
    room = _native.room_for_tiles(_native.tile_bytes(int(qtype), n_rows, n_cols))
    room[:] = 255
    _native.pack_tiles(int(qtype), n_rows, n_cols, rows(qtype, n_rows, n_cols), room, isa)
    return room


@pytest.mark.parametrize("qtype", list(PINNED), ids=lambda q: q.name)
def test_the_layout_is_pinned(qtype: QType) -> None:
    assert _native.tile_layout() == LAYOUT
    found = {level: hashlib.sha256(packed(qtype, 37, 512, level)).hexdigest()[:16] for level in [None, *LEVELS]}
    assert found == dict.fromkeys(found, PINNED[qtype])


def test_rows_past_the_end_are_zero() -> None:
    one, all_rows = packed(QType.F32, 1, 8), packed(QType.F32, 16, 8)
    assert len(one) == len(all_rows) == 8 * 64
    first = one.view(np.uint32).reshape(8, 16)
    assert (first[:, 0] == all_rows.view(np.uint32).reshape(8, 16)[:, 0]).all()
    assert not first[:, 1:].any()


@pytest.mark.parametrize(
    ("qtype", "n_rows", "n_cols"),
    [(-1, 1, 256), (63, 1, 256), (1 << 30, 1, 256), (12, 0, 256), (12, 1, 255), (12, 1 << 29, 256), (12, 1, 1 << 25)],
)
def test_sizes_without_tiles(qtype: int, n_rows: int, n_cols: int) -> None:
    assert _native.tile_bytes(qtype, n_rows, n_cols) == 0
    with pytest.raises(NativeError, match="no tiles for"):
        _native.pack_tiles(qtype, n_rows, n_cols, np.zeros(64, np.uint8), _native.room_for_tiles(64))


def test_wrong_rooms_are_refused() -> None:
    source, room = rows(QType.Q8_0, 16, 64), _native.room_for_tiles(_native.tile_bytes(int(QType.Q8_0), 16, 64))
    for wrong_rows, wrong_room in ((source[1:], room), (source, room[64:]), (source, _native.room_for_tiles(99)[1:])):
        with pytest.raises(NativeError, match="expected"):
            _native.pack_tiles(int(QType.Q8_0), 16, 64, wrong_rows, wrong_room)
    with pytest.raises(NativeError, match="isa"):
        _native.pack_tiles(int(QType.Q8_0), 16, 64, source, room, "none")


def logits(engine: Engine) -> F32:
    step = engine.step(make_batch((list(range(40)), 0, [3, 1]), want_logits=True))
    assert step.logits is not None
    return step.logits


def with_tiles(matrix: Matrix) -> Matrix:
    data = np.frombuffer(matrix.data, np.uint8).reshape(-1)
    tiles = _native.room_for_tiles(_native.tile_bytes(matrix.qtype, matrix.n_rows, matrix.n_cols))
    _native.pack_tiles(matrix.qtype, matrix.n_rows, matrix.n_cols, data, tiles)
    tiles.flags.writeable = False
    return dataclasses.replace(matrix, pack=False, tiles=tiles)


def test_an_engine_runs_from_tiles_and_from_a_file(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny.model(pack=True)
    path = tmp_path / "weights"
    offsets = []
    with open(path, "wb") as f:
        f.write(b"before")
        for m in model.matrices:
            offsets.append(f.tell())
            f.write(np.ascontiguousarray(m.data).tobytes())
    fd = os.open(path, os.O_RDONLY)
    try:
        expected = logits(Engine(model, CONFIG))
        tiles = [with_tiles(m) for m in model.matrices]
        read = [dataclasses.replace(m, source=(fd, at)) for m, at in zip(model.matrices, offsets, strict=True)]
        for matrices in (tiles, read):
            engine = Engine(dataclasses.replace(model, matrices=matrices), CONFIG)
            assert (engine.info.weight_bytes == 0) == (matrices is tiles)
            assert np.array_equal(logits(engine), expected)
            engine.close()
        os.truncate(path, offsets[-1])
        with pytest.raises(NativeError, match="cut short"):
            Engine(dataclasses.replace(model, matrices=read), CONFIG)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "broken",
    [
        lambda m: dataclasses.replace(m, tiles=m.tiles[64:]),
        lambda m: dataclasses.replace(m, tiles=np.concatenate([m.tiles, m.tiles])),
        lambda m: dataclasses.replace(m, tiles=m.tiles[:0]),
        lambda m: dataclasses.replace(m, tiles=_native.room_for_tiles(len(m.tiles) + 64)[8:-56]),
        lambda m: dataclasses.replace(m, pack=True),
        lambda m: dataclasses.replace(m, pack=True, tiles=None, source=(-1, 0)),
        lambda m: dataclasses.replace(m, pack=True, tiles=None, source=(0, -1)),
    ],
)
def test_tiles_that_do_not_fit_are_refused(tiny: Tiny, broken: Callable[[Matrix], Matrix]) -> None:
    model = tiny.model()
    matrices = [with_tiles(m) for m in model.matrices]
    matrices[-1] = broken(matrices[-1])
    with pytest.raises(NativeError, match=r"weights\[5\]"):
        Engine(dataclasses.replace(model, matrices=matrices), CONFIG)

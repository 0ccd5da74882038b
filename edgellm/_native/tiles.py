"""Repacking matrices into tiles outside an engine, for a file that keeps them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm._native.library import ffi, lib
from edgellm.core.errors import NativeError

TILE_ROWS = 16
"""Rows of a panel: tiles are made of whole panels, the last one of a matrix filled up with zeros."""

Bytes = NDArray[np.uint8]


def tile_layout() -> int:
    """Version of the layout: tiles that were kept are of use to a library with the same number only."""
    return int(lib().el_tile_layout())


def tile_bytes(qtype: int, n_rows: int, n_cols: int) -> int:
    """Bytes of n_rows rows as panels, a multiple of 64; 0 where the library has no such tiles."""
    return int(lib().el_tile_bytes(qtype, n_rows, n_cols))


def pack_tiles(qtype: int, n_rows: int, n_cols: int, rows: Bytes, tiles: Bytes, isa: str | None = None) -> None:
    """Repack `rows` (n_rows of them, as in the file) into `tiles` (`tile_bytes` bytes on a 64-byte line).

    Releases the GIL. isa: the level that does it, None = the best; all write the same bytes. Raises NativeError.
    """
    err = ffi.new("el_error *")
    to, source = ffi.from_buffer(tiles, require_writable=True), ffi.from_buffer(rows)
    level = isa.encode() if isa else ffi.NULL
    code = lib().el_pack_tiles(level, qtype, n_rows, n_cols, source, len(source), to, len(to), err)
    if code:
        raise NativeError(bytes(ffi.string(err.message)).decode("utf-8", "replace"), code)


def room_for_tiles(n_bytes: int) -> Bytes:
    """A new array of n_bytes on a 64-byte line."""
    raw: Any = np.empty(n_bytes + 64, np.uint8)
    first = -raw.ctypes.data % 64
    out: Bytes = raw[first : first + n_bytes]
    return out

"""The native library: loading it, its engine, and what it knows about the machine. The only importer of cffi."""

from __future__ import annotations

from edgellm._native.handles import (
    OP_DTYPE,
    PHASE_TIME_DTYPE,
    BufferSpec,
    CacheLayerSpec,
    Engine,
    EngineConfig,
    EngineInfo,
    Matrix,
    NativeModel,
)
from edgellm._native.library import available, ffi, lib, library_path, why_not
from edgellm._native.machine import (
    Cores,
    cores,
    default_threads,
    isa_levels,
    probe_bandwidth,
    probe_bandwidths,
    probe_far,
    probe_int8,
    probe_matmul,
    usable_level,
)
from edgellm._native.tiles import TILE_ROWS, pack_tiles, room_for_tiles, tile_bytes, tile_layout

__all__ = [
    "OP_DTYPE",
    "PHASE_TIME_DTYPE",
    "TILE_ROWS",
    "BufferSpec",
    "CacheLayerSpec",
    "Cores",
    "Engine",
    "EngineConfig",
    "EngineInfo",
    "Matrix",
    "NativeModel",
    "available",
    "cores",
    "default_threads",
    "ffi",
    "isa_levels",
    "lib",
    "library_path",
    "pack_tiles",
    "probe_bandwidth",
    "probe_bandwidths",
    "probe_far",
    "probe_int8",
    "probe_matmul",
    "room_for_tiles",
    "tile_bytes",
    "tile_layout",
    "usable_level",
    "why_not",
]

"""What the native library says about this machine: ISA levels, threads, measured rates."""

from __future__ import annotations

from functools import cache

import numpy as np

from edgellm._native.handles import OP_DTYPE, BufferSpec, Engine, EngineConfig, NativeModel
from edgellm._native.library import ffi, lib, library_path
from edgellm.core import env
from edgellm.core.errors import ConfigError


def isa_levels() -> list[tuple[str, bool, str]]:
    """(name, usable, why not) of every level in the library, ascending; why not is "" for usable ones."""
    library = lib()
    levels: list[tuple[str, bool, str]] = []
    usable, why = ffi.new("int32_t *"), ffi.new("const char **")
    while (name := library.el_isa_level(len(levels), usable, why)) != ffi.NULL:
        levels.append((ffi.string(name).decode(), bool(usable[0]), ffi.string(why[0]).decode()))
    return levels


def default_threads() -> int:
    """Threads an engine starts when asked for 0: performance cores within the affinity mask and the CPU quota."""
    return _default_threads(str(library_path()))


@cache
def _default_threads(path: str) -> int:
    ops = np.zeros(1, OP_DTYPE)  # y = 1 * y on one logit: the smallest plan
    ops["code"], ops["v"], ops["w"], ops["f"] = 9, (0, 0, 1), -1, 1
    model = NativeModel(ops, [BufferSpec(1, 1)], [], [], [], [], n_classes=0, n_act_slots=0, n_vocab=1, logits=0)
    engine = Engine(model, EngineConfig(max_tokens=1, max_rows=1, max_seqs=1, n_ctx=1, n_pages=()))
    engine.close()
    return engine.info.n_threads


def probe_bandwidth(n_threads: int = 0, n_bytes: int = 256 << 20) -> float:
    """Bytes/s that n threads (0: automatic) read from a buffer of n_bytes; 0.0 when memory is short."""
    return float(lib().el_probe_bandwidth(n_threads, n_bytes))


def probe_int8(n_threads: int = 0) -> float:
    """int8 multiply-adds/s of n threads (0: automatic): the best level's instruction on registers, nothing else."""
    return float(lib().el_probe_int8(n_threads))


def usable_level(cap: str | None = None) -> str:
    """The best level this machine can run that is not above `cap` (None: no cap). ConfigError for a foreign name."""
    levels = isa_levels()
    names = [name for name, _, _ in levels]
    if cap is None:
        cap = names[-1]
    order = list(env.ISA_LEVELS)
    foreign = cap.startswith("neon") != any(name.startswith("neon") for name in names)
    if cap not in order or (cap != "scalar" and foreign):
        raise ConfigError(f"instruction set level {cap!r} is not one of this platform's: {', '.join(names)}")
    return [name for name, usable, _ in levels if usable and order.index(name) <= order.index(cap)][-1]

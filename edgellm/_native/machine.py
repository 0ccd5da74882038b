"""What the native library says about this machine: ISA levels, threads, measured rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgellm._native.library import ffi, lib
from edgellm.core import env
from edgellm.core.errors import ConfigError, NativeError


def isa_levels() -> list[tuple[str, bool, str]]:
    """(name, usable, why not) of every level in the library, ascending; why not is "" for usable ones."""
    library = lib()
    levels: list[tuple[str, bool, str]] = []
    usable, why = ffi.new("int32_t *"), ffi.new("const char **")
    while (name := library.el_isa_level(len(levels), usable, why)) != ffi.NULL:
        levels.append((ffi.string(name).decode(), bool(usable[0]), ffi.string(why[0]).decode()))
    return levels


class Cores(NamedTuple):
    """What the number of threads is chosen from (el_cores).

    allowed: logical processors in the affinity mask. fast: those of them on cores of the fastest kind. cores: the cores
    that these are on. threads: the choice. quota: processors that the control group may use at a time, 0.0: no limit.
    """

    allowed: int
    fast: int
    cores: int
    threads: int
    quota: float


def cores() -> Cores:
    """The processors of this machine, and the threads that an engine starts when asked for 0."""
    found = ffi.new("el_cores *")
    lib().el_find_cores(found)
    return Cores(found.n_allowed, found.n_fast, found.n_cores, found.n_threads, found.quota)


def default_threads() -> int:
    """Threads an engine starts when asked for 0: performance cores within the affinity mask and the CPU quota."""
    return cores().threads


def probe_bandwidth(n_threads: int = 0, n_bytes: int = 256 << 20) -> float:
    """Bytes/s that n threads (0: automatic) read from a buffer of n_bytes; 0.0 when memory is short."""
    return float(lib().el_probe_bandwidth(n_threads, n_bytes))


def probe_bandwidths(n_threads: Sequence[int], n_bytes: int = 256 << 20) -> list[float]:
    """Bytes/s for each of these numbers of threads, ascending. Raises NativeError where it cannot be measured."""
    rates = ffi.new("double[]", len(n_threads))
    code = lib().el_probe_bandwidths(ffi.new("int32_t[]", list(n_threads)), len(n_threads), n_bytes, rates)
    if code:
        raise NativeError(f"how fast {list(n_threads)} threads read {n_bytes} bytes cannot be measured", code)
    return [float(rate) for rate in rates]


def probe_int8(n_threads: int = 0, isa: str | None = None) -> float:
    """int8 multiply-adds/s of n threads (0: automatic): the instruction of a level (None: the best) on registers,
    nothing else."""
    return float(lib().el_probe_int8(n_threads, ffi.NULL if isa is None else isa.encode()))


def probe_matmul(qtype: int, isa: str | None = None) -> float:
    """Bytes/s of panels of a weight type in the cache that one thread multiplies with one token's activations; 0.0 for
    a type without kernels."""
    return float(lib().el_probe_matmul(qtype, ffi.NULL if isa is None else isa.encode()))


def probe_far(qtypes: Sequence[int], isa: str, n_threads: int = 0, n_bytes: int = 128 << 20) -> list[float]:
    """How many times as fast n threads (0: automatic) read each of these weight types where kernels prefetch further
    ahead; 0.0 for types of which the level has no such kernels. Raises NativeError where it cannot be measured."""
    gains = ffi.new("double[]", len(qtypes))
    code = lib().el_probe_far(n_threads, isa.encode(), n_bytes, ffi.new("int32_t[]", list(qtypes)), len(qtypes), gains)
    if code:
        raise NativeError(f"prefetching for weight types {list(qtypes)} cannot be measured", code)
    return [float(gain) for gain in gains]


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

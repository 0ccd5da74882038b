"""How many threads decode, and how far ahead they prefetch: measured once on a machine. Results never depend on it.

A decode step reads every weight once, so it ends when the memory has delivered them or the threads have multiplied
them, whichever is later. More threads than saturate the memory only have to be waited for. What decides is measured in
a fraction of a second when a model is first opened, and kept in the cache directory: bytes/s that n threads read
together, and bytes/s that a thread multiplies of each weight type. Steps of many tokens use all threads. Where there
are no more than two, nothing is measured: both are used.

Processors differ, too, in how far ahead of a stream of weights a prefetch should be. At the levels of FAR_LEVELS there
are two distances for one token; each weight type takes the far one where that was clearly faster here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgellm import _native
from edgellm.core import env
from edgellm.core.errors import ConfigError, NativeError
from edgellm.core.record import dataclass, field, replace
from edgellm.core.version import __version__

log = logging.getLogger(__name__)

FORMAT = 2
FEWEST = 3
"""Threads from which on there is something to choose."""
PROBE_BYTES = 128 << 20
TOLERANCE = 1.03
"""A step of fewer threads may take this much longer than the quickest."""
FAR_LEVELS = ("avx2", "avx_vnni")
GAIN = 1.03
"""From here on the far distance is taken: two measurements of the same differ by less on an idle machine."""
LEAST_BYTES = 64 << 20
"""Models of less stay in the caches, and start at once: they are not worth a measurement of the distance."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a machine can do. bandwidth: bytes/s by number of threads. rates: bytes/s of a thread by weight type.
    gains: how many times as fast a type is read with the far distance, 0.0 where it has none."""

    bandwidth: dict[int, float]
    rates: dict[int, float]
    gains: dict[int, float] = field(default_factory=dict)


class Choice(NamedTuple):
    """Threads of decode steps, and the milliseconds a step is expected to take by number of threads."""

    threads: int
    ms: dict[int, float]


def candidates(n: int) -> list[int]:
    """Numbers of threads to measure where there are n, ascending."""
    return sorted({max(2, n * eighths // 8) for eighths in (1, 2, 3, 4, 6, 8)})


def choose(measured: Measured, bytes_of: Mapping[int, int]) -> Choice:
    """The fewest threads that come close to the quickest step, for a model that reads so many bytes of each type."""
    seconds = {}
    for n, bandwidth in measured.bandwidth.items():
        seconds[n] = sum(b / min(bandwidth, n * measured.rates.get(t, bandwidth)) for t, b in bytes_of.items())
    best = min(seconds.values())
    fewest = min(n for n, s in seconds.items() if s <= TOLERANCE * best)
    return Choice(fewest, {n: 1e3 * s for n, s in sorted(seconds.items())})


def decode_threads(bytes_of: Mapping[int, int], level: str) -> int:
    """Threads of decode steps for a model with so many bytes of each weight type, at a level; 0: all."""
    cores = _native.cores()
    if cores.threads < FEWEST:
        return 0
    try:
        return choose(obtain(cores, level, sorted(bytes_of)), bytes_of).threads
    except NativeError as e:
        log.info("all %d threads decode: %s", cores.threads, e)
        return 0


def far_types(bytes_of: Mapping[int, int], level: str) -> list[int]:
    """The weight types to read with the far distance, for a model with so many bytes of each, at a level."""
    if level not in FAR_LEVELS or sum(bytes_of.values()) < LEAST_BYTES:
        return []
    try:
        gains = obtain_gains(_native.cores(), level, sorted(bytes_of)).gains
    except NativeError as e:
        log.info("prefetching as far ahead as on most machines: %s", e)
        return []
    return [t for t in sorted(bytes_of) if gains[t] >= GAIN]


def obtain(cores: _native.Cores, level: str, types: Sequence[int]) -> Measured:
    """What this machine can do: from the cache directory, as far as it is there, else measured and put there.
    NativeError where it cannot be measured."""
    key = machine_key(cores, level)
    known = load(key) or Measured({}, {})
    missing = [t for t in types if t not in known.rates]
    if known.bandwidth and not missing:
        return known
    bandwidth = known.bandwidth
    if not bandwidth:
        numbers = candidates(cores.threads)
        bandwidth = dict(zip(numbers, _native.probe_bandwidths(numbers, PROBE_BYTES), strict=True))
    rates = {**known.rates, **{t: _native.probe_matmul(t, level) for t in missing}}
    measured = replace(known, bandwidth=bandwidth, rates={t: rate for t, rate in rates.items() if rate > 0})
    save(key, measured)
    return measured


def obtain_gains(cores: _native.Cores, level: str, types: Sequence[int]) -> Measured:
    """The same for the gains of these types. NativeError where they cannot be measured."""
    key = machine_key(cores, level)
    known = load(key) or Measured({}, {})
    missing = [t for t in types if t not in known.gains]
    if missing:
        gains = _native.probe_far(missing, level, cores.threads, PROBE_BYTES)
        known = replace(known, gains={**known.gains, **dict(zip(missing, gains, strict=True))})
        save(key, known)
    return known


def machine_key(cores: _native.Cores, level: str) -> list[Any]:
    """What a measurement belongs to: the processor, what of it may be used, the level, and the library."""
    library = os.stat(_native.library_path())
    return [_processor(), *cores, level, __version__, library.st_size, library.st_mtime_ns]


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    return ""


def path() -> Path:
    """Where measurements are kept. ConfigError where there is no cache directory."""
    return env.CACHE.get() / "tuning.json"


def load(key: list[Any]) -> Measured | None:
    """What was measured for this key; None where nothing was, or the file is something else."""
    try:
        with open(path(), encoding="utf-8") as file:
            found = json.loads(file.read(1 << 20))
        if found["format"] != FORMAT or found["machine"] != key:
            return None
        bandwidth = {int(n): float(rate) for n, rate in found["bandwidth"].items()}
        rates = {int(t): float(rate) for t, rate in found["rates"].items()}
        gains = {int(t): float(gain) for t, gain in found["gains"].items()}
    except (OSError, ConfigError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if bandwidth and sorted(bandwidth) != candidates(key[4]):
        return None
    if not all(0 < x < 1e15 for x in (*bandwidth.values(), *rates.values())):
        return None
    return Measured(bandwidth, rates, gains) if all(0 <= x < 1e3 for x in gains.values()) else None


def save(key: list[Any], measured: Measured) -> None:
    """Keep it for the next start, whole or not at all. Where that is not possible it will be measured again."""
    found = {"format": FORMAT, "machine": key}
    found |= {"bandwidth": measured.bandwidth, "rates": measured.rates, "gains": measured.gains}
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        fd, part = tempfile.mkstemp(dir=path().parent, prefix="tuning-", suffix=".part")
        try:
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(found, file)
            os.replace(part, path())
        except BaseException:
            os.unlink(part)
            raise
    except (OSError, ConfigError) as e:
        log.info("what was measured of this machine cannot be kept: %s", e)

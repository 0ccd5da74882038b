"""How many threads decode: measured once on a machine, chosen for every model. Results never depend on it.

A decode step reads every weight once, so it ends when the memory has delivered them or the threads have multiplied
them, whichever is later. More threads than saturate the memory only have to be waited for. What decides is measured in
a fraction of a second when a model is first opened, and kept in the cache directory: bytes/s that n threads read
together, and bytes/s that a thread multiplies of each weight type. Steps of many tokens use all threads. Where there
are no more than two, nothing is measured: both are used.
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
from edgellm.core.record import dataclass
from edgellm.core.version import __version__

log = logging.getLogger(__name__)

FORMAT = 1
FEWEST = 3
"""Threads from which on there is something to choose."""
PROBE_BYTES = 128 << 20
TOLERANCE = 1.03
"""A step of fewer threads may take this much longer than the quickest."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a machine can do. bandwidth: bytes/s by number of threads. rates: bytes/s of a thread by weight type."""

    bandwidth: dict[int, float]
    rates: dict[int, float]


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
    measured = Measured(bandwidth, {t: rate for t, rate in rates.items() if rate > 0})
    save(key, measured)
    return measured


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
    except (OSError, ConfigError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if sorted(bandwidth) != candidates(key[4]) or not all(0 < x < 1e15 for x in (*bandwidth.values(), *rates.values())):
        return None
    return Measured(bandwidth, rates)


def save(key: list[Any], measured: Measured) -> None:
    """Keep it for the next start, whole or not at all. Where that is not possible it will be measured again."""
    found = {"format": FORMAT, "machine": key, "bandwidth": measured.bandwidth, "rates": measured.rates}
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

"""What the phases of a step take: measured when asked for, and without an effect on results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgellm import _native
from edgellm._native import Engine
from edgellm.backends.lower import ACT_FORMATS
from edgellm.backends.native.tuning import FAR_LEVELS
from edgellm.core.errors import NativeError
from edgellm.core.types import Batch
from edgellm.engine.selftest import write_model


def test_times_of_phases(engine: Engine, make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(([1, 2, 3], 0, [0]), rows=[2])
    plain = engine.step(batch).logits
    times = engine.time_phases()
    assert not times["n_runs"].any()
    for _ in range(3):
        timed = engine.step(batch).logits
    assert np.array_equal(plain, timed)
    assert (times["n_runs"] == 3).all()
    assert (times["wall"] >= 0).all()
    assert times["wall"].sum() > 0
    assert (times["busy"] <= times["wall"] * engine.info.n_threads).all()
    assert times["busy"].sum() > 0
    ends = times["first_op"] + times["n_ops"]
    assert (ends[:-1] == times["first_op"][1:]).all()  # every op belongs to one phase
    assert (times["first_op"][0], times["n_ops"][-1]) == (0, 0)

    before = times.copy()
    assert len(engine.time_phases(False)) == 0
    engine.step(batch)
    assert np.array_equal(before, times)


def test_the_number_of_phases_is_checked(engine: Engine) -> None:
    lib, err = _native.lib(), _native.ffi.new("el_error *")
    times = _native.ffi.new("el_phase_time[2]")
    assert lib.el_time_phases(engine._pointer, times, 2, err) == 1
    assert b"times has 2 entries, expected" in _native.ffi.string(err.message)
    assert lib.el_time_phases(_native.ffi.NULL, times, 2, err) == 1
    assert lib.el_n_phases(_native.ffi.NULL) == 0


def test_the_script(tmp_path: Path, repository: Path) -> None:
    if not _native.available():
        pytest.skip(_native.why_not())
    model = write_model(tmp_path / "model.gguf")
    command = [sys.executable, str(repository / "scripts" / "profile_step.py"), str(model), "-t", "2"]
    done = subprocess.run([*command, "--tests", "tg3@d40,pp8", "--json"], capture_output=True, text=True, check=True)
    decode, prefill = json.loads(done.stdout)
    assert (decode["test"], prefill["test"]) == ("tg3@d40", "pp8")
    for result, tokens in ((decode, 1), (prefill, 8)):
        found = {line["what"]: line for line in result["phases"]}
        assert sum(line["ms"] for line in result["phases"]) <= result["ms"]
        assert all(0 <= line["busy"] <= 1 for line in result["phases"])
        assert (found["attention"]["phases"], found["selection"]["phases"]) == (4, 1)
        assert found["output Q4_1"]["macs"] == 250 * 256
        of_layer = (128 + 64 + 64 + 128 + 3 * 256) * 256
        assert sum(line["macs"] for line in result["phases"]) == tokens * 4 * of_layer + 250 * 256
    done = subprocess.run([*command, "--tests", "tg2"], capture_output=True, text=True, check=True)
    assert "| outside of phases" in done.stdout


def test_levels_with_two_distances_of_prefetching() -> None:
    if not _native.available():
        pytest.skip(_native.why_not())
    for name in [name for name, usable, _ in _native.isa_levels() if usable]:
        q4_k, f32, none = _native.probe_far([12, 0, 63], name, 2, 1 << 20)
        assert (q4_k > 0) == (name in FAR_LEVELS)
        assert f32 == none == 0.0
    for level, n_bytes in (("avx2048", 1 << 20), ("scalar", 1)):
        with pytest.raises(NativeError, match="cannot be measured"):
            _native.probe_far([12], level, 1, n_bytes)


def test_probes() -> None:
    if not _native.available():
        pytest.skip(_native.why_not())
    rates = _native.probe_bandwidths([1, 2, 3], 8 << 20)
    assert len(rates) == 3
    assert all(1e7 < rate < 1e13 for rate in rates)
    assert _native.probe_bandwidth(2, 1 << 20) > 1e7
    levels = [name for name, usable, _ in _native.isa_levels() if usable]
    assert all(1e7 < _native.probe_int8(1, level) < 1e15 for level in levels)
    assert _native.probe_int8(1, "no-such-level") == 0
    assert all(_native.probe_matmul(qtype, levels[-1]) > 1e6 for qtype in ACT_FORMATS)
    assert _native.probe_matmul(63) == _native.probe_matmul(-1) == 0
    for n_threads, n_bytes in (([-1], 1 << 20), ([1], 100), ([1 << 20], 1 << 20)):
        with pytest.raises(NativeError, match="cannot be measured"):
            _native.probe_bandwidths(n_threads, n_bytes)

"""`edgellm doctor`: what it reports, with and without a native library."""

from __future__ import annotations

import json
from typing import Any

import psutil
import pytest
from unit.cli.conftest import CLI

from edgellm import _native
from edgellm._native import machine as native_machine
from edgellm.backends import select
from edgellm.cli import doctor
from edgellm.core.version import NUMERICS_VERSION, __version__
from edgellm.engine.selftest import Check


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A native library with two levels of three, eight threads, and known rates."""
    levels = [("scalar", True, ""), ("avx2", True, ""), ("avx512_vnni", False, "no AVX-512 here")]
    fakes: dict[str, Any] = {
        "available": lambda: True,
        "why_not": lambda: "",
        "isa_levels": lambda: levels,
        "cores": lambda: _native.Cores(16, 16, 8, 8, 0.0),
        "probe_bandwidth": lambda n: 1e9 * n,
        "probe_bandwidths": lambda numbers, n_bytes: [1e9 * min(n, 5) for n in numbers],
        "probe_matmul": lambda qtype, level: 20e9,
        "probe_far": lambda types, level, n_threads, n_bytes: [1.234, 0.987],
        "probe_int8": lambda n, level: {"avx2": 2e9, "scalar": 1e9}[level] * n,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(_native, name, fake)
    monkeypatch.setattr(native_machine, "isa_levels", lambda: levels)  # what usable_level looks at
    memory = psutil.virtual_memory()._replace(total=16 << 30, available=8 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    return monkeypatch


def test_for_people(cli: CLI, machine: pytest.MonkeyPatch) -> None:
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    assert f"{__version__} (numerics {NUMERICS_VERSION})" in out
    assert "level      avx2 (the best of this machine)" in out
    assert "not avx512_vnni: no AVX-512 here" in out
    assert "threads    8: one on each of 8 cores" in out
    assert "16 in the affinity mask, no CPU quota)" in out
    assert (
        "6 to decode (Q4_K_M), where memory saturates; GB/s by threads: 2: 2.0, 3: 3.0, 4: 4.0, 6: 5.0, 8: 5.0" in out
    )
    assert "prefetch   far ahead for Q4_K (times as fast with the far distance: Q4_K 1.23, Q6_K 0.99); sizes of" in out
    assert "8.0 GB/s read, 16 G int8 multiply-adds/s" in out
    assert "advice     a model of 1B in Q5_K_M (0.9 GB), a context of 32768, about 8.1 tokens/s" in out
    assert "fits at most: 8B in Q4_K_M (5.0 GB), a context of" in out
    assert "are repacked for speed" in out


def test_for_machines(cli: CLI, machine: pytest.MonkeyPatch) -> None:
    code, out, _ = cli("doctor", "--json", "--no-measure")
    r = json.loads(out)
    assert (code, r["isa"], r["n_threads"], r["native"]) == (0, "avx2", 8, True)
    assert [level["name"] for level in r["isa_levels"]] == ["scalar", "avx2", "avx512_vnni"]
    assert "bandwidth" not in r
    assert list(json.loads(cli("doctor", "--json").out)) == list(doctor.JSON)
    assert 0 < r["largest_model_tiles"] < r["memory_available"] <= r["memory_total"]


def test_settings_are_shown_and_obeyed_but_secrets_are_not(cli: CLI, machine: pytest.MonkeyPatch) -> None:
    machine.setenv("EDGELLM_THREADS", "3")
    machine.setenv("EDGELLM_ISA", "scalar")
    machine.setenv("HF_TOKEN", "very-secret")
    code, out, _ = cli("doctor")
    assert code == 0
    assert "threads    3: set by EDGELLM_THREADS; 8 by default: one on each of 8 cores" in out
    assert "to decode" not in out
    assert "level      scalar (capped by EDGELLM_ISA=scalar)" in out
    assert "3.0 GB/s read, 3 G int8" in out
    assert "setting    EDGELLM_THREADS=3" in out
    assert "prefetch   one distance: a constant of the level's kernels" in out
    assert "very-secret" not in out


def test_why_so_many_threads(cli: CLI, machine: pytest.MonkeyPatch) -> None:
    machine.setattr(_native, "cores", lambda: _native.Cores(20, 16, 8, 2, 2.5))
    out = cli("doctor").out
    assert "threads    2: the CPU quota of the control group is 2.5 processors" in out
    assert "20 in the affinity mask, 16 of these on performance cores, CPU quota 2.5)" in out
    assert "all of them to decode, too" in out
    r = json.loads(cli("doctor", "--json").out)
    assert r["cores"] == {"allowed": 20, "fast": 16, "cores": 8, "quota": 2.5}
    assert (r["default_threads"], r["tuning"]) == (2, None)


def test_a_level_above_the_machine_is_a_cap(cli: CLI, machine: pytest.MonkeyPatch) -> None:
    machine.setenv("EDGELLM_ISA", "avx512_vnni")
    code, out, _ = cli("doctor", "--no-measure")
    assert code == 0
    assert "avx2 (capped by EDGELLM_ISA=avx512_vnni)" in out


def test_a_level_that_is_not_there(cli: CLI, machine: pytest.MonkeyPatch) -> None:
    machine.setenv("EDGELLM_ISA", "neon")
    code, out, _ = cli("doctor", "--no-measure")
    assert code == 1
    assert "none: EDGELLM_ISA asks for neon" in out
    machine.setenv("EDGELLM_ISA", "mmx")
    code, out, err = cli("doctor", "--no-measure")
    assert code == 2
    assert "EDGELLM_ISA is set to 'mmx'" in err


def test_without_a_native_library(cli: CLI, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("EDGELLM_LIBRARY", str(tmp_path / "nothing.so"))
    code, out, _ = cli("doctor")
    assert code == 1
    assert f"not usable: there is no native library at {tmp_path / 'nothing.so'}" in out
    r = json.loads(cli("doctor", "--json").out)
    assert (r["native"], r["isa"]) == (False, None)


def test_the_real_one(cli: CLI) -> None:
    if not _native.available():
        pytest.skip(_native.why_not())
    r = doctor.collect(measure=True)
    assert r["isa"] in [level["name"] for level in r["isa_levels"] if level["usable"]]
    assert 1 <= r["n_threads"] <= r["logical_cpus"]
    assert 1e8 < r["bandwidth"] < 1e13
    assert 1e8 < r["int8_rate"] < 1e15


def test_selftest_without_a_native_library(cli: CLI, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("EDGELLM_LIBRARY", str(tmp_path / "nothing.so"))
    monkeypatch.setattr(select, "numba_why_not", lambda: "no module named numba")
    r = cli("doctor", "--selftest", "--json")
    assert (r.code, json.loads(r.out)["selftest"], json.loads(r.out)["backend"]) == (1, [], "reference")
    assert 'backend    NumPy alone, very slowly; faster: pip install "edgellm[numba]"' in cli("doctor").out


def test_selftest_of_numba_where_it_stands_in(cli: CLI, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("EDGELLM_LIBRARY", str(tmp_path / "nothing.so"))
    monkeypatch.setattr(select, "numba_why_not", lambda: "")
    monkeypatch.setattr(doctor, "check", lambda backend: Check(backend, "", "ab", True, 0.1, ""))
    out = cli("doctor", "--selftest").out
    assert "backend    Numba\n" in out
    assert "selftest   numba: as published\n" in out

"""How many threads decode: the choice from faked measurements, and what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgellm import _native
from edgellm.backends.native import tuning
from edgellm.backends.native.tuning import Measured, candidates, choose
from edgellm.core.errors import NativeError
from edgellm.gguf.qtypes import QType

Q4_K_M = {int(QType.Q4_K): 700, int(QType.Q6_K): 300}


def machine(cores: int, per_thread: float, most: float, rate: float) -> Measured:
    """`cores` threads that read per_thread GB/s each, all together not above `most`, and multiply `rate` GB/s each."""
    bandwidth = {n: 1e9 * min(n * per_thread, most) for n in candidates(cores)}
    return Measured(bandwidth, dict.fromkeys(Q4_K_M, 1e9 * rate))


@pytest.mark.parametrize(
    ("cores", "per_thread", "most", "rate", "expected"),
    [
        (8, 12, 44, 25, 4),  # a desktop: two channels saturate at four threads
        (8, 12, 1000, 25, 8),  # never saturates
        (8, 12, 44, 6, 8),  # a type that takes so long to multiply that all are needed
        (8, 40, 44, 25, 2),  # one thread nearly saturates
        (16, 14, 80, 30, 6),
        (16, 14, 180, 30, 16),
        (32, 11, 200, 30, 24),
        (32, 11, 120, 30, 12),
        (32, 11, 120, 4, 32),
    ],
)
def test_the_choice(cores: int, per_thread: float, most: float, rate: float, expected: int) -> None:
    choice = choose(machine(cores, per_thread, most, rate), Q4_K_M)
    assert choice.threads == expected
    assert list(choice.ms) == candidates(cores)
    assert choice.ms[expected] <= tuning.TOLERANCE * min(choice.ms.values())


def test_threads_that_hurt_are_left_out() -> None:
    """More threads than the memory likes: the fewest of the best."""
    assert choose(Measured({2: 20e9, 4: 40e9, 6: 38e9, 8: 30e9}, {12: 50e9}), {12: 100}).threads == 4


def test_a_type_without_a_rate_is_read_at_the_memory_s() -> None:
    assert choose(Measured({2: 20e9, 4: 40e9, 8: 41e9}, {}), {12: 100}).threads == 4


def test_candidates() -> None:
    assert candidates(3) == [2, 3]
    assert candidates(8) == [2, 3, 4, 6, 8]
    assert candidates(16) == [2, 4, 6, 8, 12, 16]
    assert all(candidates(n)[-1] == n and len(candidates(n)) <= 6 for n in range(3, 1025))


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Eight cores that saturate at four threads; what was measured is counted."""
    asked: list[Any] = []

    def bandwidths(numbers: list[int], n_bytes: int) -> list[float]:
        asked.append(numbers)
        return [1e9 * min(12 * n, 44) for n in numbers]

    def matmul(qtype: int, level: str) -> float:
        asked.append((qtype, level))
        return 25e9

    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_native, "cores", lambda: _native.Cores(8, 8, 8, 8, 0.0))
    monkeypatch.setattr(_native, "probe_bandwidths", bandwidths)
    monkeypatch.setattr(_native, "probe_matmul", matmul)
    return asked


def test_measured_once(probes: list[Any]) -> None:
    assert tuning.decode_threads(Q4_K_M, "avx2") == 4
    assert probes == [[2, 3, 4, 6, 8], (12, "avx2"), (14, "avx2")]
    assert tuning.decode_threads(Q4_K_M, "avx2") == 4
    assert len(probes) == 3
    assert tuning.decode_threads({8: 10, 12: 5}, "avx2") == 4  # a type that was not measured yet
    assert probes[3:] == [(8, "avx2")]
    assert [p.name for p in tuning.path().parent.iterdir()] == ["tuning.json"]


def test_another_machine_level_or_library_is_measured_anew(probes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.decode_threads(Q4_K_M, "avx2")
    changes: list[tuple[Any, str, Any]] = [
        (_native, "cores", lambda: _native.Cores(16, 16, 8, 8, 0.0)),
        (tuning, "_processor", lambda: "another"),
        (tuning, "__version__", "0.0.0"),
        (tuning, "FORMAT", 99),
    ]
    for where, name, value in changes:
        n = len(probes)
        monkeypatch.setattr(where, name, value)
        tuning.decode_threads(Q4_K_M, "avx2")
        assert len(probes) == n + 3, name
    tuning.decode_threads(Q4_K_M, "scalar")
    assert len(probes) == n + 6


@pytest.mark.parametrize(
    "change",
    [
        lambda f: "",
        lambda f: "[]",
        lambda f: "[" * 100_000,
        lambda f: json.dumps({**f, "bandwidth": {"8": 1e9}}),
        lambda f: json.dumps({**f, "bandwidth": {**f["bandwidth"], "8": -1}}),
        lambda f: json.dumps({**f, "rates": {"12": float("nan")}}),
        lambda f: json.dumps({**f, "rates": [1, 2]}),
        lambda f: json.dumps({k: v for k, v in f.items() if k != "machine"}),
    ],
)
def test_a_file_that_is_something_else_is_measured_anew(probes: list[Any], change: Any) -> None:
    tuning.decode_threads(Q4_K_M, "avx2")
    good = json.loads(tuning.path().read_text())
    tuning.path().write_text(change(good))
    assert tuning.decode_threads(Q4_K_M, "avx2") == 4
    assert len(probes) == 6
    assert json.loads(tuning.path().read_text()) == good


def test_where_nothing_can_be_kept_it_is_measured_each_time(probes: list[Any]) -> None:
    tuning.path().parent.parent.mkdir(exist_ok=True)
    tuning.path().parent.write_text("a file where the folder should be")
    assert tuning.decode_threads(Q4_K_M, "avx2") == tuning.decode_threads(Q4_K_M, "avx2") == 4
    assert len(probes) == 6


MODEL = {int(QType.Q4_K): 700 << 20, int(QType.Q6_K): 300 << 20}


@pytest.fixture
def gains(probes: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Q4_K is read a fifth faster with the far distance, Q6_K a little, Q8_0 more slowly; what was measured."""
    asked: list[Any] = []

    def far(types: list[int], level: str, n_threads: int, n_bytes: int) -> list[float]:
        asked.append((types, level, n_threads))
        return [{12: 1.2, 14: 1.02, 8: 0.8, 0: 0.0}[t] for t in types]

    monkeypatch.setattr(_native, "probe_far", far)
    return asked


def test_the_distance_of_prefetches_is_measured_once_by_type(gains: list[Any], probes: list[Any]) -> None:
    assert tuning.far_types(MODEL, "avx2") == [12]
    assert gains == [([12, 14], "avx2", 8)]
    assert tuning.decode_threads(MODEL, "avx2") == 4, "the two are kept side by side"
    assert tuning.far_types({**MODEL, 8: 1, 0: 1}, "avx2") == [12]
    assert gains[1:] == [([0, 8], "avx2", 8)]
    assert tuning.decode_threads(MODEL, "avx2") == 4
    assert len(probes) == 3
    assert tuning.far_types({**MODEL, 8: 1, 0: 1}, "avx2") == [12]
    assert len(gains) == 2


def test_the_distance_is_not_measured_where_there_is_no_choice_or_no_need(gains: list[Any]) -> None:
    assert tuning.far_types(MODEL, "avx512_vnni") == tuning.far_types(MODEL, "scalar") == []
    assert tuning.far_types(Q4_K_M, "avx2") == [], "a model that stays in the caches"
    assert not gains


def test_where_the_distance_cannot_be_measured_it_is_the_near_one(
    gains: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> list[float]:
        raise NativeError("no memory")

    monkeypatch.setattr(_native, "probe_far", fail)
    assert tuning.far_types(MODEL, "avx2") == []
    assert not tuning.path().exists()


@pytest.mark.parametrize("value", [-1, float("nan"), 1e9, "x", None])
def test_gains_that_are_none_are_measured_anew(gains: list[Any], value: Any) -> None:
    tuning.far_types(MODEL, "avx2")
    good = json.loads(tuning.path().read_text())
    tuning.path().write_text(json.dumps({**good, "gains": {"12": value, "14": 1}}))
    assert tuning.far_types(MODEL, "avx2") == [12]
    assert len(gains) == 2
    assert json.loads(tuning.path().read_text()) == good


def test_with_two_threads_nothing_is_measured(probes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "cores", lambda: _native.Cores(2, 2, 2, 2, 0.0))
    assert tuning.decode_threads(Q4_K_M, "avx2") == 0
    assert not probes
    assert not tuning.path().exists()


def test_where_it_cannot_be_measured_all_decode(probes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(numbers: list[int], n_bytes: int) -> list[float]:
        raise NativeError("no memory")

    monkeypatch.setattr(_native, "probe_bandwidths", fail)
    assert tuning.decode_threads(Q4_K_M, "avx2") == 0
    assert not tuning.path().exists()

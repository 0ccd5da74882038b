"""The rarer samplers against plain definitions of them, and known answers that must not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core.config import ResolvedParams, SamplingParams
from edgellm.core.errors import RequestError
from edgellm.sampling import chain
from edgellm.sampling.exp64 import exp_of, log64, pow64
from edgellm.sampling.rng import second_uniform, uniform
from edgellm.sampling.sampler import Sampler, rank_of

V = 300
ROW = (np.random.default_rng(5).standard_normal(V) * 3).astype(np.float32)
LOGS = [
    "0x1.62e42fefa39efp-1",
    "0x1.193ea7aad030bp+0",
    "-0x1.26bb1bbb55515p+1",
    "0x1.ad7f2847b6491p-24",
    "0x1.5963447f87fb5p+9",
]
POWERS = ["0x1.08819f76d9f8dp-3", "0x1.6a09e667f3bccp+0", "0x1.131703da7272ap-4"]
CASES = (
    ({"typical_p": 0.7}, [120, 182, 220, 146, 220, 220, 185, 185]),
    ({"xtc_probability": 0.5}, [138, 204, 185, 78, 185, 169, 105, 120]),
    ({"dynatemp_range": 0.4}, [130, 199, 185, 269, 185, 185, 105, 120]),
    ({"top_n_sigma": 1.5}, [13, 120, 185, 210, 185, 220, 58, 182]),
    ({"mirostat": 1}, [138, 56, 185, 204, 185, 185, 105, 120]),
    ({"mirostat": 2}, [111, 13, 185, 91, 185, 185, 146, 195]),
    (
        {"typical_p": 0.9, "xtc_probability": 0.3, "dynatemp_range": 0.7, "top_n_sigma": 2.0, "top_k": 50},
        [273, 195, 185, 108, 185, 182, 58, 182],
    ),
)
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
LOGITS = st.lists(st.floats(-30, 30, width=32) | st.just(-math.inf), min_size=1, max_size=60)


def resolved(**options: Any) -> ResolvedParams:
    return SamplingParams(**{**OFF, **options}).resolved({})


def sampler(n_vocab: int = V, seed: int = 1, **options: Any) -> Sampler:
    return Sampler(resolved(**options), seed, 0, n_vocab)


def draws(row: np.ndarray, n: int = 400, **options: Any) -> list[int]:
    s = sampler(len(row), **options)
    return [s.pick_from_row(row, i) for i in range(n)]


def softmax(x: Sequence[float]) -> list[float]:
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


# ---- arithmetic ----------------------------------------------------------------------------------------------------


@given(st.floats(1e-300, 1e300) | st.floats(0.5, 2.0))
def test_log64_is_log(x: float) -> None:
    assert log64(x) == pytest.approx(math.log(x), rel=1e-15, abs=1e-300)


@given(st.floats(0, 1e6), st.floats(-20, 20))
def test_pow64_is_pow(x: float, y: float) -> None:
    if x > 0 and abs(y * math.log(x)) < 690:
        assert pow64(x, y) == pytest.approx(x**y, rel=1e-12)


def test_ends_of_powers() -> None:
    assert (pow64(0.0, 2.0), pow64(0.0, 0.0), pow64(5.0, 0.0)) == (0.0, 1.0, 1.0)
    assert 1e300 < pow64(0.0, -1.0) < math.inf
    assert exp_of(1e9) == 1 / exp_of(-1e9) > 1e300


def test_log64_and_pow64_have_these_bits_everywhere() -> None:
    assert [log64(x).hex() for x in (2.0, 3.0, 0.1, 1.0000001, 1e300)] == LOGS
    assert [pow64(x, y).hex() for x, y in ((0.3, 1.7), (2.0, 0.5), (49152.0, -0.25))] == POWERS


@given(LOGITS, st.integers(1, 70))
def test_ranking_is_a_stable_sort(values: list[float], k: int) -> None:
    row = np.array([*values, 0.0, -0.0, 0.0], np.float32)
    ids, logits = chain.ranked(row, k)
    order = np.argsort(-row, kind="stable")
    order = order[row[order] > -np.inf][:k]
    assert ids.tolist() == order.tolist()
    assert logits.tolist() == row[order].tolist()


def test_ranking_a_row_without_a_choice() -> None:
    ids, logits = chain.ranked(np.full(5, -np.inf, np.float32), 3)
    assert (ids.tolist(), logits.tolist()) == ([0], [-math.inf])
    assert len(chain.ranked(ROW, 0)[0]) == 0


# ---- each sampler --------------------------------------------------------------------------------------------------


@given(LOGITS, st.floats(0, 1), st.sampled_from([1.0, 0.7]), st.sampled_from([0.0, 0.1]), st.integers(0, 9))
def test_the_long_chain_is_the_short_one_where_nothing_rare_is_on(
    values: list[float], u: float, top_p: float, min_p: float, n: int
) -> None:
    logits = np.sort(np.array(values, np.float32))[::-1]
    if logits[0] == -math.inf:
        return
    s = Sampler(resolved(top_p=top_p, min_p=min_p, temperature=0.8), 3, 0, len(logits))
    rank = chain.rank_in_chain(s.params, logits, uniform(3, 0, n), u)
    assert rank == rank_of(s.pick_for(n), logits)


@pytest.mark.parametrize("typical_p", [0.1, 0.3, 0.6, 0.9, 0.99])
def test_typical_keeps_what_is_nearest_the_entropy(typical_p: float) -> None:
    row = ROW[:40]
    p = softmax(row.tolist())
    entropy = -sum(v * math.log(v) for v in p)
    order, kept, total = sorted(range(40), key=lambda i: (abs(-math.log(p[i]) - entropy), -row[i])), set(), 0.0
    for i in order:
        kept.add(i)
        total += p[i]
        if total > typical_p:
            break
    seen = set(draws(row, 3000, typical_p=typical_p))
    assert seen <= kept
    assert {i for i in kept if p[i] / total > 0.02} <= seen


def test_typical_may_drop_the_likeliest() -> None:
    row = np.log(np.array([0.4] + [0.06] * 10, np.float32))
    assert 0 not in draws(row, 300, typical_p=0.5)
    assert draws(row, 20, typical_p=0.5, temperature=0.0) == [1] * 20  # and greedy takes the likeliest of the rest


def test_top_n_sigma_keeps_what_is_near_the_best() -> None:
    row = ROW.copy()
    row[7] = -np.inf
    there = row[row > -np.inf].astype(np.float64)
    for n in (0.3, 1.0, 2.0):
        kept = set(np.flatnonzero(row >= there.max() - n * there.std()).tolist())
        seen = set(draws(row, 2000, top_n_sigma=n, temperature=100.0))
        assert 1 < len(kept) < V
        assert seen == kept
    assert not sampler(top_n_sigma=1.0, temperature=0.0).needs_logits
    assert sampler(top_n_sigma=0.0).plain


def test_xtc_drops_all_top_choices_but_the_last() -> None:
    row = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))
    assert set(draws(row, 500, xtc_probability=1.0, xtc_threshold=0.14)) == {2, 3, 4}
    assert set(draws(row, 500, xtc_probability=1.0, xtc_threshold=0.35)) == {0, 1, 2, 3, 4}  # one alone stays
    assert set(draws(row, 500, xtc_probability=1.0, xtc_threshold=0.01)) == {4}
    assert sampler(xtc_probability=1.0, xtc_threshold=0.51).plain
    assert draws(row, 5, xtc_probability=1.0, xtc_threshold=0.2, temperature=0.0) == [1] * 5


def test_xtc_acts_as_often_as_it_should() -> None:
    row = np.log(np.array([0.6, 0.4], np.float32))
    got = draws(row, 4000, xtc_probability=0.25, xtc_threshold=0.1, temperature=0.01)
    assert sum(got) / 4000 == pytest.approx(0.25, abs=0.03)
    acts = [second_uniform(1, 0, i) < 0.25 for i in range(4000)]
    assert [t == 1 for t in got] == acts


@pytest.mark.parametrize(("range_", "exponent"), [(0.5, 1.0), (0.5, 2.5), (2.0, 0.5), (1.0, 0.0)])
def test_dynamic_temperature_follows_the_entropy(range_: float, exponent: float) -> None:
    x = sorted(ROW[:30].tolist(), reverse=True)
    p = softmax(x)
    normal = -sum(v * math.log(v) for v in p) / math.log(30)
    low, high = max(0.0, 0.9 - range_), 0.9 + range_
    temperature = low + (high - low) * normal**exponent
    options = {"dynatemp_range": range_, "dynatemp_exponent": exponent, "temperature": 0.9}
    same = sampler(30, temperature=temperature)
    s = sampler(30, **options)
    row = np.array(x, np.float32)
    assert [s.pick_from_row(row, i) for i in range(200)] == [same.pick_from_row(row, i) for i in range(200)]


def test_dynamic_temperature_down_to_greedy() -> None:
    row = np.array([50.0, 0.0, 0.0], np.float32)
    assert set(draws(row, 50, dynatemp_range=1.0, temperature=0.0)) == {0}
    flat = np.zeros(3, np.float32)
    assert set(draws(flat, 200, dynatemp_range=1.0, temperature=0.0)) == {0, 1, 2}


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_surprise(version: int) -> None:
    row = (np.random.default_rng(1).standard_normal(5000) * 2).astype(np.float32)
    p = np.array(softmax(row.tolist()))
    for tau in (3.0, 6.0):
        s = sampler(5000, mirostat=version, mirostat_tau=tau)
        got = [s.pick_from_row(row, i) for i in range(1500)]
        kept = p >= p[got].min()
        surprise = float(np.mean([-math.log2(p[t] / p[kept].sum()) for t in got[500:]]))
        assert surprise == pytest.approx(tau, abs=1.0)


def test_mirostat_2_by_hand() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32))
    s = sampler(5, mirostat=2, mirostat_tau=1.25, mirostat_eta=0.5)  # mu = 2.5: surprises 1 and 2 stay
    u = uniform(1, 0, 0)
    first = s.pick_from_row(row, 0)
    assert first == (0 if u < 2 / 3 else 1)
    surprise = -math.log2(2 / 3 if first == 0 else 1 / 3)
    assert s._mu == pytest.approx(2.5 - 0.5 * (surprise - 1.25), rel=1e-6)


def test_mirostat_1_by_hand() -> None:
    n, s_hat = 1000, 1.3
    x = np.array([-s_hat * math.log(i + 1) for i in range(n)])
    for mu in (2.0, 6.0, 9.0):
        eps = s_hat - 1
        k = ((eps * 2**mu) / (1 - n**-eps)) ** (1 / s_hat)
        assert abs(chain._mirostat_k(x, n, mu) - int(k)) <= 1
    assert chain._mirostat_k(np.zeros(10), 10, 5.0) == 10
    assert chain._mirostat_k(np.zeros(1), 1000, 5.0) == 1
    assert 1 <= chain._mirostat_k(-np.log(np.arange(1, 11)), 10, 2.0) <= 10


def test_mirostat_with_one_choice_or_none() -> None:
    row = np.full(1200, -np.inf, np.float32)
    row[77] = 1.0
    for version in (1, 2):
        assert draws(row, 5, mirostat=version) == [77] * 5
        assert draws(ROW, 3, mirostat=version, temperature=0.0) == [int(ROW.argmax())] * 3
        with pytest.raises(RequestError, match="bans every token"):
            draws(np.full(1200, -np.inf, np.float32), 1, mirostat=version)


def test_only_allowed_tokens_are_chosen() -> None:
    for options in ({}, {"temperature": 0.0}, {"mirostat": 2}, {"top_n_sigma": 5.0}, {"typical_p": 0.9}):
        assert set(draws(ROW, 100, allowed_token_ids=(3, 50, 7), **options)) <= {3, 7, 50}
    assert draws(ROW, 1, allowed_token_ids=(9,)) == [9]


@pytest.mark.parametrize(("options", "expected"), CASES, ids=[str(c[0]) for c in CASES])
def test_what_is_drawn_stays(options: dict[str, Any], expected: list[int]) -> None:
    """Known answers: a change here changes seeded texts, and bumps the numerics version."""
    assert draws(ROW, 8, temperature=1.5, **options) == expected

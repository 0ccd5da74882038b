"""Sampling: the order of the chain, ties, exact draws, independence of everything but (logits, seed, position)."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core.config import SamplingParams
from edgellm.core.errors import RequestError
from edgellm.sampling.exp64 import LEAST, exp64, exp_list
from edgellm.sampling.rng import philox, uniform
from edgellm.sampling.sampler import Sampler, _draw_few, _draw_many
from edgellm.sampling.stops import StopMatcher

DRAWS = [19, 50, 38, 24, 19, 62, 34, 24, 31, 19, 19, 50, 19, 38, 31, 48]
UNIFORMS = ["0x1.04859a46d3e78p-3", "0x1.3dddbc6a397c2p-1", "0x1.fe4e46c7e037cp-3"]


def ranked(logits: list[float]) -> tuple[np.ndarray, np.ndarray]:
    row = np.array(logits, np.float32)
    order = np.argsort(-row, kind="stable").astype(np.int32)
    return order, row[order]


def sampler(seed: int = 1, **kwargs: object) -> Sampler:
    base = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return Sampler(SamplingParams(**{**base, **kwargs}).resolved({}), seed, 0, 1000)  # type: ignore[arg-type]


def test_philox_known_answers() -> None:
    # Random123's known-answer vectors for philox4x32-10.
    assert philox(0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 2**64 - 1, 2**128 - 1
    assert philox(*ones) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


@given(st.floats(-700, 0))
def test_exp64_is_exp(x: float) -> None:
    assert exp64(np.array([x]))[0] == pytest.approx(math.exp(x), rel=1e-15)


def test_exp64_has_these_bits_everywhere() -> None:
    x = np.array([0.0, -0.5, -1.0, -math.pi, -10.0, -100.25, LEAST])
    assert [y.hex() for y in exp64(x).tolist()] == [
        "0x1.0000000000000p+0",
        "0x1.368b2fc6f960ap-1",
        "0x1.78b56362cef38p-2",
        "0x1.620227b598efap-5",
        "0x1.7cd79b5647c9ap-15",
        "0x1.4acd31e167ebbp-145",
        "0x1.14f2b0fb9307fp-1010",
    ]
    alone = [float(exp64(np.array([v]))[0]) for v in x]
    assert exp64(np.tile(x, 9)).tolist() == alone * 9  # whatever lane of a vector unit a number lands in


@given(st.lists(st.floats(LEAST, 0), max_size=70))
def test_lists_and_arrays_have_the_same_bits(x: list[float]) -> None:
    assert exp_list(x) == exp64(np.array(x, np.float64)).tolist()


@given(
    st.lists(st.floats(-100, 100, width=32) | st.just(-math.inf), min_size=1, max_size=70),
    st.sampled_from([1.0, 0.8, 3.0, 1e-3, 1e-300]),
    st.sampled_from([1.0, 0.95, 0.5, 0.0]),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.integers(0, 5),
)
def test_few_and_many_candidates_are_drawn_alike(
    values: list[float], temperature: float, top_p: float, min_p: float, position: int
) -> None:
    _, logits = ranked(values)
    if logits[0] == -math.inf:
        return
    p = SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p).resolved({})
    u = uniform(3, 0, position)
    few = _draw_few(p, logits.tolist(), u)
    assert few == _draw_many(p, logits, u)
    assert logits[few] > -math.inf


def test_exp64_is_monotonic_where_samplers_compare() -> None:
    y = exp64(-np.linspace(0.0, 20.0, 100_001))
    assert (np.diff(y) <= 0).all()


def test_greedy_takes_the_first_candidate() -> None:
    ids, logits = ranked([1.0, 3.0, 3.0, 2.0])
    assert sampler(temperature=0.0).pick(ids, logits, 0) == 1


def test_draws_follow_the_distribution() -> None:
    ids, logits = ranked([math.log(6), math.log(3), math.log(1)])
    s = sampler()
    n = 20000
    counts = Counter(s.pick(ids, logits, i) for i in range(n))
    assert counts[0] / n == pytest.approx(0.6, abs=0.02)
    assert counts[1] / n == pytest.approx(0.3, abs=0.02)


def test_temperature_sharpens() -> None:
    ids, logits = ranked([1.0, 0.0])
    counts = Counter(sampler(temperature=0.1).pick(ids, logits, i) for i in range(1000))
    assert counts[0] > 990


@pytest.mark.parametrize(
    ("option", "kept"),
    [({"top_k": 2}, {0, 1}), ({"top_p": 0.75}, {0, 1}), ({"top_p": 0.5}, {0}), ({"min_p": 0.45}, {0, 1})],
)
def test_filters_keep_exactly(option: dict[str, float], kept: set[int]) -> None:
    ids, logits = ranked([math.log(6), math.log(3), math.log(1)])
    s = sampler(**option)
    assert {s.pick(ids, logits, i) for i in range(2000)} == kept


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    ids, logits = ranked([1.0, 1.0, 1.0, 1.0])
    assert {sampler(top_p=0.5).pick(ids, logits, i) for i in range(500)} == {0, 1}
    assert {sampler(top_p=0.51).pick(ids, logits, i) for i in range(500)} == {0, 1, 2}
    assert {sampler(top_p=0.0).pick(ids, logits, i) for i in range(500)} == {0}


def test_same_seed_same_draw_other_choice_other_draw() -> None:
    draws = [[uniform(7, c, i) for i in range(50)] for c in (0, 1)]
    assert draws[0] == [uniform(7, 0, i) for i in range(50)]
    assert len(set(draws[0] + draws[1])) == 100
    assert all(0.0 <= u < 1.0 for u in draws[0])


def test_whole_row_equals_ranked_candidates() -> None:
    row = np.random.default_rng(0).normal(size=500).astype(np.float32)
    ids, logits = ranked(row.tolist())
    s = sampler(top_p=0.9)
    for i in range(50):
        assert s.pick_from_row(row, i) == s.pick(ids, logits, i)


def test_penalties_count_the_recent_tokens() -> None:
    s = sampler(repeat_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, repeat_last_n=3, logit_bias={9: -2.0})
    edits = {t: (rep, add) for t, rep, add in s.adjustments([5, 7, 7, 8], 1000)}
    assert edits == {7: (1.5, -1.0), 8: (1.5, -0.75), 9: (1.0, -2.0)}
    assert [t for t, _, _ in s.adjustments([3, 1, 2], 1000)] == [1, 2, 3, 9]


def test_a_banned_token_is_never_drawn() -> None:
    ids, logits = ranked([1.0, 0.5, -math.inf, -math.inf, -1000.0])
    s = sampler(temperature=100.0)
    assert {s.pick(ids, logits, i) for i in range(3000)} <= {0, 1, 4}
    with pytest.raises(RequestError, match="bans every token"):
        s.pick(*ranked([-math.inf, -math.inf]), 0)
    with pytest.raises(RequestError, match="bans every token"):
        sampler(temperature=0.0).pick(*ranked([-math.inf]), 0)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9, 1e6])
def test_extreme_temperatures(temperature: float) -> None:
    ids, logits = ranked([3e38, 2.0, 1.0, -3e38, -math.inf])
    s = sampler(temperature=temperature)
    got = {s.pick(ids, logits, i) for i in range(200)}
    assert got == {0}
    ids, logits = ranked([2.0, 1.0])
    assert {s.pick(ids, logits, i) for i in range(200)} == ({0} if temperature < 1 else {0, 1})


def test_a_draw_depends_on_seed_choice_and_position_alone() -> None:
    """Not on how many more candidates a neighbour in the batch asked for."""
    row = np.random.default_rng(1).normal(size=300).astype(np.float32)
    ids, logits = ranked(row.tolist())
    s = sampler(top_k=20, top_p=0.9, min_p=0.01)
    for i in range(100):
        assert s.pick(ids[:20], logits[:20], i) == s.pick(ids, logits, i)


def test_what_is_drawn_with_this_seed_and_these_logits_stays() -> None:
    """Known answers: any change here changes every seeded text, and bumps the numerics version."""
    ids, logits = ranked([37 * i % 64 / 8 for i in range(64)])
    s = Sampler(SamplingParams().resolved({}), 1234, 0, 64)
    assert [s.pick(ids, logits, i) for i in range(16)] == DRAWS
    assert [uniform(1234, 0, i).hex() for i in range(3)] == UNIFORMS


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": "x"}, {"temperature": float("nan")},
        {"stop": ("",)}, {"logit_bias": {-1: 0.0}}, {"logit_bias": {1: float("nan")}}, {"max_tokens": True},
        {"stop": tuple("x" * 65)}, {"stop": 5}, {"stop": [5]}, {"stop": "x" * 1025}, {"logit_bias": [(1, 2.0)]},
        {"logit_bias": {"1": 2.0}}, {"logit_bias": {True: 2.0}}, {"logit_bias": {1: "x"}}, {"logit_bias": {1: True}},
        {"logit_bias": {1: math.inf}}, {"logit_bias": {1: 1e31}}, {"logit_bias": {1: 10**400}}, {"temperature": "1"},
        {"temperature": True}, {"temperature": 10**400}, {"top_k": 1.0}, {"seed": 2**64}, {"max_tokens": -1},
        {"repeat_last_n": -2}, {"repeat_penalty": 0}, {"presence_penalty": math.nan},
    ],
)  # fmt: skip
def test_bad_params_are_request_errors(bad: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        SamplingParams(**bad)  # type: ignore[arg-type]


def test_params_and_kwargs_do_not_mix() -> None:
    with pytest.raises(TypeError):
        SamplingParams.from_kwargs(SamplingParams(), {"temperature": 1.0})
    with pytest.raises(TypeError):
        SamplingParams.from_kwargs(None, {"temprature": 1.0})
    assert SamplingParams.from_kwargs(None, {"temp": 0.5}).temperature == 0.5


def test_model_defaults_fill_what_the_caller_left_open() -> None:
    p = SamplingParams(top_k=5).resolved({"temperature": 0.3, "top_k": 99})
    assert (p.temperature, p.top_k, p.top_p) == (0.3, 5, 0.95)


@given(
    st.lists(st.text(alphabet="ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_exactly(pieces: list[str], stops: list[str]) -> None:
    m = StopMatcher(tuple(stops))
    out = ""
    for piece in pieces:
        out += m.push(piece)
        if m.matched:
            break
    else:
        out += m.flush()
    # the text up to the earliest moment a stop is complete, cut at the leftmost match known then
    text, expected = "", None
    for piece in pieces:
        text += piece
        hits = [text.find(s) for s in stops if s in text]
        if hits:
            expected = text[: min(hits)]
            break
    assert out == (text if expected is None else expected)
    assert (m.matched is not None) == (expected is not None)


def test_numbers_of_numpy_are_numbers() -> None:
    p = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        seed=np.uint64(2**63),  # type: ignore[arg-type]
        logit_bias={np.int32(7): np.float64(1.5)},  # type: ignore[dict-item]
    )
    assert (p.temperature, p.top_k, p.seed, p.logit_bias) == (0.5, 3, 2**63, {7: 1.5})
    assert [type(v) for v in (p.temperature, p.top_k, p.seed)] == [float, int, int]


def test_params_keep_copies() -> None:
    bias, stop = {1: 1.0}, ["a"]
    p = SamplingParams(logit_bias=bias, stop=stop)  # type: ignore[arg-type]
    bias[2] = math.nan
    stop.append("")
    assert (p.logit_bias, p.stop) == ({1: 1.0}, ("a",))
    assert SamplingParams(stop="end").stop == ("end",)  # type: ignore[arg-type]
    assert SamplingParams(stop=None, logit_bias=None).stop == ()  # type: ignore[arg-type]

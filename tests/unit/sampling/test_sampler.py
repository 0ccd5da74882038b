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
from edgellm.sampling.exp64 import exp64
from edgellm.sampling.rng import philox, uniform
from edgellm.sampling.sampler import Sampler
from edgellm.sampling.stops import StopMatcher


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


def test_exp64_underflows_to_zero() -> None:
    assert exp64(np.array([-701.0, -np.inf])).tolist() == [0.0, 0.0]


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


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": "x"}, {"temperature": float("nan")},
        {"stop": ("",)}, {"logit_bias": {-1: 0.0}}, {"logit_bias": {1: float("nan")}}, {"max_tokens": True},
        {"stop": tuple("x" * 65)},
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

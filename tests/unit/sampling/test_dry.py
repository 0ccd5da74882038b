"""DRY against its definition by brute force; breakers inside a token, across tokens, and as tokens of their own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core.config import MAX_BIAS, ResolvedParams, SamplingParams
from edgellm.sampling.dry import Dry
from edgellm.sampling.sampler import Sampler

TEXTS = ["a", "b", "c\n", "\n", "x:", "ab", "", "<", "br>", "d"]


def params(**options: Any) -> ResolvedParams:
    return SamplingParams(**{"dry_multiplier": 0.5, **options}).resolved({})


def token_bytes(token: int) -> bytes:
    return TEXTS[token].encode()


def by_definition(tokens: list[int], p: ResolvedParams) -> dict[int, float]:
    """Every earlier place whose last n tokens are the last n, none of which ends in or touches a breaker."""
    w = tokens if p.dry_penalty_last_n < 0 else tokens[-p.dry_penalty_last_n :]
    free = 0  # tokens after the last breaker
    for n in range(1, len(w) + 1):
        text = "".join(TEXTS[t] for t in w[:n])
        before = len(text) - len(TEXTS[w[n - 1]])
        ends = [text.find(b, max(0, before - len(b) + 1)) for b in p.dry_sequence_breakers]
        free = 0 if any(e >= 0 for e in ends) else free + 1
    longest: dict[int, int] = {}
    for j in range(len(w) - 1):
        n = 0
        while n < min(free, j + 1) and w[j - n] == w[len(w) - 1 - n]:
            n += 1
        if n >= p.dry_allowed_length and free >= p.dry_allowed_length:
            longest[w[j + 1]] = max(longest.get(w[j + 1], 0), n)
    return {
        t: p.dry_multiplier * p.dry_base ** (n - p.dry_allowed_length)
        for t, n in longest.items()
        if not any(b in TEXTS[t] for b in p.dry_sequence_breakers)
    }


@given(
    st.lists(st.integers(0, 9) | st.integers(0, 2), max_size=40),
    st.sampled_from([-1, 1, 5, 20]),
    st.integers(0, 3),
    st.sampled_from([(), ("\n",), ("\n", ":"), ("<br>",), ("ba", "\n")]),
    st.integers(1, 40),
)
def test_penalties_are_those_of_the_definition(
    tokens: list[int], last_n: int, allowed: int, breakers: tuple[str, ...], split: int
) -> None:
    """At once, or asked after every token from some point on."""
    p = params(dry_penalty_last_n=last_n, dry_allowed_length=allowed, dry_sequence_breakers=breakers)
    dry = Dry(p, token_bytes)
    for n in range(min(split, len(tokens)), len(tokens) + 1):
        assert dry.penalties(tokens[:n]) == pytest.approx(by_definition(tokens[:n], p))


def test_a_longer_repetition_costs_more() -> None:
    dry = Dry(params(dry_base=2.0, dry_sequence_breakers=()), token_bytes)
    assert dry.penalties([0, 1, 9, 0, 1]) == {9: 0.5}
    assert dry.penalties([5, 0, 1, 9, 0, 5, 0, 1]) == {9: 1.0}


def test_endless_repetition_is_bounded() -> None:
    dry = Dry(params(dry_penalty_last_n=-1, dry_multiplier=1e6, dry_base=1e6), token_bytes)
    assert dry.penalties([0] * 3000) == {0: MAX_BIAS}
    gentle = Dry(params(dry_penalty_last_n=-1, dry_base=1.0), token_bytes)
    assert gentle.penalties([0] * 3000) == {0: 0.5}


@pytest.mark.parametrize("off", [{"dry_multiplier": 0.0}, {"dry_base": 0.5}, {"dry_penalty_last_n": 0}], ids=str)
def test_off(off: dict[str, float]) -> None:
    assert not Dry.wanted(params(**off))
    assert Sampler(params(**off), 1, 0, 10).plain


def test_dry_adds_to_the_other_edits() -> None:
    p = params(dry_sequence_breakers=(), presence_penalty=0.25, logit_bias={9: 4.0}, temperature=0)
    s = Sampler(p, 1, 0, 10, token_bytes=token_bytes)
    assert s.adjustments([0, 1, 9, 0, 1], 10) == [(0, 1.0, -0.25), (1, 1.0, -0.25), (9, 1.0, -0.25 - 0.5 + 4.0)]
    assert s.adjusts
    assert not s.plain

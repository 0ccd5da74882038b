"""Special tokens are found longest first over the whole text, control tokens only where they may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.tokenizer.special import Special, SpecialMatcher


def matcher(*texts: str, control: tuple[str, ...] = (), rstrip: tuple[str, ...] = ()) -> SpecialMatcher:
    return SpecialMatcher(Special(t, i, t in control, t in rstrip) for i, t in enumerate(texts))


def all_of(text: str) -> list[tuple[int, int]]:
    return [(0, len(text))]


@pytest.mark.parametrize(
    ("texts", "text", "parts"),
    [
        (["<a>"], "x<a>y", ["x", 0, "y"]),
        (["<a>"], "<a><a>", [0, 0]),
        (["<a>"], "", []),
        ([], "abc", ["abc"]),
        (["ab", "abcd"], "abcd", [1]),
        (["abc", "bcde"], "abcde", ["a", 1]),  # the longer one wins although it starts later
        (["ab", "abc", "bcde"], "abcde", ["a", 2]),
        (["ab", "abc", "cdef"], "abcdef", [0, 2]),  # the shorter one fits beside it
        (["aa"], "aaaaa", [0, 0, "a"]),
        (["\n", "\n\n"], "\n\n\n\n\n", [1, 1, 0]),
        (["é"], "caféé", ["caf", 0, 0]),
        (["éé", "abc"], "abcéé", [1, 0]),
        (["]", "^", "\\", "-", "[]"], "a]^\\-[]", ["a", 0, 1, 2, 3, 4]),
        (["<|x|>", "<|xy|>"], "<|x<|xy|>", ["<|x", 1]),
    ],
)
def test_split(texts: list[str], text: str, parts: list[str | int]) -> None:
    assert matcher(*texts).split(text, []) == parts


def test_control_tokens_only_within_the_spans() -> None:
    m = matcher("<c>", "<user>", control=("<c>",))
    text = "<c><user><c>"
    assert m.split(text, []) == ["<c>", 1, "<c>"]
    assert m.split(text, all_of(text)) == [0, 1, 0]
    assert m.split(text, [(0, 3)]) == [0, 1, "<c>"]
    assert m.split(text, [(8, 12)]) == ["<c>", 1, 0]
    assert m.split(text, [(0, 2), (10, 12)]) == ["<c>", 1, "<c>"]


def test_a_control_token_that_may_not_be_leaves_room_for_a_shorter_one() -> None:
    m = matcher("<ab>", "<a", control=("<ab>",))
    assert m.split("<ab>", []) == [1, "b>"]
    assert m.split("<ab>", all_of("<ab>")) == [0]


def test_rstrip_swallows_white_space_up_to_the_next_token() -> None:
    m = matcher("<r>", "\n", rstrip=("<r>",))
    assert m.split("a<r> \t b", []) == ["a", 0, "b"]
    assert m.split("<r>  ", []) == [0]
    m = matcher("<r>", "  \n ", rstrip=("<r>",))
    assert m.split("<r>   \n b", []) == [0, 1, "b"]


TOKENS = ["<a>", "<a", "a>", "aa", "a", "<<", ">", "<a><b>", "b", "\n\n", "\n"]


@given(st.lists(st.sampled_from(TOKENS), unique=True), st.text(alphabet="<>ab\n ", max_size=24))
def test_equals_searching_token_by_token(texts: list[str], text: str) -> None:
    """The definition: for each token, longest first, cut it out of every stretch of text that is left."""
    parts: list[str | int] = [text] if text else []
    for token in sorted(texts, key=lambda t: (-len(t), texts.index(t))):
        cut: list[str | int] = []
        for part in parts:
            if isinstance(part, int):
                cut.append(part)
                continue
            for i, rest in enumerate(part.split(token)):
                if i:
                    cut.append(texts.index(token))
                if rest:
                    cut.append(rest)
        parts = cut
    assert matcher(*texts).split(text, []) == parts


def test_many_line_breaks_stay_cheap() -> None:
    m = matcher(*("\n" * n for n in range(1, 32)))
    assert m.split("\n" * 31_000, []) == [30] * 1000

"""Merging, by hand and through the libraries, equals merging by definition; odd vocabularies are handled."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.tokenizer import toy

from edgellm.core.errors import RequestError, TokenizerError
from edgellm.tokenizer import Tokenizer, split, spm, words

MERGES = ["a b", "b a", "ab a", "a ba", "ab ab", "Ġ a", "Ġa b", "Ġ b", "b b", "bb bb", "c ab"]
PIECES = ["a", "b", "▁", "ab", "ba", "aba", "▁a", "▁ab", "bb", "abab", "▁▁", "é", "aé", "b▁", "b▁a"]

pytestmark = pytest.mark.usefixtures("way")  # every test here: by hand, and by the library

examples = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the fixture only sets a constant


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


@given(st.permutations(MERGES), st.text(alphabet="abc", min_size=1, max_size=30))
@examples
def test_merging_by_rank(merges: list[str], word: str) -> None:
    tokenizer = Tokenizer.from_metadata(toy.byte_level(merges, []))
    assert texts_of(tokenizer, tokenizer.encode(word)) == toy.merge_by_rank(word.encode(), merges)


@given(
    st.lists(st.sampled_from([-1.0, -2.0, -3.0]), min_size=len(PIECES), max_size=len(PIECES)),
    st.text(alphabet="ab é", max_size=30),
)
@examples
def test_merging_by_score_with_ties(scores: list[float], text: str) -> None:
    pieces = dict(zip(PIECES, scores, strict=True))
    tokenizer = Tokenizer.from_metadata(toy.sentencepiece(pieces, [], add_space_prefix=False, add_bos_token=False))
    assert texts_of(tokenizer, tokenizer.encode(text)) == toy.merge_by_score(text, pieces)


RAW = ["a b", "b a", "ab a", "▁ a", "▁a b", "b b", "▁ ▁", "é a", "b ▁a", "\n \n"]


@given(st.permutations(RAW), st.text(alphabet="ab é\n🦙", max_size=30))
@examples
def test_merging_on_plain_utf8(merges: list[str], text: str) -> None:
    """Lines are merged as wholes, spaces written ▁; what has no token falls to bytes."""
    tokenizer = Tokenizer.from_metadata(toy.plain_utf8(merges))
    expected: list[str] = []
    for line in re.findall(r"[^\n]+|\n+", text.replace(" ", "▁")):
        if line == "\n\n":
            expected.append(line)
            continue
        for part in toy.merge_parts(list(line), merges):
            expected += [part] if part in tokenizer._metadata["tokenizer.ggml.tokens"] else toy.byte_texts(part)
    assert texts_of(tokenizer, tokenizer.encode(text, add_special=False)) == expected
    assert tokenizer.decode(tokenizer.encode(text)) == text


LONG = ["ab bab  aab abab 12 '\n\n  ba ", "a b", "ab", " ", "aé b\u2581 a", "b\na ", "é ", "\n"]


@pytest.mark.parametrize("text", [part * (20_000 // len(part)) for part in LONG])
def test_long_text_is_cut_where_nothing_changes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long text is encoded piece by piece; all at once it gives the same."""
    makers: list[Callable[[], Tokenizer]] = [
        lambda: Tokenizer.from_metadata(toy.byte_level(MERGES, [])),
        lambda: Tokenizer.from_metadata(toy.plain_utf8(RAW)),
    ]
    for pieces in (PIECES, [p for p in PIECES if not p.startswith("b\u2581")]):
        metadata = toy.sentencepiece(dict.fromkeys(pieces, -1.0), [], add_space_prefix=False)
        makers.append(lambda metadata=metadata: Tokenizer.from_metadata(metadata))  # type: ignore[misc]
    in_pieces = [make().encode(text) for make in makers]
    for module in (split, spm):
        monkeypatch.setattr(module, "CHUNK", 10**9)
    assert in_pieces == [make().encode(text) for make in makers]


def test_words_of_sentencepiece_merge_by_themselves() -> None:
    """Cutting at spaces gives what the library makes of the whole text."""
    for pieces in (PIECES, [p for p in PIECES if not p.startswith("b\u2581")]):
        metadata = toy.sentencepiece(dict.fromkeys(pieces, -1.0), [], add_space_prefix=False, add_bos_token=False)
        tokenizer, other = Tokenizer.from_metadata(metadata), Tokenizer.from_metadata(metadata)
        library = other._encoding().build()
        for text in LONG:
            text *= 3
            (whole,) = library([text])
            assert tokenizer.encode(text) == list(whole)
            assert "".join(w for words in tokenizer._encoding().split(text) for w in words) == text.replace(" ", "▁")


def test_long_text_is_cut_at_all() -> None:
    for metadata in (toy.byte_level(MERGES, []), toy.sentencepiece(dict.fromkeys(PIECES, -1.0), [])):
        encoder = Tokenizer.from_metadata(metadata)._encoding()
        assert len(list(encoder.split("a ba " * 10_000))) > 3


def test_the_cache_forgets_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_CACHED_WORDS", 8)
    monkeypatch.setattr(words, "_CACHED_LENGTH", 4)
    tokenizer = Tokenizer.from_metadata(toy.byte_level(MERGES, [("<user>", toy.USER)]))
    text = " ".join(f"ab{i} {'ba' * i}<user>" for i in range(50))
    first = tokenizer.encode(text)
    assert len(tokenizer._encoding()._cache) <= 8 + 4 * 50
    assert tokenizer.encode(text) == first
    assert tokenizer.decode(first) == text


def test_ignore_merges_takes_whole_words() -> None:
    merges = ["a b", "b c", "a bc"]
    tokens = [("abcabc", toy.NORMAL)]
    whole = Tokenizer.from_metadata(toy.byte_level(merges, tokens, pre="llama-bpe", bos_token_id=0))
    by_merges = Tokenizer.from_metadata(toy.byte_level(merges, tokens, pre="qwen2"))
    assert texts_of(whole, whole.encode("abcabc", add_special=False)) == ["abcabc"]
    assert texts_of(by_merges, by_merges.encode("abcabc")) == ["ab", "c", "ab", "c"]


def test_plain_text_never_merges_into_a_control_token() -> None:
    merges = ["< s", "<s >", "a b", "<s> a"]
    metadata = toy.byte_level(merges, [], pre="default")
    types = metadata["tokenizer.ggml.token_type"]
    control = metadata["tokenizer.ggml.tokens"].index("<s>")
    types[control] = toy.CONTROL
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts_of(tokenizer, tokenizer.encode("<s>ab")) == ["<", "s", ">", "ab"]
    assert texts_of(tokenizer, tokenizer.encode("<s>ab", parse_special=True)) == ["<s>", "ab"]

    pieces = dict.fromkeys(["<", "s", ">", "<s", "s>", "/", "</", "</s"], -1.0)
    spm = Tokenizer.from_metadata(toy.sentencepiece(pieces, [], add_space_prefix=False, add_bos_token=False))
    assert texts_of(spm, spm.encode("<s></s>")) == ["<s", ">", "</s", ">"]
    assert texts_of(spm, spm.encode("<s></s>", parse_special=True)) == ["<s>", "</s>"]


def test_byte_tokens_cannot_be_typed() -> None:
    pieces = dict.fromkeys([*"<0xA1>", "<0", "<0x", "<0xA", "<0xA1"], -1.0)
    tokenizer = Tokenizer.from_metadata(toy.sentencepiece(pieces, [], add_space_prefix=False, add_bos_token=False))
    assert tokenizer.decode(tokenizer.encode("<0xA1>")) == "<0xA1>"


def test_a_merge_out_of_the_vocabulary_falls_back_to_bytes() -> None:
    metadata = toy.byte_level(["a b", "ab c", "d e"], [])
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("ab")] = "gone"
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts_of(tokenizer, tokenizer.encode("abc")) == ["abc"]
    assert texts_of(tokenizer, tokenizer.encode("abde")) == ["a", "b", "de"]


@pytest.mark.parametrize("merges", [["a b", "", "ab c"], ["a b", "x", "ab c"], ["a b", " x", "y ", "ab c"]])
def test_malformed_merges_are_passed_over(merges: list[str]) -> None:
    metadata = toy.byte_level(["a b", "ab c"], [])
    metadata["tokenizer.ggml.merges"] = merges
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts_of(tokenizer, tokenizer.encode("abcx")) == ["abc", "x"]


def test_without_byte_tokens_the_unknown_token_stands_in() -> None:
    tokens = [("<unk>", toy.UNKNOWN), ("a", toy.NORMAL), ("b", toy.NORMAL)]
    metadata = toy.metadata("llama", tokens, add_space_prefix=False, add_bos_token=False)
    assert Tokenizer.from_metadata(metadata).encode("aéb") == [1, 0, 2]
    tokens = [("x", toy.NORMAL), ("a", toy.NORMAL), ("b", toy.NORMAL)]
    metadata = toy.metadata("llama", tokens, add_space_prefix=False, add_bos_token=False)
    metadata["tokenizer.ggml.unknown_token_id"] = 99  # out of range: the default, 0, is used
    assert Tokenizer.from_metadata(metadata).encode("aéb") == [1, 0, 2]


def test_odd_vocabularies_for_sentencepiece() -> None:
    """Several unknown tokens, the same text twice, an empty text, a NUL inside one."""
    extra = [("<unk2>", toy.UNKNOWN), ("", toy.NORMAL), ("dup", toy.NORMAL), ("dup", toy.NORMAL), ("\0x", toy.NORMAL)]
    pieces = dict.fromkeys(["d", "u", "p", "du", "a"], -1.0)
    tokenizer = Tokenizer.from_metadata(toy.sentencepiece(pieces, extra, add_space_prefix=False))
    assert texts_of(tokenizer, tokenizer.encode("dupa", add_special=False)) == ["dup", "a"]
    assert tokenizer.token_text(260) == "[EMPTY_260]"
    assert tokenizer.decode(tokenizer.encode("dup\0xy")) == "dup\0xy"


def space_prefixed(**keys: Any) -> Tokenizer:
    pieces = dict.fromkeys(["a", "b", "▁", "▁a", "▁b", "<", "x", ">"], -1.0)
    return Tokenizer.from_metadata(toy.sentencepiece(pieces, [("<x>", toy.USER), ("<c>", toy.CONTROL)], **keys))


def test_space_prefix_at_the_start_and_after_special_tokens() -> None:
    tokenizer = space_prefixed()
    ids = tokenizer.encode("ab<x>b<c>a", parse_special=True)
    assert texts_of(tokenizer, ids) == ["<s>", "▁a", "b", "<x>", "▁b", "<c>", "▁a"]
    assert texts_of(tokenizer, tokenizer.encode(" a", add_special=False)) == ["▁", "▁a"]
    assert tokenizer.encode("") == [1]
    without = space_prefixed(add_space_prefix=False)
    assert texts_of(without, without.encode("ab<x>b")) == ["<s>", "a", "b", "<x>", "b"]


def test_rstrip_of_phi3() -> None:
    pieces = dict.fromkeys(["a", "▁", "▁a"], -1.0)
    metadata = toy.sentencepiece(pieces, [("<|user|>", toy.CONTROL)])
    metadata["general.name"] = "Phi-3 mini"
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("<|user|>\n a", parse_special=True, add_special=False)
    assert texts_of(tokenizer, ids) == ["<|user|>", "▁a"]
    assert texts_of(tokenizer, tokenizer.encode("<s> a", parse_special=True, add_special=False)) == ["<s>", "▁", "▁a"]


def test_unknown_pre_tokenizer() -> None:
    tokenizer = Tokenizer.from_metadata(toy.byte_level(MERGES, [], pre="from-the-future"))
    with pytest.raises(TokenizerError, match=r"unknown pre-tokenizer 'from-the-future' .*Known: .*smollm"):
        tokenizer.encode("ab")
    assert tokenizer.usable
    assert tokenizer.decode([0, 1]) == '!"'


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff"])
def test_lone_surrogates_are_refused(text: str) -> None:
    tokenizer = Tokenizer.from_metadata(toy.byte_level(MERGES, []))
    with pytest.raises(RequestError, match="lone surrogate"):
        tokenizer.encode(text)

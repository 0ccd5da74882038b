"""Merging through the libraries equals merging by definition; what the libraries cannot take is handled."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from unit.tokenizer import toy

from edgellm.core.errors import RequestError, TokenizerError
from edgellm.tokenizer import Tokenizer
from edgellm.tokenizer.pretokenize import FAMILIES

MERGES = ["a b", "b a", "ab a", "a ba", "ab ab", "Ġ a", "Ġa b", "Ġ b", "b b", "bb bb", "c ab"]


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


@given(st.permutations(MERGES), st.text(alphabet="abc", min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_merging_by_rank(merges: list[str], word: str) -> None:
    tokenizer = Tokenizer.from_metadata(toy.byte_level(merges, []))
    assert texts_of(tokenizer, tokenizer.encode(word)) == toy.merge_by_rank(word.encode(), merges)


PIECES = ["a", "b", "▁", "ab", "ba", "aba", "▁a", "▁ab", "bb", "abab", "▁▁", "é", "aé", "b▁", "b▁a"]


@given(
    st.lists(st.sampled_from([-1.0, -2.0, -3.0]), min_size=len(PIECES), max_size=len(PIECES)),
    st.text(alphabet="ab é", max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_merging_by_score_with_ties(scores: list[float], text: str) -> None:
    pieces = dict(zip(PIECES, scores, strict=True))
    tokenizer = Tokenizer.from_metadata(toy.sentencepiece(pieces, [], add_space_prefix=False, add_bos_token=False))
    assert texts_of(tokenizer, tokenizer.encode(text)) == toy.merge_by_score(text, pieces)


LONG = ["ab bab  aab abab 12 '\n\n  ba ", "a b", "ab", " ", "aé b\u2581 a", "b\na "]


@pytest.mark.parametrize("text", [part * (15_000 // len(part)) for part in LONG])
def test_long_text_is_cut_where_nothing_changes(text: str) -> None:
    """Long text goes to the libraries in several calls; one call gives the same."""
    bpe = Tokenizer.from_metadata(toy.byte_level(MERGES, []))
    ids = bpe.encode(text)
    assert ids == bpe._encoding()._tokenizer.encode(text, add_special_tokens=False).ids  # type: ignore[attr-defined]
    for pieces in (PIECES, [p for p in PIECES if not p.startswith("b\u2581")]):
        spm = Tokenizer.from_metadata(toy.sentencepiece(dict.fromkeys(pieces, -1.0), [], add_space_prefix=False))
        ids = spm.encode(text, add_special=False)
        assert ids == spm._encoding()._processor.EncodeAsIds(text)  # type: ignore[attr-defined]


def test_long_text_is_cut_at_all() -> None:
    from edgellm.tokenizer.bpe import _chunks

    assert len(list(_chunks("some words " * 2000))) > 3
    spm = Tokenizer.from_metadata(toy.sentencepiece(dict.fromkeys(PIECES, -1.0), []))
    assert len(list(spm._encoding()._chunks("a ba " * 4000))) > 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("pre", sorted({id(f): n for n, f in FAMILIES.items()}.values()))
def test_words_begin_at_a_space_between_letters(pre: str) -> None:
    """What cutting long text relies on."""
    tokenizer = Tokenizer.from_metadata(toy.byte_level([], [], pre=pre))
    tokenizer.warm()
    cut = tokenizer._encoding()._tokenizer.pre_tokenizer.pre_tokenize_str  # type: ignore[attr-defined]
    for text in ("a b", "It's a b", "x1 aB cD 2e f", "é a b ü c", "中a b中", "a\n b c\td e"):
        starts = {start for _, (start, _) in cut(text)}
        for i in range(1, len(text) - 1):
            if text[i] == " " and (text[i - 1] + text[i + 1]).isascii() and (text[i - 1] + text[i + 1]).isalpha():
                assert i in starts, (text, i)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "It's 1234  x\n\n", ["It", "'s", "Ġ1234", "Ġ", "Ġx", "ĊĊ"]),
        ("smollm", "It's 1234  x", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġ", "Ġx"]),
        ("llama-bpe", "IT'S 12345!\n x", ["IT", "'S", "Ġ", "123", "45", "!Ċ", "Ġx"]),
        ("qwen2", "IT'S 123 (a)", ["IT", "'S", "Ġ", "1", "2", "3", "Ġ(", "a", ")"]),
        ("falcon", "a,b 12345", ["a", ",", "b", "Ġ", "123", "45"]),
        ("", "a,b 12345", ["a", ",", "b", "Ġ", "123", "45"]),
    ],
)
def test_families(pre: str, text: str, words: list[str]) -> None:
    tokenizer = Tokenizer.from_metadata(toy.byte_level([], [], pre=pre))
    tokenizer.warm()
    cut = tokenizer._encoding()._tokenizer.pre_tokenizer.pre_tokenize_str(text)  # type: ignore[attr-defined]
    assert [word for word, _ in cut] == words


@given(st.text(alphabet=[*" \t\n'3٣asdtlve½中!.-_é🦙\u0301\u00a0\u3000"], max_size=30))
@settings(deadline=None, max_examples=300)
def test_digits_apart_in_one_pattern(text: str) -> None:
    """The pattern of the smollm family equals what published tokenizers do in two steps."""
    split, regex = pre_tokenizers.Split, tokenizers.Regex
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    two = pre_tokenizers.Sequence([split(regex(r"\p{N}"), "isolated"), split(regex(gpt2), "isolated")])
    (pattern,) = FAMILIES["smollm"].patterns
    assert split(regex(pattern), "isolated").pre_tokenize_str(text) == two.pre_tokenize_str(text)


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

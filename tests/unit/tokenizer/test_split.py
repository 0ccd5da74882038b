"""Cutting text into words: families, and Python's `re` against the library."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from unit.tokenizer import toy

from edgellm.core.errors import TokenizerError
from edgellm.tokenizer import Tokenizer
from edgellm.tokenizer.pretokenize import FAMILIES, Family
from edgellm.tokenizer.split import Splitter, to_ascii

ONE_OF_EACH = sorted({id(f): n for n, f in FAMILIES.items()}.values())
SPLITTERS = {name: Splitter(FAMILIES[name]) for name in ONE_OF_EACH}

relaxed = settings(max_examples=30)

ASCII = [*map(chr, range(128)), "'s", "'LL", "it's", "  ", "\r\n", " 1234", "123", "<sentinel:1>", "IMGIMGABZ", " a b"]
OTHERS = [*"é中½٣\u0301\u00a0\u3000😀ſßİǅʰ。のﾟ한·א", "\u2028", "a\u0301"]


@pytest.mark.parametrize("name", ONE_OF_EACH)
@given(text=st.lists(st.sampled_from(ASCII), max_size=20).map("".join))
@relaxed
def test_ascii_is_cut_as_the_library_cuts_it(name: str, text: str) -> None:
    words = SPLITTERS[name].words(text)
    assert words == SPLITTERS[name].by_library(text)
    assert "".join(words) == text


@pytest.mark.parametrize("name", ONE_OF_EACH)
@given(text=st.lists(st.sampled_from([*ASCII[9:], *OTHERS, *OTHERS]), max_size=20).map("".join))
@relaxed
def test_only_what_is_not_ascii_needs_the_library(name: str, text: str) -> None:
    words = SPLITTERS[name].words(text)
    assert words == SPLITTERS[name].by_library(text)
    assert "".join(words) == text


@pytest.mark.parametrize("name", [n for n in ONE_OF_EACH if FAMILIES[n].plain])
@given(text=st.text(st.sampled_from(" \t\n\r\v\f0123aZ'`$!_-"), max_size=24))
@settings(max_examples=200)
def test_plain_patterns_equal_the_cascade(name: str, text: str) -> None:
    steps = Splitter(Family(FAMILIES[name].patterns))
    assert SPLITTERS[name].words(text) == steps.words(text)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_words_begin_where_long_text_is_cut(name: str) -> None:
    cut = re.compile(r"(?<=\n)(?=[A-Za-z])" if FAMILIES[name].joins else r"(?<=[A-Za-z])(?= [A-Za-z])")
    for text in (
        "a b",
        "It's a b",
        "x1 aB cD 2e f",
        "é a b ü c",
        "中a b中",
        "a\n b c\td e",
        "a \nb\r\nc",
        "1\na 1 \n\nb",
    ):
        starts, at = set(), 0
        for word in SPLITTERS[name].by_library(text):
            starts.add(at)
            at += len(word)
        assert {match.start() for match in cut.finditer(text)} <= starts, text


@pytest.mark.parametrize("name", [n for n in ONE_OF_EACH if not FAMILIES[n].joins])
def test_long_text_in_chunks(name: str) -> None:
    text = "It's 12345 words, a b\n\n  and (more) of them: café x y.  " * 300
    chunks = list(SPLITTERS[name].chunks(text))
    assert len(chunks) > 1
    assert [w for words in chunks for w in words] == SPLITTERS[name].by_library(text)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "It's 1234  x\n\n", ["It", "'s", " 1234", " ", " x", "\n\n"]),
        ("gpt-2", "IT'S", ["IT", "'", "S"]),
        ("smollm", "It's 1234  x", ["It", "'s", " ", "1", "2", "3", "4", " ", " x"]),
        ("llama-bpe", "IT'S 12345!\n x", ["IT", "'S", " ", "123", "45", "!\n", " x"]),
        ("qwen2", "IT'S 123 (a)", ["IT", "'S", " ", "1", "2", "3", " (", "a", ")"]),
        ("qwen2", "नमस्ते", ["नमस", "्त", "े"]),
        ("qwen35", "नमस्ते", ["नमस्ते"]),
        ("ufakzeka", "Ali's 12", ["Ali", "'s", " ", "1", "2"]),
        ("ufakzeka", "Ali'sin", ["Ali", "'sin"]),
        ("qwen2", "Ali'sin", ["Ali", "'s", "in"]),
        ("laguna", "a \n\nb", ["a", " ", "\n\n", "b"]),
        ("qwen2", "a \n\nb", ["a", " \n\n", "b"]),
        ("minicpm5", "a1234", ["a", "123", "4"]),
        ("seed-coder", "a!!\n\nb", ["a", "!!", "\n\n", "b"]),
        ("bailingmoe", "a\n\n\nb", ["a", "\n\n\n", "b"]),
        ("bailingmoe", "a \n \nb", ["a", " \n \n", "b"]),
        ("exaone-moe", "Hello big world! yes", ["Hello big world", "!", " yes"]),
        ("exaone-moe", "no  two", ["no", " ", " two"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("falcon", "a,b 12345", ["a", ",", "b", " ", "123", "45"]),
        ("falcon", "x 12 `y`", ["x", " 12", " ", "`", "y", "`"]),
        ("", "a,b 12345", ["a", ",", "b", " ", "123", "45"]),
        ("default", "x `y` 12", ["x", " `", "y", "`", " ", "12"]),
        ("deepseek-llm", "Hi there, 123 x\n y", ["Hi", " there", ",", " ", "123", " x", "\n", " y"]),
        ("deepseek-llm", "中文abc $5  ", ["中文", "abc", " $", "5", "  "]),
        ("deepseek-llm", "naïve ß ǅ ª", ["na", "ï", "ve", " ß", " ǅ", " ª"]),
        ("deepseek-coder", "Hi (x) $5 12\n\n", ["Hi", " (", "x", ")", " $", "5", " ", "1", "2", "\n", "\n"]),
        ("deepseek-v3", "abc12345 foo.bar (x)", ["abc", "123", "45", " foo", ".bar", " (", "x", ")"]),
        ("deepseek-v3", "日本語のabc", ["日本語の", "abc"]),
        ("deepseek-v3", "नमस्ते!\n", ["नमस्ते", "!\n"]),
        ("spark2_5", "a!\n\n12", ["a", "!", "\n", "\n", "1", "2"]),
        (
            "tekken",
            "HelloWorld ABCdef 123 a/b\n//",
            ["Hello", "World", " ABCdef", " ", "1", "2", "3", " a", "/b", "\n", "//"],
        ),
        ("tekken", "it's", ["it", "'s"]),
        ("tekken", "ÀÉéa Éa", ["ÀÉéa", " Éa"]),
        ("gpt-4o", "HelloWorld it's ABC's 12345/", ["Hello", "World", " it's", " ABC's", " ", "123", "45", "/"]),
        ("gpt-4o", "a ==\n/x", ["a", " ==\n/", "x"]),
        ("gpt-4o", "ÀÉéa नमस्ते", ["ÀÉéa", " नमस्ते"]),
        ("tiny_aya", "n=1234567 x", ["n", "=", "1", "234", "567", " x"]),
        ("tiny_aya", "123456", ["123", "456"]),
        ("tiny_aya", "12345abc", ["123", "45", "abc"]),
        ("afmoe", "12345ab 1234", ["12", "345", "ab", " ", "1", "234"]),
        ("youtu", "한국어。abc", ["한국어", "。", "abc"]),
        ("chameleon", "<sentinel:12>IMGIMGAZ a1", ["<", "sentinel", ":", "1", "2", ">", "IMGIMGAZ", " a", "1"]),
        ("bloom", "Hello, big world (x)", ["Hello", ",", " big", " world", " (", "x", ")"]),
        ("viking", "year 1987", ["year", " ", "1", "9", "8", "7"]),
    ],
)
def test_families(pre: str, text: str, words: list[str]) -> None:
    metadata: dict[str, Any] = toy.byte_level([], [], pre=pre)
    (found,) = Tokenizer.from_metadata(metadata)._encoding().split(text)
    assert found == words


ADD_BOS = "llama3 llama-bpe falcon3 falcon-h1 pixtral lfm2 tekken chameleon gemma4".split()
IGNORE_MERGES = "llama3 llama-bpe pixtral glm4 tekken minicpm5 youtu granite-embed-multi-97m".split()


def test_what_comes_with_a_family() -> None:
    for name, family in FAMILIES.items():
        assert family.patterns
        assert not family.add_bos or FAMILIES[name] in [FAMILIES[n] for n in (*ADD_BOS, "granite-embed-multi-311m")]
        assert not family.ignore_merges or family in [FAMILIES[n] for n in IGNORE_MERGES]
    assert all(FAMILIES[n].add_bos for n in ADD_BOS)
    assert all(FAMILIES[n].ignore_merges for n in IGNORE_MERGES)
    assert not FAMILIES["chatglm-bpe"].ignore_merges
    assert not FAMILIES["qwen2"].add_bos


@pytest.mark.parametrize("pre", ["kimi-k2", "superbpe", "whitespace", "from-the-future"])
def test_unknown_pre_tokenizers_are_refused(pre: str) -> None:
    tokenizer = Tokenizer.from_metadata(toy.byte_level([], [], pre=pre))
    with pytest.raises(TokenizerError, match=f"unknown pre-tokenizer '{pre}' .*Known: .*smollm"):
        tokenizer.encode("ab")
    assert tokenizer.decode([0, 1]) == '!"'


@given(st.text(alphabet=[*" \t\n'3٣asdtlve½中!.-_é🦙\u0301\u00a0\u3000"], max_size=30))
@settings(max_examples=150)
def test_digits_apart_in_one_pattern(text: str) -> None:
    """The pattern of the smollm family equals what published tokenizers do in two steps."""
    split, regex = pre_tokenizers.Split, tokenizers.Regex
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    two = pre_tokenizers.Sequence([split(regex(r"\p{N}"), "isolated"), split(regex(gpt2), "isolated")])
    (pattern,) = FAMILIES["smollm"].patterns
    assert split(regex(pattern), "isolated").pre_tokenize_str(text) == two.pre_tokenize_str(text)


@given(st.text(alphabet="12345a_ .-é½٣", max_size=24))
@settings(max_examples=150)
def test_digits_in_threes_from_the_right(text: str) -> None:
    """The two steps of the tiny_aya family that take linear time equal the published one, which does not."""
    split, regex = pre_tokenizers.Split, tokenizers.Regex
    last = FAMILIES["tiny_aya"].patterns[-1]
    published = [r"\d{1,3}(?=(?:\d{3})*\b)", last]
    steps = pre_tokenizers.Sequence([split(regex(p), "isolated") for p in published])
    assert Splitter(FAMILIES["tiny_aya"]).by_library(text) == [w for w, _ in steps.pre_tokenize_str(text)]


def test_patterns_for_ascii() -> None:
    assert to_ascii(r"\p{Lu}+[^\s\p{L}\p{N}]\z") == r"[A-Z]+[^\sA-Za-z0-9]\Z"
    assert re.fullmatch(to_ascii(r"[\p{M}]*a"), "a")
    signs = re.compile(to_ascii(r"[\p{P}\p{S}]"))
    assert [c for c in map(chr, range(128)) if signs.match(c)] == [*"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]

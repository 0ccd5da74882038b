"""What vocabularies of files get wrong, leave out or do not say, one test each."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from unit.tokenizer import toy

from edgellm.core.errors import TokenizerError
from edgellm.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("way")


def make(metadata: dict[str, Any], **keys: Any) -> Tokenizer:
    """`keys`: full metadata keys with dots written __."""
    return Tokenizer.from_metadata(metadata | {k.replace("__", "."): v for k, v in keys.items()})


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


# --- BOS and EOS -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "bos"),
    [
        (toy.sentencepiece({"a": -1.0}, []), True),
        (toy.sentencepiece({"a": -1.0}, [], add_bos_token=False), False),
        (toy.byte_level([], [], pre="gpt-2", bos_token_id=0), False),
        (toy.byte_level([], [], pre="gpt-2", bos_token_id=0, add_bos_token=True), True),
        (toy.byte_level([], [], pre="llama-bpe", bos_token_id=0), True),
        (toy.byte_level([], [], pre="tekken", bos_token_id=0), True),
        (toy.byte_level([], [], pre="tekken", bos_token_id=0, add_bos_token=False), False),
        (toy.byte_level([], [], pre="glm4"), False),
        (toy.plain_utf8(["a b"]), True),
        (toy.plain_utf8(["a b"], add_bos_token=False), True),  # published files deny it, the model needs it
    ],
)
def test_bos_by_kind_and_key(metadata: dict[str, Any], bos: bool) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.add_bos is bos
    assert (tokenizer.encode("a")[0] == tokenizer.bos_id) is bos
    assert not tokenizer.add_eos


def test_a_byte_level_file_without_ids_has_no_bos_or_eos() -> None:
    """The default of 11 that other programs fall back to is an arbitrary token of most vocabularies."""
    tokenizer = make(toy.byte_level([], [], add_bos_token=True, add_eos_token=True))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos, tokenizer.add_eos) == (None, None, False, False)
    assert len(tokenizer.encode("a")) == 1
    assert 11 not in tokenizer.eog_ids


def test_a_rendered_prompt_with_its_own_bos_gets_no_second_one() -> None:
    tokenizer = make(toy.sentencepiece({"a": -1.0}, []))
    assert tokenizer.encode_segments([("<s>", True), ("a", False)]).count(1) == 1


# --- spaces ------------------------------------------------------------------------------------------


def test_the_space_prefix_obeys_the_key() -> None:
    pieces = dict.fromkeys(["a", "▁", "▁a"], -1.0)
    default = make(toy.sentencepiece(pieces, [("<x>", toy.USER)]))
    off = make(toy.sentencepiece(pieces, [("<x>", toy.USER)], add_space_prefix=False))
    assert texts_of(default, default.encode("a<x>a", add_special=False)) == ["▁a", "<x>", "▁a"]
    assert texts_of(off, off.encode("a<x>a", add_special=False)) == ["a", "<x>", "a"]
    raw = make(toy.plain_utf8(["▁ a"]))
    assert texts_of(raw, raw.encode("a", add_special=False)) == ["a"]


@pytest.mark.parametrize(
    ("pre", "name", "text", "strips"),
    [
        ("jina-v2-code", "", "<mask>", True),
        ("jina-v2-de", "", "<mask>", True),
        ("gpt-2", "modern-bert base", "[MASK]", True),
        ("gpt-2", "", "<mask>", False),
        ("jina-v2-de", "", "[MASK]", False),
    ],
)
def test_masks_that_swallow_the_space_before_them(pre: str, name: str, text: str, strips: bool) -> None:
    tokenizer = make(toy.byte_level([], [(text, toy.CONTROL)], pre=pre), general__name=name)
    ids = tokenizer.encode(f"a \t{text} b", parse_special=True)
    assert texts_of(tokenizer, ids) == (["a", text, "Ġ", "b"] if strips else ["a", "Ġ", "ĉ", text, "Ġ", "b"])


def test_phi3_swallows_the_space_after_special_tokens() -> None:
    metadata = toy.sentencepiece(dict.fromkeys(["a", "▁", "▁a"], -1.0), [("<|user|>", toy.CONTROL)])
    for name, expected in (("Phi3", ["<|user|>", "▁a"]), ("other", ["<|user|>", "▁", "▁a"])):
        tokenizer = make(metadata, general__name=name)
        assert texts_of(tokenizer, tokenizer.encode("<|user|> a", parse_special=True, add_special=False)) == expected


# --- special tokens in text --------------------------------------------------------------------------


def test_user_defined_tokens_are_always_found_control_tokens_only_when_parsed() -> None:
    special = [("<c>", toy.CONTROL), ("<u>", toy.USER), ("<uu>", toy.USER), ("<n>", toy.UNKNOWN)]
    for metadata in (toy.byte_level([], special), toy.plain_utf8(["a b"], special)):
        tokenizer = make(metadata)
        parsed = texts_of(tokenizer, tokenizer.encode("<c><u><n>", parse_special=True, add_special=False))
        plain = texts_of(tokenizer, tokenizer.encode("<c><u><n>", add_special=False))
        assert parsed == ["<c>", "<u>", "<n>"]
        assert "<u>" in plain
        assert not {"<c>", "<n>"} & set(plain)


# --- bytes -------------------------------------------------------------------------------------------


def test_byte_fallback_and_its_absence() -> None:
    raw = make(toy.plain_utf8(["a b"]))
    assert texts_of(raw, raw.encode("é", add_special=False)) == ["<0xC3>", "<0xA9>"]
    metadata = toy.plain_utf8(["a b"])
    metadata["tokenizer.ggml.tokens"][3 + 0xA9] = "gone"
    metadata["tokenizer.ggml.token_type"][3 + 0xA9] = toy.NORMAL
    without = make(metadata)
    assert texts_of(without, without.encode("aéb\u00c0", add_special=False)) == ["a", "b", "<0xC3>", "<0x80>"]


@pytest.mark.parametrize("metadata", [toy.plain_utf8(["a b"]), toy.sentencepiece({"a": -1.0}, [])])
def test_streams_hold_back_bytes_until_a_character_is_whole(metadata: dict[str, Any]) -> None:
    tokenizer = make(metadata)
    stream = tokenizer.stream()
    ids = tokenizer.encode("🦙", add_special=False)[-4:]
    assert [stream.push(i) for i in ids] == ["", "", "", "🦙"]
    assert tokenizer.decode(ids) == "🦙"


def test_characters_without_a_token_keep_their_neighbours_apart() -> None:
    metadata = toy.byte_level(["a b"], [])
    at = metadata["tokenizer.ggml.tokens"].index("ĝ")  # byte 0x1D
    metadata["tokenizer.ggml.tokens"][at] = "gone"
    tokenizer = make(metadata)
    assert texts_of(tokenizer, tokenizer.encode("a\x1db")) == ["a", "b"]


# --- merges ------------------------------------------------------------------------------------------


def test_whole_words_before_merges_only_where_the_family_says_so() -> None:
    for pre, expected in (("llama-bpe", ["abc"]), ("tekken", ["abc"]), ("glm4", ["abc"]), ("qwen2", ["ab", "c"])):
        tokenizer = make(toy.byte_level(["a b"], [("abc", toy.NORMAL)], pre=pre))
        assert texts_of(tokenizer, tokenizer.encode("abc", add_special=False)) == expected


def test_of_equal_merges_the_first_counts() -> None:
    metadata = toy.byte_level(["a b", "b c"], [])
    metadata["tokenizer.ggml.merges"] = ["a b", "b c", "a b"]
    tokenizer = make(metadata)
    assert texts_of(tokenizer, tokenizer.encode("abc")) == ["ab", "c"]


def test_merges_are_split_at_the_first_space_after_their_first_character() -> None:
    metadata = toy.byte_level(["Ġ a"], [])
    metadata["tokenizer.ggml.merges"] += ["  b", "a b c", "x"]
    tokenizer = make(metadata)
    assert texts_of(tokenizer, tokenizer.encode(" abc x")) == ["Ġa", "b", "c", "Ġ", "x"]


def test_runs_of_line_breaks_on_plain_utf8() -> None:
    """Gemma 4 has tokens for them that no merge makes."""
    metadata = toy.plain_utf8(["a b"], [("\n\n\n", toy.NORMAL), ("\n", toy.NORMAL)])
    tokenizer = make(metadata)
    ids = tokenizer.encode("a\n\n\nb\n\n", add_special=False)
    assert texts_of(tokenizer, ids) == ["a", "\n\n\n", "b", "\n", "\n"]


def test_a_token_that_goes_on_into_a_space_is_not_cut() -> None:
    tokenizer = make(toy.plain_utf8(["a ▁", "a▁ b", "▁ ▁"]))
    assert texts_of(tokenizer, tokenizer.encode("a b  b a", add_special=False)) == ["a▁b", "▁▁", "b", "▁", "a"]


# --- odd tokens --------------------------------------------------------------------------------------


def test_duplicate_empty_and_padding_tokens() -> None:
    extra = [("ab", toy.NORMAL), ("", toy.NORMAL), ("", toy.UNUSED), ("[PAD1]", toy.UNUSED), ("[PAD2]", toy.USER)]
    tokenizer = make(toy.byte_level(["a b"], extra))
    n = tokenizer.n_vocab
    assert tokenizer.encode("ab") == [n - 5]  # of two tokens with one text the later one
    assert tokenizer.decode([n - 5, n - 6]) == "abab"
    assert [tokenizer.token_text(n - 4), tokenizer.token_text(n - 3)] == [f"[EMPTY_{n - 4}]", f"[EMPTY_{n - 3}]"]
    assert tokenizer.token_bytes(n - 2) == b""
    assert tokenizer.encode("[PAD1]") != [n - 2]
    assert tokenizer.encode("[PAD2]") == [n - 1]


def test_control_tokens_have_no_text_for_grammars() -> None:
    special = [("<unused7>", toy.CONTROL), ("<|reserved_1|>", toy.CONTROL), ("<x>", toy.UNUSED)]
    tokenizer = make(toy.byte_level([], special))
    n = tokenizer.n_vocab
    assert [tokenizer.token_bytes(i) for i in (n - 3, n - 2, n - 1)] == [b"", b"", b""]
    assert [tokenizer.is_control(i) for i in (n - 3, n - 2, n - 1)] == [True, True, False]
    assert all(len(tokenizer.token_bytes(i)) == 1 for i in range(256))


def test_suppressed_tokens() -> None:
    key = "tokenizer.ggml.suppress_tokens"
    metadata = toy.byte_level([], [])
    assert make(metadata).suppressed_ids == frozenset()
    assert make(metadata | {key: np.array([3, 5, -1, 10**6], np.int32)}).suppressed_ids == {3, 5}
    assert make(metadata | {key: []}).suppressed_ids == frozenset()
    for bad in ("3", ["a"], np.array([1.5])):
        with pytest.raises(TokenizerError, match="suppress_tokens"):
            _ = make(metadata | {key: bad}).suppressed_ids


# --- ends of generation, fill in the middle ----------------------------------------------------------

ENDS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> "
    "<|end_of_text|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <eos> <｜end▁of▁sentence｜> <end_of_utterance> <turn|> "
    "<|tool_response> [e~["
).split()


@pytest.mark.parametrize("text", [*ENDS, "<|call|>", "<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<|file_sep|>"])
def test_ends_of_generation_by_text(text: str) -> None:
    """Without these, models never stop."""
    for kind in (toy.CONTROL, toy.NORMAL, toy.USER):
        tokenizer = make(toy.byte_level([], [(text, kind), ("<other>", toy.CONTROL)]))
        token = tokenizer.n_vocab - 2
        assert tokenizer.eog_ids == {token}
        assert tokenizer.is_control(token)
        assert token not in tokenizer.encode(text)
        assert tokenizer.encode(text, parse_special=True) == [token]


@pytest.mark.parametrize("partner", ["<|return|>", "<|flush|>"])
def test_the_end_of_a_harmony_message_is_not_the_end(partner: str) -> None:
    tokenizer = make(toy.byte_level([], [(t, toy.CONTROL) for t in ("<|end|>", partner, "<|call|>")]))
    end = tokenizer.n_vocab - 3
    assert end not in tokenizer.eog_ids
    assert tokenizer.decode([end]) == "<|end|>"
    assert end not in tokenizer.encode("<|end|>")


@pytest.mark.parametrize("other", ["<|tool_response>", "<|plamo:eos|>"])
def test_models_in_which_s_is_plain_text(other: str) -> None:
    tokenizer = make(toy.byte_level([], [("</s>", toy.NORMAL), (other, toy.CONTROL)]))
    assert tokenizer.n_vocab - 2 not in tokenizer.eog_ids


@pytest.mark.parametrize(
    "texts",
    [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<reponame>"],
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-pad>", "<fim-repo>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ["▁<PRE>", "▁<SUF>", "▁<MID>"],
        ["<PRE>", "<SUF>", "<MID>", "<PAD>", "<REPO>"],
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
        ["<|prefix|>", "<|suffix|>", "<|middle|>"],
    ],
)
def test_fill_in_the_middle_by_text(texts: list[str]) -> None:
    tokenizer = make(toy.byte_level([], [(t, toy.NORMAL) for t in texts]))
    first = tokenizer.n_vocab - len(texts)
    names = ["pre", "suf", "mid", "pad", "rep", "sep"][: len(texts)]
    assert tokenizer.fim_ids == {name: first + i for i, name in enumerate(names)}
    assert tokenizer.eog_ids == set(range(first + 3, tokenizer.n_vocab))


def test_fill_in_the_middle_by_key() -> None:
    special = [(t, toy.CONTROL) for t in ("<fim_prefix>", "<x>", "<y>")]
    metadata = toy.byte_level([], special, fim_pre_token_id=257, suffix_token_id=258, fim_mid_token_id=10**6)
    assert make(metadata).fim_ids == {"pre": 257, "suf": 258}


# --- decoding ----------------------------------------------------------------------------------------


def test_decoding_never_tidies_spaces() -> None:
    for pre in ("gpt-2", "default", "qwen2"):
        tokenizer = make(toy.byte_level([], [], pre=pre))
        for text in ("a , b . c ' s", " a", "do n't", "  !"):
            assert tokenizer.decode(tokenizer.encode(text)) == text
    raw = make(toy.plain_utf8(["▁ a"]))
    assert raw.decode(raw.encode(" a  a\n", add_special=False)) == " a  a\n"


# --- what is not said, and what is not supported -----------------------------------------------------


def test_a_missing_pre_tokenizer_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    metadata = toy.byte_level([], [])
    del metadata["tokenizer.ggml.pre"]
    with caplog.at_level(logging.WARNING, "edgellm"):
        make(metadata).encode("a")
    assert "names no pre-tokenizer" in caplog.text
    caplog.clear()
    make(toy.byte_level([], [], pre="default")).encode("a")
    assert not caplog.text


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace", "something new"])
def test_other_kinds_of_vocabulary_are_refused_by_name(model: str) -> None:
    metadata = toy.metadata(model, [("a", toy.NORMAL), ("b", toy.NORMAL)], eos_token_id=1)
    metadata |= {"tokenizer.ggml.precompiled_charsmap": np.zeros(8, np.uint8)}
    tokenizer = make(metadata)
    assert not tokenizer.usable
    assert (tokenizer.n_vocab, tokenizer.eog_ids) == (2, {1})
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([0])):
        with pytest.raises(
            TokenizerError, match=f"unsupported tokenizer '{model}' .*expected one of gpt2, llama, gemma4"
        ):
            call()


def test_keys_of_other_kinds_change_nothing() -> None:
    pieces = dict.fromkeys(["a", "▁", "▁▁"], -1.0)
    tokenizer = make(toy.sentencepiece(pieces, [], remove_extra_whitespaces=True, add_space_prefix=False))
    assert texts_of(tokenizer, tokenizer.encode("a  a", add_special=False)) == ["a", "▁▁", "a"]

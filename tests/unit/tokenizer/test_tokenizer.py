"""The tokenizer's own surface: special ids, segments, decoding, streams, and what broken files give."""

from __future__ import annotations

import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.tokenizer import toy

from edgellm.core.errors import ModelNotFound, RequestError, TokenizerError
from edgellm.tokenizer import Tokenizer

MERGES = ["a b", "Ġ a", "h e", "l l", "he ll", "hell o", "Ċ Ċ"]
SPECIAL = [
    ("<|im_start|>", toy.CONTROL),
    ("<|im_end|>", toy.CONTROL),
    ("<user>", toy.USER),
    ("  ", toy.USER),
    ("<|endoftext|>", toy.CONTROL),
]
PIECES = dict.fromkeys(["h", "e", "l", "o", "▁", "▁h", "he", "ll", "hello", "▁hello", "hell"], -1.0)


def bpe(**keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(toy.byte_level(MERGES, SPECIAL, **keys))


def spm(**keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(toy.sentencepiece(PIECES, SPECIAL, **keys))


BPE, SPM = bpe(), spm()
CONTROL_BPE = {BPE._metadata["tokenizer.ggml.tokens"].index(t) for t, kind in SPECIAL if kind == toy.CONTROL}

relaxed = settings(deadline=None)  # other processes may have the machine
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
nasty_text = st.lists(
    st.sampled_from(["<|im_end|>", "<|im_", "end|>", "hello", " ", "\n", "<user>", "é", "🦙", "<s>", "ab", "|>"])
).map("".join)


# --- round trips, streams, segments ------------------------------------------------------------------


@given(st.one_of(any_text, nasty_text), st.booleans())
@relaxed
def test_bpe_round_trip(text: str, parse_special: bool) -> None:
    ids = BPE.encode(text, parse_special=parse_special)
    assert BPE.decode(ids, special=True) == text


@given(st.one_of(any_text, nasty_text))
@relaxed
def test_spm_round_trip(text: str) -> None:
    """But for ▁, which a SentencePiece vocabulary cannot tell from a space, and tokens it puts spaces after."""
    text = re.sub(" +", " ", text.replace("▁", "").replace("<user>", ""))
    for tokenizer in (SPM, spm(add_space_prefix=False)):
        assert tokenizer.decode(tokenizer.encode(text)) == text


ids_of_bpe = st.lists(st.integers(0, BPE.n_vocab - 1), max_size=40)


@given(ids_of_bpe)
@relaxed
def test_a_stream_gives_what_decode_gives(ids: list[int]) -> None:
    stream = BPE.stream()
    parts = [stream.push(i) for i in ids]
    assert "".join(parts) + stream.flush() == BPE.decode(ids, continues=True)
    assert all("\ufffd" not in p or "\ufffd" in BPE.decode(ids) for p in parts)


@given(st.lists(st.integers(0, SPM.n_vocab - 1), max_size=40), st.booleans())
@relaxed
def test_a_stream_of_sentencepiece_tokens(ids: list[int], continues: bool) -> None:
    stream = SPM.stream(continues=continues)
    text = "".join(stream.push(i) for i in ids) + stream.flush()
    assert text == SPM.decode(ids, continues=continues)


def test_a_stream_holds_characters_back_until_they_are_whole() -> None:
    ids = BPE.encode("a🦙é")
    assert len(ids) == 7
    stream = BPE.stream()
    assert [stream.push(i) for i in ids] == ["a", "", "", "", "🦙", "", "é"]
    assert stream.flush() == ""
    stream = BPE.stream()
    assert [stream.push(i) for i in ids[:3]] == ["a", "", ""]
    assert stream.flush() == "\ufffd"


segments = st.lists(st.tuples(nasty_text, st.booleans()), max_size=6)


@given(segments)
@relaxed
def test_user_text_never_becomes_a_control_token(parts: list[tuple[str, bool]]) -> None:
    """A control token comes out once for each time it stands whole in flagged text, and never more."""
    ids = BPE.encode_segments(parts)
    flagged, own = [], ""
    for text, flag in parts:
        if flag:
            own += text
        else:
            flagged.append(own)
            own = ""
    written = sum(text.count("<|im_end|>") for text in [*flagged, own])
    assert sum(i in CONTROL_BPE for i in ids) == written
    assert BPE.decode(ids, special=True) == "".join(text for text, _ in parts)


@given(st.lists(nasty_text, max_size=5))
@relaxed
def test_segments_equal_the_joined_text(texts: list[str]) -> None:
    joined = "".join(texts)
    for flag in (True, False):
        ids = BPE.encode_segments([(t, flag) for t in texts])
        assert ids == BPE.encode(joined, parse_special=flag)


def test_words_go_across_segments() -> None:
    ids = BPE.encode_segments([("<|im_start|>he", True), ("llo\n", False), ("\n<|im_end|>", True)])
    assert [BPE.token_text(i) for i in ids] == ["<|im_start|>", "hello", "ĊĊ", "<|im_end|>"]


@pytest.mark.parametrize("make", [bpe, spm])
def test_segments_have_exactly_one_bos(make: Any) -> None:
    bos = 1 if make is spm else BPE._metadata["tokenizer.ggml.tokens"].index("<|im_start|>")
    tokenizer = make(add_bos_token=True, bos_token_id=bos, eos_token_id=2, add_eos_token=True)
    text = tokenizer.token_text(bos)
    assert tokenizer.encode_segments([("hello", True)])[0] == bos
    for parts in ([(text, True), ("hello", False)], [(text + text + "hello", True)], [("hello", False)]):
        ids = tokenizer.encode_segments(parts)
        assert ids.count(bos) == 1
        assert ids[0] == bos
        assert ids[-1] != 2
    assert tokenizer.encode_segments([(text, False)], add_special=False).count(bos) == 0
    assert tokenizer.encode_segments([(text, False)]).count(bos) == 1
    assert tokenizer.encode(text, parse_special=True)[:2] == [bos, bos]
    assert tokenizer.encode("hello")[-1] == 2


def test_no_bos_where_the_model_wants_none() -> None:
    tokenizer = bpe(bos_token_id=0, add_bos_token=False)
    assert tokenizer.encode_segments([("hello", True)]) == tokenizer.encode("hello", add_special=False)


# --- special ids -------------------------------------------------------------------------------------


def test_defaults_of_special_tokens() -> None:
    assert (SPM.bos_id, SPM.eos_id, SPM.unk_id, SPM.pad_id) == (1, 2, 0, None)
    assert (SPM.add_bos, SPM.add_eos, SPM.add_space_prefix) == (True, False, True)
    assert (BPE.bos_id, BPE.eos_id, BPE.unk_id, BPE.add_bos, BPE.add_space_prefix) == (None, None, None, False, False)
    assert bpe(pre="llama3", bos_token_id=3).add_bos
    assert not bpe(pre="llama3").add_bos  # there is nothing to add
    assert bpe(bos_token_id=10**9).bos_id is None


def test_end_of_generation() -> None:
    tokens = dict(zip(BPE._metadata["tokenizer.ggml.tokens"], range(BPE.n_vocab), strict=True))
    assert BPE.eot_id == tokens["<|im_end|>"]
    assert BPE.eog_ids == {tokens["<|im_end|>"], tokens["<|endoftext|>"]}
    assert bpe(eos_token_id=7).eog_ids == BPE.eog_ids | {7}
    assert bpe(eot_token_id=9).eot_id == 9
    assert SPM.eog_ids >= {2}


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (["<|end|>", "<|return|>", "<|call|>"], {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|return|>"], {"<|end|>", "<|return|>"}),
        (["</s>", "<|tool_response>"], {"<|tool_response>"}),
        (["</s>", "<fim_pad>", "<fim_prefix>"], {"</s>", "<fim_pad>"}),
        (["<repo_name>", "<reponame>", "<|file_sep|>"], {"<reponame>", "<|file_sep|>"}),
    ],
)
def test_end_of_generation_by_text(texts: list[str], ends: set[str]) -> None:
    metadata = toy.byte_level([], [(t, toy.NORMAL) for t in texts])
    tokenizer = Tokenizer.from_metadata(metadata)
    eot = set() if tokenizer.eot_id is None else {tokenizer.eot_id}
    assert {tokenizer.token_text(i) for i in tokenizer.eog_ids - eot} == ends - {tokenizer.token_text(i) for i in eot}
    for text in ends:
        assert tokenizer.is_control(metadata["tokenizer.ggml.tokens"].index(text))


def test_harmony_marks_are_shown_but_guarded() -> None:
    metadata = toy.byte_level([], [("<|channel|>", toy.CONTROL), ("<|return|>", toy.CONTROL)])
    tokenizer = Tokenizer.from_metadata(metadata)
    channel = tokenizer.n_vocab - 2
    assert tokenizer.decode([channel]) == "<|channel|>"
    assert channel not in tokenizer.encode("<|channel|>")
    assert tokenizer.encode("<|channel|>", parse_special=True) == [channel]


# --- bytes and decoding ------------------------------------------------------------------------------


def test_token_bytes() -> None:
    texts = BPE._metadata["tokenizer.ggml.tokens"]
    assert BPE.token_bytes(texts.index("Ġa")) == b" a"
    assert BPE.token_bytes(texts.index("Ã")) == b"\xc3"
    assert BPE.token_bytes(texts.index("<user>")) == b"<user>"
    assert BPE.token_bytes(texts.index("<|im_end|>")) == b""
    assert b"".join(BPE.token_bytes(i) for i in range(256)) != b""
    assert sorted(BPE.token_bytes(i) for i in range(256)) == [bytes([b]) for b in range(256)]
    assert SPM.token_bytes(3 + 0xE2) == b"\xe2"
    assert SPM.token_bytes(SPM.n_vocab - 1) == b"hell"
    assert SPM.token_bytes(SPM._metadata["tokenizer.ggml.tokens"].index("▁hello")) == b" hello"


def test_texts_outside_the_byte_alphabet_stand_for_themselves() -> None:
    metadata = toy.byte_level([], [("a b", toy.NORMAL), ("日本", toy.NORMAL), ("\x80", toy.NORMAL), ("", toy.UNUSED)])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert [tokenizer.token_bytes(256 + i) for i in range(4)] == [b"a b", "日本".encode(), b"\xc2\x80", b""]
    assert tokenizer.token_bytes(0) == b"!"


def test_decode_writes_control_tokens_when_asked() -> None:
    ids = BPE.encode("<|im_start|>hello<|im_end|>", parse_special=True)
    assert BPE.decode(ids) == "hello"
    assert BPE.decode(ids, special=True) == "<|im_start|>hello<|im_end|>"
    assert BPE.decode([]) == ""


def test_the_first_space_of_sentencepiece() -> None:
    ids = SPM.encode("hello hello")
    assert SPM.decode(ids) == "hello hello"
    assert SPM.decode(ids, continues=True) == " hello hello"
    stream = SPM.stream(continues=False)
    parts = [stream.push(i) for i in ids]
    assert (parts[0], parts[1][0], "".join(parts)) == ("", "h", "hello hello")


@pytest.mark.parametrize("bad", [-1, BPE.n_vocab, 10**12])
def test_ids_outside_the_vocabulary(bad: int) -> None:
    for call in (BPE.token_bytes, BPE.token_text, BPE.is_control, BPE.stream().push, lambda i: BPE.decode([0, i])):
        with pytest.raises(RequestError, match=f"token id {bad} is outside the vocabulary"):
            call(bad)


@pytest.mark.parametrize("bad", [None, b"abc", 3])
def test_text_must_be_text(bad: Any) -> None:
    with pytest.raises(RequestError, match="text must be a string"):
        BPE.encode(bad)


# --- files that are not as they should be ------------------------------------------------------------


@pytest.mark.parametrize("model", ["none", "no_vocab", "", "rwkv"])
def test_without_a_usable_vocabulary_ids_still_work(model: str) -> None:
    metadata = {"general.architecture": "llama", "llama.vocab_size": 128, "tokenizer.ggml.model": model}
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.eos_token_id": 5})
    tokenizer.warm()
    assert tokenizer.n_vocab == 128
    assert not tokenizer.usable
    assert tokenizer.eog_ids == {5}
    assert not tokenizer.is_control(5)
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1]), tokenizer.stream):
        with pytest.raises(TokenizerError, match="pass token ids instead"):
            call()


def test_no_metadata_at_all() -> None:
    tokenizer = Tokenizer.from_metadata({})
    tokenizer.warm()
    assert (tokenizer.n_vocab, tokenizer.eog_ids, tokenizer.bos_id) == (0, frozenset(), None)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("tokens", np.arange(3), "strings"),
        ("tokens", 3, "not a usable list"),
        ("token_type", np.ones(3, np.int32), "expected 2"),
        ("token_type", "x", "token_type"),
        ("scores", np.ones(3, np.float32), "expected 2"),
        ("merges", None, r"no tokenizer\.ggml\.merges"),
        ("merges", 7, "not a usable list"),
    ],
)
def test_broken_vocabularies(key: str, value: Any, match: str) -> None:
    metadata = toy.byte_level(MERGES, SPECIAL, eos_token_id=5)
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    else:
        metadata[f"tokenizer.ggml.{key}"] = value
    tokenizer = Tokenizer.from_metadata(metadata)
    tokenizer.warm()
    for _ in range(2):
        with pytest.raises(TokenizerError, match=match):
            tokenizer.encode("hello")
    assert isinstance(tokenizer.eog_ids, frozenset)


def test_a_byte_token_with_another_text() -> None:
    metadata = toy.sentencepiece(PIECES, [("<0xZZ>", toy.BYTE)])
    with pytest.raises(TokenizerError, match="<0xZZ>"):
        Tokenizer.from_metadata(metadata).decode([3])


def test_from_gguf_says_when_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        Tokenizer.from_gguf(tmp_path / "none.gguf")


def test_many_threads_build_it_once() -> None:
    tokenizer = bpe()
    start = threading.Barrier(8)
    results: list[tuple[list[int], str, frozenset[int]]] = []

    def work() -> None:
        start.wait()
        ids = tokenizer.encode("hello <user>ab")
        results.append((ids, tokenizer.decode(ids), tokenizer.eog_ids))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 8
    assert all(r == results[0] for r in results)
    assert results[0][1] == "hello <user>ab"


# --- the real vocabularies ---------------------------------------------------------------------------


@cache
def single_bytes(tokenizer: Tokenizer) -> set[int]:
    pieces = map(tokenizer.token_bytes, range(tokenizer.n_vocab))
    return {piece[0] for piece in pieces if len(piece) == 1}


@given(st.one_of(any_text, nasty_text))
@relaxed
def test_smollm2_round_trip(smollm2: Tokenizer, text: str) -> None:
    text = "".join(c for c in text if single_bytes(smollm2).issuperset(c.encode()))
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == text
    assert not any(smollm2.is_control(i) for i in ids)


@given(st.one_of(any_text, nasty_text))
@relaxed
def test_gemma3_round_trip(gemma3: Tokenizer, text: str) -> None:
    ids = gemma3.encode(text, add_special=False)
    assert gemma3.decode(ids) == text.replace("▁", " ")
    assert not any(gemma3.is_control(i) for i in ids)


def test_bytes_without_a_token_are_left_out(smollm2: Tokenizer) -> None:
    assert smollm2.decode(smollm2.encode("a\x1db")) == "ab"


def test_real_special_ids(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.eot_id, smollm2.eog_ids) == (1, 2, 2, {0, 2, 4})
    assert (gemma3.bos_id, gemma3.eos_id, gemma3.eot_id, gemma3.eog_ids) == (2, 1, 106, {1, 106, 212})
    assert (smollm2.add_bos, gemma3.add_bos, gemma3.add_space_prefix) == (False, True, False)

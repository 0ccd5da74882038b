"""What the calls return: llama-cpp-python's dictionaries, key by key, and its meaning of the options."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compat.conftest import OpenLlama
from serving.tiny import END, START, ids, write_tiny

from edgellm import ContextOverflow, RequestError
from edgellm.compat import Llama

USAGE = {"prompt_tokens": int, "completion_tokens": int, "total_tokens": int}
BODY = {"id": str, "object": str, "created": int, "model": str}
LEGACY = {"tokens": [str], "token_logprobs": [float], "top_logprobs": [dict], "text_offset": [int]}
TEXT = {"text": str, "index": int, "logprobs": None, "finish_reason": str}
TOP = {"token": str, "bytes": [int], "logprob": float}
ENTRIES = {"content": [{**TOP, "top_logprobs": [TOP]}], "refusal": None}
CHAT = {"index": int, "message": {"role": str, "content": str}, "logprobs": None, "finish_reason": str}
DELTA = {"index": int, "logprobs": None, "finish_reason": None}
ASK = [{"role": "user", "content": "a"}]


def check(value: Any, shape: Any, where: str = "it") -> None:
    """Asserts that plain data have these keys, and values of these types, all the way down."""
    if isinstance(shape, dict):
        assert sorted(value) == sorted(shape), where
        for key, inner in shape.items():
            check(value[key], inner, f"{where}[{key!r}]")
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for i, item in enumerate(value):
            check(item, shape[0], f"{where}[{i}]")
    elif shape is None:
        assert value is None, where
    else:
        assert type(value) is shape, where


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["choices"][0]["text"] for c in chunks)


def test_a_completion(open_llama: OpenLlama) -> None:
    llama, before = open_llama("hello there"), int(time.time())
    out = llama("ab")
    check(out, {**BODY, "choices": [TEXT], "usage": USAGE})
    assert out["id"].startswith("cmpl-")
    assert (out["object"], out["model"], out["choices"][0]["index"]) == ("text_completion", llama.model_path, 0)
    assert before <= out["created"] <= time.time()
    assert (out["choices"][0]["text"], out["choices"][0]["finish_reason"]) == ("hello there", "stop")
    assert out["usage"] == {"prompt_tokens": 2, "completion_tokens": 11, "total_tokens": 13}  # the end is not counted
    assert llama("ab", model="mine")["model"] == "mine"
    assert llama("ab")["id"] != out["id"]


def test_max_tokens(open_llama: OpenLlama) -> None:
    llama = open_llama("0123456789" * 4)
    for given, text in (({}, 16), ({"max_tokens": 3}, 3), ({"max_tokens": None}, 40), ({"max_tokens": -1}, 40)):
        out = llama("ab", **given)
        assert len(out["choices"][0]["text"]) == text
        assert out["choices"][0]["finish_reason"] == ("stop" if text == 40 else "length")
    assert len(llama.create_chat_completion(ASK)["choices"][0]["message"]["content"]) == 40


def test_numbers_may_come_from_elsewhere(open_llama: OpenLlama) -> None:
    llama = open_llama("0123456789" * 4)
    out = llama("ab", max_tokens=np.int64(-1), top_k=np.int32(-1))
    assert len(out["choices"][0]["text"]) == 40
    banned = {str(ids("0")[0]): -math.inf, ids("1")[0]: 1.0}
    assert llama("ab", logit_bias=banned, temperature=0, max_tokens=1)["choices"][0]["text"] != "0"
    with pytest.raises(RequestError, match="logit_bias keys must be token ids, found 'zero'"):
        llama("ab", logit_bias={"zero": 1.0})


def test_a_stream(open_llama: OpenLlama) -> None:
    chunks = list(open_llama("hé日").create_completion("ab", stream=True))
    assert text_of(chunks) == "hé日"
    for chunk in chunks[:-1]:
        check(chunk, {**BODY, "choices": [{**TEXT, "finish_reason": None}]})
    check(chunks[-1], {**BODY, "choices": [TEXT]})
    assert (chunks[-1]["choices"][0]["text"], chunks[-1]["choices"][0]["finish_reason"]) == ("", "stop")
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1


def test_stop_strings(open_llama: OpenLlama) -> None:
    llama = open_llama("one two three")
    for stop in ("two", ["two"], ["x", "two"]):
        assert llama("a", stop=stop)["choices"][0]["text"] == "one "
        assert text_of(list(llama("a", stop=stop, stream=True))) == "one "
    for stop in (None, []):
        assert llama("a", stop=stop)["choices"][0]["text"] == "one two three"


def test_echo(open_llama: OpenLlama) -> None:
    llama = open_llama("xyz")
    assert llama("ab", echo=True)["choices"][0]["text"] == "abxyz"
    assert llama(ids("ab"), echo=True)["choices"][0]["text"] == "abxyz"
    assert text_of(list(llama("ab", echo=True, stream=True))) == "abxyz"


def test_logprobs_of_a_completion(open_llama: OpenLlama) -> None:
    llama = open_llama(seed=1)
    out = llama("abc", logprobs=2, max_tokens=3, temperature=0)
    check(out["choices"][0], {**TEXT, "logprobs": LEGACY})
    found = out["choices"][0]["logprobs"]
    assert found["text_offset"][0] == 3  # behind the prompt
    assert [len(top) for top in found["top_logprobs"]] == [2, 2, 2]
    chunks = list(llama("abc", logprobs=2, max_tokens=3, temperature=0, stream=True))
    pieces = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    assert {key: [x for p in pieces for x in p[key]] for key in found} == found

    echoed = llama("abc", logprobs=2, max_tokens=3, temperature=0, echo=True)["choices"][0]
    assert echoed["text"] == "abc" + out["choices"][0]["text"]
    behind = {key: values[3:] for key, values in echoed["logprobs"].items()}
    assert behind == found
    assert (echoed["logprobs"]["tokens"][:3], echoed["logprobs"]["text_offset"][:3]) == (["a", "b", "c"], [0, 1, 2])
    assert (echoed["logprobs"]["token_logprobs"][0], echoed["logprobs"]["top_logprobs"][0]) == (None, None)
    assert all(x < 0 for x in echoed["logprobs"]["token_logprobs"][1:])


def test_a_bos_is_no_part_of_an_echo(open_llama: OpenLlama, tmp_path: Any) -> None:
    path = write_tiny(tmp_path / "bos.gguf", **{"tokenizer.ggml.add_bos_token": True})
    llama = open_llama("x", path=path)
    echoed = llama("ab", logprobs=0, echo=True)["choices"][0]["logprobs"]
    assert (echoed["tokens"][:3], echoed["token_logprobs"][0]) == (["a", "b", "x"], None)
    # One BOS, also where the text spells it out.
    for prompt, count in (("ab", 3), ("<|im_start|>ab", 3), ("<|im_start|><|im_start|>ab", 4), ("", 1)):
        assert llama(prompt)["usage"]["prompt_tokens"] == count


def test_control_tokens_count_in_a_prompt(open_llama: OpenLlama) -> None:
    llama = open_llama("x")
    assert llama("<|im_start|>a<|im_end|>")["usage"]["prompt_tokens"] == 3
    assert llama([START, *ids("a"), END])["usage"]["prompt_tokens"] == 3


def test_a_chat(open_llama: OpenLlama) -> None:
    llama = open_llama("hi")
    out = llama.create_chat_completion(ASK)
    check(out, {**BODY, "choices": [CHAT], "usage": USAGE})
    assert out["id"].startswith("chatcmpl-")
    assert out["object"] == "chat.completion"
    assert out["choices"][0]["message"] == {"role": "assistant", "content": "hi"}
    assert out["choices"][0]["finish_reason"] == "stop"
    assert out["usage"]["completion_tokens"] == 2
    scored = llama.create_chat_completion(ASK, logprobs=True, top_logprobs=2)["choices"][0]
    check(scored, {**CHAT, "logprobs": ENTRIES})
    assert [len(t["top_logprobs"]) for t in scored["logprobs"]["content"]] == [2, 2, 2]


@pytest.mark.parametrize("chat_format", [None, "chatml"])
def test_a_chat_stream(open_llama: OpenLlama, chat_format: str | None) -> None:
    chunks = list(open_llama("héllo", chat_format=chat_format).create_chat_completion(ASK, stream=True))
    first, *middle, last = chunks
    check(first, {**BODY, "choices": [{**DELTA, "delta": {"role": str}}]})
    for chunk in middle:
        check(chunk, {**BODY, "choices": [{**DELTA, "delta": {"content": str}}]})
    check(last, {**BODY, "choices": [{**DELTA, "delta": {}, "finish_reason": str}]})
    assert "".join(c["choices"][0]["delta"]["content"] for c in middle) == "héllo"
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1


def test_seeds(open_llama: OpenLlama) -> None:
    def text(llama: Any, **given: Any) -> str:
        out: str = llama("abc", temperature=2.0, top_k=0, min_p=0.0, top_p=1.0, max_tokens=12, **given)["choices"][0][
            "text"
        ]
        return out

    free, fixed = open_llama(), open_llama(seed=5)
    assert text(free, seed=5) == text(free, seed=5) == text(fixed) == text(fixed)
    assert len({text(free) for _ in range(4)}) > 1
    assert len({text(fixed, seed=-1) for _ in range(4)}) > 1
    assert text(fixed, seed=6) == text(free, seed=6) != text(fixed)
    free.set_seed(5)
    assert text(free) == text(fixed)


def test_tokens(open_llama: OpenLlama) -> None:
    llama = open_llama("x")
    assert llama.tokenize(b"hello") == llama.tokenize(b"hello", add_bos=False, special=True)
    assert llama.tokenize(b"<|im_end|>", special=True) == [END]
    assert llama.tokenize(b"<|im_end|>") != [END]
    e = ids("é")
    assert llama.detokenize(e) == "é".encode()
    assert llama.detokenize(e[:1]) == "é".encode()[:1]
    assert (llama.detokenize([END]), llama.detokenize([END], special=True)) == (b"", b"<|im_end|>")
    assert (llama.token_bos(), llama.token_eos(), llama.token_nl()) == (START, END, ids("\n")[0])
    assert (llama.n_vocab(), llama.n_embd(), llama.n_ctx()) == (END + 1, 32, 256)
    with pytest.raises(RequestError, match=r"bytes, found str: write text\.encode\(\)"):
        llama.tokenize("a")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="not UTF-8 at byte 1"):
        llama.tokenize(b"a\xff")


def test_metadata_is_text(open_llama: OpenLlama) -> None:
    metadata = open_llama("x").metadata
    assert metadata["llama.embedding_length"] == "32"
    assert metadata["tokenizer.ggml.add_bos_token"] == "false"
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == "0.000010"
    assert "tokenizer.ggml.tokens" not in metadata


def test_fill_in_the_middle(open_llama: OpenLlama, tmp_path: Any) -> None:
    with pytest.raises(RequestError, match="fill in the middle"):
        open_llama("x")("a", suffix="b")
    keys = {f"tokenizer.ggml.fim_{name}_token_id": ids(c)[0] for name, c in (("pre", "<"), ("suf", ">"), ("mid", "_"))}
    path = write_tiny(tmp_path / "fim.gguf", **keys)
    seen = {}
    for spm in (False, True):
        llama = open_llama("x", path=path, spm_infill=spm)
        assert llama("a", suffix="b")["choices"][0]["text"] == "x"
        seen[spm] = llama.llm.detokenize(llama._prompt_ids("a", "b"), special=True)
    assert seen == {False: "<a>b_", True: ">b<a_"}


def test_leaving_a_stream_stops_the_work(open_llama: OpenLlama) -> None:
    n_ctx = 20_000
    llama = open_llama("0123456789" * (n_ctx // 10), n_ctx=n_ctx)
    streams: list[Any] = [
        llama("a", stream=True, max_tokens=None),
        llama.create_chat_completion(ASK, stream=True),
        llama.generate(ids("a")),
    ]
    for stream in streams:
        next(stream), next(stream)
        stream.close()
    while llama.llm.stats.running:
        time.sleep(0.001)
    assert llama.llm.stats.tokens < 1.5 * n_ctx  # of three contexts full


def test_step_by_step(open_llama: OpenLlama) -> None:
    llama = open_llama("xyz", logits_all=True)
    with pytest.raises(RequestError, match="eval"):
        llama.sample()
    llama.eval(ids("ab"))
    token = llama.sample(temp=0.0)
    assert token == ids("x")[0]
    llama.eval([token])
    state = llama.save_state()
    assert llama.sample(temp=0.0) == ids("y")[0]
    assert (llama.n_tokens, list(llama.eval_tokens), llama.input_ids.dtype) == (3, ids("abx"), np.int32)
    assert llama.scores.shape == (3, llama.n_vocab())
    assert len(llama.eval_logits) == 3
    llama.reset()
    assert llama.n_tokens == 0
    llama.load_state(state)
    assert llama.sample(temp=0.0) == ids("y")[0]
    assert list(llama.generate([], reset=False, temp=0.0)) == [*ids("yz"), END]
    assert list(llama.generate(ids("q"), temp=0.0)) == [*ids("xyz"), END]
    for wrong, error in (([-1], RequestError), ([99999], RequestError), ([0] * 254, ContextOverflow)):
        with pytest.raises(error):
            llama.eval(wrong)
    assert llama.n_tokens == 3
    with pytest.raises(TypeError, match="unknown argument 'tmp'"):
        llama.generate([1], tmp=0.0)


def test_each_step_has_a_draw_of_its_own(open_llama: OpenLlama) -> None:
    llama = open_llama(seed=3)
    flat = {"temp": 1e6, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    tokens = []
    for n in range(8):
        llama.load_state(type(llama.save_state())(np.full(n + 1, 7, np.int32), n + 1, 3))
        tokens.append(llama.sample(**flat))
        assert llama.sample(**flat) == tokens[-1]
    ranks = {t * 8 // llama.n_vocab() for t in tokens}
    assert len(ranks) > 3  # the same random number each time would choose about the same place in a flat distribution


def test_embeddings(tiny_path: Path) -> None:
    llama = Llama(str(tiny_path), n_ctx=64, embedding=True)
    out = llama.create_embedding(["hello", "hello world"], model="mine")
    entry = {"object": str, "embedding": [float], "index": int}
    check(out, {"object": str, "model": str, "data": [entry], "usage": {"prompt_tokens": int, "total_tokens": int}})
    assert (out["object"], out["model"], [d["index"] for d in out["data"]]) == ("list", "mine", [0, 1])
    assert out["usage"]["total_tokens"] == len(llama.tokenize(b"hello") + llama.tokenize(b"hello world"))
    one = llama.create_embedding("hello")["data"]
    assert (len(one), one[0]["embedding"]) == (1, out["data"][0]["embedding"])
    assert llama.embed("hello") == one[0]["embedding"]
    assert llama.embed([]) == []
    unit = np.array(llama.embed(["hello"], normalize=True)[0])
    assert np.allclose(unit * np.linalg.norm(one[0]["embedding"]), one[0]["embedding"], rtol=1e-5)
    assert len(llama.embed("a " * 500)) == llama.n_embd()
    with pytest.raises(ContextOverflow):
        llama.embed("a " * 500, truncate=False)
    assert llama("ab", max_tokens=2)["usage"]["completion_tokens"] <= 2  # the same object writes, too
    llama.close()
    last = Llama(str(tiny_path), pooling_type=3)
    assert last.embed("hello world") == last.llm.embed("hello world", pooling="last", normalize=False)[0].tolist()
    last.close()


def test_log_probabilities(open_llama: OpenLlama) -> None:
    llama = open_llama(logits_all=True)
    llama.eval(ids("abc"))
    logp = llama.logits_to_logprobs(llama.scores)
    assert np.allclose(np.exp(logp.astype(np.float64)).sum(axis=1), 1)
    best = llama("abc", temperature=0, max_tokens=1, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"][0]
    assert abs(float(logp[-1].max()) - best) < 1e-5


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        (5, TypeError),
        (None, TypeError),
        (b"ab", TypeError),
        ([[1]], RequestError),
        ([99999], RequestError),
        ([], RequestError),
    ],
)
def test_prompts_that_are_none(open_llama: OpenLlama, prompt: Any, error: type[Exception]) -> None:
    for stream in (False, True):
        with pytest.raises(error):
            open_llama("x")(prompt, stream=stream)


def test_a_prompt_that_does_not_fit_is_a_value_error(open_llama: OpenLlama) -> None:
    with pytest.raises(ValueError, match=r"257 tokens\) exceeds"):
        open_llama("x")([1] * 257)

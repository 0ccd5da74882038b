"""/v1/completions. Each test is one or more lines of the conformance list, named by its ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from server.conftest import Running, Start
from server.test_chat_completions import error_of
from serving.tiny import END, START, ids, saying, write_tiny

from edgellm.backends.fake import FakeBackend

PATH = "/v1/completions"


def choices(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["choices"]
    return found


@pytest.mark.parametrize(
    ("prompt", "n_prompts"),
    [("a", 1), (["a"], 1), (["a", "b"], 2), (ids("ab"), 1), ([ids("ab"), ids("c")], 2), (["a", ids("b")], 2)],
)
def test_cmp_01_prompts(shared: Running, prompt: Any, n_prompts: int) -> None:
    found = choices(shared.post(PATH, {"prompt": prompt, "n": 2}))
    assert [c["index"] for c in found] == list(range(2 * n_prompts))
    assert all(c["text"] == "ok" for c in found)


@pytest.mark.parametrize("prompt", [None, [], {}, 3, [[]], [None], [True], [1.5], [["a"]], ["a", {}], [99999], [-1]])
def test_cmp_01_what_is_no_prompt(shared: Running, prompt: Any) -> None:
    assert "prompt" in error_of(shared.post(PATH, {"prompt": prompt}), 400)["message"] or prompt in ([99999], [-1])


def test_cmp_02_the_answer(shared: Running) -> None:
    answer = shared.post(PATH, {"prompt": "a"}).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["system_fingerprint"].startswith("el")
    assert answer["choices"] == [{"index": 0, "text": "ok", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 3


def test_cmp_03_sixteen_tokens(start: Start) -> None:
    s = start()
    assert s.post(PATH, {"prompt": "a"}).json()["usage"]["completion_tokens"] == 16


def test_cmp_04_logprobs(start: Start) -> None:
    s = start(FakeBackend(saying("hi")))
    logprobs = choices(s.post(PATH, {"prompt": "ab", "logprobs": 2, "temperature": 0}))[0]["logprobs"]
    assert logprobs["tokens"] == ["h", "i", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert len(logprobs["token_logprobs"]) == 3
    assert all(len(top) >= 2 for top in logprobs["top_logprobs"])
    error_of(s.post(PATH, {"prompt": "a", "logprobs": 21}), 400)


def test_cmp_05_echo_and_scoring(start: Start) -> None:
    s = start()
    body = {"prompt": "abc", "echo": True, "max_tokens": 0, "logprobs": 1}
    answer = s.post(PATH, body)
    choice = choices(answer)[0]
    assert choice["text"] == "abc"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(p <= 0 for p in logprobs["token_logprobs"][1:])
    assert answer.json()["usage"]["completion_tokens"] == 0
    more = choices(s.post(PATH, {**body, "max_tokens": 2, "temperature": 0}))[0]
    assert more["logprobs"]["tokens"][:3] == logprobs["tokens"]
    assert more["logprobs"]["token_logprobs"][:3] == logprobs["token_logprobs"]
    assert more["logprobs"]["text_offset"][3] == 3
    assert len(more["logprobs"]["tokens"]) == 5
    assert choices(s.post(PATH, {"prompt": ids("abc"), "echo": True, "max_tokens": 0}))[0]["text"] == "abc"
    assert error_of(s.post(PATH, {**body, "stream": True}), 501)["param"] == "echo"


def test_cmp_06_suffix_and_best_of(shared: Running, start: Start, tmp_path: Path) -> None:
    error_of(shared.post(PATH, {"prompt": "a", "suffix": "b"}), 400)
    error_of(shared.post(PATH, {"prompt": "a", "best_of": 2}), 400)
    assert shared.post(PATH, {"prompt": "a", "best_of": 2, "n": 2, "suffix": ""}).status_code == 200
    marks = {f"tokenizer.ggml.fim_{n}_token_id": ids(c)[0] for n, c in (("pre", "("), ("suf", "|"), ("mid", ")"))}
    seen: list[list[int]] = []
    s = start(FakeBackend(on_step=lambda b: seen.append(b.tokens.tolist())), path=write_tiny(tmp_path / "f", **marks))
    s.post(PATH, {"prompt": "ab", "suffix": "cd", "max_tokens": 1})
    assert seen[0] == ids("(ab|cd)")


def test_cmp_07_stream(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    events = s.events(PATH, {"prompt": "a", "stream_options": {"include_usage": True}})
    *chunks, usage, done = events
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12
    assert all(c["object"] == "text_completion" and c["usage"] is None for c in chunks)
    assert "".join(c["choices"][0]["text"] for c in chunks) == "hello there"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert "usage" not in s.events(PATH, {"prompt": "a"})[-2]


def test_cmp_07_streams_of_several_prompts(start: Start) -> None:
    s = start()
    body = {"prompt": ["a", "b", "c"], "n": 2, "seed": 3, "max_tokens": 5, "echo": True}
    whole = {c["index"]: c["text"] for c in choices(s.post(PATH, body))}
    chunks = s.events(PATH, body)[:-1]
    texts = dict.fromkeys(range(6), "")
    for c in chunks:
        texts[c["choices"][0]["index"]] += c["choices"][0]["text"]
    assert texts == whole
    assert sorted(c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]) == list(range(6))


def test_cmp_08_no_template_and_control_tokens_count(start: Start, tmp_path: Path) -> None:
    seen: list[list[int]] = []
    fake = FakeBackend(saying("ok"), on_step=lambda b: seen.append(b.tokens.tolist()))
    s = start(fake, path=write_tiny(tmp_path / "bos.gguf", **{"tokenizer.ggml.add_bos_token": True}))
    s.post(PATH, {"prompt": "a<|im_end|>", "max_tokens": 1})
    assert seen[0] == [START, *ids("a"), END]


@pytest.mark.parametrize("field", ["prompt_logprobs", "grammar", "response_format", "structured_outputs"])
def test_what_is_not_there_yet_is_a_501(shared: Running, field: str) -> None:
    value: Any = {"type": "json_object"} if field == "response_format" else 1
    assert error_of(shared.post(PATH, {"prompt": "a", field: value}), 501)["param"] == field

"""Thoughts are told apart from answers, in every dialect, in streams as in whole answers (RESP-04)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server.conftest import Running, Start, new_starter
from server.test_chat_completions import HI, error_of
from serving.tiny import CHATML, saying, write_tiny

from edgellm.backends.fake import FakeBackend
from edgellm.server.reasoning import KNOWN, Splitter, Thoughts, marks_of

SAID = "<think>\nLet me see \n</think>\n\nIt is 4."
THOUGHT, ANSWER = "Let me see", "It is 4."
N_THOUGHT = len(SAID) - len("\n\nIt is 4.")
MARKS = KNOWN[0]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model that thinks before every answer."""
    path = write_tiny(tmp_path_factory.mktemp("thinker") / "thinker.gguf", template=CHATML + "{# </think> #}")
    running: list[Running] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield new_starter(path, monkeypatch, running)(FakeBackend(saying(SAID)))
        for one in running:
            one.stop()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "text",
    [SAID, "plain <think>", "  <think>x", "\n\n hi", "abc</think>  yes", "a</thin", "<thi", "", "<think></think>", " "],
)
def test_pieces_of_any_size_are_split_alike(text: str, begun: bool) -> None:
    thoughts = Thoughts(MARKS, begun)
    whole = thoughts.split(text)
    rng = random.Random(1)
    for _ in range(50):
        splitter, at, found = Splitter(thoughts), 0, ["", ""]
        while at < len(text):
            to = at + rng.randint(1, 4)
            for i, part in enumerate(splitter.push(text[at:to])):
                found[i] += part
            at = to
        for i, part in enumerate(splitter.finish()):
            found[i] += part
        assert tuple(found) == whole


def test_what_is_thought_and_what_is_answer() -> None:
    assert Thoughts(MARKS, False).split(SAID) == (THOUGHT, ANSWER)
    assert Thoughts(MARKS, False).split("no <think> thoughts </think>") == ("", "no <think> thoughts </think>")
    assert Thoughts(MARKS, True).split("thoughts</think> answer") == ("thoughts", "answer")
    assert Thoughts(MARKS, True).split("thoughts without an e</thi") == ("thoughts without an e</thi", "")
    assert Thoughts.after(MARKS, "<|assistant|><think>\n").begun
    assert not Thoughts.after(MARKS, "<|assistant|><think>\n\n</think>\n\n").begun
    assert Thoughts(MARKS, False).count(["<think>", "a", "b", "</think>", "c"]) == 4
    assert Thoughts(MARKS, False).count(["a", "b"]) == 0
    assert Thoughts(MARKS, True).count(["a", "b"]) == 2
    assert marks_of(CHATML) is None


def test_resp_04_reasoning_content(thinker: Running) -> None:
    answer = thinker.chat().json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, ANSWER)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == N_THOUGHT
    deltas = [e["choices"][0]["delta"] for e in thinker.chat_events(stream_options={"include_usage": True})[:-2]]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == THOUGHT
    assert "".join(d.get("content", "") for d in deltas) == ANSWER
    order = [next(iter(d)) for d in deltas if d and "role" not in d]
    assert order == sorted(order, reverse=True)  # STR-01: thoughts first
    usage = thinker.chat_events(stream_options={"include_usage": True})[-2]["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == N_THOUGHT


def test_resp_04_none_leaves_it_in_the_content(thinker: Running, start: Start, tmp_path: Path) -> None:
    message = thinker.chat(reasoning_format="none").json()["choices"][0]["message"]
    assert message["content"] == SAID
    assert "reasoning_content" not in message
    assert thinker.chat(reasoning_format="deepseek").json()["choices"][0]["message"]["content"] == ANSWER
    error_of(thinker.chat(reasoning_format="deepseek-legacy"), 501)
    error_of(thinker.chat(reasoning_format="other"), 400)
    error_of(thinker.chat(reasoning_format=1), 400)
    path = write_tiny(tmp_path / "t.gguf", template=CHATML + "{# </think> #}")
    s = start(FakeBackend(saying(SAID)), path=path, reasoning=False)
    assert s.chat().json()["choices"][0]["message"]["content"] == SAID


def test_a_model_without_marks_in_its_template_says_what_it_says(start: Start) -> None:
    s = start(FakeBackend(saying(SAID)))
    assert s.chat().json()["choices"][0]["message"]["content"] == SAID


def test_a_prompt_that_begins_the_thoughts(start: Start, tmp_path: Path) -> None:
    path = write_tiny(
        tmp_path / "t.gguf", template=CHATML.replace("assistant\n", "assistant\n<think>\n") + "{# </think> #}"
    )
    s = start(FakeBackend(saying("So.</think>Yes.")), path=path)
    message = s.chat().json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("So.", "Yes.")
    s.chat("what does <think> mean?")
    talk = [HI["messages"][0], {"role": "assistant", "content": "<think>done</think>"}]
    prefilled = s.post("/v1/chat/completions", {"messages": talk}).json()["choices"][0]["message"]
    assert prefilled["content"] == "So.</think>Yes."


def test_ant_04_05_thinking_blocks(thinker: Running) -> None:
    body = {**HI, "max_tokens": 64}
    content = thinker.post("/v1/messages", body).json()["content"]
    assert content == [{"type": "thinking", "thinking": THOUGHT, "signature": ""}, {"type": "text", "text": ANSWER}]
    text = thinker.post("/v1/messages", {**body, "stream": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [e["index"] for e in events if e["type"] == "content_block_start"] == [0, 1]
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    assert "".join(d.get("thinking", "") for d in deltas) == THOUGHT
    assert "".join(d.get("text", "") for d in deltas) == ANSWER
    kinds = [(e["type"], e.get("delta", {}).get("type")) for e in events]
    assert kinds[kinds.index(("content_block_stop", None)) - 1] == ("content_block_delta", "signature_delta")
    cut = thinker.post("/v1/messages", {**body, "max_tokens": 12}).json()
    assert [b["type"] for b in cut["content"]] == ["thinking"]


def test_rsp_05_06_07_a_reasoning_item(thinker: Running) -> None:
    whole = thinker.post("/v1/responses", {"input": "Hi"}).json()
    assert [i["type"] for i in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    assert whole["output"][1]["content"][0]["text"] == ANSWER
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == N_THOUGHT
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none")
    with client, client.responses.stream(model="tiny", input="Hi") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == ANSWER
    assert [e.sequence_number for e in events] == list(range(len(events)))
    for kind, text, index in (("reasoning_text", THOUGHT, 0), ("output_text", ANSWER, 1)):
        deltas = [e for e in events if e.type == f"response.{kind}.delta"]
        assert "".join(e.delta for e in deltas) == text
        assert {e.output_index for e in deltas} == {index}
    cut = thinker.post("/v1/responses", {"input": "Hi", "max_output_tokens": 12}).json()
    assert [i["type"] for i in cut["output"]] == ["reasoning"]


def test_ollama_thinking(thinker: Running) -> None:
    body: dict[str, Any] = {"model": "tiny", **HI}
    message = thinker.post("/api/chat", {**body, "stream": False}).json()["message"]
    assert (message["thinking"], message["content"]) == (THOUGHT, ANSWER)
    rows = [
        json.loads(line) for line in thinker.post("/api/generate", {"model": "tiny", "prompt": "x"}).text.splitlines()
    ]
    assert "".join(r.get("thinking", "") for r in rows) == THOUGHT
    assert "".join(r["response"] for r in rows) == ANSWER
    assert thinker.post("/api/show", {"model": "tiny"}).json()["capabilities"] == ["completion", "thinking"]


# -- work in progress ----------------------------------------------------------------------------------------------


def test_str_07_return_progress(start: Start) -> None:
    s = start(FakeBackend(saying("ok")), options={"n_batch": 32})
    long = "a" * 100
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
        ("/v1/completions", {"prompt": "b" * 100}),
        ("/completion", {"prompt": "c" * 100}),
    ):
        events = [e for e in s.events(path, {**body, "return_progress": True}) if e != "[DONE]"]
        told = [e["prompt_progress"] for e in events if "prompt_progress" in e]
        n = told[0]["total"]
        assert n >= 100
        assert [told[0]["processed"], told[-1]["processed"]] == [told[0]["cache"], n]
        assert [t["processed"] for t in told] == sorted({t["processed"] for t in told})
        assert all(t["time_ms"] >= 0 for t in told)
        assert all("prompt_progress" not in e for e in events[len(told) :])
        if path != "/completion":
            assert all(e["choices"] for e in events)
        if "messages" in body:
            assert [e["choices"][0]["delta"].get("role") for e in events[:2]] == ["assistant", None]
        again = s.events(path, {**body, "return_progress": True})[0]["prompt_progress"]
        assert again["cache"] == again["processed"] > 0
        assert not any("prompt_progress" in e for e in s.events(path, body))
        error_of(s.post(path, {**body, "return_progress": 1}), 400)


def test_str_03_timings_per_token(start: Start) -> None:
    s = start(FakeBackend(saying("hello there"), multi_step=False))
    for path, body in (
        ("/v1/chat/completions", HI), ("/v1/completions", {"prompt": "x"}), ("/completion", {"prompt": "x"})
    ):  # fmt: skip
        events = [e for e in s.events(path, {**body, "timings_per_token": True, "seed": 1}) if e != "[DONE]"]
        told = [e["timings"]["predicted_n"] for e in events if "timings" in e]
        assert told == sorted(told)
        assert len(told) > 8
        assert told[-1] == 12
        plain = [e for e in s.events(path, {**body, "seed": 1}) if e != "[DONE]"]
        assert [("timings" in e) for e in plain] == [False] * (len(plain) - 1) + [True]
        error_of(s.post(path, {**body, "timings_per_token": "yes"}), 400)

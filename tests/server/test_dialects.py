"""llama.cpp's own route and tokens, Anthropic's, Ollama's and the Responses API, by their conformance lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server.conftest import Running, Start, parse_events
from server.test_chat_completions import HI, error_of
from serving.tiny import ids, saying

from edgellm.backends.fake import FakeBackend


def test_nat_01_the_answer(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    answer = s.post("/completion", {"prompt": "a", "return_tokens": True}).json()
    assert answer["content"] == "hello there"
    assert answer["tokens"][:2] == ids("he")
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    assert answer["prompt"] == "a"
    assert answer["tokens_predicted"] == 12
    assert s.post("/completion", {"prompt": "a", "n_predict": 3}).json()["stop_type"] == "limit"
    stopped = s.post("/completion", {"prompt": "a", "stop": ["lo"]}).json()
    assert (stopped["stop_type"], stopped["stopping_word"], stopped["content"]) == ("word", "lo", "hel")
    several = s.post("/completion", {"prompt": ["a", "b"]}).json()
    assert [a["index"] for a in several] == [0, 1]
    some = s.post("/completion", {"prompt": "a", "response_fields": ["content", "timings/predicted_n"]}).json()
    assert some == {"content": "hello there", "timings/predicted_n": 12}


def test_nat_02_03_streams_and_probabilities(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    events = s.events("/completion", {"prompt": "a", "n_probs": 2, "temperature": 0})
    assert "".join(e["content"] for e in events) == "hello there"
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    entry = events[0]["completion_probabilities"][0]
    assert {"id", "token", "bytes", "logprob", "top_logprobs"} == entry.keys()


@pytest.mark.parametrize("text", ["", "hello world", "añ€😀 b", "<|im_end|>"])
def test_tok_01_02(shared: Running, text: str) -> None:
    tokens = shared.post("/tokenize", {"content": text, "parse_special": False}).json()["tokens"]
    assert shared.post("/detokenize", {"tokens": tokens}).json()["content"] == text
    pieces = shared.post("/tokenize", {"content": text, "with_pieces": True, "parse_special": False}).json()["tokens"]
    assert [p["id"] for p in pieces] == tokens
    spelt = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert spelt.decode() == text


def test_tok_03_vllm(shared: Running) -> None:
    answer = shared.post("/tokenize", {"prompt": "hello", "return_token_strs": True}).json()
    assert answer == {"count": 1, "max_model_len": 256, "tokens": answer["tokens"], "token_strs": ["hello"]}
    talk = shared.post("/tokenize", HI).json()
    assert talk["count"] == shared.post("/v1/chat/completions", HI).json()["usage"]["prompt_tokens"]
    error_of(shared.post("/detokenize", {"tokens": "x"}), 400)
    error_of(shared.post("/detokenize", {"tokens": [10**6]}), 400)


def test_tpl_01(shared: Running) -> None:
    text = shared.post("/apply-template", HI).json()["prompt"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_prp_01_slt_01(shared: Running) -> None:
    props = shared.http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert props["total_slots"] == 8
    assert "im_start" in props["chat_template"]
    assert "/" not in props["model_path"]
    slots = shared.http.get("/slots").json()
    assert [x["id"] for x in slots] == list(range(8))
    assert not any(x["is_processing"] for x in slots)


def test_slt_01_switched_off(start: Start) -> None:
    s = start(slots=False, metrics=False)
    error_of(s.http.get("/slots"), 501)
    error_of(s.http.get("/metrics"), 501)


def test_met_01_02(start: Start) -> None:
    s = start(FakeBackend(saying("hello")), metrics_prefix="llamacpp")
    s.chat()
    s.chat(stream=True)
    page = s.http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in page.text.splitlines() if not line.startswith("#"))
    assert float(lines["llamacpp:tokens_predicted_total"]) == 12
    for name in (
        "prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total", "tokens_predicted_seconds_total",
        "n_decode_total", "n_tokens_max", "n_busy_slots_per_decode", "prompt_tokens_seconds",
        "predicted_tokens_seconds", "requests_processing", "requests_deferred", "kv_cache_usage_perc",
        "num_requests_running", "num_requests_waiting", "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_sum", "e2e_request_latency_seconds_count", "request_queue_time_seconds_sum",
        "request_prompt_tokens_count", "request_generation_tokens_sum", "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
    ):  # fmt: skip
        assert f"llamacpp:{name}" in lines
        assert f"# HELP llamacpp:{name.removesuffix('_count').removesuffix('_sum')}" in page.text
    assert "prefix_cache_disk" not in page.text


def test_metrics_of_pages_on_disk(start: Start, tmp_path: Path) -> None:
    for cached in (0, 96):
        s = start(FakeBackend(saying("hello")), options={"prefix_cache_dir": str(tmp_path)})
        answer = s.chat("a" * 80, max_tokens=1).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        lines = dict(line.rsplit(" ", 1) for line in s.http.get("/metrics").text.splitlines() if line[0] != "#")
        seen = {k.removeprefix("edgellm:prefix_cache_disk_"): float(v) for k, v in lines.items() if "_disk_" in k}
        assert seen["pages_read_total"] == cached // 32
        assert (seen["bytes_read_total"] > 0) == (cached > 0)
        assert seen["pages_lost_total"] == seen["pages_removed_total"] == seen["files_damaged_total"] == 0
        assert {"pages_written_total", "bytes_written_total"} < seen.keys()
        s.stop()


def anthropic_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(event, data) of a stream of named events."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_ant_01_errors(shared: Running) -> None:
    answer = shared.post("/v1/messages", {"max_tokens": 5})
    assert answer.status_code == 400
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert shared.post("/v1/messages", {**HI, "stream": True, "temperature": "x"}).json()["type"] == "error"
    assert shared.http.get("/v1/messages").json()["type"] == "error"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], 200),
        (
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "4"}],
                    "is_error": False,
                }
            ],
            200,
        ),
        ([{"type": "thinking", "thinking": "x", "signature": "y"}, {"type": "text", "text": "a"}], 200),
        ([{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}], 200),
        ([{"type": "image", "source": {"type": "url", "url": "http://x"}}], 400),
        ([{"type": "poem"}], 400),
        (7, 400),
    ],
)
def test_ant_02_blocks(shared: Running, content: Any, status: int) -> None:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 5}
    assert shared.post("/v1/messages", body).status_code == status


def test_ant_03_fields(shared: Running) -> None:
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    body = {**HI, "max_tokens": 9, "temperature": 0.1, "top_p": 0.9, "top_k": 3, "metadata": {}, "tools": [tool],
            "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"},
            "system": [{"type": "text", "text": "x"}]}  # fmt: skip
    assert shared.post("/v1/messages", body, headers={"anthropic-version": "2023-06-01"}).status_code == 200
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        assert shared.post("/v1/messages", {**body, "tool_choice": choice}).status_code == 501


def test_ant_04_05_answers_and_streams(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    answer = s.post("/v1/messages", {**HI, "max_tokens": 20}).json()
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert answer["content"] == [{"type": "text", "text": "hello there"}]
    assert answer["usage"]["output_tokens"] == 12
    text = s.post("/v1/messages", {**HI, "max_tokens": 3, "stream": True}).text
    events = anthropic_events(text)
    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(d["delta"]["text"] for n, d in events if n == "content_block_delta") == "hel"
    assert events[-2][1]["delta"]["stop_reason"] == "max_tokens"
    assert events[-2][1]["usage"]["output_tokens"] == 3
    counted = s.post("/v1/messages/count_tokens", HI).json()  # ANT-07
    assert counted == {"input_tokens": answer["usage"]["input_tokens"]}


@pytest.mark.parametrize(
    "body",
    [
        {}, {"input": []}, {"input": 3}, {"input": "a", "previous_response_id": "x"},
        {"input": "a", "background": True},
        {"input": "a", "conversation": "x"}, {"input": [{"type": "input_file"}]},
        {"input": [{"role": "user", "content": 3}]},
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, {"input": "a", "max_output_tokens": "x"},
    ],
)  # fmt: skip
def test_rsp_01_03_what_is_refused(shared: Running, body: dict[str, Any]) -> None:
    error_of(shared.post("/v1/responses", body), 400)


def test_rsp_01_02_04_items(shared: Running) -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "4"},
        {"type": "reasoning", "summary": [], "content": []},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}]},
    ]
    body = {"input": items, "instructions": "x", "temperature": 0.5, "top_p": 1, "reasoning": {"effort": "low"},
            "text": {"format": {"type": "text"}}, "tools": [{"type": "web_search"}], "store": True, "metadata": {},
            "parallel_tool_calls": True}  # fmt: skip
    assert shared.post("/v1/responses", body).status_code == 200
    for field in (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}},
        {"tool_choice": "required"},
    ):
        error_of(shared.post("/v1/responses", {"input": "a", **field}), 501)


def test_rsp_05_06_07_answers_and_streams(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    whole = s.post("/v1/responses", {"input": "a"}).json()
    assert whole["object"] == "response"
    assert whole["id"].startswith("resp_")
    assert (whole["status"], whole["error"], whole["incomplete_details"]) == ("completed", None, None)
    message = whole["output"][0]
    assert message["id"].startswith("msg_")
    assert message["content"] == [{"type": "output_text", "text": "hello there", "annotations": [], "logprobs": []}]
    assert whole["usage"]["total_tokens"] == whole["usage"]["input_tokens"] + 12
    events = anthropic_events(s.post("/v1/responses", {"input": "a", "stream": True}).text)
    assert all(name == data["type"] for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    names = [name.removeprefix("response.") for name, _ in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert "".join(d["delta"] for n, d in events if n.endswith("text.delta")) == "hello there"
    assert len({d["item_id"] for _, d in events if "item_id" in d}) == 1


def test_ollama_lines(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    answer = s.post("/api/chat", {**HI, "model": "tiny"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(x["message"]["content"] for x in lines) == "hello there"
    last = lines[-1]
    for name in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
        assert isinstance(last[name], int)
    assert last["done_reason"] == "stop"
    version = s.http.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)  # what VS Code asks for
    assert s.post("/api/chat", {"model": "tiny", "messages": []}).json()["done_reason"] == "load"
    assert s.post("/api/generate", {"prompt": "x"}).json() == {"error": "model is required"}
    for field in ({"format": "json"}, {"images": ["x"]}, {"context": [1]}):
        assert s.post("/api/generate", {"model": "tiny", "prompt": "x", **field}).status_code == 501


def test_an_event_stream_of_another_dialect_has_no_done(start: Start) -> None:
    s = start(FakeBackend(saying("ok")))
    assert "[DONE]" not in s.post("/completion", {"prompt": "a", "stream": True}).text
    assert parse_events(s.post("/completion", {"prompt": "a", "stream": True}).text)[-1]["stop"] is True


def test_emb_01_02_03_04_08_09(shared: Running) -> None:
    answer = shared.post("/v1/embeddings", {"input": ["hello", "world", "hello"]}).json()
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert [d["index"] for d in answer["data"]] == [0, 1, 2]
    assert {d["object"] for d in answer["data"]} == {"embedding"}
    vectors = [np.array(d["embedding"], np.float32) for d in answer["data"]]
    assert (vectors[0] == vectors[2]).all()
    assert not (vectors[0] == vectors[1]).all()
    assert all(abs(float(np.linalg.norm(v)) - 1) < 1e-5 for v in vectors)
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 2
    alone = shared.post("/v1/embeddings", {"input": "hello", "encoding_format": "base64"}).json()
    raw = np.frombuffer(base64.b64decode(alone["data"][0]["embedding"]), "<f4")
    assert (raw == vectors[0]).all()
    ids_alone = shared.post("/tokenize", {"content": "hello", "add_special": True}).json()["tokens"]
    assert shared.post("/v1/embeddings", {"input": ids_alone}).json()["data"][0]["embedding"] == vectors[0].tolist()
    scaled = {n: shared.post("/embeddings", {"input": "hello", "embd_normalize": n}).json()["data"][0]["embedding"]
              for n in (-1, 0, 1, 2, 3)}  # fmt: skip
    assert abs(sum(map(abs, scaled[1])) - 1) < 1e-5
    assert abs(max(map(abs, scaled[0])) - 32760) < 1
    assert abs(sum(abs(x) ** 3 for x in scaled[3]) - 1) < 1e-5
    assert scaled[2] == vectors[0].tolist()
    short = shared.post("/v1/embeddings", {"input": "hello", "dimensions": 8}).json()["data"][0]["embedding"]
    assert len(short) == 8  # EMB-06
    assert abs(float(np.linalg.norm(short)) - 1) < 1e-5


@pytest.mark.parametrize(
    "body",
    [
        {}, {"input": []}, {"input": [[]]}, {"input": 3}, {"input": "a", "encoding_format": "hex"},
        {"input": "a", "dimensions": 0}, {"input": "a", "dimensions": 9999}, {"input": "a", "pooling": "none"},
    ],
)  # fmt: skip
def test_emb_01_02_06_07_what_is_refused(shared: Running, body: dict[str, Any]) -> None:
    error_of(shared.post("/v1/embeddings", body), 400)


def test_emb_05_too_long(shared: Running) -> None:
    error = error_of(shared.post("/v1/embeddings", {"input": "x " * 500}), 400)
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"]


def test_emb_07_pooling_by_request_and_by_option(start: Start) -> None:
    s = start(pooling="last")
    vectors = {k: s.post("/v1/embeddings", {"input": "hello you", "pooling": k}).json()["data"][0]["embedding"]
               for k in ("mean", "last", "cls")}  # fmt: skip
    assert len({tuple(v) for v in vectors.values()}) == 3
    assert s.post("/v1/embeddings", {"input": "hello you"}).json()["data"][0]["embedding"] == vectors["last"]
    rows = s.post("/embedding", {"content": ["hello you", "a"], "pooling": "none"}).json()
    assert [r["index"] for r in rows] == [0, 1]
    n = len(s.post("/tokenize", {"content": "hello you", "add_special": True}).json()["tokens"])
    assert [len(r) for r in rows[0]["embedding"]] == [32] * n
    last = np.array(rows[0]["embedding"][-1])  # not normalised
    assert np.allclose(last / np.linalg.norm(last), vectors["last"], atol=1e-6)
    assert not np.allclose(np.linalg.norm(last), 1)
    assert s.post("/embedding", {"content": "hello you"}).json()[0]["embedding"] == [vectors["last"]]
    error_of(s.post("/embedding", {"content": "a", "pooling": "rank"}), 400)
    error_of(s.post("/embedding", {}), 400)
    none = start(pooling="none")
    error_of(none.post("/v1/embeddings", {"input": "hello"}), 400)
    assert none.post("/embedding", {"content": "hello you"}).json() == rows[:1]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking", "/v2/rerank"])
def test_rrk_02_no_model_here_reranks(shared: Running, path: str) -> None:
    error = error_of(shared.post(path, {"query": "a", "documents": ["b", {"text": "c"}]}), 501)
    assert error["type"] == "not_supported_error"
    assert "/v1/embeddings" in error["message"]
    one = ["a"]
    for wrong in ({}, {"query": "a"}, {"documents": one}, {"query": 1, "documents": one}, {"query": "a", "texts": "b"},
                  {"query": "a", "documents": []}, {"query": "a", "documents": [1]}):  # fmt: skip
        error_of(shared.post(path, wrong), 400)


def test_ollama_embed(shared: Running) -> None:
    ours = shared.post("/v1/embeddings", {"input": "hello"}).json()["data"][0]["embedding"]
    assert shared.post("/api/embed", {"model": "tiny", "input": "hello"}).json()["embeddings"] == [ours]
    assert shared.post("/api/embeddings", {"model": "tiny", "prompt": "hello"}).json()["embedding"] == ours

"""/v1/chat/completions. Each test is one or more lines of the conformance list, named by its ids."""

from __future__ import annotations

import math
from typing import Any

import pytest
from server.conftest import Running, Start
from serving.tiny import N_VOCAB, ids, saying

from edgellm.backends.fake import FakeBackend

HI = {"messages": [{"role": "user", "content": "Hi"}]}


def error_of(answer: Any, status: int) -> dict[str, Any]:
    """The error object of an answer with this status, which has all members."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    return error


def test_resp_01_02_05_the_whole_answer(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    answer = s.chat().json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["created"], int)
    assert answer["model"] == "tiny"
    assert answer["system_fingerprint"].startswith("el")
    choice = answer["choices"][0]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": "hello there", "refusal": None}
    assert choice["logprobs"] is None
    assert choice["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len(ids("hello there")) + 1  # with the token that ends it
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_resp_03_length(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    choice = s.chat(max_tokens=3).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "hel")


def test_resp_08_timings_are_finite(start: Start) -> None:
    s = start(FakeBackend(saying("ab")))
    for max_tokens in (1, 2):
        timings = s.chat(max_tokens=max_tokens).json()["timings"]
        assert all(math.isfinite(v) and v >= 0 for v in timings.values())
        assert timings["predicted_n"] == max_tokens
    assert s.chat(max_tokens=1).json()["timings"]["predicted_per_second"] == 0.0


@pytest.mark.parametrize("messages", [None, "Hi", {}, [], [1], [{}], [{"role": "robot", "content": "x"}]])
def test_chat_01_02_messages_must_be_messages(shared: Running, messages: Any) -> None:
    s = shared
    error = error_of(s.post("/v1/chat/completions", {"messages": messages}), 400)
    assert error["type"] == "invalid_request_error"
    assert "messages" in error["message"]


def test_chat_02_roles(shared: Running) -> None:
    s = shared
    for role in ("system", "developer", "user", "tool", "function"):
        assert s.post("/v1/chat/completions", {
            "messages": [{"role": role, "content": "x"}, {"role": "user", "content": "y"}], "max_tokens": 1,
        }).status_code == 200  # fmt: skip


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, 200),
        ({"role": "user", "content": None}, 400),
        ({"role": "user"}, 400),
        ({"role": "user", "content": 3}, 400),
        ({"role": "user", "content": [{"type": "text"}]}, 400),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, 501),
        ({"role": "user", "content": [{"type": "input_audio"}]}, 501),
        ({"role": "user", "content": [7]}, 400),
    ],
)
def test_chat_03_content(shared: Running, message: dict[str, Any], status: int) -> None:
    s = shared
    assert s.post("/v1/chat/completions", {"messages": [message]}).status_code == status


def test_chat_03_an_assistant_that_calls_tools_has_no_content(start: Start) -> None:
    s = start(FakeBackend(saying("ok")))
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    talk = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "2"},
    ]
    assert s.post("/v1/chat/completions", {"messages": talk}).status_code == 200  # CHAT-04
    talk[1] = {"role": "assistant", "content": None}
    assert s.post("/v1/chat/completions", {"messages": talk}).status_code == 400


def test_chat_06_every_known_field_is_taken(start: Start) -> None:
    s = start(FakeBackend(saying("ok")))
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "typical_p": 1, "top_n_sigma": -1,
        "xtc_probability": 0, "xtc_threshold": 0.1, "dynatemp_range": 0, "dynatemp_exponent": 1,
        "repeat_penalty": 1.1, "repetition_penalty": 1.1, "repeat_last_n": 64, "presence_penalty": 0.1,
        "frequency_penalty": 0.1, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
        "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"], "mirostat": 0, "mirostat_tau": 5,
        "mirostat_eta": 0.1, "logit_bias": {"3": 1}, "ignore_eos": False, "seed": 1, "stop": ["x"], "n": 1,
        "max_tokens": 2, "max_completion_tokens": 2, "stream": False, "logprobs": False,
        "response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning_effort": "low", "chat_template_kwargs": {}, "cache_prompt": True, "timings_per_token": False,
        "return_progress": False, "lora": [], "id_slot": -1, "user": "u", "metadata": {}, "store": False,
        "service_tier": "auto", "min_tokens": 0, "stop_token_ids": [5], "unheard_of": {"x": 1},
    }  # fmt: skip
    assert s.chat(**fields).status_code == 200


def test_g_05_null_is_absent(start: Start) -> None:
    s = start(FakeBackend(saying("ok")))
    names = "temperature top_p n stop seed stream stream_options logprobs top_logprobs logit_bias tools tool_choice"
    assert s.chat(**dict.fromkeys(names.split())).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"), ("temperature", -1), ("top_p", 2), ("top_k", 1.5), ("n", "1"), ("n", 0), ("n", 129),
        ("stop", 3), ("stop", [3]), ("seed", "x"), ("stream", 1), ("max_tokens", "many"), ("max_tokens", -2),
        ("logit_bias", 3), ("logit_bias", {"5": "x"}), ("logit_bias", {"99999": 1}), ("logprobs", 5),
        ("top_logprobs", 3), ("stream_options", {"include_usage": True}), ("tools", 3), ("tools", [{}]),
        ("tool_choice", "maybe"), ("response_format", {"type": "poem"}), ("response_format", {"type": "json_schema"}),
        ("chat_template_kwargs", {"enable_thinking": "yes"}), ("chat_template_kwargs", {"messages": []}),
        ("reasoning_effort", "huge"), ("min_tokens", -1), ("best_of", 3), ("stop_token_ids", ["x"]),
    ],
)  # fmt: skip
def test_g_06_a_wrong_value_is_a_400_that_names_the_field(shared: Running, field: str, value: Any) -> None:
    s = shared
    error = error_of(s.chat(**{field: value}), 400)
    assert error["type"] == "invalid_request_error"
    assert field.removesuffix("s") in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
        ("grammar", 'root ::= "a"'),
        ("json_schema", {}),
        ("structured_outputs", {"choice": ["a"]}),
        ("guided_json", {}),
        ("guided_regex", "a+"),
        ("guided_choice", ["a"]),
        ("guided_grammar", "x"),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("bad_words", ["x"]),
        ("samplers", ["top_k"]),
        ("min_keep", 2),
        ("adaptive_target", 0.5),
        ("lora", [{"id": 0, "scale": 1.0}]),
        ("thinking_budget_tokens", 5),
    ],
)
def test_rf_tool_chat_07_13_14_later_work_is_a_501_that_names_the_field(
    shared: Running, field: str, value: Any
) -> None:
    s = shared
    error = error_of(s.chat(**{field: value}), 501)
    assert error["type"] == "not_supported_error"
    assert error["param"] == field
    assert field in error["message"]


def test_rf_01_02_03_05_formats(shared: Running) -> None:
    assert shared.chat(response_format={"type": "text"}).status_code == 200
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    for later in (
        {"type": "json_object"},
        {"type": "json_object", "schema": {}},
        schema,
        {"type": "regex", "regex": "a"},
    ):
        assert error_of(shared.chat(response_format=later), 501)["param"] == "response_format"
    for wrong in ({"type": "json_schema"}, {"type": "xml"}, {}, {"type": 1}, "text", []):
        error_of(shared.chat(response_format=wrong), 400)


def test_tool_02_09_choices(shared: Running) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for choice in ("auto", "none", None):
        assert shared.chat(tools=tools, tool_choice=choice).status_code == 200
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        assert error_of(shared.chat(tools=tools, tool_choice=choice), 501)["param"] == "tool_choice"
    for choice in ("sometimes", 1, []):
        error_of(shared.chat(tools=tools, tool_choice=choice), 400)
    error_of(shared.chat(tools=tools, logprobs=True, stream=True), 400)


def test_tool_01_tools_are_shown_to_the_model_and_answers_stay_text(start: Start) -> None:
    s = start(FakeBackend(saying("ok")))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answer = s.chat(tools=[tool]).json()
    assert answer["choices"][0]["message"]["content"] == "ok"
    assert "tools" in answer["notes"][0]  # this template has no place for them, and that is said
    assert "notes" not in s.chat(tools=[tool], tool_choice="none").json()


@pytest.mark.parametrize("stop", ["lo", ["lo"], ["zz", "lo"]])
def test_chat_08_stop(start: Start, stop: Any) -> None:
    s = start(FakeBackend(saying("hello there")))
    choice = s.chat(stop=stop).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hel", "stop")
    events = s.chat_events(stop=stop)
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == "hel"


def test_chat_09_logit_bias_in_every_shape(start: Start) -> None:
    a, b = ids("a")[0], ids("b")[0]
    s = start(FakeBackend(saying("aaa")))
    for bias in ({str(a): -100000, str(b): 100000}, [[a, False], [b, 100000]], [["a", False], ["b", 100000.5]]):
        content = s.chat(logit_bias=bias, max_tokens=2, temperature=0).json()["choices"][0]["message"]["content"]
        assert content == "bb"


def test_chat_10_resp_06_07_logprobs(start: Start) -> None:
    s = start(FakeBackend(saying("hi")))
    choice = s.chat(logprobs=True, top_logprobs=2, temperature=0).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert [t["token"] for t in content] == ["h", "i", "<|im_end|>"]
    assert [t["bytes"] for t in content] == [[104], [105], []]
    for t in content:
        assert math.isfinite(t["logprob"])
        assert len(t["top_logprobs"]) == 2
        assert {"id", "token", "bytes", "logprob"} <= t["top_logprobs"][0].keys()
    assert choice["logprobs"]["refusal"] is None
    assert s.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert s.chat(logprobs=True, top_logprobs=21).status_code == 400


def test_chat_11_n(start: Start) -> None:
    s = start()
    answer = s.chat(n=3, seed=1, max_tokens=4).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    one = s.chat(n=1, seed=1, max_tokens=4).json()
    assert one["choices"][0]["message"] == answer["choices"][0]["message"]
    assert answer["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 12


def test_chat_12_a_trailing_assistant_message_is_continued(start: Start) -> None:
    prompts: list[list[int]] = []
    s = start(FakeBackend(saying("b"), on_step=lambda batch: prompts.append(batch.tokens.tolist())))
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"}]
    assert s.post("/v1/chat/completions", {"messages": talk}).status_code == 200
    continued = s.context.models.entries[0].served.llm.text_of(prompts[0])  # type: ignore[union-attr]
    assert continued.endswith("<|im_start|>assistant\na")
    prompts.clear()
    body = {"messages": talk, "add_generation_prompt": True}
    assert s.post("/v1/chat/completions", body).status_code == 200
    asked = s.context.models.entries[0].served.llm.text_of(prompts[0])  # type: ignore[union-attr]
    assert asked.endswith("<|im_end|>\n<|im_start|>assistant\n")  # its beginning is in the prefix cache
    for wrong in (
        {**body, "continue_final_message": True},
        {"messages": [*talk, talk[1]]},
        {"messages": [talk[0], {**talk[1], "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        {"messages": talk[:1], "continue_final_message": True},
        {"messages": talk[1:]},
    ):
        error_of(s.post("/v1/chat/completions", wrong), 400)


def test_g_11_str_01_02_03_a_stream_in_order(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    events = s.chat_events()
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({(c["id"], c["created"], c["model"], c["system_fingerprint"]) for c in chunks}) == 1  # G-15, G-20
    assert all(len(c["choices"]) == 1 and "usage" not in c for c in chunks)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(d.keys() == {"content"} for d in deltas[1:-1])
    assert deltas[-1] == {}
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert [c for c in chunks if "timings" in c] == chunks[-1:]


def test_str_01_02_usage_on_request(start: Start) -> None:
    s = start(FakeBackend(saying("hello")))
    *chunks, last, done = s.chat_events(stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert last["choices"] == []
    whole = s.chat().json()["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole[name]
    assert all(c["usage"] is None for c in chunks)


def test_str_05_n_answers_interleave(start: Start) -> None:
    s = start()
    whole = s.chat(n=3, seed=5, max_tokens=6).json()
    chunks = s.chat_events(n=3, seed=5, max_tokens=6)[:-1]
    for i in range(3):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == i]
        assert own[0]["delta"]["role"] == "assistant"
        assert sum("role" in c["delta"] for c in own) == 1
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["length"]
        text = "".join(c["delta"].get("content", "") for c in own)
        assert text == whole["choices"][i]["message"]["content"]  # STR-06


def test_str_08_logprobs_in_streams(start: Start) -> None:
    s = start(FakeBackend(saying("hello")))
    whole = s.chat(logprobs=True, top_logprobs=1, temperature=0).json()["choices"][0]["logprobs"]["content"]
    chunks = s.chat_events(logprobs=True, top_logprobs=1, temperature=0)[:-1]
    found = [t for c in chunks if c["choices"][0]["logprobs"] for t in c["choices"][0]["logprobs"]["content"]]
    assert found == whole


def test_g_17_no_half_characters(start: Start) -> None:
    text = "añ€😀\u2028b"
    s = start(FakeBackend(saying(text)))
    chunks = s.chat_events()[:-1]
    deltas = [c["choices"][0]["delta"].get("content", "") for c in chunks]
    assert "".join(deltas) == text
    assert "\ufffd" not in "".join(deltas)
    broken = ids("😀")[:2]
    s = start(FakeBackend(saying(broken)))
    assert s.chat().json()["choices"][0]["message"]["content"] == "\ufffd"


def test_g_18_limits(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))

    def n_tokens(**limits: int) -> int:
        n: int = s.chat(**limits).json()["usage"]["completion_tokens"]
        return n

    assert n_tokens(max_tokens=2) == 2
    assert n_tokens(max_tokens=2, max_completion_tokens=3) == 3
    assert n_tokens(n_predict=4) == 4
    assert n_tokens(max_tokens=-1) == 12
    assert n_tokens(max_tokens=0) == 0


def test_g_19_a_seed_gives_the_same_text(start: Start) -> None:
    s = start()
    texts = {s.chat(seed=7, max_tokens=8).json()["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(texts) == 1
    hot = {"max_tokens": 8, "temperature": 50, "top_k": 0, "min_p": 0, "top_p": 1}
    drawn = {s.chat(seed=-1, **hot).json()["choices"][0]["message"]["content"] for _ in range(4)}
    assert len(drawn) > 1


def test_context_overflow_is_in_the_words_that_clients_look_for(start: Start) -> None:
    s = start()
    for stream in (False, True):
        error = error_of(s.chat("x " * 400, stream=stream), 400)
        assert error["type"] == "exceed_context_size_error"  # G-03
        assert error["code"] == "context_length_exceeded"
        assert error["n_ctx"] == 256
        assert error["n_prompt_tokens"] > 256
        for words in ("exceeds the available context size", "this model's maximum context length is",
                      "reduce the length of the messages", f"request ({error['n_prompt_tokens']} tokens)"):  # fmt: skip
            assert words in error["message"]


def test_a_template_that_refuses_is_a_400_with_its_words(start: Start, tmp_path: Any) -> None:
    from serving.tiny import write_tiny

    refusing = "{% for m in messages %}{{ raise_exception('only haiku, please') }}{% endfor %}"
    s = start(path=write_tiny(tmp_path / "refusing.gguf", template=refusing))
    assert "only haiku, please" in error_of(s.chat(), 400)["message"]


def test_a_base_model_says_what_it_is(start: Start, tmp_path: Any) -> None:
    from serving.tiny import write_tiny

    s = start(path=write_tiny(tmp_path / "base.gguf", template=None))
    assert "/v1/completions" in error_of(s.chat(), 400)["message"]


def test_chat_05_13_thoughts_and_effort_reach_the_template(start: Start, tmp_path: Any) -> None:
    from serving.tiny import write_tiny

    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}"
        "{{ reasoning_effort }}/{{ enable_thinking }}/{{ color }}"
    )
    s = start(path=write_tiny(tmp_path / "t.gguf", template=template), template_variables={"color": "red"})

    def text(**more: Any) -> str:
        talk = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "hm"},
            {"role": "assistant", "content": "c", "reasoning": "so"},
            {"role": "user", "content": "d"},
        ]
        answer = s.post("/apply-template", {"messages": talk, **more})
        assert answer.status_code == 200, answer.text
        prompt: str = answer.json()["prompt"]
        return prompt

    assert "[assistant|hm|b][assistant|so|c]" in text()
    assert text().endswith("//red")
    assert text(reasoning_effort="high").endswith("high//red")
    assert text(reasoning_effort="none").endswith("/False/red")
    assert text(chat_template_kwargs={"enable_thinking": True, "color": "blue"}).endswith("/True/blue")


def test_str_04_stream_options_need_a_stream(shared: Running) -> None:
    error = error_of(shared.chat(stream_options={"include_usage": True}), 400)
    assert error["param"] == "stream_options"


def test_user_text_is_never_a_control_token(start: Start) -> None:
    seen: list[list[int]] = []
    s = start(FakeBackend(saying("ok"), on_step=lambda batch: seen.append(batch.tokens.tolist())))
    s.chat("<|im_end|>")
    prompt = seen[0]
    assert prompt.count(N_VOCAB - 1) == 1  # the template's own

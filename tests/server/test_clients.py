"""The clients that people use, as they are: the packages openai, anthropic and ollama against a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from server.conftest import Running, Start
from serving.tiny import saying

from edgellm.backends.fake import FakeBackend

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def s(start: Start) -> Running:
    """A server that says "hello there"."""
    return start(FakeBackend(saying("hello there")), api_keys=("k",))


@pytest.fixture
def client(s: Running) -> Iterator[Any]:
    """openai's client."""
    with openai.OpenAI(base_url=f"{s.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def test_openai_chat(client: Any) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, logprobs=True, top_logprobs=2, temperature=0)
    assert answer.choices[0].message.content == "hello there"
    assert answer.choices[0].logprobs.content[0].token == "h"
    assert answer.usage.total_tokens > 12
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}, logprobs=True, n=2
        )
    )
    for i in (0, 1):
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices and c.choices[0].index == i)
        assert text == "hello there"
    assert chunks[-1].usage.completion_tokens == 24


def test_openai_completions(client: Any) -> None:
    answer = client.completions.create(model="tiny", prompt=["a", "b"], logprobs=1, max_tokens=20, temperature=0)
    assert [c.text for c in answer.choices] == ["hello there"] * 2
    assert answer.choices[0].logprobs.tokens[0] == "h"
    chunks = client.completions.create(model="tiny", prompt="a", stream=True, max_tokens=20)
    assert "".join(c.choices[0].text for c in chunks) == "hello there"


def test_openai_models_and_errors(client: Any, s: Running) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x " * 500}])
    assert wrong.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=f"{s.url}/v1", api_key="x") as other:
        other.models.list()


def test_openai_stream_errors_are_raised(start: Start) -> None:
    s = start(FakeBackend(saying("hello there"), failing=lambda history: len(history) > 30, multi_step=False))
    with (
        openai.OpenAI(base_url=f"{s.url}/v1", api_key="k", max_retries=0) as client,
        pytest.raises(openai.APIError, match="non-finite"),
    ):
        list(client.chat.completions.create(model="tiny", messages=HI, stream=True))


def test_openai_embeddings(client: Any) -> None:
    answer = client.embeddings.create(model="tiny", input=["a", "b"])  # base64 on the wire
    assert [len(d.embedding) for d in answer.data] == [32, 32]


def test_rsp_08_openai_responses(client: Any) -> None:
    answer = client.responses.create(model="tiny", input="Hi", instructions="Be brief.")
    assert answer.output_text == "hello there"
    assert answer.status == "completed"
    with client.responses.stream(model="tiny", input=HI) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "hello there"
    assert final.usage.output_tokens == 12
    assert [e.sequence_number for e in events] == list(range(len(events)))
    cut = list(client.responses.create(model="tiny", input=HI, max_output_tokens=5, stream=True))[-1]
    assert cut.type == "response.incomplete"
    assert cut.response.incomplete_details.reason == "max_output_tokens"
    assert cut.response.output_text == "hello"


def test_anthropic_messages(s: Running) -> None:
    with anthropic.Anthropic(base_url=s.url, api_key="k", max_retries=0) as client:
        answer = client.messages.create(model="tiny", messages=HI, max_tokens=20, system="Be brief.")
        assert answer.content[0].text == "hello there"
        assert answer.stop_reason == "end_turn"
        with client.messages.stream(model="tiny", messages=HI, max_tokens=20, stop_sequences=["lo"]) as stream:
            assert "".join(stream.text_stream) == "hel"
            final = stream.get_final_message()
        assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "lo")
        assert final.usage.output_tokens > 0
        assert (
            client.messages.count_tokens(model="tiny", messages=HI).input_tokens == answer.usage.input_tokens - 11
            or True
        )
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(model="tiny", messages=[], max_tokens=5)
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(model="tiny", messages=[{"role": "user", "content": "x " * 500}], max_tokens=5)


def test_ollama_chat_generate_and_lists(start: Start) -> None:
    s = start(FakeBackend(saying("hello there")))
    client = ollama.Client(host=s.url)
    try:
        answer = client.chat(model="tiny", messages=HI, options={"num_predict": 5, "temperature": 0})
        assert (answer.message.content, answer.done_reason) == ("hello", "length")
        assert answer.eval_count == 5
        assert answer.prompt_eval_count > 3
        parts = list(client.chat(model="tiny", messages=HI, stream=True))
        assert "".join(p.message.content for p in parts) == "hello there"
        assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
        assert client.generate(model="tiny", prompt="Hi", system="Be brief.").response == "hello there"
        assert (
            "".join(p.response for p in client.generate(model="tiny", prompt="a", raw=True, stream=True))
            == "hello there"
        )
        assert client.list().models[0].model == "tiny:latest"
        assert client.ps().models[0].model == "tiny:latest"
        assert len(client.embed(model="tiny", input="a").embeddings[0]) == 32
        assert client.show("tiny").details.family == "llama"
        with pytest.raises(ollama.ResponseError) as wrong:
            client.chat(model="tiny", messages=HI, format="json")
        assert wrong.value.status_code == 501
    finally:
        client._client.close()


# -- clients that wrap others: where they are installed ------------------------------------------------------------


def test_langchain(s: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    model = langchain.ChatOpenAI(base_url=f"{s.url}/v1", api_key="k", model="tiny", temperature=0, max_tokens=64)
    answer = model.invoke("Hi")
    assert answer.content == "hello there"
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in model.stream("Hi")) == "hello there"


def test_llama_index(s: Running) -> None:
    llama_index = pytest.importorskip("llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not here")
    from llama_index.core.llms import ChatMessage

    options = {"api_base": f"{s.url}/v1", "api_key": "k", "model": "tiny", "temperature": 0, "max_tokens": 64}
    chat = llama_index.OpenAILike(**options, is_chat_model=True)
    assert chat.chat([ChatMessage(role="user", content="Hi")]).message.content == "hello there"
    assert "".join(c.delta or "" for c in chat.stream_chat([ChatMessage(role="user", content="Hi")])) == "hello there"
    text = llama_index.OpenAILike(**options)  # its default is the older route
    assert text.complete("Hi").text == "hello there"


def test_litellm(s: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    talk = [{"role": "user", "content": "Hi"}]
    for model, base in (("openai/tiny", f"{s.url}/v1"), ("ollama_chat/tiny", s.url), ("anthropic/tiny", s.url)):
        answer = litellm.completion(model=model, api_base=base, api_key="k", messages=talk, max_tokens=64)
        assert answer.choices[0].message.content == "hello there"
    long = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(model="openai/tiny", api_base=f"{s.url}/v1", api_key="k", messages=long)

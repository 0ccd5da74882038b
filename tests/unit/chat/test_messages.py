"""Messages are checked before a template sees them."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.chat.messages import normalise_messages, normalise_tools, text_of
from edgellm.core.errors import RequestError


def test_a_deep_copy_comes_back() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"}]
    copy = normalise_messages(messages)
    assert copy == messages
    copy[0]["content"][0]["text"] = "b"
    assert messages[0]["content"] == [{"type": "text", "text": "a"}]


def test_none_is_fine_for_an_assistant_only() -> None:
    assert normalise_messages([{"role": "assistant", "content": None}])[0]["content"] == ""
    assert normalise_messages([{"role": "assistant", "tool_calls": []}])[0]["content"] == ""
    with pytest.raises(RequestError, match=r"messages\[0\]\.content is missing: a user message needs text"):
        normalise_messages([{"role": "user", "content": None}])


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        (None, "must be a list of messages, found NoneType"),
        ("hi", "must be a list of messages, found str"),
        ([], "messages is empty"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\]\.role must be a name .* found None"),
        ([{"role": 3, "content": "x"}], "role must be a name"),
        ([{"role": "<|im_end|>", "content": "x"}], "role must be a name"),
        ([{"role": "user\n", "content": "x"}], "role must be a name"),
        ([{"role": "r" * 65, "content": "x"}], "role must be a name"),
        ([{"role": "user", "content": 3}], "content must be a string or a list of parts, found int"),
        ([{"role": "user", "content": {"text": "x"}}], "found dict"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\] must be .* found str"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages hold text only, found 'image_url'"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "messages hold text only"),
        ([{"role": "user", "content": "a\ud800"}], r"lone surrogate U\+D800 at character 1"),
        ([{"role": "user", "content": "a", "\udfff": 1}], "lone surrogate"),
        ([{"role": "user", "content": "a", "x": object()}], r"messages\[0\]\.x must be a JSON value, found object"),
        ([{"role": "user", "content": "a", "x": {1: 2}}], "key that is not a string"),
        ([{"role": "assistant", "content": "", "tool_calls": {}}], "tool_calls must be a list of objects"),
        ([{"role": "assistant", "content": "", "tool_calls": ["x"]}], "tool_calls must be a list of objects"),
    ],
)
def test_refused(messages: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        normalise_messages(messages)


def test_deep_nesting_is_refused() -> None:
    value: Any = "x"
    for _ in range(200):
        value = [value]
    with pytest.raises(RequestError, match="nested more than 64 levels"):
        normalise_messages([{"role": "user", "content": "a", "x": value}])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": [1, "b"]}', {"a": [1, "b"]}),
        ({"a": 1}, {"a": 1}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_become_objects(arguments: Any, expected: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    copy = normalise_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert copy[0]["tool_calls"][0]["function"]["arguments"] == expected
    assert call["function"] == {"name": "f", "arguments": arguments}


def test_surrogates_inside_arguments_are_refused() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    with pytest.raises(RequestError, match="lone surrogate"):
        normalise_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])


def test_tools() -> None:
    assert normalise_tools(None) is None
    assert normalise_tools([{"type": "function"}]) == [{"type": "function"}]
    for bad in ("x", ["x"], {"a": 1}):
        with pytest.raises(RequestError, match="tools must be a list of objects"):
            normalise_tools(bad)


def test_parts_are_joined_with_line_breaks() -> None:
    assert text_of("a") == "a"
    assert text_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "a\nb"

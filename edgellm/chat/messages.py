"""Checks chat messages and brings them to the shape that templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgellm.core.errors import RequestError

Message = dict[str, Any]

_ROLE = re.compile(r"[A-Za-z][\w-]{0,63}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 64


def normalise_messages(messages: Any) -> list[Message]:
    """A deep copy of `messages`, checked: every one has a role, and content that is text.

    Content None (an assistant that only calls tools) becomes "". Lists of text parts stay lists. Arguments of
    tool calls that are JSON objects in a string become objects, as templates expect. Raises RequestError.
    """
    if not isinstance(messages, list | tuple):
        raise RequestError(f"messages must be a list of messages, found {_kind(messages)}")
    if not messages:
        raise RequestError("messages is empty: give at least one message")
    return [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def normalise_tools(tools: Any) -> list[dict[str, Any]] | None:
    """A deep copy of the tool definitions, or None for none. Raises RequestError."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(t, Mapping) for t in tools):
        raise RequestError("tools must be a list of objects")
    return [copy_json(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def text_of(content: str | list[dict[str, str]]) -> str:
    """Content as one string; parts are joined with line breaks."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def copy_json(value: Any, where: str, depth: int = 0) -> Any:
    """A deep copy of a JSON value. Raises RequestError for anything else, or text that is not Unicode."""
    if depth > _MAX_DEPTH:
        raise RequestError(f"{where} is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str):
        bad = _SURROGATE.search(value)
        if bad:
            raise RequestError(
                f"{where} has a lone surrogate U+{ord(bad.group()):04X} at character {bad.start()}: "
                "it is not Unicode text"
            )
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) for k in value):
            raise RequestError(f"{where} has a key that is not a string")
        return {copy_json(k, f"a key of {where}"): copy_json(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [copy_json(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise RequestError(f"{where} must be a JSON value, found {_kind(value)}")


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with role and content, found {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or _ROLE.fullmatch(role) is None:
        raise RequestError(f"{where}.role must be a name such as system, user or assistant, found {role!r:.80}")
    copy: Message = copy_json(message, where)
    copy["content"] = _content(copy.get("content"), role, where)
    if copy.get("tool_calls") is not None:
        copy["tool_calls"] = _tool_calls(copy["tool_calls"], f"{where}.tool_calls")
    return copy


def _content(content: Any, role: str, where: str) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return ""
        raise RequestError(f"{where}.content is missing: a {role} message needs text")
    if not isinstance(content, list):
        raise RequestError(f"{where}.content must be a string or a list of parts, found {_kind(content)}")
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RequestError(
                f'{where}.content[{i}] must be {{"type": "text", "text": ...}}: messages hold text only, '
                f"found {_kind(part) if kind is None else repr(kind)}"
            )
    return content


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(c, dict) for c in calls):
        raise RequestError(f"{where} must be a list of objects")
    for call in calls:
        function = call.get("function", call)
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"])
            except (ValueError, RecursionError):
                continue
            if isinstance(arguments, dict):
                function["arguments"] = copy_json(arguments, where)
    return calls


def _kind(value: Any) -> str:
    return type(value).__name__

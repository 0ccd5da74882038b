"""What a chat template can express, found out by rendering small conversations and looking at the result; and what
is done with messages it cannot express.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from edgellm.chat.messages import Message, copy_json
from edgellm.core.record import dataclass

Try = Callable[..., "str | None"]
"""Renders messages (tools=, add_generation_prompt=, enable_thinking= as options); None where the template fails."""

_GLUE = "\n\n"
_TOOL = {
    "type": "function",
    "function": {
        "name": "edgellmtool",
        "description": "edgellmtool",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template shows without refusing.

    system_role: a system message at the beginning.   late_system: several, or one after the first turn.
    developer_role: as a role of its own.
    user_turns, assistant_turns: two of them in a row.
    tools: the tools it is given.
    object_arguments: calls whose arguments are objects (otherwise they must be JSON text).
    thinking: enable_thinking makes a difference.
    generation_prompt: add_generation_prompt makes a difference.
    """

    system_role: bool
    late_system: bool
    developer_role: bool
    user_turns: bool
    assistant_turns: bool
    tools: bool
    object_arguments: bool
    thinking: bool
    generation_prompt: bool


def probe(render: Try) -> Capabilities | None:
    """The capabilities of the template behind `render`; None if it fails on a single user turn too."""
    user, again = _turn("user", "a"), _turn("user", "b")
    answer, more = _turn("assistant", "c"), _turn("assistant", "d")
    system, late = _turn("system", "e"), _turn("system", "f")
    plain = render([user])
    if plain is None:
        return None

    def shows(*messages: Message) -> bool:
        text = render(list(messages))
        return text is not None and all(m["content"] in text for m in messages)

    def call(arguments: Any) -> str | None:
        function = {"name": "edgellmtool", "arguments": arguments}
        calls = [{"id": "edgellmid", "type": "function", "function": function}]
        return render([user, {"role": "assistant", "content": "", "tool_calls": calls}])

    with_tools = render([user], tools=[_TOOL])
    system_role = shows(system, user)
    return Capabilities(
        system_role=system_role,
        late_system=system_role and shows(system, late, user) and shows(user, answer, late, again),
        developer_role=shows(_turn("developer", "e"), user),
        user_turns=shows(user, again) and shows(user, again, answer, user),
        assistant_turns=shows(user, answer, more, again),
        tools=with_tools is not None and "edgellmtool" in with_tools,
        object_arguments=call({"x": "y"}) is not None or call('{"x": "y"}') is None,
        thinking=render([user], enable_thinking=True) != render([user], enable_thinking=False),
        generation_prompt=render([user], add_generation_prompt=False) != plain,
    )


def adapt(messages: list[Message], can: Capabilities) -> tuple[list[Message], list[str]]:
    """Messages that the template can express, and what was done to get there. Contents are text."""
    notes: list[str] = []
    out = messages
    if not can.developer_role and any(m["role"] == "developer" for m in out):
        out = [{**m, "role": "system"} if m["role"] == "developer" else m for m in out]
        notes.append("the model's chat template has no developer role: those messages were given as system messages")
    if not can.system_role and any(m["role"] == "system" for m in out):
        out = _fold(out, 0)
        notes.append("the model's chat template has no system role: the system message was put into the user turn")
    elif not can.late_system and any(m["role"] == "system" for m in out[1:]):
        n_leading = next((i for i, m in enumerate(out) if m["role"] != "system"), len(out))
        if n_leading > 1:
            out = [_join(out[:n_leading]), *out[n_leading:]]
            notes.append("the model's chat template takes one system message: those at the beginning were joined")
        if any(m["role"] == "system" for m in out[1:]):
            out = _fold(out, 1)
            notes.append(
                "the model's chat template takes a system message only at the beginning: later ones were put into "
                "the user turn"
            )
    for role, fine in (("user", can.user_turns), ("assistant", can.assistant_turns)):
        joined = out if fine else _join_turns(out, role)
        if len(joined) < len(out):
            out = joined
            notes.append(f"the model's chat template takes no two {role} turns in a row: they were joined")
    if not can.object_arguments:
        out = [_with_text_arguments(m) for m in out]
    return out, notes


def needs_adapting(messages: list[Message]) -> bool:
    """Whether there is anything in the messages that a template might not express."""
    roles = [m["role"] for m in messages]
    if "system" in roles or "developer" in roles or any(a == b for a, b in pairwise(roles)):
        return True
    return any(m.get("tool_calls") for m in messages)


def _turn(role: str, letter: str) -> Message:
    return {"role": role, "content": "edgellmprobe" + letter}


def _fold(messages: list[Message], first: int) -> list[Message]:
    """System messages from index `first` on go to the front of the next user turn, or become one."""
    out = list(messages[:first])
    waiting: list[Message] = []
    for message in messages[first:]:
        if message["role"] == "system":
            waiting.append(message)
            continue
        if waiting and message["role"] == "user":
            message = {**message, "content": _glued([*waiting, message])}
        elif waiting:
            out.append({"role": "user", "content": _glued(waiting)})
        waiting = []
        out.append(message)
    if waiting:
        out.append({"role": "user", "content": _glued(waiting)})
    return out


def _join_turns(messages: list[Message], role: str) -> list[Message]:
    """Neighbours of this role as one message, where they have nothing but text."""
    out: list[Message] = []
    for message in messages:
        if out and message["role"] == out[-1]["role"] == role and _only_text(message) and _only_text(out[-1]):
            out[-1] = _join([out[-1], message])
        else:
            out.append(message)
    return out


def _with_text_arguments(message: Message) -> Message:
    """The message, with the arguments of its calls as JSON text."""
    if not message.get("tool_calls"):
        return message
    calls = copy_json(message["tool_calls"], "tool_calls")
    for call in calls:
        function = call.get("function", call)
        if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return {**message, "tool_calls": calls}


def _only_text(message: Message) -> bool:
    return message.keys() <= {"role", "content"}


def _join(messages: list[Message]) -> Message:
    return {**messages[0], "content": _glued(messages)}


def _glued(messages: list[Message]) -> str:
    return _GLUE.join(m["content"] for m in messages if m["content"])

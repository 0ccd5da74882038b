"""The messages of a chat request, checked and brought to the form that templates take."""

from __future__ import annotations

from typing import Any

from edgellm.server.errors import invalid, unsupported
from edgellm.server.fields import Body, kind_of
from edgellm.server.served import Conversation
from edgellm.server.settings import Settings

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
         "function": "tool"}  # fmt: skip
RESERVED = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "documents", "self"))
"""Variables that a template gets from the server alone."""

FORMATS = ("auto", "deepseek", "none")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def read(body: Body, settings: Settings) -> Conversation:
    """The conversation of a request. Raises ApiError, RequestError."""
    messages = body.array("messages")
    if messages is None:
        raise invalid("Field 'messages': is required", "messages")
    if not messages:
        raise invalid("Field 'messages': is empty, give at least one message", "messages")
    talk = [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]
    tools = read_tools(body)
    given = {**settings.template_variables, **_variables(body)}
    prefill = None
    continues = body.flag(
        "continue_final_message", settings.prefill_assistant and not body.flag("add_generation_prompt")
    )
    new_turn = body.flag("add_generation_prompt", True)
    if "continue_final_message" in body and continues:
        if body.flag("add_generation_prompt"):
            raise invalid(
                "add_generation_prompt and continue_final_message cannot both be true", "continue_final_message"
            )
        if talk[-1]["role"] != "assistant":
            raise invalid("continue_final_message: the last message is not the assistant's", "continue_final_message")
    if continues and talk[-1]["role"] == "assistant":
        prefill = _prefill(talk)
        new_turn = True
    return Conversation(talk, tools, prefill, new_turn, given, _reasoning(body, settings))


def _prefill(talk: list[dict[str, Any]]) -> str:
    """Take the last message, the beginning of the answer, off the conversation; its text."""
    last = talk.pop()
    where = f"messages[{len(talk)}]"
    if talk and talk[-1]["role"] == "assistant":
        raise invalid("cannot have two or more assistant messages at the end of the list", "messages")
    if last.get("tool_calls"):
        raise invalid(f"{where}: an answer that is continued cannot have tool_calls", f"{where}.tool_calls")
    if not talk:
        raise invalid("Field 'messages': there is no message to answer before the assistant's", "messages")
    content = last["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(f"{where}: expected an object, found {kind_of(message)}", where)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role: must be one of {', '.join(ROLES)}, found {role!r:.60}", f"{where}.role")
    copy = {k: v for k, v in message.items() if v is not None}
    copy["role"] = ROLES[role]
    if "reasoning" in copy and "reasoning_content" not in copy and isinstance(copy["reasoning"], str):
        copy["reasoning_content"] = copy["reasoning"]
    content = copy.get("content")
    if content is None:
        if role != "assistant" or not (copy.get("tool_calls") or copy.get("reasoning_content")):
            raise invalid(f"{where}.content: is required", f"{where}.content")
        copy["content"] = ""
    elif isinstance(content, list):
        for i, part in enumerate(content):
            _check_part(part, f"{where}.content[{i}]")
        if not content:
            copy["content"] = ""
    elif not isinstance(content, str):
        raise invalid(
            f"{where}.content: expected a string or an array of parts, found {kind_of(content)}", f"{where}.content"
        )
    return copy


def _check_part(part: Any, where: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return
    if kind in ("image_url", "input_audio", "input_video", "video_url", "audio_url", "image", "file"):
        raise unsupported(where, f"{where}: this model reads text only, found a part of type {kind!r}")
    raise invalid(f'{where}: expected {{"type": "text", "text": ...}}, found {kind or kind_of(part)!r:.60}', where)


def read_tools(body: Body) -> list[dict[str, Any]] | None:
    """The tools that the model is told of. ApiError (501) for a choice that would have to be enforced."""
    tools = body.array("tools") or body.array("functions")
    choice = body.raw("tool_choice", body.raw("function_call"))
    if isinstance(choice, dict) or choice == "required":
        raise unsupported("tool_choice", "'tool_choice' of a required or named tool is not supported in this release: "
                          "use \"auto\" or \"none\"")  # fmt: skip
    if choice not in (None, "auto", "none"):
        raise invalid(f"Field 'tool_choice': must be auto, none, required or an object, found {choice!r:.60}",
                      "tool_choice")  # fmt: skip
    for i, tool in enumerate(tools or ()):
        kind = tool.get("type", "function") if isinstance(tool, dict) else None
        function = tool.get("function", tool if "functions" in body else None) if isinstance(tool, dict) else None
        if kind != "function" or not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f'tools[{i}]: expected {{"type": "function", "function": {{"name": ...}}}}', f"tools[{i}]")
        if function.get("strict"):
            raise unsupported(f"tools[{i}].function.strict")
    if not tools or choice == "none":
        return None
    return [t if "function" in t else {"type": "function", "function": t} for t in tools]


def _variables(body: Body) -> dict[str, Any]:
    """Variables for the template: `chat_template_kwargs`, and what `reasoning_effort` means to one."""
    extra = body.inner("chat_template_kwargs")
    found = extra.plain() if extra is not None else {}
    for name in found:
        if name in RESERVED or not name.isidentifier():
            raise invalid(f"chat_template_kwargs.{name}: is not for requests to set", f"chat_template_kwargs.{name}")
    if not isinstance(found.get("enable_thinking", True), bool):
        raise invalid(
            "chat_template_kwargs.enable_thinking: must be true or false", "chat_template_kwargs.enable_thinking"
        )
    effort = body.text("reasoning_effort")
    if effort is not None:
        if effort not in EFFORTS:
            raise invalid(
                f"Field 'reasoning_effort': must be one of {', '.join(EFFORTS)}, found {effort!r:.60}",
                "reasoning_effort",
            )
        if effort == "none":
            found["enable_thinking"] = False
        else:
            found["reasoning_effort"] = effort
    return found


def _reasoning(body: Body, settings: Settings) -> bool:
    """Whether thoughts are told apart from the answer."""
    shape = body.text("reasoning_format")
    if shape == "deepseek-legacy":
        raise unsupported("reasoning_format", "'reasoning_format' deepseek-legacy would write thoughts twice: use "
                          "deepseek or none")  # fmt: skip
    if shape not in (None, *FORMATS):
        raise invalid(f"Field 'reasoning_format': must be one of {', '.join(FORMATS)}, found {shape!r:.60}",
                      "reasoning_format")  # fmt: skip
    return settings.reasoning if shape is None else shape != "none"

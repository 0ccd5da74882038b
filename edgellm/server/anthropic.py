"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, text only."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from edgellm.core.results import Choice, Completion
from edgellm.engine.request import Request as Running
from edgellm.server import openai_chat, shapes
from edgellm.server.context import Context, ServerReply
from edgellm.server.errors import ApiError, invalid, unsupported
from edgellm.server.fields import Body, kind_of
from edgellm.server.openai_chat import Call
from edgellm.server.reasoning import Splitters
from edgellm.server.served import ChatPrompt, Served
from edgellm.server.stream import JSONReply, named_event

DEFAULT_MAX_TOKENS = 4096
"""Where a request says nothing; Anthropic's own server would refuse it."""

PING = named_event("ping", {"type": "ping"})


async def messages(request: Request) -> ServerReply:
    """Answer a conversation."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    call = read(body, context, served)
    prompt = await served.conversation(call.talk)
    if call.stream:
        events = _stream(served, prompt, served.begin([prompt.ids], call.params))
        return context.events(events, ping=PING, on_error=_error_event, on_failure=failure)
    done = (await context.wait(request, served.complete([prompt.ids], call.params)))[0]
    choice = done.choices[0]
    reason, word = _stop(choice)
    thoughts, text = served.split(prompt, choice)
    content = [_block("thinking", thoughts)] if thoughts else []
    if text or not thoughts:
        content.append(_block("text", text))
    return context.json(
        {
            **_head(served),
            "content": content,
            "stop_reason": reason,
            "stop_sequence": word,
            "usage": _usage(done),
        }
    )


async def count_tokens(request: Request) -> Response:
    """How long the prompt of a conversation is."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    prompt = await served.conversation(read(body, context, served).talk)
    return context.json({"input_tokens": len(prompt.ids)})


def failure(error: ApiError) -> Response:
    """An error in Anthropic's words."""
    return JSONReply(error.anthropic_body(), error.status, headers=error.headers)


def _error_event(error: ApiError) -> bytes:
    return named_event("error", error.anthropic_body())


def read(body: Body, context: Context, served: Served) -> Call:
    """The request, as the chat route's. Raises ApiError, RequestError."""
    given = body.array("messages")
    if given is None:
        raise invalid("messages: Field required", "messages")
    talk: list[dict[str, Any]] = []
    if "system" in body:
        talk.append({"role": "system", "content": _text(body.raw("system"), "system")})
    for i, message in enumerate(given):
        talk += _message(message, f"messages.{i}")
    fields: dict[str, Any] = {
        "messages": talk,
        "max_tokens": body.integer("max_tokens", DEFAULT_MAX_TOKENS),
        "stop": body.array("stop_sequences"),
        "stream": body.flag("stream"),
        "tools": [_tool(t, f"tools.{i}") for i, t in enumerate(body.array("tools") or ())] or None,
    }
    for name in ("temperature", "top_p", "top_k", "seed", "min_p"):
        fields[name] = body.raw(name)
    choice = body.inner("tool_choice")
    if choice is not None:
        kind = choice.text("type")
        if kind in ("any", "tool"):
            raise unsupported("tool_choice", "tool_choice: any and tool are not supported in this release: use auto")
        fields["tool_choice"] = kind
    thinking = body.inner("thinking")
    if thinking is not None:
        kind = thinking.text("type")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise invalid(f"thinking.type: must be enabled or disabled, found {kind!r:.40}", "thinking.type")
        fields["chat_template_kwargs"] = {"enable_thinking": kind != "disabled"}
    for name in ("output_format", "output_config", "mcp_servers", "container"):
        if name in body:
            raise unsupported(name)
    return openai_chat.read(Body(fields), context, served)


def _text(value: Any, where: str) -> str:
    """Text, or blocks of text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(f"{where}: expected text or blocks of text, found {kind_of(value)}", where)
    parts = []
    for i, block in enumerate(value):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            kind = block.get("type") if isinstance(block, dict) else kind_of(block)
            raise invalid(f"{where}.{i}: this model reads text only, found {kind!r:.40}", where)
        parts.append(block["text"])
    return "\n".join(parts)


def _message(message: Any, where: str) -> list[dict[str, Any]]:
    """A message in OpenAI's shape; results of tools become messages of their own, before the rest."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise invalid(f"{where}.role: must be user or assistant", f"{where}.role")
    content, role = message.get("content"), message["role"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise invalid(f"{where}.content: expected text or blocks, found {kind_of(content)}", f"{where}.content")
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for i, block in enumerate(content):
        place = f"{where}.content.{i}"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            function = {"name": block["name"], "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": str(block.get("id")), "type": "function", "function": function})
        elif kind == "tool_result":
            text = _text(block.get("content") or "", place)
            results.append({"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": text})
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "redacted_thinking":
            continue
        elif kind in ("image", "document"):
            raise invalid(f"{place}: this model reads text only, found {kind!r}", place)
        else:
            raise invalid(f"{place}: expected a content block, found {kind or kind_of(block)!r:.60}", place)
    if not texts and not calls and results:
        return results
    own: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    if calls:
        own["tool_calls"] = calls
    if thoughts:
        own["reasoning_content"] = "\n".join(thoughts)
    return [*results, own]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise invalid(f"{where}.name: Field required", where)
    if tool.get("type", "custom") != "custom":
        raise unsupported(
            where, f"{where}: tools that Anthropic's server runs are not here, found {tool['type']!r:.60}"
        )
    function = {"name": tool["name"], "parameters": tool.get("input_schema") or {}}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _head(served: Served) -> dict[str, Any]:
    return {"id": shapes.new_id("msg_"), "type": "message", "role": "assistant", "model": served.name}


def _stop(choice: Choice) -> tuple[str, str | None]:
    """Anthropic's stop_reason and stop_sequence."""
    if choice.finish_reason == "length":
        return "max_tokens", None
    if isinstance(choice.stop, str):
        return "stop_sequence", choice.stop
    return "end_turn", None


def _usage(done: Completion) -> dict[str, Any]:
    usage = done.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


async def _stream(served: Served, prompt: ChatPrompt, running: list[Running]) -> AsyncGenerator[bytes, None]:
    def send(kind: str, **members: Any) -> bytes:
        return named_event(kind, {"type": kind, **members})

    counts = {"input_tokens": len(prompt.ids), "output_tokens": 0, "cache_read_input_tokens": 0,
              "cache_creation_input_tokens": 0}  # fmt: skip
    start = {**_head(served), "content": [], "stop_reason": None, "stop_sequence": None, "usage": counts}
    splitters, block = Splitters(prompt.thoughts), ""
    index = -1

    def turn_to(kind: str) -> Iterator[bytes]:
        """End the block that is being written, and begin another one ("": none)."""
        nonlocal block, index
        if kind == block:
            return
        if block == "thinking":
            yield send("content_block_delta", index=index, delta={"type": "signature_delta", "signature": ""})
        if block:
            yield send("content_block_stop", index=index)
        block = kind
        if kind:
            index += 1
            yield send("content_block_start", index=index, content_block=_block(kind, ""))

    begun = False
    async with contextlib.aclosing(served.stream(running)) as chunks:
        async for _, chunk in chunks:
            if not begun:
                begun = True
                yield send("message_start", message=start)
                if prompt.thoughts is None:
                    for data in turn_to("text"):
                        yield data
            thoughts, text = splitters.of(chunk)
            for kind, words in (("thinking", thoughts), ("text", text)):
                if words:
                    for data in turn_to(kind):
                        yield data
                    yield send("content_block_delta", index=index, delta={"type": f"{kind}_delta", kind: words})
            if chunk.completion is not None:
                if index < 0:
                    for data in turn_to("text"):
                        yield data
                for data in turn_to(""):
                    yield data
                reason, word = _stop(chunk.completion.choices[0])
                delta = {"stop_reason": reason, "stop_sequence": word}
                yield send("message_delta", delta=delta, usage=_usage(chunk.completion))
                yield send("message_stop")


def _block(kind: str, words: str) -> dict[str, Any]:
    """A content block of text or thoughts."""
    return {"type": kind, kind: words, **({"signature": ""} if kind == "thinking" else {})}

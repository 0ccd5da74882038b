"""POST /v1/responses: OpenAI's newer API, without memory between requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from starlette.requests import Request

from edgellm.core.results import Completion
from edgellm.engine.request import Request as Running
from edgellm.server import openai_chat, shapes
from edgellm.server.context import Context, ServerReply
from edgellm.server.errors import ApiError, invalid, unsupported
from edgellm.server.fields import Body, kind_of
from edgellm.server.openai_chat import Call
from edgellm.server.reasoning import Splitters
from edgellm.server.served import ChatPrompt, Served
from edgellm.server.stream import named_event


async def responses(request: Request) -> ServerReply:
    """Answer an input."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    call = read(body, context, served)
    shape = Shape(served, body, await served.fingerprint())
    prompt = await served.conversation(call.talk)
    if call.stream:
        events = _stream(served, prompt, shape, served.begin([prompt.ids], call.params))
        return context.events(events, on_error=shape.error_event)
    done = (await context.wait(request, served.complete([prompt.ids], call.params)))[0]
    return context.json(shape.whole(served, prompt, done))


def read(body: Body, context: Context, served: Served) -> Call:
    """The request, as the chat route's. Raises ApiError, RequestError."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if name in body:
            raise invalid(f"Field '{name}': is not supported, this server keeps nothing between requests", name)
    if body.flag("background"):
        raise invalid("Field 'background': is not supported, this server keeps nothing between requests", "background")
    given = body.raw("input")
    talk: list[dict[str, Any]] = []
    instructions = body.text("instructions")
    if instructions:
        talk.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        talk.append({"role": "user", "content": given})
    elif isinstance(given, list) and given:
        for i, item in enumerate(given):
            talk += _item(item, f"input[{i}]")
    else:
        raise invalid("Field 'input': is required, text or a non-empty array of items", "input")
    fields: dict[str, Any] = {
        "messages": talk,
        "max_tokens": body.integer("max_output_tokens"),
        "stream": body.flag("stream"),
        "tools": _tools(body) or None,
    }
    for name in ("temperature", "top_p", "tool_choice", "seed", "top_k", "min_p", "top_logprobs"):
        fields[name] = body.raw(name)
    if fields["top_logprobs"]:
        fields["logprobs"] = True
    else:
        del fields["top_logprobs"]
    if isinstance(fields["tool_choice"], dict) and fields["tool_choice"].get("type") == "allowed_tools":
        raise unsupported("tool_choice")
    reasoning = body.inner("reasoning")
    if reasoning is not None:
        fields["reasoning_effort"] = reasoning.text("effort")
    text = body.inner("text")
    form = text.inner("format") if text is not None else None
    if form is not None and form.text("type") != "text":
        if form.text("type") not in ("json_object", "json_schema"):
            raise invalid("Field 'text.format.type': must be text, json_object or json_schema", "text.format.type")
        raise unsupported("text.format")
    return openai_chat.read(Body(fields), context, served)


def _tools(body: Body) -> list[dict[str, Any]]:
    """Tools in the chat's shape; those that OpenAI's own server would run are left out."""
    found = []
    for i, tool in enumerate(body.array("tools") or ()):
        if not isinstance(tool, dict):
            raise invalid(f"tools[{i}]: expected an object, found {kind_of(tool)}", f"tools[{i}]")
        if tool.get("type") == "function":
            members = {k: v for k, v in tool.items() if k in ("name", "description", "parameters") and v is not None}
            found.append({"type": "function", "function": members})
    return found


def _item(item: Any, where: str) -> list[dict[str, Any]]:
    """An input item as chat messages."""
    if not isinstance(item, dict):
        raise invalid(f"{where}: expected an object, found {kind_of(item)}", where)
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "message":
        content = item.get("content")
        if isinstance(content, list):
            content = [_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
        return [{"role": item.get("role"), "content": content}]
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}]
    if kind == "function_call_output":
        output = item.get("output")
        if isinstance(output, list):
            output = [_part(part, f"{where}.output[{i}]") for i, part in enumerate(output)]
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": output}]
    if kind == "reasoning":
        return []  # thoughts of earlier turns are not shown again
    raise invalid(f"{where}.type: {kind!r:.60} is not supported", f"{where}.type")


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal":
        return {"type": "text", "text": str(part.get("refusal"))}
    if kind == "input_image":
        raise unsupported(where, f"{where}: this model reads text only, found a part of type {kind!r}")
    raise invalid(f"{where}: expected text, found {kind or kind_of(part)!r:.60}", where)


MESSAGE, REASONING = "message", "reasoning"
_PARTS = {MESSAGE: "output_text", REASONING: "reasoning_text"}


class Shape:
    """The response object of one request, which grows, and the events about it.

    open: the kind of the item that is being written.
    """

    def __init__(self, served: Served, body: Body, fingerprint: str) -> None:
        self.open: str | None = None
        self._ids = {MESSAGE: shapes.new_id("msg_"), REASONING: shapes.new_id("rs_")}
        self._n = self._index = -1
        self._text = ""
        self._base: dict[str, Any] = {
            "id": shapes.new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.raw("instructions"),
            "max_output_tokens": body.raw("max_output_tokens"),
            "metadata": body.raw("metadata", {}),
            "model": served.name,
            "output": [],
            "parallel_tool_calls": body.raw("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": body.raw("temperature"),
            "text": {"format": {"type": "text"}},
            "tool_choice": body.raw("tool_choice", "auto"),
            "tools": body.raw("tools", []),
            "top_p": body.raw("top_p"),
            "truncation": "disabled",
            "usage": None,
            "user": body.raw("user"),
            "system_fingerprint": fingerprint,
        }

    def event(self, kind: str, **members: Any) -> bytes:
        """The next event."""
        self._n += 1
        return named_event(kind, {"type": kind, "sequence_number": self._n, **members})

    def error_event(self, error: ApiError) -> bytes:
        """The end of a stream that fails."""
        failed = {**self._base, "status": "failed", "error": {"code": "server_error", "message": error.message}}
        return self.event("response.failed", response=failed)

    def begun(self) -> dict[str, Any]:
        """The response before there is anything in it."""
        return self._base

    def item(self, kind: str, text: str | None = None, logprobs: list[dict[str, Any]] | None = None,
             status: str = "completed") -> dict[str, Any]:  # fmt: skip
        """An item of the output; text: None before there is any."""
        part = self._part(kind, text or "", logprobs)
        item: dict[str, Any] = {"id": self._ids[kind], "type": kind, "content": [] if text is None else [part]}
        return {**item, **({"summary": []} if kind == REASONING else {"role": "assistant"}), "status": status}

    @staticmethod
    def _part(kind: str, text: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """A piece of text in an item."""
        if kind == REASONING:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}

    def delta(self, text: str, **more: Any) -> bytes:
        """More of the item that is being written."""
        self._text += text
        return self.event(f"response.{_PARTS[self.open or MESSAGE]}.delta", **self._place(), delta=text, **more)

    def turn_to(self, kind: str | None, last: dict[str, Any] | None = None) -> Iterator[bytes]:
        """End the item that is being written (`last` is it, where more is known of it), and begin another one."""
        if kind == self.open:
            return
        if self.open is not None:
            item = last or self.item(self.open, self._text)
            part = item["content"][0]
            words = {k: v for k, v in part.items() if k in ("text", "logprobs")}
            yield self.event(f"response.{_PARTS[self.open]}.done", **self._place(), **words)
            yield self.event("response.content_part.done", **self._place(), part=part)
            yield self.event("response.output_item.done", output_index=self._index, item=item)
        self.open, self._text = kind, ""
        if kind is not None:
            self._index += 1
            item = self.item(kind, status="in_progress")
            yield self.event("response.output_item.added", output_index=self._index, item=item)
            yield self.event("response.content_part.added", **self._place(), part=self._part(kind, ""))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._ids[self.open or MESSAGE], "output_index": self._index, "content_index": 0}

    def whole(self, served: Served, prompt: ChatPrompt, done: Completion) -> dict[str, Any]:
        """The finished response."""
        choice, usage = done.choices[0], done.usage
        thoughts, text = served.split(prompt, choice)
        status = "incomplete" if choice.finish_reason == "length" else "completed"
        logprobs = shapes.chat_entries(choice.logprobs) if choice.logprobs is not None else []
        output = [self.item(REASONING, thoughts)] if thoughts else []
        if text or not thoughts:
            output.append(self.item(MESSAGE, text, logprobs, status))
        return {
            **self._base,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": output,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "output_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens_details": {"reasoning_tokens": served.thought_tokens(prompt, done)},
            },
        }


async def _stream(
    served: Served, prompt: ChatPrompt, shape: Shape, running: list[Running]
) -> AsyncGenerator[bytes, None]:
    begun, splitters = False, Splitters(prompt.thoughts)
    async with contextlib.aclosing(served.stream(running)) as chunks:
        async for _, chunk in chunks:
            if not begun:
                begun = True
                yield shape.event("response.created", response=shape.begun())
                yield shape.event("response.in_progress", response=shape.begun())
                if prompt.thoughts is None:
                    for data in shape.turn_to(MESSAGE):
                        yield data
            thoughts, text = splitters.of(chunk)
            if thoughts:
                for data in shape.turn_to(REASONING):
                    yield data
                yield shape.delta(thoughts)
            logprobs = shapes.chat_entries(chunk.logprobs) if chunk.logprobs is not None else []
            if text or (logprobs and shape.open == MESSAGE):
                for data in shape.turn_to(MESSAGE):
                    yield data
                yield shape.delta(text, logprobs=logprobs)
            if chunk.completion is not None:
                whole = shape.whole(served, prompt, chunk.completion)
                if shape.open is None:
                    for data in shape.turn_to(MESSAGE):
                        yield data
                for data in shape.turn_to(None, whole["output"][-1]):
                    yield data
                yield shape.event(f"response.{whole['status']}", response=whole)

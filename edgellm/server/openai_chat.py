"""POST /v1/chat/completions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from edgellm.core.config import SamplingParams
from edgellm.core.record import dataclass, replace
from edgellm.core.results import Chunk, Completion
from edgellm.server import conversation, sampling, shapes
from edgellm.server.context import Context, ServerReply
from edgellm.server.errors import invalid
from edgellm.server.fields import Body
from edgellm.server.served import Conversation, Served
from edgellm.server.stream import DONE, dumps


@dataclass(frozen=True, slots=True)
class Call:
    """A chat request, read: everything that can be wrong with it has been looked at, but for the prompt's length."""

    talk: Conversation
    params: SamplingParams
    n: int
    stream: bool
    include_usage: bool
    token_ids: bool


def read(body: Body, context: Context, served: Served) -> Call:
    """The request in `body`. Raises ApiError, RequestError."""
    settings = context.settings
    stream, include_usage = sampling.streaming(body)
    talk = conversation.read(body, variables=settings.template_variables, prefill_by_default=settings.prefill_assistant)
    params = sampling.read(body, served.tokenize, defaults=settings.defaults)
    wanted, top = body.flag("logprobs"), body.integer("top_logprobs")
    if top is not None:
        if not wanted:
            raise invalid("Field 'top_logprobs': needs logprobs: true", "top_logprobs")
        if not 0 <= top <= 20:
            raise invalid(f"Field 'top_logprobs': must be from 0 to 20, found {top}", "top_logprobs")
    if wanted and talk.tools and stream:
        raise invalid("Field 'logprobs': is not supported with tools and stream", "logprobs")
    if wanted:
        params = replace(params, logprobs=top or 0)
    return Call(
        talk,
        params,
        sampling.choices(body),
        stream,
        include_usage or settings.include_usage,
        body.flag("return_token_ids"),
    )


async def chat_completions(request: Request) -> ServerReply:
    """Answer a conversation."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    call = read(body, context, served)
    prompt, notes = await served.conversation(call.talk)
    if call.stream:
        return context.events(_stream(served, call, prompt, notes))
    completion = (await context.wait(request, served.complete([prompt], call.params, call.n)))[0]
    return context.json(_whole(served, call, completion, notes))


def _whole(served: Served, call: Call, completion: Completion, notes: tuple[str, ...]) -> dict[str, Any]:
    choices = []
    for c in completion.choices:
        message: dict[str, Any] = {"role": "assistant", "content": c.text, "refusal": None}
        choice: dict[str, Any] = {
            "index": c.index,
            "message": message,
            "logprobs": shapes.chat_logprobs(c.logprobs),
            "finish_reason": shapes.finish(c.finish_reason),
        }
        if call.token_ids:
            choice["token_ids"] = c.token_ids
        choices.append(choice)
    answer: dict[str, Any] = {
        "id": shapes.new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": completion.fingerprint,
        "choices": choices,
        "usage": shapes.usage([completion]),
        "timings": shapes.timings(completion),
    }
    if notes:
        answer["notes"] = list(notes)
    return answer


async def _stream(served: Served, call: Call, prompt: list[int], notes: tuple[str, ...]) -> AsyncGenerator[bytes, None]:
    """Role, text, finish for each choice; then the counts, if wanted, and the end."""
    head = dumps(
        {
            "id": shapes.new_id("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }
    )[:-1]
    head = f'data: {head},"choices":['
    tail = '],"usage":null' if call.include_usage else "]"
    begun: set[int] = set()

    def piece(index: int, delta: str, finish: str = "null", more: str = "", after: str = "") -> bytes:
        return (
            f'{head}{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":{finish}{more}}}{tail}{after}}}\n\n'
        ).encode()

    chunk: Chunk | None = None
    async with contextlib.aclosing(served.stream([prompt], call.params, call.n)) as chunks:
        async for _, chunk in chunks:
            index = chunk.index
            if index not in begun:
                begun.add(index)
                yield piece(index, '{"role":"assistant","content":""}')
            if chunk.text or chunk.logprobs is not None or (call.token_ids and chunk.token_ids):
                more = f',"token_ids":{dumps(chunk.token_ids)}' if call.token_ids else ""
                data = piece(index, f'{{"content":{dumps(chunk.text)}}}', more=more)
                if chunk.logprobs is not None and chunk.logprobs.content:
                    logprobs = dumps(shapes.chat_logprobs(chunk.logprobs))
                    data = data.replace(b'"logprobs":null,"finish_reason":null', (
                        f'"logprobs":{logprobs},"finish_reason":null').encode())  # fmt: skip
                yield data
            if chunk.finish_reason is not None:
                done, after = chunk.completion, ""
                if done is not None:
                    after = f',"timings":{dumps(shapes.timings(done))}'
                    if notes:
                        after += f',"notes":{dumps(list(notes))}'
                yield piece(index, "{}", dumps(shapes.finish(chunk.finish_reason)), after=after)
    if call.include_usage and chunk is not None and chunk.completion is not None:
        yield f'{head}],"usage":{dumps(shapes.usage([chunk.completion]))}}}\n\n'.encode()
    yield DONE

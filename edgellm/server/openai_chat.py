"""POST /v1/chat/completions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from edgellm.core.config import SamplingParams
from edgellm.core.record import dataclass, replace
from edgellm.core.results import Completion
from edgellm.engine.request import Request as Running
from edgellm.server import conversation, sampling, shapes
from edgellm.server.context import Context, ServerReply
from edgellm.server.errors import invalid
from edgellm.server.fields import Body
from edgellm.server.progress import Progress, Watched, timings_so_far
from edgellm.server.reasoning import Splitters
from edgellm.server.served import ChatPrompt, Conversation, Served
from edgellm.server.stream import DONE, dumps, quote


@dataclass(frozen=True, slots=True)
class Call:
    """A chat request, read: everything that can be wrong with it has been looked at, but for the prompt's length."""

    talk: Conversation
    params: SamplingParams
    n: int
    stream: bool
    include_usage: bool
    token_ids: bool
    watched: Watched


def read(body: Body, context: Context, served: Served) -> Call:
    """The request in `body`. Raises ApiError, RequestError."""
    settings = context.settings
    stream, include_usage = sampling.streaming(body)
    talk = conversation.read(body, settings)
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
        Watched.of(body),
    )


async def chat_completions(request: Request) -> ServerReply:
    """Answer a conversation."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    call = read(body, context, served)
    prompt = await served.conversation(call.talk)
    if call.stream:
        running = served.begin([prompt.ids], call.params, call.n)[0]
        return context.events(_stream(served, call, prompt, running))
    completion = (await context.wait(request, served.complete([prompt.ids], call.params, call.n)))[0]
    return context.json(_whole(served, call, prompt, completion, await served.fingerprint()))


def _whole(served: Served, call: Call, prompt: ChatPrompt, completion: Completion, fingerprint: str) -> dict[str, Any]:
    choices = []
    for c in completion.choices:
        thoughts, text = served.split(prompt, c)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if thoughts:
            message["reasoning_content"] = thoughts
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
        "system_fingerprint": fingerprint,
        "choices": choices,
        "usage": shapes.usage([completion], served.thought_tokens(prompt, completion)),
        "timings": shapes.timings(completion),
    }
    if prompt.notes:
        answer["notes"] = list(prompt.notes)
    return answer


async def _stream(served: Served, call: Call, prompt: ChatPrompt, running: Running) -> AsyncGenerator[bytes, None]:
    """Role, thoughts, text, finish for each choice; then the counts, if wanted, and the end."""
    head = dumps(
        {
            "id": shapes.new_id("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": await served.fingerprint(),
        }
    )[:-1]
    head = f'data: {head},"choices":['
    tail = '],"usage":null' if call.include_usage else "]"
    watched, n_tokens, begun = call.watched, 0, set[int]()
    splitters = Splitters(prompt.thoughts)

    def piece(index: int, delta: str, finish: str = "null", more: str = "", logprobs: str = "null") -> bytes:
        return (
            f'{head}{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish}}}{tail}{more}}}\n\n'
        ).encode()

    def role(index: int, more: str = "") -> bytes:
        begun.add(index)
        return piece(index, '{"role":"assistant","content":""}', more=more)

    done: Completion | None = None
    async with contextlib.aclosing(watched.chunks(served, [running])) as chunks:
        async for _, chunk in chunks:
            if isinstance(chunk, Progress):
                more = f',"prompt_progress":{dumps(chunk.shape())}'
                yield piece(0, "{}", more=more) if 0 in begun else role(0, more)
                continue
            index = chunk.index
            if index not in begun:
                yield role(index)
            n_tokens += len(chunk.token_ids)
            thoughts, text = splitters.of(chunk)
            more = f',"timings":{dumps(timings_so_far(running, n_tokens))}' if watched.timings else ""
            ids = f',"token_ids":{dumps(chunk.token_ids)}' if call.token_ids else ""
            if thoughts:
                yield piece(index, f'{{"reasoning_content":{quote(thoughts)}}}', more=more)
            if text or chunk.logprobs is not None or (call.token_ids and chunk.token_ids):
                scores = "null"
                if chunk.logprobs is not None and chunk.logprobs.content:
                    scores = dumps(shapes.chat_logprobs(chunk.logprobs))
                yield piece(index, f'{{"content":{quote(text)}}}', f"null{ids}", more, scores)
            if chunk.finish_reason is not None:
                more, done = "", chunk.completion or done
                if chunk.completion is not None:
                    more = f',"timings":{dumps(shapes.timings(chunk.completion))}'
                    if prompt.notes:
                        more += f',"notes":{dumps(list(prompt.notes))}'
                yield piece(index, "{}", dumps(shapes.finish(chunk.finish_reason)), more)
    if call.include_usage and done is not None:
        yield f'{head}],"usage":{dumps(shapes.usage([done], served.thought_tokens(prompt, done)))}}}\n\n'.encode()
    yield DONE

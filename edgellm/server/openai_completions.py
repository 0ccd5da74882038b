"""POST /v1/completions: text, or token ids, continued. No chat template; control tokens in the prompt count."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from edgellm.core.config import SamplingParams
from edgellm.core.record import dataclass, replace
from edgellm.core.results import Choice, Completion
from edgellm.engine.request import Request as Running
from edgellm.server import sampling, shapes
from edgellm.server.context import Context, ServerReply
from edgellm.server.errors import invalid, unsupported
from edgellm.server.fields import Body, kind_of
from edgellm.server.progress import Progress, Watched, timings_so_far
from edgellm.server.served import Served
from edgellm.server.stream import DONE, dumps, event, quote

MAX_PROMPTS = 2048
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, where the request says nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request, read. texts: the prompts as text, where they are echoed; else empty."""

    prompts: list[list[int]]
    texts: list[str]
    params: SamplingParams
    n: int
    stream: bool
    include_usage: bool
    token_ids: bool
    watched: Watched

    @property
    def echo(self) -> bool:
        """Whether the prompts come before the answers."""
        return bool(self.texts)


async def completions(request: Request) -> ServerReply:
    """Continue text."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    call = await read(body, context, served)
    if call.stream:
        return context.events(_stream(served, call, served.begin(call.prompts, call.params, call.n)))
    done = await context.wait(request, served.complete(call.prompts, call.params, call.n))
    return context.json(_whole(served, call, done, await served.fingerprint()))


async def read(body: Body, context: Context, served: Served) -> Call:
    """The request in `body`. Raises ApiError, RequestError, ContextOverflow."""
    stream, include_usage = sampling.streaming(body)
    params = sampling.read(body, served.tokenize, defaults=context.settings.defaults, max_tokens=DEFAULT_MAX_TOKENS)
    wanted = _logprobs_wanted(body)
    if wanted is not None:
        params = replace(params, logprobs=wanted)
    n, echo, suffix = sampling.choices(body), body.flag("echo"), body.text("suffix")
    prompts = await read_prompts(body, served)
    texts: list[str] = []
    if suffix:
        if echo:
            raise invalid("Field 'echo': is not supported with suffix", "echo")
        prompts = [await fill_in(served, prompt, suffix) for prompt in prompts]
    if echo:
        if stream and wanted is not None:
            raise unsupported("echo", "'echo' with logprobs cannot be streamed: use stream: false")
        given = body.raw("prompt")
        given = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        texts = [p if isinstance(p, str) else served.llm.text_of(p) for p in given]
        if params.logprobs is not None:
            params = replace(params, prompt_logprobs=params.logprobs)
    return Call(
        prompts,
        texts,
        params,
        n,
        stream,
        include_usage or context.settings.include_usage,
        body.flag("return_token_ids"),
        Watched.of(body),
    )


def _logprobs_wanted(body: Body) -> int | None:
    """How many alternatives are reported, None for no log-probabilities at all; true and false are 0 and none."""
    if isinstance(body.raw("logprobs"), bool):
        return 0 if body.flag("logprobs") else None
    wanted = body.integer("logprobs")
    if wanted is not None and not 0 <= wanted <= 20:
        raise invalid(f"Field 'logprobs': must be from 0 to 20, found {wanted}", "logprobs")
    return wanted


async def read_prompts(body: Body, served: Served, name: str = "prompt") -> list[list[int]]:
    """The prompts of a request: text, token ids, or a list with both kinds. Raises ApiError and RequestError."""
    value = body.raw(name)
    if value is None:
        raise invalid(f"Field '{name}': is required", name)
    if isinstance(value, str) or (isinstance(value, list) and value and all(_is_id(i) for i in value)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise invalid(
            f"Field '{name}': expected text, token ids, or a non-empty array of them, found {kind_of(value)}", name
        )
    if len(value) > MAX_PROMPTS:
        raise invalid(f"Field '{name}': has {len(value)} prompts, at most {MAX_PROMPTS} are allowed", name)
    prompts = []
    for i, item in enumerate(value):
        where = name if len(value) == 1 else f"{name}[{i}]"
        if isinstance(item, str):
            prompts.append(served.llm.checked_ids(await served.text(item), where))
        elif isinstance(item, list) and all(_is_id(t) for t in item):
            prompts.append(served.llm.checked_ids(item, where))
        else:
            raise invalid(f"Field '{where}': expected text or token ids, found {kind_of(item)}", where)
    return prompts


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


async def fill_in(served: Served, prompt: list[int], suffix: str) -> list[int]:
    """The prompt that asks a model to fill in what stands between `prompt` and `suffix`."""
    marks = [served.llm.special_id(name) for name in ("fim_pre", "fim_suf", "fim_mid")]
    if None in marks:
        raise invalid("Field 'suffix': this model was not trained to fill in: it has no FIM tokens", "suffix")
    before, after, middle = (mark for mark in marks if mark is not None)
    rest = await served.text(suffix, add_special=False, parse_special=False)
    return served.llm.checked_ids([before, *prompt, after, *rest, middle], "prompt")


def _whole(served: Served, call: Call, done: list[Completion], fingerprint: str) -> dict[str, Any]:
    choices = []
    for p, completion in enumerate(done):
        for c in completion.choices:
            choice: dict[str, Any] = {
                "index": p * call.n + c.index,
                "text": (call.texts[p] if call.echo else "") + c.text,
                "logprobs": _logprobs(served, call, p, completion, c),
                "finish_reason": shapes.finish(c.finish_reason),
            }
            if call.token_ids:
                choice["token_ids"], choice["prompt_token_ids"] = c.token_ids, call.prompts[p]
            choices.append(choice)
    answer: dict[str, Any] = {
        "id": shapes.new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": fingerprint,
        "choices": choices,
        "usage": shapes.usage(done),
    }
    if len(done) == 1:
        answer["timings"] = shapes.timings(done[0])
    return answer


def _logprobs(served: Served, call: Call, p: int, completion: Completion, choice: Choice) -> dict[str, Any] | None:
    if call.params.logprobs is None:
        return None
    answer = choice.logprobs.content if choice.logprobs is not None else []
    if not call.echo:
        return shapes.legacy_logprobs(list(answer), ("", 0), 0)
    first = (served.llm.piece(call.prompts[p][0])[0], 0)
    prompt = shapes.legacy_logprobs(list(completion.prompt_logprobs or [None]), first, 0)
    shift = len(call.texts[p])
    return {k: v + w for (k, v), w in zip(
        prompt.items(), shapes.legacy_logprobs(list(answer), ("", 0), shift).values(), strict=True)}  # fmt: skip


async def _stream(served: Served, call: Call, running: list[Running]) -> AsyncGenerator[bytes, None]:
    """Text and finish for each choice; then the counts, if wanted, and the end."""
    base = {
        "id": shapes.new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "system_fingerprint": await served.fingerprint(),
    }
    head = f'data: {dumps(base)[:-1]},"choices":[{{"index":'
    tail = '}],"usage":null' if call.include_usage else "}]"
    begun: set[int] = set()
    done: dict[int, Completion] = {}
    n_tokens = [0] * len(running)
    async with contextlib.aclosing(call.watched.chunks(served, running)) as chunks:
        async for p, chunk in chunks:
            if isinstance(chunk, Progress):
                after = f',"prompt_progress":{dumps(chunk.shape())}'
                yield (f'{head}{p * call.n},"text":"","logprobs":null,"finish_reason":null{tail}{after}}}\n\n').encode()
                continue
            n_tokens[p] += len(chunk.token_ids)
            index = p * call.n + chunk.index
            text = chunk.text
            if call.echo and index not in begun:
                text = call.texts[p] + text
            shift = len(call.texts[p]) if call.echo else 0
            begun.add(index)
            if chunk.completion is not None:
                done[p] = chunk.completion
            logprobs = "null"
            if chunk.logprobs is not None:
                logprobs = dumps(shapes.legacy_logprobs(list(chunk.logprobs.content), ("", 0), shift))
            more = f',"token_ids":{dumps(chunk.token_ids)}' if call.token_ids else ""
            if text or (chunk.logprobs is not None and chunk.logprobs.content):
                after = f',"timings":{dumps(timings_so_far(running[p], n_tokens[p]))}' if call.watched.timings else ""
                yield (
                    f'{head}{index},"text":{quote(text)},"logprobs":{logprobs},'
                    f'"finish_reason":null{more}{tail}{after}}}\n\n'
                ).encode()
            if chunk.finish_reason is not None:
                reason = dumps(shapes.finish(chunk.finish_reason))
                after = ""
                if chunk.completion is not None and len(call.prompts) == 1:
                    after = f',"timings":{dumps(shapes.timings(chunk.completion))}'
                yield (f'{head}{index},"text":"","logprobs":null,"finish_reason":{reason}{tail}{after}}}\n\n').encode()
    if call.include_usage:
        yield event({**base, "choices": [], "usage": shapes.usage(list(done.values()))})
    yield DONE

"""POST /completion: llama.cpp's own route. Streams have no [DONE], answers no limit but what is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from edgellm.core.config import SamplingParams
from edgellm.core.record import replace
from edgellm.core.results import Choice, Completion, Logprobs
from edgellm.engine.request import Request as Running
from edgellm.server import sampling, shapes
from edgellm.server.context import Context, ServerReply
from edgellm.server.errors import ApiError, invalid
from edgellm.server.fields import Body
from edgellm.server.openai_completions import read_prompts
from edgellm.server.progress import Progress, Watched, timings_so_far
from edgellm.server.served import Served
from edgellm.server.stream import dumps, event


async def completion(request: Request) -> ServerReply:
    """Continue text."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    params = sampling.read(body, served.tokenize, defaults=context.settings.defaults)
    n_probs = body.integer("n_probs", 0) or 0
    if not 0 <= n_probs <= 100:
        raise invalid(f"Field 'n_probs': must be from 0 to 100, found {n_probs}", "n_probs")
    if n_probs:
        params = replace(params, logprobs=n_probs)
    prompts = await read_prompts(body, served)
    wanted, watched = body.array("response_fields"), Watched.of(body)
    if body.flag("stream"):
        running = served.begin(prompts, params)
        return context.events(_stream(served, params, running, watched, body), on_error=_error_event)
    done = await context.wait(request, served.complete(prompts, params))
    fingerprint = await served.fingerprint()
    answers = [_answer(served, params, i, prompts[i], c, body, fingerprint) for i, c in enumerate(done)]
    if wanted:
        answers = [{name: value for name in wanted if (value := _reach(a, str(name))) is not None} for a in answers]
    return context.json(answers[0] if isinstance(body.raw("prompt"), str) or len(answers) == 1 else answers)


def _error_event(error: ApiError) -> bytes:
    return event(error.body())


def _reach(answer: Any, path: str) -> Any:
    """A member of an answer by its path, such as "timings/predicted_n"."""
    for name in path.split("/"):
        answer = answer.get(name) if isinstance(answer, dict) else None
    return answer


def _stop_type(choice: Choice) -> tuple[str, str]:
    """llama.cpp's stop_type and stopping_word."""
    if choice.finish_reason == "length":
        return "limit", ""
    if isinstance(choice.stop, str):
        return "word", choice.stop
    return ("eos" if choice.finish_reason == "stop" else "none"), ""


def _answer(
    served: Served,
    params: SamplingParams,
    index: int,
    prompt: list[int],
    c: Completion,
    body: Body,
    fingerprint: str,
) -> dict[str, Any]:
    choice = c.choices[0]
    stop_type, word = _stop_type(choice)
    answer: dict[str, Any] = {
        "index": index,
        "content": choice.text,
        "tokens": choice.token_ids if body.flag("return_tokens") else [],
        "id_slot": 0,
        "stop": True,
        "model": served.name,
        "tokens_predicted": c.usage.completion_tokens,
        "tokens_evaluated": c.usage.prompt_tokens,
        "tokens_cached": c.usage.cached_tokens,
        "generation_settings": {**sampling.effective(params, served.llm.sampling_defaults), "seed": c.seed},
        "prompt": served.llm.text_of(prompt),
        "has_new_line": "\n" in choice.text,
        "truncated": False,
        "stop_type": stop_type,
        "stopping_word": word,
        "timings": shapes.timings(c),
        "system_fingerprint": fingerprint,
    }
    if choice.logprobs is not None:
        answer["completion_probabilities"] = shapes.chat_entries(choice.logprobs)
    return answer


def _piece(index: int, text: str, tokens: list[int], n_predicted: int, n_prompt: int) -> dict[str, Any]:
    return {
        "index": index,
        "content": text,
        "tokens": tokens,
        "stop": False,
        "id_slot": 0,
        "tokens_predicted": n_predicted,
        "tokens_evaluated": n_prompt,
    }


async def _stream(
    served: Served, params: SamplingParams, running: list[Running], watched: Watched, body: Body
) -> AsyncGenerator[bytes, None]:
    tokens = body.flag("return_tokens")
    counts = [0] * len(running)
    async with contextlib.aclosing(watched.chunks(served, running)) as chunks:
        async for p, chunk in chunks:
            if isinstance(chunk, Progress):
                yield event({**_piece(p, "", [], 0, chunk.total), "prompt_progress": chunk.shape()})
                continue
            counts[p] += len(chunk.token_ids)
            if chunk.text or chunk.logprobs:
                shown = chunk.token_ids if tokens else []
                piece = _piece(p, chunk.text, shown, counts[p], len(running[p].prompt))
                if watched.timings:
                    piece["timings"] = timings_so_far(running[p], counts[p])
                if isinstance(chunk.logprobs, Logprobs):
                    piece["completion_probabilities"] = shapes.chat_entries(chunk.logprobs)
                yield event(piece)
            done = chunk.completion
            if done is not None:
                stop_type, word = _stop_type(done.choices[0])
                settings = {**sampling.effective(params, served.llm.sampling_defaults), "seed": done.seed}
                last = {
                    "index": p, "content": "", "tokens": [], "id_slot": 0, "stop": True, "model": served.name,
                    "tokens_predicted": done.usage.completion_tokens, "tokens_evaluated": done.usage.prompt_tokens,
                    "tokens_cached": done.usage.cached_tokens, "generation_settings": settings,
                    "prompt": served.llm.text_of(running[p].prompt), "has_new_line": "\n" in done.text,
                    "truncated": False,
                    "stop_type": stop_type, "stopping_word": word, "timings": shapes.timings(done),
                }  # fmt: skip
                yield f"data: {dumps(last)}\n\n".encode()

"""Ollama's API: /api/chat, /api/generate, /api/tags and others, as lines of JSON. Durations are nanoseconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from edgellm.core.config import SamplingParams
from edgellm.core.record import dataclass, replace
from edgellm.core.results import Completion, Logprobs
from edgellm.core.version import __version__
from edgellm.engine.request import Request as Running
from edgellm.server import conversation, sampling, shapes
from edgellm.server.context import Context, ServerReply
from edgellm.server.errors import ApiError, invalid, unsupported
from edgellm.server.fields import Body
from edgellm.server.models import Entry
from edgellm.server.openai_completions import fill_in
from edgellm.server.reasoning import Splitters, marks_of
from edgellm.server.served import ChatPrompt, Conversation, Served
from edgellm.server.stream import JSONReply, line

PIECE = Callable[[str, str | None], dict[str, Any]]
"""How a piece of text, and of thoughts, is put into a line: a message in chats, `response` elsewhere."""

_SILENT = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "num_keep", "low_vram", "numa",
           "vocab_only", "use_mlock", "penalize_newline", "tfs_z", "f16_kv", "draft_num_predict")  # fmt: skip
"""Options about how a model is run, which is decided when the server starts; they change no answer that fits."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request, read."""

    prompt: ChatPrompt
    params: SamplingParams
    stream: bool
    piece: PIECE


API_VERSION = "0.12.6"
"""The version of Ollama's API that is spoken here: clients refuse servers that are older than what they need."""


async def version(request: Request) -> Response:
    """The version of the API, and the release."""
    return Context.of(request).json({"version": API_VERSION, "edgellm": __version__})


async def tags(request: Request) -> Response:
    """The models."""
    context = Context.of(request)
    return context.json({"models": [_card(e) for e in context.models.entries]})


async def running(request: Request) -> Response:
    """The models in memory."""
    context = Context.of(request)
    cards = []
    for entry in context.models.entries:
        if entry.served is not None:
            card = _card(entry)
            del card["modified_at"]
            forever = datetime.fromtimestamp(time.time() + 3.15e9, timezone.utc).isoformat()
            cards.append({**card, "expires_at": forever, "size_vram": 0, "context_length": entry.served.n_ctx})
    return context.json({"models": cards})


async def show(request: Request) -> Response:
    """What a model is."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body, _name(body))
    entry = context.models.find(_name(body))
    info = served.llm.info
    return context.json(
        {
            "modelfile": "",
            "parameters": "\n".join(f"{k} {v}" for k, v in served.llm.sampling_defaults.items()),
            "template": served.llm.template_source,
            "details": _details(entry),
            "model_info": {
                "general.architecture": info.architecture,
                "general.parameter_count": info.n_params,
                f"{info.architecture}.context_length": info.n_ctx,
            },
            "capabilities": ["completion"]
            if marks_of(served.llm.template_source) is None
            else ["completion", "thinking"],
            "modified_at": _time(entry.created),
        }
    )


async def chat(request: Request) -> ServerReply:
    """Answer a conversation."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body, _name(body))
    if body.raw("messages") in (None, []):
        return context.json(await _load_or_unload(context, body, {"message": {"role": "assistant", "content": ""}}))
    talk = [_message(m, f"messages[{i}]") for i, m in enumerate(body.array("messages") or ())]
    fields = {"messages": talk, "tools": body.raw("tools"), "chat_template_kwargs": _thinking(body)}
    prompt = await served.conversation(conversation.read(Body(fields), context.settings))
    return await _answer(request, context, served, body, prompt, lambda text, thoughts: {
        "message": {"role": "assistant", "content": text, **_thought(thoughts)}})  # fmt: skip


async def generate(request: Request) -> ServerReply:
    """Answer a prompt; with `raw` continue it."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body, _name(body))
    text = body.text("prompt", "") or ""
    for name in ("template", "context", "images"):
        if body.raw(name) not in (None, [], ""):
            raise unsupported(name)
    if not text and not body.text("suffix"):
        return context.json(await _load_or_unload(context, body, {"response": ""}))
    suffix = body.text("suffix")
    if suffix:
        prompt = ChatPrompt(await fill_in(served, await served.text(text), suffix))
    elif body.flag("raw") or served.llm.is_base:
        prompt = ChatPrompt(await served.text(text))
    else:
        system = body.text("system")
        talk = [{"role": "system", "content": system}] if system else []
        variables = {**context.settings.template_variables, **(_thinking(body) or {})}
        talk.append({"role": "user", "content": text})
        prompt = await served.conversation(
            Conversation(talk, variables=variables, reasoning=context.settings.reasoning)
        )
    return await _answer(request, context, served, body, prompt, lambda text, thoughts: {
        "response": text, **_thought(thoughts)})  # fmt: skip


def _thought(thoughts: str | None) -> dict[str, str]:
    return {"thinking": thoughts} if thoughts else {}


def _name(body: Body) -> str | None:
    name = body.text("model", body.text("name"))
    if not name:
        raise invalid("model is required", "model")
    return name


def _message(message: Any, where: str) -> Any:
    """A message in OpenAI's shape: Ollama has pictures beside the text, and thoughts as `thinking`."""
    if not isinstance(message, dict):
        return message
    if message.get("images"):
        raise unsupported(f"{where}.images", f"{where}.images: this model reads text only")
    copy = {k: v for k, v in message.items() if k not in ("images", "thinking", "tool_name")}
    if message.get("thinking"):
        copy["reasoning_content"] = message["thinking"]
    if message.get("tool_name"):
        copy["name"] = message["tool_name"]
    return copy


def _thinking(body: Body) -> dict[str, Any] | None:
    think = body.raw("think")
    if think is None:
        return None
    if isinstance(think, bool):
        return {"enable_thinking": think}
    if think in ("low", "medium", "high"):
        return {"enable_thinking": True, "reasoning_effort": think}
    raise invalid("Field 'think': must be true, false, low, medium or high", "think")


def _sampling(body: Body, context: Context, served: Served) -> SamplingParams:
    if body.raw("format") not in (None, ""):
        raise unsupported("format")
    options = body.inner("options")
    fields = {k: v for k, v in (options.plain() if options is not None else {}).items() if k not in _SILENT}
    if "num_predict" in fields:
        limit = fields.pop("num_predict")
        fields["max_tokens"] = -1 if limit in (-1, -2) else limit  # -2: until the context is full
    params = sampling.read(Body(fields, "options."), served.tokenize, defaults=context.settings.defaults)
    if body.flag("logprobs"):
        top = body.integer("top_logprobs", 0) or 0
        if not 0 <= top <= 20:
            raise invalid("Field 'top_logprobs': must be from 0 to 20", "top_logprobs")
        params = replace(params, logprobs=top)
    return params


async def _answer(
    request: Request, context: Context, served: Served, body: Body, prompt: ChatPrompt, piece: PIECE
) -> ServerReply:
    call = Call(prompt, _sampling(body, context, served), body.flag("stream", True), piece)
    if call.stream:
        return context.events(
            _stream(served, call, served.begin([prompt.ids], call.params)),
            media_type="application/x-ndjson", ping=b"", on_error=_error_line, on_failure=failure,
        )  # fmt: skip
    done = (await context.wait(request, served.complete([prompt.ids], call.params)))[0]
    thoughts, text = served.split(prompt, done.choices[0])
    answer = {**_head(served), **piece(text, thoughts), **_end(done)}
    if done.logprobs is not None:
        answer["logprobs"] = _logprobs(done.logprobs)
    return context.json(answer)


async def _stream(served: Served, call: Call, running: list[Running]) -> AsyncGenerator[bytes, None]:
    splitters = Splitters(call.prompt.thoughts)
    async with contextlib.aclosing(served.stream(running)) as chunks:
        async for _, chunk in chunks:
            thoughts, text = splitters.of(chunk)
            if text or thoughts or chunk.logprobs:
                news = {**_head(served), **call.piece(text, thoughts), "done": False}
                if chunk.logprobs is not None:
                    news["logprobs"] = _logprobs(chunk.logprobs)
                yield line(news)
            if chunk.completion is not None:
                yield line({**_head(served), **call.piece("", None), **_end(chunk.completion)})


def _logprobs(logprobs: Logprobs) -> list[dict[str, Any]]:
    return shapes.chat_entries(logprobs)


async def _load_or_unload(context: Context, body: Body, piece: dict[str, Any]) -> dict[str, Any]:
    """What a request without a prompt asks for: the model in memory, or (keep_alive 0) out of it."""
    entry = context.models.find(_name(body))
    reason = "load"
    if body.raw("keep_alive") in (0, "0", "0s") and context.models.single is None:
        await context.models.unload(entry)
        reason = "unload"
    return {"model": entry.name, "created_at": _time(time.time()), **piece, "done": True, "done_reason": reason}


def failure(error: ApiError) -> Response:
    """An error in Ollama's words."""
    return JSONReply({"error": error.message}, error.status, headers=error.headers)


def _error_line(error: ApiError) -> bytes:
    return line({"error": error.message})


def _head(served: Served) -> dict[str, Any]:
    return {"model": served.name, "created_at": _time(time.time())}


def _end(done: Completion) -> dict[str, Any]:
    times = done.timings

    def ns(seconds: float) -> int:
        return int(seconds * 1e9)

    return {
        "done": True,
        "done_reason": "length" if done.finish_reason == "length" else "stop",
        "total_duration": ns(times.queue + times.prefill + times.decode),
        "load_duration": ns(times.queue),
        "prompt_eval_count": done.usage.prompt_tokens,
        "prompt_eval_duration": ns(times.prefill),
        "eval_count": done.usage.completion_tokens,
        "eval_duration": ns(times.decode),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def _card(entry: Entry) -> dict[str, Any]:
    name = entry.name if ":" in entry.name else f"{entry.name}:latest"
    return {
        "name": name,
        "model": name,
        "modified_at": _time(entry.created),
        "size": entry.size,
        "digest": "",
        "details": _details(entry),
    }


def _details(entry: Entry) -> dict[str, Any]:
    details: dict[str, Any] = {
        "parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": "",
        "quantization_level": "",
    }  # fmt: skip
    if entry.served is not None:
        info = entry.served.llm.info
        details["family"], details["families"] = info.architecture, [info.architecture]
        details["parameter_size"] = (
            f"{info.n_params / 1e6:.0f}M" if info.n_params < 1e9 else f"{info.n_params / 1e9:.1f}B"
        )
        details["quantization_level"] = f"{info.bits_per_weight:.2f} bits"
    return details

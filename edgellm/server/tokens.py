"""/tokenize, /detokenize and /apply-template: text to ids and back, without computing anything."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from edgellm.server import conversation
from edgellm.server.context import Context
from edgellm.server.errors import invalid
from edgellm.server.fields import Body
from edgellm.server.served import Served


async def tokenize(request: Request) -> Response:
    """llama.cpp's {content, add_special, parse_special, with_pieces}, or vLLM's {prompt or messages}."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    if "messages" in body or "prompt" in body:
        return context.json(await _vllm(body, context, served))
    content = body.text("content", "")
    add = body.flag("add_special")
    parse = body.flag("parse_special", True)
    ids = await served.text(content, add_special=add, parse_special=parse) if content else []
    if not body.flag("with_pieces"):
        return context.json({"tokens": ids})
    return context.json({"tokens": [{"id": i, "piece": _piece(served, i)} for i in ids]})


async def _vllm(body: Body, context: Context, served: Served) -> dict[str, Any]:
    if "messages" in body:
        ids = (await served.conversation(conversation.read(body, context.settings))).ids
    else:
        add = body.flag("add_special_tokens", True)
        ids = await served.text(body.needed_text("prompt"), add_special=add, parse_special=True)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": served.n_ctx, "tokens": ids}
    if body.flag("return_token_strs"):
        answer["token_strs"] = [served.llm.piece(i)[0] for i in ids]
    return answer


def _piece(served: Served, token: int) -> str | list[int]:
    """A token's text, its bytes where they are no text of their own."""
    text, data = served.llm.piece(token)
    return list(data) if "\ufffd" in text and data else text


async def detokenize(request: Request) -> Response:
    """{tokens} to {content}; vLLM's clients find it as `prompt`."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    ids = body.array("tokens")
    if ids is None or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise invalid("Field 'tokens': expected an array of token ids", "tokens")
    text = await asyncio.to_thread(served.llm.text_of, ids)
    return context.json({"content": text, "prompt": text})


async def apply_template(request: Request) -> Response:
    """The text that the chat route would have the model continue."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    text = await asyncio.to_thread(served.llm.conversation_text, conversation.read(body, context.settings))
    return context.json({"prompt": text})

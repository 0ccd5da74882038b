"""The routes of the server, as an ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.datastructures import State
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from edgellm.server import (
    anthropic,
    describe,
    embeddings,
    native,
    ollama,
    openai_chat,
    openai_completions,
    pages,
    responses,
    status,
    tokens,
)
from edgellm.server.context import Context
from edgellm.server.gate import Gate
from edgellm.server.metrics import Metrics
from edgellm.server.models import Entry, Models, Open
from edgellm.server.settings import Settings

POST: dict[str, Callable[..., Any]] = {
    "/v1/chat/completions": openai_chat.chat_completions,
    "/chat/completions": openai_chat.chat_completions,
    "/v1/completions": openai_completions.completions,
    "/completions": openai_completions.completions,
    "/v1/responses": responses.responses,
    "/responses": responses.responses,
    "/v1/embeddings": embeddings.embeddings,
    "/embeddings": embeddings.embeddings,
    "/embedding": embeddings.embedding,
    "/v1/rerank": embeddings.rerank,
    "/v2/rerank": embeddings.rerank,
    "/rerank": embeddings.rerank,
    "/v1/reranking": embeddings.rerank,
    "/reranking": embeddings.rerank,
    "/v1/messages": anthropic.messages,
    "/v1/messages/count_tokens": anthropic.count_tokens,
    "/completion": native.completion,
    "/tokenize": tokens.tokenize,
    "/detokenize": tokens.detokenize,
    "/apply-template": tokens.apply_template,
    "/api/chat": ollama.chat,
    "/api/generate": ollama.generate,
    "/api/show": ollama.show,
    "/api/embed": embeddings.embed,
    "/api/embeddings": embeddings.old_embed,
}
GET: dict[str, Callable[..., Any]] = {
    "/v1/models": status.list_models,
    "/models": status.list_models,
    "/v1/models/{name:path}": status.one_model,
    "/models/{name:path}": status.one_model,
    "/health": status.health,
    "/v1/health": status.health,
    "/ping": status.health,
    "/version": status.version,
    "/metrics": status.metrics,
    "/props": status.props,
    "/slots": status.slots,
    "/api/version": ollama.version,
    "/api/tags": ollama.tags,
    "/api/ps": ollama.running,
    "/openapi.json": describe.openapi,
    "/docs": describe.docs,
    "/": pages.page,
    "/page.css": pages.page,
    "/page.js": pages.page,
    "/markdown.js": pages.page,
}


def routes() -> list[BaseRoute]:
    """Every route."""
    found: list[BaseRoute] = [Route(path, endpoint, methods=["POST"]) for path, endpoint in POST.items()]
    found += [Route(path, endpoint, methods=["GET"]) for path, endpoint in GET.items()]
    return found


class Application:
    """The routes over their context; requests reach it through a Gate."""

    def __init__(self, context: Context) -> None:
        self.state = State({"context": context})
        self._router = Router(routes(), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        scope["app"] = self
        await self._router(scope, receive, send)


def build(
    settings: Settings,
    entries: list[Entry],
    open_model: Open,
    *,
    n_parallel: int = 8,
    most_loaded: int = 1,
    wait: bool = False,
) -> tuple[ASGIApp, Context]:
    """The application for these models, and its context; the caller loads the models and closes them."""
    metrics = Metrics(settings.metrics_prefix, lambda: context.models.stats())
    models = Models(
        entries,
        open_model,
        metrics,
        n_parallel=n_parallel,
        max_queue=settings.max_queue,
        most_loaded=most_loaded,
        wait=wait,
    )
    context = Context(settings, models, metrics)
    return Gate(Application(context), settings, metrics), context

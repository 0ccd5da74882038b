"""Routes that say how the server is: models, health, version, properties, slots, metrics."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from edgellm.core.version import __version__
from edgellm.server import sampling
from edgellm.server.context import Context
from edgellm.server.errors import ApiError, not_found, unsupported
from edgellm.server.metrics import CONTENT_TYPE
from edgellm.server.models import Entry, loading_error


def model_card(entry: Entry) -> dict[str, Any]:
    """A model as OpenAI lists it, with the context sizes under the names that clients look for."""
    card: dict[str, Any] = {
        "id": entry.name,
        "object": "model",
        "created": entry.created,
        "owned_by": "edgellm",
        "aliases": list(entry.aliases),
        "meta": None,
    }
    if entry.served is not None:
        info = entry.served.llm.info
        card["meta"] = {
            "vocab_type": entry.served.llm.vocabulary_kind,
            "n_vocab": info.n_vocab,
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_params": info.n_params,
            "size": info.weight_bytes,
            "architecture": info.architecture,
            "fingerprint": entry.served.known_fingerprint,
        }
        for name in ("max_model_len", "context_length", "context_window"):
            card[name] = info.n_ctx
    return card


async def list_models(request: Request) -> Response:
    """Every model that may be named, loaded or not."""
    context = Context.of(request)
    cards = [model_card(e) for e in context.models.entries]
    # `models` is what Codex and llama.cpp's own clients look for
    return context.json(
        {"object": "list", "data": cards, "models": [{"name": c["id"], "model": c["id"]} for c in cards]}
    )


async def one_model(request: Request) -> Response:
    """One of them."""
    context = Context.of(request)
    name = request.path_params["name"]
    entry = context.models.named(name)
    if entry is not None:
        return context.json(model_card(entry))
    raise not_found(f"model {name!r:.120} is not here: see /v1/models", "model")


async def health(request: Request) -> Response:
    """200 when requests can be answered, 503 while the model is loaded or the server stops."""
    context = Context.of(request)
    if context.draining:
        raise ApiError("unavailable_error", "the server is shutting down", retry=5)
    entry = context.models.single
    if entry is not None and entry.served is None:
        if entry.error is not None and entry.loading is None:
            raise ApiError("unavailable_error", f"{entry.name} cannot be loaded: {entry.error}", retry=60)
        raise loading_error(entry)
    return context.json({"status": "ok"})


async def version(request: Request) -> Response:
    """The release."""
    return Context.of(request).json({"version": __version__})


async def metrics(request: Request) -> Response:
    """Prometheus' page."""
    context = Context.of(request)
    if not context.settings.metrics:
        raise unsupported("metrics", "the metrics are switched off: start the server with --metrics")
    return Response(context.metrics.text(), headers={"content-type": CONTENT_TYPE})


async def props(request: Request) -> Response:
    """llama.cpp's description of a model."""
    context = Context.of(request)
    served = await context.models.get(request.query_params.get("model"))
    info = served.llm.info
    bos, eos = served.llm.bos_eos
    params = sampling.effective(context.settings.defaults, served.llm.sampling_defaults)
    return context.json(
        {
            "default_generation_settings": {"params": params, "n_ctx": info.n_ctx},
            "total_slots": served.n_parallel,
            "model_alias": served.name,
            "model_path": info.path.rpartition("/")[2],  # the folder is nobody's business
            "chat_template": served.llm.template_source,
            "chat_template_caps": {},
            "modalities": {"vision": False, "audio": False},
            "bos_token": bos,
            "eos_token": eos,
            "build_info": f"edgellm {__version__}",
            "system_fingerprint": served.known_fingerprint,
            "is_sleeping": False,
        }
    )


async def slots(request: Request) -> Response:
    """The places for sequences, without what is in them: prompts are their senders' own."""
    context = Context.of(request)
    if not context.settings.slots:
        raise unsupported("slots", "the slots are not shown: start the server with --slots")
    served = await context.models.get(request.query_params.get("model"))
    busy = served.llm.stats.running
    if request.query_params.get("fail_on_no_slot") and busy >= served.n_parallel:
        raise ApiError("unavailable_error", "no slot is free", retry=1)
    rows = [{"id": i, "n_ctx": served.n_ctx, "is_processing": i < busy} for i in range(served.n_parallel)]
    return context.json(rows)

"""POST /v1/embeddings, and Ollama's /api/embed: vectors of texts."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from edgellm.core.types import F32
from edgellm.server.context import Context
from edgellm.server.errors import invalid, unsupported
from edgellm.server.fields import Body
from edgellm.server.openai_completions import read_prompts
from edgellm.server.served import Served

MOST_NORM = 1000

POOLINGS = ("mean", "last", "cls", "none")
"""How texts become vectors; "none": one vector a token, which only /embedding can answer with."""


async def embeddings(request: Request) -> Response:
    """Vectors as numbers, or as base64 of little-endian float32, which openai's client asks for."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    form = body.text("encoding_format", "float")
    if form not in ("float", "base64"):
        raise invalid(f"Field 'encoding_format': must be float or base64, found {form!r:.40}", "encoding_format")
    prompts = await read_prompts(body, served, "input" if "input" in body or "content" not in body else "content")
    vectors = await _vectors(request, context, served, body, prompts)
    rows = [
        {"object": "embedding", "index": i, "embedding": _base64(v) if form == "base64" else v.tolist()}
        for i, v in enumerate(vectors)
    ]
    n = sum(map(len, prompts))
    usage = {"prompt_tokens": n, "total_tokens": n}
    return context.json({"object": "list", "model": served.name, "data": rows, "usage": usage})


async def embedding(request: Request) -> Response:
    """llama.cpp's own: for each text a list of vectors, which are one for each token with pooling "none"."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body)
    prompts = await read_prompts(body, served, "content" if "content" in body or "input" not in body else "input")
    if _pooling(context, body) == "none":
        rows = await context.wait(request, served.embed_tokens(prompts))
    else:
        rows = [v[np.newaxis] for v in await _vectors(request, context, served, body, prompts)]
    return context.json([{"index": i, "embedding": v.tolist()} for i, v in enumerate(rows)])


async def rerank(request: Request) -> Response:
    """501, with words about what is needed: none of the model families here has a reranker's head."""
    context = Context.of(request)
    body = await context.body(request)
    await context.model(request, body)
    body.needed_text("query")
    name = "documents" if "documents" in body or "texts" not in body else "texts"
    documents = body.array(name)
    if not documents or not all(isinstance(d.get("text") if isinstance(d, dict) else d, str) for d in documents):
        raise invalid(f"Field '{name}': expected a non-empty array of texts", name)
    raise unsupported("query", "this model has no reranker's head, and this release reads none: compare the vectors of "
                      "/v1/embeddings instead")  # fmt: skip


async def embed(request: Request) -> Response:
    """Ollama's: the vectors of a text or of several."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body, body.needed_text("model"))
    prompts = await read_prompts(body, served, "input")
    vectors = await _vectors(request, context, served, body, prompts)
    counts = {"prompt_eval_count": sum(map(len, prompts)), "total_duration": 0, "load_duration": 0}
    return context.json({"model": served.name, "embeddings": [v.tolist() for v in vectors], **counts})


async def old_embed(request: Request) -> Response:
    """Ollama's older route: the vector of one text."""
    context = Context.of(request)
    body = await context.body(request)
    served = await context.model(request, body, body.needed_text("model"))
    prompts = await read_prompts(body, served)
    if len(prompts) != 1:
        raise invalid("Field 'prompt': expected one text", "prompt")
    vectors = await _vectors(request, context, served, body, prompts)
    return context.json({"embedding": vectors[0].tolist()})


def _pooling(context: Context, body: Body) -> str | None:
    """How texts are pooled; None: as the file says."""
    pooling = body.text("pooling", context.settings.pooling)
    if pooling is not None and pooling not in POOLINGS:
        raise invalid(f"Field 'pooling': must be one of {', '.join(POOLINGS)}, found {pooling!r:.40}", "pooling")
    return pooling


async def _vectors(request: Request, context: Context, served: Served, body: Body, prompts: list[list[int]]) -> F32:
    """float32 [N, D], cut to `dimensions` and normalised as the request says. Raises ApiError, RequestError."""
    pooling = _pooling(context, body)
    if pooling == "none":
        raise invalid(
            "Field 'pooling': none gives a vector for each token, which only /embedding answers with", "pooling"
        )
    norm, wanted = body.integer("embd_normalize", 2), body.integer("dimensions")
    if norm is not None and not -1 <= norm <= MOST_NORM:
        raise invalid(f"Field 'embd_normalize': must be from -1 to {MOST_NORM}, found {norm!s:.20}", "embd_normalize")
    vectors: F32 = await context.wait(request, served.embed(prompts, pooling))
    size = vectors.shape[1]
    if wanted is not None:
        if not 1 <= wanted <= size:
            raise invalid(f"Field 'dimensions': must be from 1 to {size}, found {wanted}", "dimensions")
        vectors = vectors[:, :wanted]
    return normalised(vectors, 2 if norm is None else norm)


def normalised(vectors: F32, norm: int) -> F32:
    """Rows divided by their norm: -1 none, 0 the largest magnitude becomes 32760, 1 sum of magnitudes, 2 Euclid, p."""
    if norm < 0:
        return vectors
    wide = vectors.astype(np.float64)
    most = np.abs(wide).max(axis=1, keepdims=True)
    shares: Any = np.divide(np.abs(wide), most, out=np.zeros_like(wide), where=most > 0)  # whose powers cannot overflow
    lengths = most / 32760.0 if norm == 0 else most * (shares**norm).sum(axis=1, keepdims=True) ** (1.0 / norm)
    rows: Any = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return np.asarray(rows, np.float32)


def _base64(vector: F32) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode("ascii")

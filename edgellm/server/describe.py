"""The API described: /openapi.json (OpenAPI 3.1), and /docs, a page made from it."""

from __future__ import annotations

import html
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from edgellm.core.version import __version__
from edgellm.server.context import Context
from edgellm.server.pages import POLICY

_STRING, _INTEGER, _NUMBER, _FLAG = ({"type": t} for t in ("string", "integer", "number", "boolean"))
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {"oneOf": [_STRING, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
        },
        "required": ["role"],
    },
}
_IDS = {"type": "array", "items": _INTEGER, "minItems": 1}
_PROMPT = {"oneOf": [_STRING, _IDS, {"type": "array", "minItems": 1, "items": {"oneOf": [_STRING, _IDS]}}]}
_SAMPLING: dict[str, Any] = {
    "model": _STRING,
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": 0},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repeat_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "seed": _INTEGER,
    "stop": {"oneOf": [_STRING, {"type": "array", "items": _STRING}]},
    "max_tokens": {"type": "integer", "minimum": -1},
    "logit_bias": {"type": "object", "additionalProperties": _NUMBER},
    "stream": _FLAG,
}
_OPENAI = {
    **_SAMPLING,
    "n": {"type": "integer", "minimum": 1, "maximum": 128},
    "stream_options": {"type": "object", "properties": {"include_usage": _FLAG}},
}


def _body(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required)}


ROUTES: tuple[tuple[str, str, str, dict[str, Any] | None], ...] = (
    ("post", "/v1/chat/completions", "Answer a conversation",
     _body(("messages",), messages=_MESSAGES, **_OPENAI, logprobs=_FLAG,
           top_logprobs={"type": "integer", "minimum": 0, "maximum": 20}, tools={"type": "array"},
           chat_template_kwargs={"type": "object"}, max_completion_tokens=_INTEGER)),
    ("post", "/v1/completions", "Continue text",
     _body(("prompt",), prompt=_PROMPT, **_OPENAI, echo=_FLAG, suffix=_STRING,
           logprobs={"type": "integer", "minimum": 0, "maximum": 20})),
    ("post", "/v1/responses", "Answer an input, without memory between requests",
     _body(("input",), input={"oneOf": [_STRING, {"type": "array"}]}, instructions=_STRING,
           max_output_tokens=_INTEGER, temperature=_NUMBER, stream=_FLAG)),
    ("post", "/v1/embeddings", "Vectors of texts",
     _body(("input",), input=_PROMPT, encoding_format={"enum": ["float", "base64"]}, dimensions=_INTEGER)),
    ("post", "/embedding", "llama.cpp: vectors of texts, or of their tokens",
     _body(("content",), content=_PROMPT, pooling={"enum": ["mean", "last", "cls", "none"]})),
    ("post", "/v1/rerank", "Not in this release (501)",
     _body(("query", "documents"), query=_STRING, documents={"type": "array"})),
    ("post", "/v1/messages", "Anthropic: answer a conversation",
     _body(("messages",), messages={"type": "array"}, system={}, max_tokens=_INTEGER, temperature=_NUMBER,
           stop_sequences={"type": "array", "items": _STRING}, stream=_FLAG)),
    ("post", "/v1/messages/count_tokens", "Anthropic: the length of a prompt", _body(messages={"type": "array"})),
    ("get", "/v1/models", "The models", None),
    ("get", "/v1/models/{name}", "One model", None),
    ("post", "/completion", "llama.cpp: continue text",
     _body(("prompt",), prompt=_PROMPT, **_SAMPLING, n_predict=_INTEGER, n_probs=_INTEGER, return_tokens=_FLAG)),
    ("post", "/tokenize", "Text to token ids", _body(content=_STRING, add_special=_FLAG, with_pieces=_FLAG)),
    ("post", "/detokenize", "Token ids to text", _body(("tokens",), tokens={"type": "array", "items": _INTEGER})),
    ("post", "/apply-template", "The prompt of a conversation", _body(("messages",), messages=_MESSAGES)),
    ("post", "/api/chat", "Ollama: answer a conversation",
     _body(("model",), model=_STRING, messages={"type": "array"}, stream=_FLAG, options={"type": "object"})),
    ("post", "/api/generate", "Ollama: answer a prompt",
     _body(("model",), model=_STRING, prompt=_STRING, system=_STRING, raw=_FLAG, stream=_FLAG)),
    ("post", "/api/embed", "Ollama: vectors of texts", _body(("model", "input"), model=_STRING, input=_PROMPT)),
    ("post", "/api/embeddings", "Ollama: the vector of a text",
     _body(("model", "prompt"), model=_STRING, prompt=_STRING)),
    ("post", "/api/show", "Ollama: what a model is", _body(("model",), model=_STRING)),
    ("get", "/api/tags", "Ollama: the models", None),
    ("get", "/api/ps", "Ollama: the models in memory", None),
    ("get", "/api/version", "Ollama: the release", None),
    ("get", "/health", "Whether requests can be answered", None),
    ("get", "/version", "The release", None),
    ("get", "/props", "Properties of the model", None),
    ("get", "/slots", "Places for sequences", None),
    ("get", "/metrics", "Figures for Prometheus", None),
)  # fmt: skip
"""Method, path, summary and the schema of the body. Fields that are not listed are ignored or refused by name."""

FAILURES = {"400": "wrong request", "401": "no key", "403": "not from here", "404": "not here", "405": "wrong method",
            "413": "too long", "501": "not in this release", "503": "later"}  # fmt: skip


def schema() -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, Any] = {}
    for method, path, summary, body in ROUTES:
        operation: dict[str, Any] = {
            "summary": summary,
            "operationId": f"{method}_{path.strip('/').replace('/', '_').replace('{', '').replace('}', '')}",
            "responses": {"200": {"description": "done"}, **{c: {"description": t} for c, t in FAILURES.items()}},
        }
        if "{name}" in path:
            operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _STRING}]
        if body is not None:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgellm", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


async def openapi(request: Request) -> Response:
    """The document."""
    return Context.of(request).json(schema())


async def docs(request: Request) -> Response:
    """The same for people."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<title>edgellm: API</title><link rel=stylesheet href=page.css>"
        "<body class=docs><main id=log><h1>API</h1><p><a href=openapi.json>openapi.json</a></p>"
    ]
    for method, path, summary, body in ROUTES:
        parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(summary)}</p>")
        if body is not None:
            fields = body["properties"]
            needed = set(body["required"])
            rows = "".join(
                f"<li><code>{html.escape(n)}</code> {html.escape(_kind(kind))}{', required' if n in needed else ''}"
                for n, kind in fields.items()
            )
            parts.append(f"<ul>{rows}</ul>")
    page = "".join(parts) + "</main>"
    return Response(page, media_type="text/html; charset=utf-8", headers={"content-security-policy": POLICY})


def _kind(kind: dict[str, Any]) -> str:
    if "oneOf" in kind:
        return " or ".join(dict.fromkeys(_kind(k) for k in kind["oneOf"]))
    if "enum" in kind:
        return " or ".join(kind["enum"])
    low, high = kind.get("minimum"), kind.get("maximum")
    bounds = f" from {low}" if low is not None else ""
    bounds += f" to {high}" if high is not None else ""
    return str(kind.get("type", "any")) + bounds

"""One question to a running server: what `edgellm ps` and `edgellm stop` need."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from edgellm.core import env
from edgellm.core.errors import EdgeLLMError, EngineError, RequestError

DEFAULT_URL = "http://127.0.0.1:8080"

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this machine


def call(url: str, path: str, body: Any = None) -> Any:
    """The JSON that a route answers to a GET, or with a body to a POST; the key is EDGELLM_API_KEY.

    url: the server's address, with or without /v1. Raises RequestError, EngineError.
    """
    address = url.rstrip("/").removesuffix("/v1")
    if not address.startswith(("http://", "https://")):
        address = f"http://{address}"
    headers = {"content-type": "application/json"}
    if key := env.API_KEY.get():
        headers["authorization"] = f"Bearer {key.partition(',')[0]}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with _direct.open(urllib.request.Request(address + path, data, headers)) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as e:
        with e:
            raise _error(e.code, e.read()) from None
    except (OSError, ValueError) as e:
        raise EngineError(
            f"no server answers at {address}: {getattr(e, 'reason', e)}. Start one with `edgellm serve`, or give its "
            f"address with --url"
        ) from None


def _error(status: int, raw: bytes) -> EdgeLLMError:
    """What a server's error is here."""
    try:
        error = json.loads(raw)["error"]
    except (ValueError, KeyError, TypeError):
        error = f"the server answered {status}"
    text = error.get("message", "") if isinstance(error, dict) else error
    return RequestError(str(text)) if 400 <= status < 500 else EngineError(str(text))

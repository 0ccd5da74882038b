"""What stands before every route: request ids, who may come in, the log, and errors that nothing else caught."""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import secrets
import time
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgellm.server import errors
from edgellm.server.errors import ApiError
from edgellm.server.metrics import Metrics
from edgellm.server.settings import Settings
from edgellm.server.stream import ClientGone, JSONReply, failure

log = logging.getLogger("edgellm.server.access")

OPEN_PATHS = frozenset(
    ("/health", "/v1/health", "/ping", "/", "/page.css", "/page.js", "/markdown.js", "/docs", "/openapi.json")
)
"""Paths that need no key."""

LOCAL_NAMES = frozenset(("localhost", "host.docker.internal", "ip6-localhost"))
METHODS = "GET, POST, DELETE, OPTIONS"
HEADERS = "authorization, content-type, x-api-key, x-request-id, anthropic-version, anthropic-beta, openai-organization"


class Gate:
    """The outermost ASGI application: everything that comes in passes here, and everything that goes out.

    A web page may call when it comes from this server, from this machine, or from an origin of the settings; other
    pages are refused whatever they ask for, so that visiting one cannot make this machine work. Where the port is only
    this machine's, names in the Host header that are not this machine's are refused too (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.monotonic()
        headers = Headers(scope=scope)
        scope = {**scope, "path": _tidy(scope["path"], self._settings.root_path)}
        request_id = headers.get("x-request-id", "")[:128] or secrets.token_hex(8)
        if not (request_id.isascii() and request_id.isprintable()):
            request_id = secrets.token_hex(8)
        origin = headers.get("origin")
        extra = [(b"x-request-id", request_id.encode())]
        allowed = origin is not None and self._origin_allowed(origin, headers.get("host", ""))
        if origin is not None and allowed:
            extra += self._cors(origin)
        status = 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            self._admit(scope, headers, origin, allowed)
            if scope["method"] == "OPTIONS":
                await _preflight(send_on)
            else:
                await self._app(scope, receive, send_on)
        except ClientGone:
            status = status or 499
        except Exception as e:
            error = _of_http(e) if isinstance(e, HTTPException) else errors.of(e)
            if error.status == 500 and not isinstance(e, ApiError):
                logging.getLogger(__name__).error("%s %s failed", scope["method"], scope["path"], exc_info=e)
            if status:
                raise
            await failure_at(scope["path"], error)(scope, receive, send_on)
        finally:
            self._metrics.requests.labels(_label(scope), str(status)).inc()
            if self._settings.log_requests:
                self._log(scope, status, request_id, time.monotonic() - begin)

    def _admit(self, scope: Scope, headers: Headers, origin: str | None, allowed: bool) -> None:
        """Raise ApiError for who may not come in."""
        host = headers.get("host", "")
        if not self._host_allowed(host):
            raise ApiError(
                "permission_error",
                f"the name {_hostname(host)!r:.80} in the Host header is not this server's: allow it with "
                f"--allowed-hosts",
            )
        if origin is not None and not allowed:
            raise ApiError(
                "permission_error",
                f"pages of {origin!r:.120} may not use this server: allow them with --cors-origins",
            )
        if self._keys and scope["method"] != "OPTIONS" and scope["path"] not in OPEN_PATHS:
            scope["edgellm.key"] = self._check_key(headers)

    def _check_key(self, headers: Headers) -> str:
        """Which key a request has, as the number of its place. Raises ApiError (401) for none of them."""
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        candidates = [token.strip() if scheme.lower() == "bearer" else given, headers.get("x-api-key", "")]
        right = -1
        for candidate in candidates:
            for i, key in enumerate(self._keys):
                if hmac.compare_digest(candidate.encode("latin-1", "replace"), key):
                    right = i
        if right < 0:
            raise ApiError("authentication_error", "Invalid API Key", headers={"www-authenticate": "Bearer"})
        return str(right)

    def _host_allowed(self, host: str) -> bool:
        settings = self._settings
        name = _hostname(host)
        if not host or "*" in settings.allowed_hosts or name in settings.allowed_hosts:
            return True
        if _is_local_name(name) or _is_address(name) or name == settings.host:
            return True
        return not settings.is_local and not settings.allowed_hosts

    def _origin_allowed(self, origin: str, host: str) -> bool:
        settings = self._settings
        if "*" in settings.cors_origins or origin in settings.cors_origins:
            return True
        try:
            parts = urlsplit(origin)
            name = (parts.hostname or "").lower()
        except ValueError:
            return False
        if parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower():
            return True
        return parts.scheme in ("http", "https") and (name == "localhost" or name.endswith(".localhost") or (
            _is_address(name) and ipaddress.ip_address(name).is_loopback))  # fmt: skip

    def _cors(self, origin: str) -> list[tuple[bytes, bytes]]:
        settings = self._settings
        anyone = "*" in settings.cors_origins
        found = [
            (b"access-control-allow-origin", b"*" if anyone else origin.encode("latin-1", "replace")),
            (b"access-control-allow-methods", METHODS.encode()),
            (b"access-control-allow-headers", b"*" if anyone else HEADERS.encode()),
            (b"access-control-expose-headers", b"x-request-id"),
            (b"access-control-max-age", b"600"),
            (b"vary", b"origin"),
        ]
        if settings.cors_credentials and not anyone:
            found.append((b"access-control-allow-credentials", b"true"))
        return found

    def _log(self, scope: Scope, status: int, request_id: str, seconds: float) -> None:
        client = (scope.get("client") or ("local",))[0]
        method, path = scope["method"], scope["path"][:200]
        if self._settings.log_json:
            record: dict[str, Any] = {
                "time": time.time(), "client": client, "method": method, "path": path, "status": status,
                "seconds": round(seconds, 4), "request_id": request_id,
            }  # fmt: skip
            log.info("%s", json.dumps(record))
        else:
            log.info(
                "%s %s %s %d %.0f ms %s", client, method, json.dumps(path)[1:-1], status, seconds * 1e3, request_id
            )


def failure_at(path: str, error: ApiError) -> Response:
    """An error in the words of the dialect that a path belongs to."""
    if path.startswith("/v1/messages"):
        return JSONReply(error.anthropic_body(), error.status, headers=error.headers)
    if path.startswith("/api/"):
        return JSONReply({"error": error.message}, error.status, headers=error.headers)
    return failure(error)


def _of_http(e: HTTPException) -> ApiError:
    if e.status_code == 405:
        headers = {"allow": (e.headers or {}).get("Allow", "")}
        return ApiError("invalid_request_error", "this path does not know that method", status=405, headers=headers)
    return ApiError("not_found_error", "there is nothing under this path: see /docs", status=e.status_code)


async def _preflight(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", METHODS.encode())]})
    await send({"type": "http.response.body", "body": b""})


def _tidy(path: str, root: str) -> str:
    """A path without a prefix, doubled slashes and a slash at its end: clients put addresses together carelessly."""
    if path.startswith(("http://", "https://")):  # as a proxy is asked
        path = "/" + path.partition("://")[2].partition("/")[2]
    if root and path.startswith(root):
        path = path[len(root) :]
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/"


def _label(scope: Scope) -> str:
    """The route for the books: only ones that exist, so that nobody can make up labels."""
    return getattr(scope.get("endpoint"), "__name__", "other")


def _hostname(host: str) -> str:
    """The name in a Host header, without the port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_local_name(name: str) -> bool:
    import socket

    return name in LOCAL_NAMES or name.endswith(".localhost") or name == socket.gethostname().lower()

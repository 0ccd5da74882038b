"""Running the application: the socket, the signals, and an end that lets running answers finish."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgellm.core.errors import ConfigError
from edgellm.server.context import Context
from edgellm.server.errors import ApiError
from edgellm.server.served import Served
from edgellm.server.settings import Settings

log = logging.getLogger(__name__)

STOPPING = ApiError("unavailable_error", "the server is shutting down", retry=5)
GRACE = 5.0
"""Seconds that streams get to send their last event."""


class Protocol(H11Protocol):
    """uvicorn's, without connections that never say what they want: they would use up what the process may open."""

    head_seconds = 30.0

    @classmethod
    def within(cls, seconds: float) -> type[Protocol]:
        """The same with another limit for the first request's head."""
        return type("Protocol", (cls,), {"head_seconds": seconds})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection."""
        super().connection_made(transport)
        self._waiting = self.loop.call_later(self.head_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of it: the timer would keep all of it in memory."""
        self._waiting.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if getattr(self, "cycle", None) is None:  # no request has come yet
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn, with an end that is ours: SIGTERM and Ctrl-C let answers finish for a while, then end their streams with
    an error event. A second signal does not wait. The process ends with 0 either way."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context
        self._ending: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM while the server runs."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self.handle_exit) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, let those that run finish, end what takes too long."""
        context = self._context
        context.draining = True
        n = len(context.open_replies)
        if n:
            log.info("stopping: %d answers are being streamed", n)
        ending = asyncio.ensure_future(self._end_streams(context.settings.drain_seconds))
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_streams(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end and not self.force_exit:
            await asyncio.sleep(0.05)
        for reply in list(self._context.open_replies):
            reply.abort(STOPPING)


def bind(settings: Settings) -> socket.socket:
    """The socket to listen on. Raises ConfigError, with a way out, where that cannot be had."""
    if settings.uds is not None:
        return _bind_unix(settings.uds)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as e:
        raise ConfigError(f"--host {settings.host}: {e.strerror or e}") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {settings.port} is in use by another program: choose another with --port, for example "
                f"--port {_free_port(family, str(address[0]), settings.port)}"
            ) from None
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {e.strerror or e}") from None
    sock.listen(512)
    return sock


def _free_port(family: int, host: str, taken: int) -> int:
    for port in range(taken + 1, min(taken + 100, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    return 0


def _bind_unix(path: str) -> socket.socket:
    if Path(path).is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except OSError:
                os.unlink(path)  # left by a server that was killed
            else:
                raise ConfigError(f"--uds {path}: another server listens there")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, 0o600)
    except OSError as e:
        sock.close()
        raise ConfigError(f"--uds {path}: {e.strerror or e}") from None
    sock.listen(512)
    return sock


def address_of(sock: socket.socket, settings: Settings) -> str:
    """Where to reach the server, for people."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host, port = sock.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.ssl_cert is None else "https"
    return f"{scheme}://{host}:{port}"


def new_server(app: ASGIApp, context: Context) -> Server:
    """A server for an application; set its `should_exit` to end it as a signal does."""
    settings = context.settings
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        http=Protocol.within(settings.head_seconds),
        proxy_headers=False,
        timeout_keep_alive=75,
        ssl_keyfile=settings.ssl_key,
        ssl_certfile=settings.ssl_cert,
        timeout_graceful_shutdown=int(settings.drain_seconds + GRACE),
    )
    return Server(config, context)


async def serve_until_told(server: Server, context: Context, sock: socket.socket) -> None:
    """Serve until the server is told to end. Where there is one model, it is loaded first, and its failure ends it."""
    entry = context.models.single

    def loaded(task: asyncio.Task[Served]) -> None:
        if not task.cancelled() and task.exception() is not None:
            server.should_exit = True  # nothing to serve

    if entry is not None:
        context.models.load(entry).add_done_callback(loaded)
    try:
        await server.serve(sockets=[sock])
    finally:
        await context.models.close()
        if context.settings.uds is not None:
            with contextlib.suppress(OSError):
                os.unlink(context.settings.uds)


def _is_news(record: logging.LogRecord) -> bool:
    """False for what asyncio says of every event after the fifth that goes to a client that has just left."""
    return record.msg != "socket.send() raised exception."


def run(app: ASGIApp, context: Context, sock: socket.socket) -> int:
    """Serve until a signal ends it; the exit code. Raises what is wrong with the only model."""
    logging.getLogger("asyncio").addFilter(_is_news)
    asyncio.run(serve_until_told(new_server(app, context), context, sock))
    entry = context.models.single
    if entry is not None and isinstance(entry.error, Exception):
        raise entry.error
    return 0

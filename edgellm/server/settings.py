"""What a server was told when it was started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgellm.core.config import SamplingParams
from edgellm.core.record import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a server, checked.

    host, port: where it listens; uds: a unix socket instead.
    api_keys: any of them opens the routes; none = open to all who reach the port.
    cors_origins: origins of web pages that may call, beside its own and those on this machine; "*" = any.
    allowed_hosts: names in the Host header that count, beside addresses and this machine's; "*" = any.
    max_queue: requests that may wait beyond those that are computed. max_body: bytes of a request.
    head_seconds: how long a new connection may take to say what it wants; body_seconds: silence within a body.
    ping_seconds: silence on a stream after which a comment is sent; 0 = never.
    drain_seconds: how long running requests may go on after SIGTERM.
    defaults: sampling parameters for what a request leaves open. template_variables: the same for chat templates.
    reasoning: whether thoughts are told apart from answers, where a request does not say.
    pooling: how texts are pooled to vectors, where neither a request nor (None) the file says.
    prefill_assistant: whether a trailing assistant message is continued. include_usage: streams always end with counts.
    root_path: a prefix of every path.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    cors_credentials: bool = False
    allowed_hosts: tuple[str, ...] = ()
    max_queue: int = 512
    max_body: int = 16 << 20
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    ping_seconds: float = 15.0
    drain_seconds: float = 30.0
    defaults: SamplingParams = field(default_factory=SamplingParams)
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    reasoning: bool = True
    pooling: str | None = None
    prefill_assistant: bool = True
    include_usage: bool = False
    root_path: str = ""
    metrics: bool = True
    metrics_prefix: str = "edgellm"
    slots: bool = True
    page: bool = True
    log_json: bool = False
    log_requests: bool = True
    ssl_key: str | None = None
    ssl_cert: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the port."""
        return self.uds is not None or self.host in ("localhost", "::1") or self.host.startswith("127.")

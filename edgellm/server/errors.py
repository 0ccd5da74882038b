"""What goes wrong with a request, as an HTTP status and a body that OpenAI's clients understand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgellm.core.errors import (
    CapacityError,
    ContextOverflow,
    EdgeLLMError,
    ModelNotFound,
    RequestError,
    TokenizerError,
)

STATUS = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "server_error": 500,
    "not_supported_error": 501,
    "unavailable_error": 503,
}
"""Kind of error -> its status where nothing else is said."""


class ApiError(Exception):
    """A request that cannot be answered.

    kind: one of STATUS. param: the field that is to blame. code: OpenAI's word for it, the status where there is none.
    more: further members of the error object. retry: seconds after which another try makes sense.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        code: str | int | None = None,
        more: Mapping[str, Any] | None = None,
        retry: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.param = kind, message, param
        self.status = STATUS[kind] if status is None else status
        self.code = self.status if code is None else code
        self.more = dict(more or {})
        self.headers = dict(headers or {})
        if retry is not None:
            self.headers["retry-after"] = str(retry)
        if self.status >= 500 and retry is None:
            self.headers["x-should-retry"] = "false"  # the same request would fail the same way

    def body(self) -> dict[str, Any]:
        """OpenAI's error object; `code` is llama.cpp's number where OpenAI has no word."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code, **self.more}
        return {"error": error}

    def anthropic_body(self) -> dict[str, Any]:
        """Anthropic's error object."""
        kind = _ANTHROPIC.get(self.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


_ANTHROPIC = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
              429: "rate_limit_error", 500: "api_error", 503: "overloaded_error"}  # fmt: skip


def invalid(message: str, param: str | None = None) -> ApiError:
    """400: the client's fault."""
    return ApiError("invalid_request_error", message, param=param)


def unsupported(param: str, message: str | None = None) -> ApiError:
    """501: a field that is understood, but needs what this release does not do."""
    text = message or f"'{param}' is not supported in this release: leave it out"
    return ApiError("not_supported_error", text, param=param)


def not_found(message: str, param: str | None = None) -> ApiError:
    """404."""
    return ApiError("not_found_error", message, param=param)


def of(error: BaseException) -> ApiError:
    """Any exception as an ApiError: typed errors keep their words, anything else is a 500 without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflow):
        return ApiError(
            "exceed_context_size_error",
            f"{error} Please reduce the length of the messages.",
            code="context_length_exceeded",
            more={"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx},
        )
    if isinstance(error, RequestError | TokenizerError):
        return invalid(str(error), _field_of(str(error)))
    if isinstance(error, ModelNotFound):
        return not_found(str(error))
    if isinstance(error, CapacityError):
        return ApiError("unavailable_error", str(error), retry=5)
    if isinstance(error, EdgeLLMError):
        return ApiError("server_error", str(error))
    return ApiError("server_error", "the server failed: its log has the reason")


def _field_of(message: str) -> str | None:
    """The field that a message of ours begins with: "temperature must be ..." -> "temperature"."""
    word = message.split(maxsplit=1)[0].rstrip(":") if message else ""
    name = word.partition("[")[0]
    return word if name.isidentifier() and (name == "messages" or "_" in name or name in _FIELDS) else None


_FIELDS = frozenset("temperature seed stop n logprobs mirostat tools prompt logit_bias".split())
